"""Whether FlexAttention can be had here, and the two backends by name; nothing of torch is loaded for the question."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Optional

from .protocol import BackendUnavailable

if TYPE_CHECKING:
    from .torch_flex import FlexBackend

OLDEST = (2, 9)
"""The first torch whose flex_attention takes ``return_aux``."""


def missing() -> str:
    """Why FlexAttention cannot be used here; "" when it can."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        return "needs torch"
    numbers = tuple(int(word) for word in found.split("+")[0].split(".")[:2] if word.isdigit())
    return "" if numbers >= OLDEST else f"needs torch {OLDEST[0]}.{OLDEST[1]} or later, torch {found} is installed"


def dense(profile: Optional[str] = None) -> FlexBackend:
    """flex_attention on dense batches. BackendUnavailable when torch is too old."""
    _check("torch-flex")
    from .torch_flex import FlexBackend

    return FlexBackend(profile)


def paged(profile: Optional[str] = None) -> FlexBackend:
    """flex_attention on the pages of torch's PagedAttention. BackendUnavailable when torch is too old."""
    _check("torch-flex:paged")
    from .torch_flex_paged import PagedBackend

    return PagedBackend(profile)


def _check(name: str) -> None:
    reason = missing()
    if reason:
        raise BackendUnavailable(f"backend {name} {reason}")
