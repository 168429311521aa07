"""Facts of a scene, first group: the parameters of the call as they are given, and its attributes as the host reads them."""

from __future__ import annotations

from typing import Any, Optional

from .case import Case, TensorSpec
from .fact import fact
from .layouts import LAYOUTS, Layout
from .parameters import INPUTS, as_int32


class CallFacts:
    """What is there and what it is called; nothing is worked out from shapes. ``why`` says of a fact that is None why it is."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.inputs = case.inputs
        self.attrs = case.attrs
        self.why: dict[str, str] = {}

    def _none(self, fact: str, reason: str) -> Optional[Any]:
        self.why[fact] = reason
        return None

    # ---- parameters as they are -------------------------------------------------------------

    def tensor(self, name: str) -> Optional[TensorSpec]:
        """The spec of a tensor input or output; of a list ("key", "value"), the first item."""
        found = self.case.get(name)
        if found is None or isinstance(found, TensorSpec):
            return found
        first = found[0] if isinstance(found, tuple) and found else None
        return first if isinstance(first, TensorSpec) else None

    def given(self, name: str) -> bool:
        """Whether the parameter is not null."""
        return self.case.get(name) is not None

    def shape(self, name: str) -> Optional[tuple[int, ...]]:
        """Stored shape of a tensor (first item of a list), None when it is null."""
        spec = self.tensor(name)
        return None if spec is None else spec.shape

    def dtype(self, name: str) -> Optional[str]:
        """Stored dtype of a tensor (first item of a list), None when it is null."""
        spec = self.tensor(name)
        return None if spec is None else spec.dtype

    @fact
    def present(self) -> frozenset[str]:
        """Names of all inputs that are not null."""
        return frozenset(p.name for p in INPUTS if getattr(self.inputs, p.name) is not None)

    @fact
    def api(self) -> int:
        """API version as a number, 1..5."""
        return int(self.case.api[1:])

    @fact
    def product(self) -> str:
        """950, a2 or a3."""
        return self.case.product

    @fact
    def is_950(self) -> bool:
        """Whether the product is Ascend 950."""
        return self.case.product == "950"

    @fact
    def query(self) -> Optional[TensorSpec]:
        """The query tensor."""
        return self.inputs.query

    @fact
    def keys(self) -> tuple[Optional[TensorSpec], ...]:
        """The key list; () when the list is null."""
        return self.inputs.key or ()

    @fact
    def values(self) -> tuple[Optional[TensorSpec], ...]:
        """The value list; () when the list is null."""
        return self.inputs.value or ()

    @fact
    def out(self) -> Optional[TensorSpec]:
        """The attentionOut tensor."""
        return self.case.outputs.attentionOut

    @fact
    def lse(self) -> Optional[TensorSpec]:
        """The softmaxLse tensor."""
        return self.case.outputs.softmaxLse

    @fact
    def rope_on(self) -> bool:
        """Whether queryRope and keyRope are both given."""
        return self.inputs.queryRope is not None and self.inputs.keyRope is not None

    # ---- attributes as the host reads them ----------------------------------------------------

    @fact
    def layout_name(self) -> str:
        """inputLayout; a null pointer counts as BSH (v5.interface.existence.input_layout_null_default)."""
        return "BSH" if self.attrs.inputLayout is None else self.attrs.inputLayout

    @fact
    def layout(self) -> Optional[Layout]:
        """The layout record, None for an unknown name."""
        found = LAYOUTS.get(self.layout_name)
        return found if found else self._none("layout", f"unknown inputLayout {self.layout_name!r}")

    @fact
    def packed(self) -> bool:
        """Whether the layout is of the TND/NTD families."""
        return self.layout is not None and self.layout.packed

    @fact
    def num_heads(self) -> int:
        """numHeads, cut to 32 bits."""
        return as_int32(self.attrs.numHeads)

    @fact
    def sparse_mode(self) -> int:
        """sparseMode, cut to 32 bits."""
        return as_int32(self.attrs.sparseMode)

    @fact
    def inner_precise(self) -> int:
        """innerPrecise, cut to 32 bits."""
        return as_int32(self.attrs.innerPrecise)

    @fact
    def block_size(self) -> int:
        """blockSize, cut to 32 bits."""
        return as_int32(self.attrs.blockSize)

    @fact
    def scale(self) -> float:
        """scaleValue as a Python float."""
        return float(self.attrs.scaleValue)
