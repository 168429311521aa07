"""The names of the torch_npu backends: what may stand behind the colon, and which backend that means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from .spelling import Chosen, Spelling, read

if TYPE_CHECKING:
    from .protocol import Backend

SPELLING = Spelling("torch-npu", (("meta",), ("v1", "v2")), {"queue": ("0", "1", "2"), "outputs": ("torch",)})
"""``meta``: inference of shapes alone; ``v1``, ``v2``: one of the two operators; ``queue``: a task queue mode instead of blocking
launches; ``outputs=torch``: torch_npu allocates the outputs."""


def choose(name: str) -> Chosen:
    """The options in a name. ValueError for a wrong one."""
    chosen = read(SPELLING, name)
    if "meta" in chosen.words and chosen.options:
        raise ValueError(f"backend {name!r}: meta runs nothing on a device, so it takes no {' and no '.join(chosen.options)}")
    return chosen


def make(name: str, profile: Optional[str]) -> Backend:
    """The backend of that name. BackendUnavailable when it cannot run here."""
    chosen = choose(name)
    if "meta" in chosen.words:
        from .torch_npu_meta import TorchNpuMeta

        return TorchNpuMeta(profile, chosen)
    from .torch_npu import TorchNpuBackend

    return TorchNpuBackend(profile, chosen)


def why_no_device() -> str:
    """Why nothing can run on a device here, with the next step; "" when it may work."""
    from .ascend import why_no_cann

    return _packages() or why_no_cann()


def why_no_meta() -> str:
    """Why shapes cannot be inferred here, with the next step; "" when it may work."""
    from .ascend import why_no_cann
    from .null_cann import why_not

    return _packages() or (why_not() if why_no_cann() else "")


def _packages() -> str:
    from .protocol import BackendUnavailable
    from .torch_npu_load import check_packages

    try:
        check_packages()
    except BackendUnavailable as error:
        return str(error)
    return ""
