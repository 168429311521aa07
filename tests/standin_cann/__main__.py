"""``python -m tests.standin_cann [NAME=VALUE ...]``: print shell lines that put a shell onto the stand-in."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from .build import StandinUnavailable, build
from .environment import SOCS, standin_environment


def main(arguments: list[str]) -> int:
    """Print ``export`` lines; NAME=VALUE are arguments of ``standin_environment`` (soc may be a2, a3 or 950)."""
    chosen: dict[str, Any] = {"preload": True}
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if not sign:
            print(f"{argument} is not of the form NAME=VALUE", file=sys.stderr)
            return 2
        chosen[name] = int(value) if name in ("devices", "memory_mib") else SOCS.get(value, value) if name == "soc" else value
    try:
        made = build(need_torch_npu=False)
        environment = standin_environment(made, **chosen)
    except (StandinUnavailable, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    for name, value in environment.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
