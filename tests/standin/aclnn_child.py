"""A process that calls the aclnn backend on the stand-in for the tests: one JSON line in, one JSON line out.

Started by ``Child`` below, since a process has one SoC, one CANN and one runtime for its whole life.
"""

from __future__ import annotations

import base64
import ctypes
import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Child:
    """The parent's side. ``log`` is the stand-in's record of calls."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._read = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.standin.aclnn_child"],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> Any:
        """One question and its answer; EOFError when the process is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"the child has ended with {self._process.wait()}")
        return json.loads(line)

    def run(self, case: Any, backend: str = "aclnn", **more: Any) -> Any:
        """The outcome of one case, as a dict."""
        from fiafuzz.model.case import case_to_dict

        return self.ask(op="run", backend=backend, case=case_to_dict(case), **more)

    def calls(self) -> list[Any]:
        """The first phases that were recorded since the last look."""
        if not self.log.exists():
            return []
        with open(self.log, encoding="utf-8") as log:
            log.seek(self._read)
            lines = log.readlines()
            self._read = log.tell()
        return [found for found in map(json.loads, lines) if found["event"] == "workspace"]

    def close(self) -> int:
        """Let the process end by itself; its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(60)


# ---- the child's side ------------------------------------------------------------------------------------------------


def answer(question: dict[str, Any]) -> Any:
    """What the child does when it is asked."""
    from fiafuzz.backends.protocol import BackendUnavailable

    operation = question.pop("op")
    try:
        return {"run": _run, "info": _info, "live": _live, "env": _env, "leak": _leak}[operation](**question)
    except BackendUnavailable as error:
        return {"unavailable": str(error)}
    except Exception:
        return {"kind": "raised", "message": traceback.format_exc()}


def _backend(name: str) -> Any:
    from fiafuzz.backends.registry import get_backend

    return get_backend(name)


def _info(backend: str) -> Any:
    info = _backend(backend).info
    return {"name": info.name, "checks": info.checks, "versions": dict(info.versions), "profiles": info.profiles, "devices": info.devices}


def _env(**settings: str) -> Any:
    os.environ.update(settings)
    return {}


def _live(*more: str) -> Any:
    library = ctypes.CDLL("libascendcl.so")
    library.standin_live.argtypes, library.standin_live.restype = (ctypes.c_char_p,), ctypes.c_longlong
    names = ["tensors", "lists", "int_arrays", "scalars", "executors", "blocks", "bytes", "host_blocks", "streams", "events"]
    return {name: library.standin_live(name.encode()) for name in (*names, *more)}


def _run(thread: bool = False, refuse: Any = None, **question: Any) -> Any:
    if refuse:
        with _refusing(*refuse):
            return _run_here(**question)
    if not thread:
        return _run_here(**question)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_run_here, **question).result()


@contextmanager
def _refusing(maker: str, after: int) -> Iterator[None]:
    """One of the functions that make handles gives none after so many calls."""
    from fiafuzz.backends.aclnn import machine

    makers = machine().makers
    real, calls = getattr(makers, maker), itertools.count()
    setattr(makers, maker, lambda *arguments: None if next(calls) >= after else real(*arguments))
    try:
        yield
    finally:
        setattr(makers, maker, real)


def _run_here(
    backend: str, case: dict[str, Any], blind: bool = False, values: bool = False, outputs: bool = False, keep: int = 64 << 20
) -> Any:
    from fiafuzz.backends import aclnn, aclnn_runtime
    from fiafuzz.model.case import case_from_dict
    from fiafuzz.model.scene import Scene
    from fiafuzz.model.tensors import Tensors, materialize

    made = case_from_dict(case)
    scene, tensors, buffers = Scene(made), Tensors(), {}
    if not blind:
        tensors, buffers = materialize(made), _poisoned(made)
    if values:
        aclnn_runtime.KEEP = 1 << 34  # memory of very large calls is given back otherwise, before it can be looked at
    aclnn.KEEP = keep
    candidate = _backend(backend)
    reason = candidate.cannot_express(scene)
    if reason is not None:
        return {"kind": "unsupported", "message": reason}
    outcome = candidate.run(made, scene, tensors, buffers)
    found = {key: getattr(outcome, key) for key in ("kind", "code", "stage", "message", "fatal", "flaw", "launched")}
    if outputs:
        found["outputs"] = {name: base64.b64encode(array.tobytes()).decode() for name, array in buffers.items()}
    if values:
        found["wrong"] = _wrong_values(tensors)
    return found


def _poisoned(case: Any) -> dict[str, Any]:
    """The outputs that a campaign hands over: softmaxLse only when it is asked for."""
    from oracles.poison import poison

    wanted = {"attentionOut": case.outputs.attentionOut, "softmaxLse": case.outputs.softmaxLse if case.attrs.softmaxLseFlag else None}
    return {name: poison(spec.dtype, spec.shape) for name, spec in wanted.items() if spec is not None}


def _wrong_values(tensors: Any) -> list[str]:
    """The inputs of the last call whose memory on the device differs from the tensors of the case."""
    import numpy as np

    from tests.standin_cann import records

    with open(os.environ["STANDIN_LOG"], encoding="utf-8") as log:
        last = [line for line in log if '"event":"workspace"' in line][-1]
    found = records.tensors_of(records.parse(last))
    wrong = []
    for name in sorted({*tensors, *found}):
        pair = [x if isinstance(x, list) else [x] for x in (tensors.get(name), found.get(name))]
        same = len(pair[0]) == len(pair[1]) and all(
            (a is None) == (b is None) and (a is None or (a.shape == b.shape and np.array_equal(_bits(a), _bits(b)))) for a, b in zip(*pair)
        )
        if not same:
            wrong.append(name)
    return wrong


def _bits(array: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(array).view(np.uint8) if array.size else np.empty(0, np.uint8)


def _leak(cases: str, rounds: int, every: int, keep: bool = True) -> Any:
    """Run the cases of a file over and over; memory of the process in KiB and live objects at intervals. ``keep``: whether device
    memory is kept for the next call, as it is unless it is large."""
    from fiafuzz.backends import aclnn_runtime
    from fiafuzz.model.case import decode_case
    from fiafuzz.model.scene import Scene
    from fiafuzz.model.tensors import materialize

    backend = _backend("aclnn")
    made = [decode_case(line) for line in Path(cases).read_bytes().splitlines()]
    ready = [(case, Scene(case), materialize(case), _poisoned(case)) for case in made]
    if not keep:
        aclnn_runtime.KEEP = 0
    seen: dict[str, int] = {}
    marks = []
    for i in range(rounds):
        case, scene, tensors, buffers = ready[i % len(ready)]
        if i % 3 == 1:
            os.environ["STANDIN_STATUS"] = "561002"
        elif i % 7 == 2:
            os.environ["STANDIN_LAUNCH_STATUS"] = "561000"
        kind = backend.run(case, scene, tensors, buffers).kind
        os.environ["STANDIN_STATUS"] = os.environ["STANDIN_LAUNCH_STATUS"] = "0"
        seen[kind] = seen.get(kind, 0) + 1
        if (i + 1) % every == 0:
            marks.append({"rss": _rss(), **_live("mallocs")})
    return {"kinds": seen, "marks": marks}


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main() -> None:
    """Answer until the parent goes away."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not pass for an answer
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
