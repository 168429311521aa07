"""Draft: a call in the making. The rooms read its words and sizes and put tensors, lists and attributes into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from fiafuzz.model.case import Attrs, Case, Fill, Inputs, Outputs, TensorSpec
from fiafuzz.model.layouts import LAYOUTS, Layout

from .ground import Ground
from .source import Source


class Draft:
    """Words of the plan by factor name, sizes as they are decided (model terms), and the parts of the case.

    ``width`` is the column axis that full masks, biases and per-token parameters have to cover. ``q_lens`` and
    ``kv_lens`` are per batch, ``prefix_len`` columns of shared prefix come on top of ``kv_lens``.
    """

    def __init__(self, ground: Ground, source: Source, words: Mapping[str, str]) -> None:
        self.ground = ground
        self.source = source
        self.words = words
        self.scenario = words["scenario"]
        self.layout: Layout = LAYOUTS[words["layout"]]
        self.storage = words["storage"]
        self.packed: bool = self.layout.packed
        self.paged: bool = self.storage in ("BnBsH", "BnNBsD", "NZ")
        self.budget = 0
        self.B = self.Q_N = self.KV_N = self.G = self.D = self.DV = 0
        self.Q_S = self.KV_S = self.T = self.KV_T = 0
        self.q_lens: list[int] = []
        self.kv_lens: list[int] = []
        self.item_s: list[int] = []
        self.prefix_len = self.prefix_s = 0
        self.block_size = self.blocks = self.table_columns = 0
        self.width = 0
        self.int4_carrier = False
        self.data_fill: Optional[Fill] = None
        self.inputs: dict[str, Any] = {}
        self.attrs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    @property
    def single(self) -> bool:
        """Whether no batch has more than one query token."""
        return self.words["q_s"] == "1"

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str, fill: Optional[Fill] = None) -> None:
        """Put a tensor input into the call."""
        self.inputs[name] = TensorSpec(shape, dtype, fill=fill)

    def case(self) -> Case:
        """The finished call."""
        chosen = self.ground.profile
        return Case(api=chosen.api,  # type: ignore[arg-type]
                    product=chosen.product, seed=self.source.seed(), inputs=Inputs(**self.inputs),
                    attrs=Attrs(**self.attrs), outputs=Outputs(**self.outputs))
