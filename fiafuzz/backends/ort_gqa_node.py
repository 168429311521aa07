"""ONNX Runtime's GroupQueryAttention as one node: the ways in which rows, keys and a cache can be handed to it.

A step is what one run of the node computes: for each batch entry, R query rows that see at most L keys. The same step can be
said in several forms: all keys as a cache with nothing new (shared), the last R keys as new ones behind a cache (append, as a
decoder does), everything new (prompt), right-padded chunks with query_seqlens (chunk), and a cache that holds one window and
evicts by itself (evict). What no length reaches is filled with NaN. The present caches are compared with what is due.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Optional

import numpy as np
import onnxruntime

from . import ort

Array = np.ndarray[Any, Any]

SHARED, APPEND, PROMPT, CHUNK, EVICT = "shared", "append", "prompt", "chunk", "evict"
NO_FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
"""Read by the runtime when a session is made: whether the blockwise kernel is left out."""
INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens",
)  # fmt: skip
VANISHED = 2.0**-120
"""Below this a float32 probability has lost digits, and a sum of 1 has long forgotten it."""
BEFORE, AFTER = 1, 2
"""Values of qk_output: scores before softmax, probabilities after it."""


@dataclass(frozen=True)
class Entry:
    """One batch entry: q (N, R, D), k and v (KV_N, L, D) as numbers of one float dtype or, quantised, as codes in int8; the
    bias (1|N, R, L) that is added. Row r stands at position L - R + r."""

    q: Array
    k: Array
    v: Array
    bias: Optional[Array] = None

    @property
    def rows(self) -> int:
        """R."""
        return int(self.q.shape[1])

    @property
    def keys(self) -> int:
        """L."""
        return int(self.k.shape[1])


@dataclass(frozen=True)
class Quantised:
    """Scales of a quantised cache, float32: (1,) per tensor or (1, KV_N, 1, D) per channel, both of one kind; ``bits`` 8 or
    4."""

    bits: int
    k_scale: Array
    v_scale: Array

    @property
    def kind(self) -> str:
        """What the attributes k_quant_type and v_quant_type say."""
        return "PER_TENSOR" if self.k_scale.size == 1 else "PER_CHANNEL"

    def stored(self, codes: Array) -> Array:
        """Codes as the cache stores them: two of four bits a byte, the lower nibble first, 8 added."""
        if self.bits == 8:
            return codes
        up = (codes + 8).astype(np.uint8)
        return up[..., 0::2] | (up[..., 1::2] << 4)

    def values(self, codes: Array, scale: Array, dtype: Any) -> Optional[Array]:
        """Numbers (KV_N, S, D) of ``dtype`` that the operator quantises to these very codes; None when there are none."""
        wide = np.broadcast_to(scale.reshape(1, 1, 1) if scale.size == 1 else scale[0], codes.shape)
        with np.errstate(all="ignore"):
            found = (codes.astype(np.float32) * wide).astype(dtype)
            back = found.astype(np.float32) / wide
        return found if (np.abs(back - codes) < 0.25).all() and (wide > np.finfo(np.float32).tiny).all() else None


@dataclass(frozen=True)
class Setting:
    """What the entries of a step have in common. ``window`` counts keys including the row's own position, 0: no limit.
    ``sink`` (N,), in the dtype of the query."""

    scale: float
    causal: bool
    window: int = 0
    sink: Optional[Array] = None
    quantised: Optional[Quantised] = None


@dataclass(frozen=True)
class Form:
    """How a step is said. ``slack``: rows of the cache behind the last one that is needed (0 behind new keys: a cache that grows,
    if it is not ``in_place``); ``padding``: query rows behind the longest entry's; ``packed``: query, key and value in one input;
    ``in_place``: present and past share their memory; ``flash``: the blockwise kernel where there is one; ``zero_sink``: a sink of
    zeros by smooth_softmax alone; ``present``: whether the present caches are asked for where that is free."""

    name: str
    slack: int = 0
    padding: int = 0
    packed: bool = False
    in_place: bool = False
    flash: bool = True
    zero_sink: bool = False
    present: bool = True


def forms(entries: Sequence[Entry], setting: Setting, *, scores: bool) -> list[str]:
    """The forms in which a step can be said (the operator's documented limits); [] when it must be split."""
    one = len(entries) == 1 or max(e.rows for e in entries) == 1
    renewable = setting.quantised is None or all(_new(e, setting) is not None for e in entries)
    found = []
    if one:
        found.append(SHARED)
    if renewable:
        if one:
            found.append(APPEND)
        if setting.quantised is None and all(e.rows == e.keys for e in entries):
            found.append(PROMPT)
        if setting.causal:
            found.append(CHUNK)
        if setting.causal and setting.window and not scores and whole_lines(entries[0], setting):
            found.append(EVICT)
    return found


def whole_lines(entry: Entry, setting: Setting) -> bool:
    """Whether a row of a quantised cache fills whole lines of 16 bytes, which the operator demands of a cache of one window."""
    return setting.quantised is None or entry.q.shape[2] * setting.quantised.bits % 128 == 0


def resident(total: int, capacity: int, window: int) -> int:
    """How many positions a cache of one window keeps after ``total`` tokens (the operator's document, Windowed KV Cache)."""
    if total <= capacity:
        return total
    step = capacity - window + 1
    return total - step * -(-(total - capacity) // step)


def _new(entry: Entry, setting: Setting) -> Optional[tuple[Array, Array]]:
    """The last R keys and values as numbers, to be appended."""
    k, v = entry.k[:, entry.keys - entry.rows :], entry.v[:, entry.keys - entry.rows :]
    quantised = setting.quantised
    if quantised is None:
        return k, v
    new_k = quantised.values(k, quantised.k_scale, entry.q.dtype)
    new_v = quantised.values(v, quantised.v_scale, entry.q.dtype)
    return None if new_k is None or new_v is None else (new_k, new_v)


class Step:
    """One step in one form, ready to run."""

    def __init__(self, entries: Sequence[Entry], setting: Setting, form: Form) -> None:
        self.entries, self.setting, self.form = entries, setting, form
        first = entries[0]
        self.N, self.KN, self.D = first.q.shape[0], first.k.shape[0], first.q.shape[2]
        self.T = first.q.dtype
        self.padded = max(e.rows for e in entries) + (form.padding if form.name == CHUNK else 0)
        self.total = max(e.keys for e in entries)
        self.fresh = form.name != SHARED
        self.feeds: dict[str, Array] = {}
        self.due: dict[str, list[Array]] = {}
        self.flaw: Optional[str] = None
        """What is wrong with the present caches after a run."""
        self.attributes: dict[str, ort.Attribute] = {
            "num_heads": self.N,
            "kv_num_heads": self.KN,
            "causal": int(setting.causal),
            "scale": setting.scale,
        }
        if setting.window:
            self.attributes["local_window_size"] = setting.window
        self.lay_queries()
        if form.name != PROMPT:
            self.lay_caches()
        self.lay_rest()

    def lay_queries(self) -> None:
        """Queries and new keys and values, rows first; NaN behind an entry's last row."""
        width = {"query": self.N, "key": self.KN, "value": self.KN}
        parts: dict[str, list[Array]] = {"query": [e.q for e in self.entries], "key": [], "value": []}
        for entry in self.entries if self.fresh else ():
            new = _new(entry, self.setting)
            assert new is not None
            parts["key"].append(new[0])
            parts["value"].append(new[1])
        flat = {}
        for name, heads in width.items():
            if len(self.entries) == 1 and parts[name] and self.padded == self.entries[0].rows:
                # What lies rows first is handed over as it lies.
                laid = parts[name][0].transpose(1, 0, 2)[None]
            else:
                laid = np.full((len(self.entries), self.padded if parts[name] else 0, heads, self.D), np.nan, self.T)
                for b, part in enumerate(parts[name]):
                    laid[b, : part.shape[1]] = part.transpose(1, 0, 2)
            flat[name] = laid.reshape(*laid.shape[:2], heads * self.D)
        if self.form.packed and self.fresh:
            self.feeds["query"] = np.concatenate([flat[name] for name in width], axis=-1)
        else:
            self.feeds.update({name: np.ascontiguousarray(x) for name, x in flat.items()})

    def lay_caches(self) -> None:
        """The past caches, and what the present ones must hold in their first rows."""
        form, setting = self.form, self.setting
        pasts = [e.keys - e.rows if self.fresh else e.keys for e in self.entries]
        if form.name == EVICT:
            capacity = setting.window + form.slack
        elif self.fresh and not form.slack and not form.in_place:
            capacity = max(pasts)  # grown by the new keys
        else:
            capacity = max(self.total, max(pasts) + self.padded if form.name == CHUNK else 0) + form.slack
        for name in ("key", "value"):
            cache = self.junk((len(self.entries), self.KN, capacity, self.D // 2 if self.four else self.D))
            due = []
            for b, entry in enumerate(self.entries):
                whole = entry.k if name == "key" else entry.v
                whole = whole if setting.quantised is None else setting.quantised.stored(whole)
                before, after = pasts[b], entry.keys
                first, last = 0, 0
                if form.name == EVICT:
                    first, last = (n - resident(n, capacity, setting.window) for n in (before, after))
                cache[b, :, : before - first] = whole[:, first:before]
                due.append(whole[:, last:after])
            self.feeds[f"past_{name}"] = cache
            self.due[f"present_{name}"] = due
        if form.name == EVICT:
            self.attributes["sliding_window_cache"] = 1

    def lay_rest(self) -> None:
        """Lengths, bias, sink and scales."""
        form, setting, entries = self.form, self.setting, self.entries
        self.feeds["seqlens_k"] = np.array([e.keys - 1 for e in entries], np.int32)
        if form.name == CHUNK or (form.name == EVICT and len(entries) > 1 and self.padded > 1):
            self.feeds["query_seqlens"] = np.array([e.rows for e in entries], np.int32)
        bound = max(self.total, self.padded)
        if form.name == CHUNK:
            # Only an upper bound here, by which a cache grows: the whole padded chunk must find room.
            bound = bound + form.slack if form.slack else max(e.keys - e.rows for e in entries) + self.padded
        self.feeds["total_sequence_length"] = np.array(bound, np.int32)
        if entries[0].bias is not None:
            heads = entries[0].bias.shape[0]
            bias = np.full((len(entries), heads, self.padded, bound), np.nan, self.T)
            for b, entry in enumerate(entries):
                assert entry.bias is not None
                bias[b, :, : entry.rows, : entry.keys] = entry.bias
            self.feeds["attention_bias"] = bias
        if setting.sink is not None:
            if form.zero_sink and not setting.sink.any():
                self.attributes["smooth_softmax"] = 1
            else:
                self.feeds["head_sink"] = setting.sink
        quantised = setting.quantised
        if quantised is not None:
            self.attributes |= {"k_quant_type": quantised.kind, "v_quant_type": quantised.kind}
            self.attributes["kv_cache_bit_width"] = quantised.bits
            self.feeds |= {"k_scale": quantised.k_scale, "v_scale": quantised.v_scale}

    @property
    def four(self) -> bool:
        """Whether two codes share a byte."""
        return self.setting.quantised is not None and self.setting.quantised.bits == 4

    def junk(self, shape: tuple[int, ...]) -> Array:
        """A cache of which nothing must be read before it is written."""
        quantised = self.setting.quantised
        if quantised is None:
            return np.full(shape, np.nan, self.T)
        return np.full(shape, 0x7F, np.int8 if quantised.bits == 8 else np.uint8)

    def run(self, scores: int = 0) -> tuple[list[Array], list[Array]]:
        """Outputs (N, R, D) of the entries and, for ``scores`` BEFORE or AFTER, their (N, R, L) of that kind. Raises what the
        runtime raises."""
        attributes = {**self.attributes, "qk_output": scores} if scores else self.attributes
        # Without present caches the operator reads wrong keys as soon as some are new.
        asked = self.form.present or self.setting.quantised is not None or (self.fresh and self.form.name != PROMPT)
        names = ["output", *(("present_key", "present_value") if asked else ("", ""))]
        names = [*names, "output_qk"] if scores else names if asked else names[:1]
        found = self.through(names, attributes)
        for name, due in self.due.items():
            if name in found:
                self.compare(name, found[name], due)
        out = found["output"].reshape(len(self.entries), self.padded, self.N, self.D).transpose(0, 2, 1, 3)
        qk = found.get("output_qk")
        each = list(enumerate(self.entries))
        return [out[b, :, : e.rows] for b, e in each], [] if qk is None else [qk[b, :, : e.rows, : e.keys] for b, e in each]

    def through(self, names: Sequence[str], attributes: dict[str, ort.Attribute]) -> dict[str, Array]:
        """Outputs by name of one run of the node's session."""
        inputs = [(n, (self.feeds[n].dtype.str, self.feeds[n].ndim) if n in self.feeds else None) for n in INPUTS]
        key = ("GroupQueryAttention", tuple(inputs), tuple(names), tuple(sorted(attributes.items())), self.form.flash)
        with blockwise(self.form.flash):
            running = ort.session(key, lambda: ort.node_model("GroupQueryAttention", inputs, names, attributes, 21, ort.MICROSOFT))
        wanted = [name for name in names if name]
        if self.form.in_place and "past_key" in self.feeds and "present_key" in wanted:
            return self.bound(running, wanted)
        return dict(zip(wanted, ort.run(running, self.feeds)))

    def bound(self, running: onnxruntime.InferenceSession, wanted: Sequence[str]) -> dict[str, Array]:
        """A run in which the present caches are the past ones."""
        binding = running.io_binding()
        held = {}
        for name, x in self.feeds.items():
            held[name] = onnxruntime.OrtValue.ortvalue_from_numpy(x)
            binding.bind_ortvalue_input(name, held[name])
        for name in wanted:
            if name.startswith("present"):
                binding.bind_ortvalue_output(name, held[name.replace("present", "past")])
            else:
                binding.bind_output(name, "cpu")
        running.run_with_iobinding(binding)
        return dict(zip(wanted, (value.numpy() for value in binding.get_outputs())))

    def compare(self, name: str, found: Array, due: Sequence[Array]) -> None:
        """Note as a flaw when the rows in use are not bit for bit what they must be."""
        for b, rows in enumerate(due):
            have = found[b, :, : rows.shape[1]]
            if have.shape != rows.shape or not np.array_equal(_bits(have), _bits(rows)):
                differ = "shape" if have.shape != rows.shape else f"{int((_bits(have) != _bits(rows)).sum())} elements"
                self.flaw = f"{name} of entry {b} is not what was handed in ({self.form.name}): {differ} differ"


@contextmanager
def blockwise(wanted: bool) -> Iterator[None]:
    """Sessions made meanwhile have the blockwise kernel (causal steps without a sink or scores use it) or do without."""
    before = os.environ.get(NO_FLASH)
    os.environ[NO_FLASH] = "0" if wanted else "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_FLASH]
        else:
            os.environ[NO_FLASH] = before


def _bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


@dataclass(frozen=True)
class Answer:
    """Outputs (N, R, D) of the entries, the logarithms (N, R) of their sums of exp(score) in float64 where wanted, and what was
    wrong with the present caches."""

    out: list[Array]
    lse: list[Optional[Array]]
    flaw: Optional[str]


def attend(entries: Sequence[Entry], setting: Setting, form: Form, *, lse: bool) -> Answer:
    """Run a step. Raises what the runtime raises.

    The operator gives no lse. It gives a score before softmax and the probability after it, and what lies between the two is
    the sum: lse = score - ln(probability), taken where the probability is largest. Beside a sink so high that no probability is
    left, the sum is the sink's own. NaN for a row without keys."""
    step = Step(entries, setting, form)
    out, _ = step.run()
    if not lse:
        return Answer(out, [None] * len(out), step.flaw)
    # The caches may have been written in place, hence a step each.
    scores, probabilities = (Step(entries, setting, form).run(kind)[1] for kind in (BEFORE, AFTER))
    return Answer(out, [_lse(s.astype(np.float64), p.astype(np.float64), setting.sink) for s, p in zip(scores, probabilities)], step.flaw)


def _lse(scores: Array, probabilities: Array, sink: Optional[Array]) -> Array:
    best = np.nan_to_num(probabilities, nan=-1.0).argmax(-1)[..., None]
    largest = np.take_along_axis(probabilities, best, -1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.take_along_axis(scores, best, -1)[..., 0] - np.log(largest)
    return found if sink is None else np.where(largest < VANISHED, sink.astype(np.float64)[:, None], found)


@cache
def zero_means_default() -> bool:
    """Whether a scale of 0 is taken for 1 / sqrt(D), as ONNX Runtime does it; measured once with a call of two keys."""
    q, v = np.full((1, 1, 8), 2.0, np.float32), np.arange(16, dtype=np.float32).reshape(1, 2, 8)
    entry = Entry(q, v, v)
    zero, default = (attend([entry], Setting(scale, False), Form(SHARED), lse=False).out[0] for scale in (0.0, 8.0**-0.5))
    return bool(np.array_equal(zero, default))
