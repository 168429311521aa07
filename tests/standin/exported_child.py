"""Runs exported scripts (or programs, compiled as libraries) one after the other on the stand-in, in one process.

Reads lines {"path", "case"} from the file of the first argument and writes lines {"code", "calls", "differences"} to the second.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import runpy
import sys

from fiafuzz.model.case import case_from_dict
from tests.standin import exported_host


class Left(BaseException):
    """A script has ended."""


def leave(code: int) -> None:
    """Stands for os._exit."""
    raise Left(code)


def run(path: str) -> int:
    """The exit code of one script or library."""
    if path.endswith(".so"):
        words = (ctypes.c_char_p * 2)(path.encode(), None)
        return int(ctypes.CDLL(path).main(ctypes.c_int(1), words))
    real, os._exit = os._exit, leave  # type: ignore[assignment]
    try:
        runpy.run_path(path, run_name="__main__")
    except Left as left:
        return int(left.args[0])
    finally:
        os._exit = real
        faulthandler.cancel_dump_traceback_later()
    return 99


with open(sys.argv[1], encoding="utf-8") as jobs, open(sys.argv[2], "w", encoding="utf-8") as answers:
    for line in jobs:
        job = json.loads(line)
        exported_host.WANTED[:] = [case_from_dict(job["case"])]
        exported_host.DIFFERENCES.clear()
        exported_host.CALLS.clear()
        code = run(job["path"])
        answers.write(json.dumps({"code": code, "calls": exported_host.CALLS, "differences": exported_host.DIFFERENCES}) + "\n")
        answers.flush()
sys.stdout.flush()
os._exit(0)
