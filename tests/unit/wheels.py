"""Packages of other projects' kernels, which a checkout may lack."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

from fiafuzz.backends.packages import missing


def wheel(module: str, package: str) -> ModuleType:
    """An imported module. Without it, or with another version than ``package`` ("name>=X") asks for, the test file is skipped with
    the reason, or fails where FIAFUZZ_REQUIRE_ALL=1."""
    try:
        if ">=" in package and (absent := missing([package])):
            raise ImportError(f"needs {absent[0]}")
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"needs {package}: {error}", allow_module_level=True)
