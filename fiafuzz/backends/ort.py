"""What the ONNX Runtime adapters share: models of one node, sessions that are kept, and tensors on their way in and out.

A session is kept for as long as its model is asked for again, so that calls of different shapes go through one session as
they do in a server: what a kernel keeps from one call to the next is tested with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Optional, Union

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper
from torch import Tensor

Array = np.ndarray[Any, Any]
Attribute = Union[int, float, str, Sequence[int], Sequence[float]]

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
SESSIONS = 64
"""Most sessions kept in a process."""
IR_VERSION = 11
"""Old enough for every runtime that knows opset 23."""

_kept: OrderedDict[Hashable, onnxruntime.InferenceSession] = OrderedDict()


def session(key: Hashable, build: Callable[[], bytes]) -> onnxruntime.InferenceSession:
    """The session of a model: the kept one of that key, else a new one of what ``build`` gives (a serialised model).

    ``key`` must hold everything that the model depends on. The session least recently used goes when there are too many.
    Raises what ONNX Runtime raises for a model that it cannot load."""
    found = _kept.pop(key, None)
    if found is None:
        found = onnxruntime.InferenceSession(build(), options(), providers=["CPUExecutionProvider"])
        while len(_kept) >= SESSIONS:
            _kept.popitem(last=False)
    _kept[key] = found
    return found


def options() -> onnxruntime.SessionOptions:
    """One thread, and nothing but fatal errors on stderr: what goes wrong comes as an exception."""
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = found.inter_op_num_threads = 1
    found.log_severity_level = 4
    return found


def run(running: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> list[Array]:
    """All outputs of a session in their order. Raises what ONNX Runtime raises."""
    found: list[Array] = running.run(None, dict(feeds))
    return found


def node_model(
    op: str,
    inputs: Sequence[tuple[str, Optional[tuple[str, int]]]],
    outputs: Sequence[str],
    attributes: Mapping[str, Attribute],
    opset: int,
    domain: str,
    types: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """A model of one node with open shapes, serialised. ``inputs`` are (name, (numpy dtype, rank)) in the node's order, None
    for one that is left out; an output "" is left out; ``types`` names the numpy dtypes of outputs whose type does not follow
    from the inputs."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind[0])), [None] * kind[1])
        for name, kind in inputs
        if kind is not None
    ]
    names = [name if kind is not None else "" for name, kind in inputs]
    while names and not names[-1]:
        names.pop()
    words: dict[str, Any] = dict(attributes)
    node = helper.make_node(op, names, list(outputs), domain=domain, **words)
    # The runtime infers types and shapes of the other outputs itself.
    wanted = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(types[name])), None)
        if name in types
        else helper.make_empty_tensor_value_info(name)
        for name in outputs
        if name
    ]
    graph = helper.make_graph([node], op, given, wanted)
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    found: bytes = model.SerializeToString()
    return found


def run_node(
    op: str,
    inputs: Sequence[tuple[str, Optional[Array]]],
    outputs: Sequence[str],
    attributes: Mapping[str, Attribute],
    *,
    opset: int = 24,
    domain: str = "",
    types: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Array]:
    """Run one node on ``inputs`` (name, array or None where left out), in the order of the operator's schema. The outputs by
    name, without those named ""; ``types`` as for ``node_model``.

    The session depends on the operator, on attributes, and on the inputs' presence, dtypes and ranks; not on their sizes.
    Raises what ONNX Runtime raises."""
    kinds = tuple((name, None if x is None else (x.dtype.str, x.ndim)) for name, x in inputs)
    frozen = tuple(sorted((k, tuple(v) if isinstance(v, (list, tuple)) else v) for k, v in attributes.items()))
    key = (op, domain, opset, kinds, tuple(outputs), frozen, tuple(sorted(types.items())))
    running = session(key, lambda: node_model(op, kinds, outputs, attributes, opset, domain, types))
    values = run(running, {name: x for name, x in inputs if x is not None})
    return dict(zip([name for name in outputs if name], values))


def array(x: Tensor) -> Array:
    """A tensor as the runtime takes it, over the same memory where it is dense: BFLOAT16 as float32, which is exact."""
    found: Array = (x.float() if x.dtype == torch.bfloat16 else x).contiguous().numpy()
    return found


def tensor(x: Array) -> Tensor:
    """What the runtime gave, over the same memory."""
    return torch.from_numpy(x)


def as_float32(number: float) -> float:
    """A number as an attribute of a node holds it."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def versions() -> dict[str, str]:
    """The packages, and the instructions that the CPU offers (the runtime chooses its kernels by them)."""
    return {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def out_of_memory(error: Exception) -> bool:
    """Whether an exception of the runtime says that memory ran out."""
    text = str(error)
    return "Failed to allocate memory" in text or "bad_alloc" in text or "BFCArena" in text


HALF = 2.0**-11
"""Largest relative rounding error of FLOAT16."""
HALF_RANGE = 6e4


def half_limit(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Optional[Tensor], added: Optional[Tensor]) -> Optional[Tensor]:
    """How far attention in FLOAT16 may be from the exact one when sums are kept in float32: query and key scaled by the root of
    the scale, scores, scores with bias, probabilities and result rounded to FLOAT16 in turn. float32 (B, Q_N, Q_S, V_D).

    q (B, Q_N, Q_S, D), k and v (B, KV_N, KV_S, D or V_D) hold FLOAT16 numbers in any dtype, seen (bool) and added are
    broadcastable to (B, Q_N, Q_S, KV_S). None where a score might leave the range of FLOAT16, so that nothing can be said."""
    q, k, v = q.float(), k.float(), v.float()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    size, root = abs(scale), abs(scale) ** 0.5
    scores, reach = q @ k.mT * scale, q.abs() @ k.abs().mT * size
    final = scores if added is None else scores + added.float()
    large = torch.where(final == -torch.inf, 0.0, final.abs())
    if max(float(x.max()) if x.numel() else 0.0 for x in (reach, large, q.abs() * root, k.abs() * root)) > HALF_RANGE:
        return None
    # Factors below the normal range of FLOAT16 are off by half its smallest step, whatever their size.
    faint = 2.0**-25 * root * (q.abs().sum(-1)[..., None] + k.abs().sum(-1)[..., None, :] + q.shape[-1] * 2.0**-25)
    off = HALF * (2.01 * reach + scores.abs() + large) + faint + 2.0**-24
    open_ = final > -torch.inf if seen is None else seen & (final > -torch.inf)
    off = torch.where(open_, off, 0.0).amax(-1, keepdim=True)
    chances = torch.softmax(torch.where(open_, final, -torch.inf), -1).nan_to_num(0.0)
    weight = chances @ v.abs()
    # The exponential, the sum, the quotient and the result are each rounded at most once.
    return weight * (torch.expm1(2 * off) + 5 * HALF) + 2.0**-24 * (open_.float() @ v.abs() + 1)
