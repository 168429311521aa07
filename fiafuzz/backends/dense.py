"""What kernels of other projects have in common: a call translated into dense batches of query, key and value with a mask.

What such a kernel has no word for is not run. What it has another word for is translated: sparse modes into a band or an
explicit mask, bias and slopes into an additive mask, paged, listed, packed and prefixed keys into dense ones span by span,
split rope into wider heads. These translations are shared with the cpu backend, the arithmetic is the kernel's own.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Optional, cast

import numpy as np
import torch
from torch import Tensor

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors

from .cpu_mask import OPEN, Visibility
from .cpu_operands import Arrays, Operands, padding_sizes, split_axis
from .cpu_output import Output
from .cpu_problem import CannotRun, Problem, Span, need, read_problem
from .protocol import BackendInfo, Outcome

torch.set_num_threads(1)

MASK_BUDGET = 1 << 24
"""Most mask elements made at a time."""

NO_ROOM = "the dense copies and scores that the kernel needs do not fit into the memory of the worker"

ZERO, NAN, MEAN, ANY = "zero", "nan", "mean", "any"
"""What a kernel declares to answer for a row without any key: 0, NaN, the mean of the values, or nothing in particular."""


class PolicyBroken(RuntimeError):
    """What came back is not what the kernel is declared to give, such as its answer for a row without keys."""


class DenseCall(Visibility, Output):
    """One call translated for a kernel that takes dense batches; a subclass says how ``kernel`` is called."""

    masked_row: ClassVar[str] = ZERO
    """The kernel's policy for rows without keys. ZERO is what the operator does and is judged like any other value; for
    another policy the answer is checked against it here, and the operator's own value is written instead."""
    native_band: ClassVar[bool] = False
    """Whether ``kernel`` may be given a band instead of a mask (it then looks at ``band`` itself): no block of rows is cut."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        self.p = p
        self.x = Operands(p, tensors)

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Attention of rows [i0, i0 + rows) of a span, contiguous q (count, Q_N, rows, D), k and v (count, KV_N, columns, D or
        V_D): the output (count, Q_N, rows, V_D) and, where softmaxLse is wanted, its natural logarithms (count, Q_N, rows).

        What is hidden and added comes from ``mask`` or ``band`` and ``bias``. A subclass gives this, or a ``run`` that needs none."""
        raise NotImplementedError(type(self).__name__)

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers."""
        self.open_outputs(outputs)
        self.blank()
        for span in self.p.spans:
            if span.q_len and self.p.columns(span):
                self.attend(span)
            elif span.q_len:
                self.write_empty(span)

    def attend(self, span: Span) -> None:
        """All rows of one span, in blocks of rows so that masks stay small."""
        p = self.p
        q, k, v = self.operands(span)
        step = span.q_len
        if not (self.native_band and self.plain_band(span) is not None):
            step = max(1, MASK_BUDGET // max(1, span.count * p.Q_N * p.columns(span)))
        for i0 in range(0, span.q_len, step):
            rows = q[:, :, i0 : i0 + step].contiguous()
            o, lse = self.kernel(span, i0, rows, k, v)
            o, lse = o.float(), (o.new_zeros(o.shape[:-1]) if lse is None else lse).float()
            o, lse = self.operators_own(span, i0, o, lse, v)
            self.write(span, i0, self.split_heads(o), split_axis(lse, 1, p.KV_N, p.G), None)

    def choice(self, about: str, ways: int) -> int:
        """One of [0, ways) for a choice between several ways to say the same.

        It depends on ``about`` and the case's seed alone, so that a call is always said in the same way, and a failing one
        mostly keeps its way while it shrinks."""
        digest = hashlib.blake2b(f"{self.p.scene.case.seed}/{about}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % ways

    def operands(self, span: Span) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of a span as contiguous (count, N, positions, D), rope beside the rest of the head."""
        q = self.rows_of(self.x.query, span)
        k, v = self.x.key.fetch(span), self.x.value.fetch(span)
        if self.x.query_rope is not None and self.x.key_rope is not None:
            q = torch.cat((q, self.rows_of(self.x.query_rope, span)), dim=-1)
            k = torch.cat((k, self.x.key_rope.fetch(span)), dim=-1)
        if self.x.slopes is not None and q.dtype.itemsize < 4:
            # Penalties of a few thousand would lose their last digits in a 16-bit mask.
            q, k, v = q.float(), k.float(), v.float()
        return q.contiguous(), k.contiguous(), v.contiguous()

    def rows_of(self, x: Tensor, span: Span) -> Tensor:
        """(count, Q_N, q_len, ..) of a query-shaped tensor."""
        if self.p.packed:
            return x[:, span.q_at : span.q_at + span.q_len].unsqueeze(0)
        return x[span.first : span.first + span.count, :, span.q_at : span.q_at + span.q_len]

    def plain_band(self, span: Span) -> Optional[tuple[Optional[int], Optional[int]]]:
        """The lowest and highest difference column - row that a row of the span sees (None: no limit that bites), when nothing
        but such a band hides and nothing is added; None when a mask or a bias is needed.

        A causal kernel aligned top left has (None, 0), one aligned bottom right (None, columns - rows)."""
        if self.x.mask is not None or self.x.pse is not None or self.x.slopes is not None:
            return None
        low, high = self.band(span)
        columns, rows = self.p.columns(span), span.q_len
        return (None if low <= 1 - rows or low <= OPEN[0] else low), (None if high >= columns - 1 else high)

    def seen(self, span: Span, i0: int, i1: int) -> Optional[Tensor]:
        """True where a row sees a column, (count, 1, rows, columns); None when everything is seen."""
        columns = self.p.columns(span)
        hidden = self.hidden(span, i0, i1, 0, columns)
        if hidden is None:
            return None
        return ~(hidden if hidden.dim() == 2 else hidden[:, 0]).expand(span.count, 1, i1 - i0, columns)

    def added(self, span: Span, i0: int, i1: int) -> Optional[Tensor]:
        """What is added to the scaled scores, float32, broadcastable to (count, Q_N, rows, columns); None when nothing is."""
        bias = self.bias(span, i0, i1, 0, self.p.columns(span))
        return None if bias is None else self.join_heads(bias)

    def mask(self, span: Span, i0: int, i1: int, dtype: torch.dtype) -> Optional[Tensor]:
        """None, a bool mask (True: seen) (count, 1, rows, columns), or an additive one of ``dtype`` (count, Q_N, rows,
        columns)."""
        seen, added = self.seen(span, i0, i1), self.added(span, i0, i1)
        if added is None:
            return seen
        additive = added.expand(span.count, self.p.Q_N, i1 - i0, self.p.columns(span)).to(dtype)
        if seen is not None:
            additive = additive.masked_fill(~seen, -torch.inf)
        return additive.contiguous()

    def dead(self, span: Span, i0: int, i1: int) -> Optional[Tensor]:
        """Rows that see no key, (count, 1, rows); None when there is none."""
        seen = self.seen(span, i0, i1)
        if seen is None:
            return None
        dead = ~seen.any(-1)
        return dead if dead.any() else None

    def operators_own(self, span: Span, i0: int, o: Tensor, lse: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """0 and +inf, the operator's answer, in rows without keys, after a look whether the kernel keeps its own policy there.
        PolicyBroken when not."""
        dead = self.dead(span, i0, i0 + o.shape[2])
        if dead is None:
            return o, lse
        where = dead.expand(o.shape[:-1])
        found = o[where]
        if self.masked_row == ZERO:
            # The reference leaves some of these rows out (a user's mask under innerPrecise 0 and 1), so it is looked at here.
            if (found != 0).any():
                raise PolicyBroken(f"a row without keys holds {float(found[found != 0][0]):g} where 0 is declared")
            return o, lse
        if self.masked_row == NAN and not found.isnan().all():
            raise PolicyBroken(f"a row without keys holds {float(found[~found.isnan()][0]):g} where NaN is declared")
        if self.masked_row == MEAN and not torch.isfinite(found).all() and torch.isfinite(v).all():
            raise PolicyBroken("a row without keys is not finite where the mean of the values is declared")
        return o.masked_fill(where.unsqueeze(-1), 0.0), lse.masked_fill(where, torch.inf)


class DenseBackend(ABC):
    """A backend made of a DenseCall: what it refuses, and how it fails.

    ``lse``, ``sink``, ``rope``, ``unequal`` say whether the kernel gives softmaxLse, takes learnableSink, wider query than value
    heads by rope, and by D != V_D; ``dtypes`` which query dtypes it computes in. ``refuses`` is for what is left."""

    name: ClassVar[str]
    title: ClassVar[str]
    lse: ClassVar[bool] = False
    sink: ClassVar[bool] = False
    rope: ClassVar[bool] = True
    unequal: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("FLOAT16", "BFLOAT16")
    masked_row: ClassVar[str] = ZERO
    policies: ClassVar[dict[str, str]] = {}

    def __init__(self, profile: Optional[str] = None) -> None:
        self.profile = profile

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the packages and what of the CPU the kernel makes use of."""

    @abstractmethod
    def translate(self, problem: Problem, tensors: Arrays) -> DenseCall:
        """The call of one problem."""

    def refuses_quantised(self, scene: Scene) -> Optional[str]:
        """Why a quantised call cannot be said; a kernel with quantised caches of its own says less than this."""
        return None if scene.quant_kind == "none" else "quantised tensors"

    def refuses(self, scene: Scene) -> Optional[str]:
        """What else the kernel has no word for; None when nothing."""
        return None

    @property
    def info(self) -> BackendInfo:
        """Name, versions and declared policies."""
        policies = {"masked_row": self.masked_row, "packed_tail": "untouched", "strides": "dense", **self.policies}
        return BackendInfo(self.name, self.title, "none", versions=self.versions(), policies=policies)

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """What the kernel has no word for; None when the call can be translated."""
        reason = self.refuses_quantised(scene)
        if reason is not None:
            return reason
        if scene.post_quant_on or scene.out_dtype != scene.q_dtype:
            return "an output of another dtype than the query"
        if scene.q_dtype not in self.dtypes:
            return f"a query of dtype {scene.q_dtype}"
        if scene.empty_case:
            return "an empty call"
        if scene.sink_on and not self.sink:
            return "learnableSink"
        if scene.lse_on and not self.lse:
            return "softmaxLse"
        if scene.rope_on and not scene.q_dtype == scene.dtype("queryRope") == scene.dtype("keyRope"):
            return "rope of another dtype than the query"
        if scene.rope_on and not self.rope:
            return "query and value heads of different size (rope)"
        if scene.Q_D != scene.V_D and not self.unequal:
            return "query and value heads of different size"
        reason = self.refuses(scene)
        if reason is not None:
            return reason
        try:
            read_problem(scene)
        except CannotRun as error:
            return str(error)
        return None

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """Run one call, writing into ``outputs``. Never raises."""
        started = time.perf_counter()
        try:
            reason = self.cannot_express(scene)
            need(reason is None, reason or "")
            arrays = cast(Arrays, tensors)
            with torch.no_grad():
                self.translate(read_problem(scene, padding_sizes(scene, arrays)), arrays).run(outputs)
            outcome = Outcome("ok", outputs)
        except CannotRun as error:
            outcome = Outcome("unsupported", message=str(error))
        except PolicyBroken as error:
            outcome = Outcome("ok", outputs, flaw=("F101", str(error)))
        except MemoryError:
            outcome = Outcome("unsupported", message=NO_ROOM)
        except Exception as error:  # a candidate that trips is a finding, not the end of the campaign
            if self.out_of_memory(error):
                # Dense copies and whole score matrices that do not fit under the worker's limit: too large to be translated, not
                # a fault of the kernel.
                outcome = Outcome("unsupported", message=NO_ROOM)
            else:
                outcome = Outcome("error", message=f"{type(error).__name__}: {error}".splitlines()[0])
        return replace(outcome, seconds=time.perf_counter() - started)

    def out_of_memory(self, error: Exception) -> bool:
        """Whether an exception says that memory ran out; a kernel with words of its own adds them."""
        return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
