"""Compiles a C++ program against the headers and libraries of the stand-in, with the options that a real installation takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .build import Build, StandinUnavailable

WARNINGS = ("-Wall", "-Wextra", "-Werror")


def cpp_compiler() -> str:
    """The C++ compiler ($CXX, c++ or g++). StandinUnavailable when there is none."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise StandinUnavailable("an exported program needs a C++ compiler: apt-get install g++")


def compile_program(source: Path, build: Build, program: Path | None = None, libraries: tuple[str, ...] = ("opapi", "nnopbase")) -> Path:
    """Compile and link one C++ file; gives the program (default: beside the source). Warnings are errors.

    Run it with ``standin_environment(build)``. AssertionError with the compiler's text when it does not compile.
    """
    made = program or source.with_suffix("")
    command = [
        cpp_compiler(), "-std=c++11", "-O1", *WARNINGS, f"-I{build.root / 'include'}", str(source), "-o", str(made),
        f"-L{build.libraries}", "-lascendcl", *(f"-l{name}" for name in libraries),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{source} does not compile:\n{done.stderr}")
    return made
