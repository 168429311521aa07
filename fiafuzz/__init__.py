"""fiafuzz: property-based fuzzer and differential tester for Ascend CANN's FusedInferAttentionScore."""

import os

__all__ = ["__version__", "load_run"]

__version__ = "0.1.0"

# torch_npu registers itself to be loaded by `import torch`, which then fails where CANN is not installed. Here it is
# loaded only by the backends that want it.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def __getattr__(name: str) -> object:
    # What needs pandas is loaded when it is asked for, so that the command line starts at once.
    if name == "load_run":
        from importlib import import_module

        return import_module("reports.frames").load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
