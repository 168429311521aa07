"""ncnn's SDPA layer as a candidate, in float32: whole batches or batch by batch, dense or with strides, keys at once or by way of
its key-value cache.

Which of several ways to say the same call is taken follows from the case's seed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any, ClassVar, Optional

import ncnn
import numpy as np
import torch
from torch import Tensor

from fiafuzz.model.scene import Scene

from .cpu_operands import Arrays
from .cpu_problem import Problem, Span
from .dense import ZERO, DenseBackend, DenseCall

NETS = 64
"""Most nets kept in a process."""
RAW = 1
"""How a cache is taken out of a net: as it is. What is converted on its way out cannot be given back as a cache."""

ALLOCATOR = ncnn.PoolAllocator()
"""Holds caches, which must not share the allocator of other tensors. It lives as long as the process."""


@dataclass(frozen=True)
class Form:
    """What a net depends on."""

    scale: float
    masked: bool
    cached: bool


_kept: OrderedDict[Form, Any] = OrderedDict()


def net(form: Form) -> Any:
    """The net of a form, of one SDPA layer: the kept one or a new one; the least recently used goes when there are too many.

    RuntimeError when ncnn does not take the description."""
    found = _kept.pop(form, None)
    if found is None:
        inputs = ["q", "k", "v", *(["m"] if form.masked else []), *(["past_k", "past_v"] if form.cached else [])]
        outputs = ["o", *(["all_k", "all_v"] if form.cached else [])]
        # 5: a mask is given, 6: scale, 7: key-value cache.
        words = f"5={form.masked:d} 6={form.scale:.9e} 7={form.cached:d}"
        layer = f"SDPA sdpa {len(inputs)} {len(outputs)} {' '.join(inputs + outputs)} {words}"
        lines = [*(f"Input {name} 0 1 {name}" for name in inputs), layer]
        found = ncnn.Net()
        option = found.opt
        option.num_threads = 1
        option.use_vulkan_compute = False
        # All in float32: what is rounded elsewhere than the operator rounds cannot be judged strictly.
        option.use_fp16_packed = option.use_fp16_storage = option.use_fp16_arithmetic = False
        option.use_bf16_packed = option.use_bf16_storage = False
        status = found.load_param_mem("\n".join(["7767517", f"{len(lines)} {len(inputs) + len(outputs)}", *lines, ""]))
        if status:
            raise RuntimeError(f"ncnn refuses the layer with status {status}")
        while len(_kept) >= NETS:
            _kept.popitem(last=False)
    _kept[form] = found
    return found


class Given:
    """Tensors on their way into ncnn, which reads their memory and does not keep it alive."""

    def __init__(self, batched: bool, gap: int) -> None:
        self.batched = batched
        self.gap = gap
        self.held: list[Any] = []

    def mat(self, x: Tensor, per_batch: bool = True) -> Any:
        """A Mat on a float32 tensor of rank 2 or 3, of one more when batches go together and it has one for each.

        With a ``gap``, heads lie further apart than their rows reach, by that many rows of NaN."""
        batched = self.batched and per_batch
        rows = x.shape[-2]
        if self.gap and x.dim() - batched == 3:
            x = torch.nn.functional.pad(x, (0, 0, 0, self.gap), value=torch.nan)
        array = x.contiguous().numpy()
        found = ncnn.Mat(array, 0) if batched else ncnn.Mat(array)
        found.h = rows
        self.held += [array, found]
        return found


def values(mat: Any, due: tuple[int, ...]) -> Tensor:
    """The numbers of an output Mat as (batches, N, rows, V_D). RuntimeError when it has another shape."""
    parts = [mat] if mat.n <= 1 else [mat.batch(i) for i in range(mat.n)]
    found = np.stack([np.array(part) for part in parts]) if mat.dims else np.zeros((0,))
    if found.shape != due:
        raise RuntimeError(f"the output has shape {found.shape}, not {due}")
    return torch.from_numpy(found)


class NcnnCall(DenseCall):
    """One call translated for the layer."""

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """All batches at once, or one after the other, then perhaps by way of a cache."""
        mask = self.numbers(span, i0, i0 + q.shape[2])
        q, k, v = q.float(), k.float(), v.float()
        if self.choice("batches", 2):
            return self.infer(q, k, v, mask, True), None
        found = []
        for b in range(q.shape[0]):
            own = None if mask is None else mask[b if mask.shape[0] > 1 else 0]
            found.append(self.cached(q[b], k[b], v[b], own) if self.choice("cache", 2) else self.infer(q[b], k[b], v[b], own, False))
        return torch.cat(found), None

    def numbers(self, span: Span, i0: int, i1: int) -> Optional[Tensor]:
        """The mask as numbers to be added, (1|count, 1|Q_N, rows, columns); the layer knows no other."""
        mask = self.mask(span, i0, i1, torch.float32)
        if mask is None:
            return None
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        same = self.x.mask is None or self.x.mask.shape[0] == 1
        if same and (self.x.pse is None or self.x.pse.shape[0] == 1):
            mask = mask[:1]
        return mask

    def infer(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], batched: bool) -> Tensor:
        """One inference: (count, N, rows, D) when batched, else (N, rows, D)."""
        given = Given(batched, self.gap())
        extractor = net(self.form(mask is not None, False)).create_extractor()
        feeds = {"q": given.mat(q), "k": given.mat(k), "v": given.mat(v)}
        if mask is not None:
            feeds["m"] = self.mask_mat(given, mask)
        return self.output(extractor, feeds, q, v)

    def form(self, masked: bool, cached: bool) -> Form:
        """The net that serves."""
        return Form(float(np.float32(self.p.scale)), masked, cached)

    def gap(self) -> int:
        """Rows of NaN between heads."""
        return 3 * (self.choice("strides", 3) == 0)

    def mask_mat(self, given: Given, mask: Tensor) -> Any:
        """A mask, of rank 2 where all heads share it: (count, N, rows, columns) when batched, else (N, rows, columns)."""
        if mask.shape[-3] == 1 and self.choice("rank", 2):
            mask = mask.squeeze(-3)
        if given.batched and mask.shape[0] == 1:
            return given.mat(mask[0], per_batch=False)
        return given.mat(mask)

    def output(self, extractor: Any, feeds: dict[str, Any], q: Tensor, v: Tensor) -> Tensor:
        """What comes out. RuntimeError for any status but 0."""
        for name, mat in feeds.items():
            status = extractor.input(name, mat)
            if status:
                raise RuntimeError(f"ncnn refuses input {name} with status {status}")
        status, found = extractor.extract("o")
        if status:
            raise RuntimeError(f"ncnn gives status {status}")
        count = q.shape[0] if q.dim() == 4 else 1
        return values(found, (count, *q.shape[-3:-1], v.shape[-1]))

    def cached(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Keys of one batch in one to three parts, (KV_N, columns, D); the last comes with the queries."""
        columns = k.shape[1]
        cuts = sorted({0, columns, *(self.choice(f"cut {i}", columns) for i in range(2))})
        hint = (0, 4, 2 * columns)[self.choice("hint", 3)]
        past = (ncnn.Mat(), ncnn.Mat())
        running = net(self.form(mask is not None, True))
        found = q
        for begin, end in pairwise(cuts):
            last = end == columns
            given = Given(False, self.gap())
            rows = q if last else q[:, :1]
            extractor = running.create_extractor()
            extractor.set_kvcache_allocator(ALLOCATOR)
            if hint:
                extractor.set_kvcache_max_seqlen_hint(hint)
            feeds = {"q": given.mat(rows), "k": given.mat(k[:, begin:end]), "v": given.mat(v[:, begin:end])}
            if mask is not None:
                feeds["m"] = self.mask_mat(given, mask if last else torch.zeros(mask.shape[0], 1, end))
            feeds |= {"past_k": past[0], "past_v": past[1]}
            found = self.output(extractor, feeds, rows, v)
            states = [extractor.extract(name, RAW) for name in ("all_k", "all_v")]
            if any(status for status, _ in states):
                raise RuntimeError(f"ncnn gives no cache: {[status for status, _ in states]}")
            past = (states[0][1], states[1][1])
        return found


class NcnnBackend(DenseBackend):
    """The SDPA layer on the CPU."""

    name = "ncnn"
    title = "ncnn's SDPA layer on the CPU"
    masked_row = ZERO
    policies: ClassVar[dict[str, str]] = {
        "masked_nan": "NaN or inf in a masked value leaks into the row",
        "strides": "dense, or heads with gaps",
        "scale_zero": "means 1 / sqrt(D): not run",
        "precision": "float32, storage in 16 bits off",
    }

    def versions(self) -> dict[str, str]:
        """ncnn and what it may use of the processor."""
        able = [name for name in ("x86_avx", "x86_avx2", "arm_neon", "arm_asimdhp") if getattr(ncnn, f"cpu_support_{name}")()]
        return {"ncnn": version("ncnn"), "ncnn_cpu": ",".join(able) or "none", "cpu": torch.backends.cpu.get_cpu_capability()}

    def refuses(self, scene: Scene) -> Optional[str]:
        """A scale of 0 means the default scale."""
        return "scale 0" if np.float32(scene.scale) == 0 else None

    def translate(self, problem: Problem, tensors: Arrays) -> NcnnCall:
        """The call of one problem."""
        return NcnnCall(problem, tensors)
