"""ONNX Runtime's GroupQueryAttention as a candidate: the attention of its language models, with their caches.

A call is cut into runs of rows that the operator can say: rows that a causal limit or a window cuts, rows that see every key,
rows with an explicit mask. Rows of several batches join one run where lengths of their own can be given. In which form a run
is said (ort_gqa_node), in which dtype, and whether a band is said natively or by a mask is chosen by the case's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fiafuzz.model.scene import Scene

from . import ort
from .cpu_antiquant import FIXED, AntiquantKernel
from .cpu_mask import OPEN
from .cpu_numbers import widen
from .cpu_operands import Arrays, split_axis
from .cpu_problem import Problem, Span, need
from .dense import MASK_BUDGET, DenseBackend, DenseCall, PolicyBroken
from .ort_gqa_node import Entry, Form, Quantised, Setting, attend, forms, zero_means_default

Array = np.ndarray[Any, Any]

JOINED = 16
"""Most batch entries in one run."""
JOINED_SIZE = 1 << 22
"""Most elements of a padded cache of entries in one run."""
MULTIPLE = 8
"""Head sizes must be a multiple of this."""


@dataclass(frozen=True)
class Rows:
    """Rows [first, first + R) of one batch as an entry, with what it may share with others. ``dead`` (R,) marks rows without
    any key."""

    span: Span
    first: int
    entry: Entry
    setting: Setting
    dead: Optional[Array] = None

    @property
    def alike(self) -> tuple[Any, ...]:
        """What entries of one run must agree in."""
        bias = self.entry.bias
        shape = "one row" if self.entry.rows == 1 else "causal" if self.setting.causal else "square"
        return self.setting.causal, self.setting.window, None if bias is None else bias.shape[0], shape

    @property
    def joins(self) -> bool:
        """Whether other entries may stand beside it."""
        return self.entry.rows == 1 or self.setting.causal or (self.entry.rows == self.entry.keys and not self.setting.quantised)


class GqaCall(DenseCall):
    """One call translated for GroupQueryAttention."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        super().__init__(p, tensors)
        self.width = -(-max(p.D + p.rope_d, p.V_D) // MULTIPLE) * MULTIPLE
        self.single = self.must_be_single() or self.choice("dtype", 2) == 0
        self.joining = self.choice("join", 2) == 0
        self.flaw: Optional[str] = None
        self.codes = AntiquantKernel(p, tensors) if p.kind == "antiquant" else None
        self.quantised: Optional[Quantised] = None
        if self.codes is not None:
            self.codes.load()
            self.quantised = self.scales(self.codes)
        sink = None if self.x.sink is None else self.numbers(self.x.sink)
        scale = p.scale
        if scale == 0 and zero_means_default():
            # Scores of zero come from a query of zeros instead.
            self.x.query, scale = torch.zeros_like(self.x.query), 1.0
            self.x.query_rope = None if self.x.query_rope is None else torch.zeros_like(self.x.query_rope)
        self.setting = Setting(scale, False, 0, sink, self.quantised)

    def must_be_single(self) -> bool:
        """Whether FLOAT16 cannot hold what goes in or comes out exactly enough."""
        p, x = self.p, self.x
        if p.q_dtype != "FLOAT16" or p.lse_on or x.slopes is not None:
            return True
        inexact = x.sink is not None and not torch.equal(x.sink.half().float(), x.sink)
        return inexact or (x.pse is not None and x.pse.dtype != torch.float16)

    def numbers(self, x: Tensor) -> Array:
        """A float tensor in the dtype that the kernel computes in."""
        found: Array = (x.float() if self.single else x.half()).contiguous().numpy()
        return found

    def heads(self, x: Tensor) -> Array:
        """(N, S, D) with columns of zeros up to the kernel's head size; its memory order stays."""
        x = x.float() if self.single or x.dtype == torch.bfloat16 else x
        found: Array = (x if x.shape[-1] == self.width else pad(x, (0, self.width - x.shape[-1]))).numpy()
        return found

    # ---- quantised caches ---------------------------------------------------------------------------

    def scales(self, codes: AntiquantKernel) -> Quantised:
        """The scales as the operator takes them; both per channel where they differ, which says the same."""
        p = self.p
        found = []
        for side, head in ((codes.of_key, p.D), (codes.of_value, p.V_D)):
            need(side.offset is None, "an antiquant offset")
            need(side.scale.how == FIXED, "antiquant scales by token")
            x = side.scale.x
            found.append(x.reshape(1) if x.numel() == 1 else pad(x.expand(p.KV_N, 1, head), (0, self.width - head), value=1.0)[None])
        if found[0].numel() != found[1].numel() or (found[0].numel() == 1 and self.choice("spread", 4) == 0):
            found = [x.expand(1, p.KV_N, 1, self.width) if x.numel() == 1 else x for x in found]
        k, v = (x.contiguous().numpy() for x in found)
        return Quantised(4 if p.kv_dtype == "INT4" else 8, k, v)

    def code_heads(self, x: Tensor) -> Array:
        """Codes (KV_N, S, D) as int8 with zeros up to the kernel's head size."""
        return pad(widen(x, self.p.kv_dtype).to(torch.int8), (0, self.width - x.shape[-1])).numpy()

    # ---- the call in runs ---------------------------------------------------------------------------

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers."""
        self.open_outputs(outputs)
        self.blank()
        waiting: dict[tuple[Any, ...], list[Rows]] = {}
        for span in self.p.spans:
            if span.q_len and not self.p.columns(span):
                self.write_empty(span)
                continue
            for b in range(span.count if span.q_len else 0):
                for rows in self.runs(replace(span, first=span.first + b, count=1)):
                    if not (self.joining and rows.joins):
                        self.compute([rows])
                        continue
                    held = waiting.setdefault(rows.alike, [])
                    if held and not self.room([*held, rows]):
                        self.compute(held)
                        held.clear()
                    held.append(rows)
        for held in waiting.values():
            if held:
                self.compute(held)
        if self.flaw is not None:
            raise PolicyBroken(self.flaw)

    def room(self, held: list[Rows]) -> bool:
        """Whether these entries fit into one run."""
        keys, rows = max(r.entry.keys for r in held), max(r.entry.rows for r in held)
        size = len(held) * max(self.p.KV_N * keys * self.width, self.p.Q_N * rows * (keys + self.width))
        return len(held) <= JOINED and size <= JOINED_SIZE

    def runs(self, span: Span) -> Iterator[Rows]:
        """The rows of one batch in runs that the operator can say."""
        p = self.p
        R, T = span.q_len, p.columns(span)
        q, k, v = self.entries_of(span)
        low, high = self.band(span)
        native = self.choice(f"band {span.first}", 3) > 0
        window = high - low + 1 if low > 1 - R else 0
        if not native or (not window and high >= T - 1) or not low <= high < OPEN[1]:
            yield from self.explicit(span, q, k, v, 0, R)
            return
        # Rows above the keys' first column see none, rows whose limit lies behind the last column are not cut on the right.
        first, last = min(R, max(0, -high)), max(0, min(R, T - high))
        yield from self.explicit(span, q, k, v, 0, first)
        if last > first:
            yield from self.causal(span, q, k, v, first, last, high, window)
        yield from self.explicit(span, q, k, v, max(first, last), R)

    def entries_of(self, span: Span) -> tuple[Array, Array, Array]:
        """q (N, R, D), k and v (KV_N, T, D) of one batch."""
        if self.codes is not None:
            q = self.rows_of(self.x.query, span)
            return self.heads(q[0]), self.code_heads(self.x.key.fetch(span)[0]), self.code_heads(self.x.value.fetch(span)[0])
        q = self.rows_of(self.x.query, span)
        k, v = self.x.key.fetch(span), self.x.value.fetch(span)
        if self.x.query_rope is not None and self.x.key_rope is not None:
            q = torch.cat((q, self.rows_of(self.x.query_rope, span)), dim=-1)
            k = torch.cat((k, self.x.key_rope.fetch(span)), dim=-1)
        return self.heads(q[0]), self.heads(k[0]), self.heads(v[0])

    def explicit(self, span: Span, q: Array, k: Array, v: Array, begin: int, end: int) -> Iterator[Rows]:
        """Rows that see what a mask leaves of all keys: no more at a time than there are keys, which the operator demands."""
        T = k.shape[1]
        step = min(T, max(1, MASK_BUDGET // (self.p.Q_N * T)))
        for i0 in range(begin, end, step):
            i1 = min(end, i0 + step)
            seen = self.seen(span, i0, i1)
            dead = None if seen is None else ~seen[0, 0].any(-1).numpy()
            bias = self.additive(span, i0, i1, T, None if seen is None else ~seen[0])
            causal = i1 - i0 == 1 and self.choice(f"last row {span.first}", 2) == 0
            yield Rows(span, i0, Entry(q[:, i0:i1], k, v, bias), replace(self.setting, causal=causal), dead)

    def causal(
        self, span: Span, q: Array, k: Array, v: Array, begin: int, end: int, high: int, window: int
    ) -> Iterator[Rows]:
        """Rows of which each sees one column more than the one before, the last of a run up to its last key."""
        step = max(1, MASK_BUDGET // (self.p.Q_N * k.shape[1])) if self.x.mask is not None or self.x.pse is not None else end
        for i0 in range(begin, end, step):
            i1 = min(end, i0 + step)
            L = i1 + high
            masked = self.masked(span, i0, i1, 0, L)
            dead = None
            if masked is not None:
                masked = masked[:, :, :L]
                seen = self.seen(span, i0, i1)
                dead = None if seen is None else ~seen[0, 0].any(-1).numpy()
            bias = self.additive(span, i0, i1, L, masked)
            setting = replace(self.setting, causal=True, window=window)
            yield Rows(span, i0, Entry(q[:, i0:i1], k[:, :L], v[:, :L], bias), setting, dead)

    def additive(self, span: Span, i0: int, i1: int, L: int, hidden: Optional[Tensor]) -> Optional[Array]:
        """attention_bias (1|N, rows, L): what is added to the scores, and -inf where a mask hides (1, rows, L)."""
        bias = self.bias(span, i0, i1, 0, L)
        if bias is None and hidden is None:
            return None
        if bias is None:
            assert hidden is not None
            x = torch.zeros(hidden.shape)
        else:
            x = self.join_heads(bias)[0] if bias.dim() == 5 else self.join_heads(bias)
        if hidden is not None:
            x = x.masked_fill(hidden, -torch.inf)
        return self.numbers(x)

    # ---- one run ------------------------------------------------------------------------------------

    def compute(self, held: list[Rows]) -> None:
        """Run entries together, or one by one where no form takes them together, and write what comes."""
        setting = held[0].setting
        entries = [rows.entry for rows in held]
        possible = forms(entries, setting, scores=self.lse is not None)
        if not possible:
            for rows in held:
                self.compute([rows])
            return
        where = f"{held[0].span.first} {held[0].first}"
        form = self.form(possible[self.choice(f"form {where}", len(possible))], where)
        answer = attend(entries, setting, form, lse=self.lse is not None)
        if answer.flaw is not None:
            self.flaw = answer.flaw
        for rows, o, lse in zip(held, answer.out, answer.lse):
            self.put(rows, o, lse)

    def form(self, name: str, where: str) -> Form:
        """A form of that name with particulars chosen for rows at ``where``."""
        return Form(
            name,
            slack=(0, 0, 1, 5)[self.choice(f"slack {where}", 4)],
            padding=(0, 1, 3)[self.choice(f"padding {where}", 3)],
            packed=self.choice(f"packed {where}", 3) == 0,
            in_place=self.choice(f"in place {where}", 3) == 0,
            flash=self.choice(f"flash {where}", 3) > 0,
            zero_sink=self.choice(f"zero sink {where}", 2) == 0,
            present=self.choice(f"present {where}", 3) > 0,
        )

    def put(self, rows: Rows, o: Array, lse: Optional[Array]) -> None:
        """Write the rows of one entry; rows without keys after a look at the kernel's policy."""
        p = self.p
        x = torch.from_numpy(np.ascontiguousarray(o[..., : p.V_D], np.float32))[None]
        y = torch.zeros(x.shape[:-1]) if lse is None else torch.from_numpy(lse.astype(np.float32))[None]
        if rows.dead is not None and rows.dead.any():
            dead = torch.from_numpy(rows.dead)
            found = x[:, :, dead]
            wrong = ~(found.isnan() | (found == 0))
            if wrong.any():
                self.flaw = f"a row without keys holds {float(found[wrong][0]):g} where NaN or 0 is declared"
            x[:, :, dead] = 0.0
            y[:, :, dead] = torch.inf
        self.write(rows.span, rows.first, self.split_heads(x), split_axis(y, 1, p.KV_N, p.G), None)


class GqaBackend(DenseBackend):
    """GroupQueryAttention of ONNX Runtime on the CPU."""

    name = "ort-gqa"
    title = "ONNX Runtime GroupQueryAttention on the CPU"
    lse = True
    sink = True
    masked_row = "NaN, or 0 from the blockwise kernel and beside a sink"
    policies: ClassVar[dict[str, str]] = {
        "masked_nan": "NaN or inf in a masked value leaks into the row",
        "scale_zero": "means 1 / sqrt(D); a query of zeros is handed over instead",
        "past_without_present": "not looked at (a defect): present caches are always asked for beside new keys",
        "head_size": "a multiple of 8, the same for key and value: zeros are put behind",
    }

    def versions(self) -> dict[str, str]:
        """onnxruntime, onnx and the instructions of the CPU."""
        return ort.versions()

    def translate(self, problem: Problem, tensors: Arrays) -> GqaCall:
        """The call of one problem."""
        return GqaCall(problem, tensors)

    def refuses_quantised(self, scene: Scene) -> Optional[str]:
        """All but INT8 and INT4 keys and values with one scale, one a head or one a channel, and no offset."""
        if scene.quant_kind != "antiquant":
            return super().refuses_quantised(scene)
        if scene.k_dtype not in ("INT8", "INT4") or scene.v_dtype != scene.k_dtype:
            return f"keys of dtype {scene.k_dtype} and values of dtype {scene.v_dtype}"
        modes = (scene.attrs.antiquantMode,) if scene.merged_antiquant else scene.antiquant_modes
        if not set(modes) <= {0, 2}:
            return f"antiquant modes {modes}: scales other than by tensor, head or channel"
        if any(scene.given(n) for n in ("antiquantOffset", "keyAntiquantOffset", "valueAntiquantOffset")):
            return "antiquant offsets"
        return None

    def out_of_memory(self, error: Exception) -> bool:
        """Whether an exception says that memory ran out."""
        return super().out_of_memory(error) or ort.out_of_memory(error)
