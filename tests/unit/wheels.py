"""Packages of other projects' kernels, which a checkout may lack."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest


def wheel(module: str, package: str) -> ModuleType:
    """An imported module. Without it the test file is skipped with the reason, or fails where FIAFUZZ_REQUIRE_ALL=1."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"needs {package}: {error}", allow_module_level=True)
