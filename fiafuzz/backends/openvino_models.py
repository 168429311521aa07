"""OpenVINO models of one scaled_dot_product_attention, compiled once per form and kept: stateless ones of open shapes, and ones
with a key-value cache, which OpenVINO fuses into another kernel."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# With this package `import openvino` sends a message to a statistics service in the net; without, it does not.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino  # noqa: E402
from openvino import CompiledModel, Core, Model, PartialShape, Type  # noqa: E402
from openvino import opset13 as op  # noqa: E402
from openvino.op.util import Variable, VariableInfo  # noqa: E402
from openvino.opset13.ops import _get_node_factory_opset13  # noqa: E402

MODELS = 48
"""Most compiled models kept in a process."""
FUSED = "ScaledDotProductAttention"
"""The layer that a cache and the attention on it become; without a cache the operator becomes other layers."""
TYPES = {"f32": Type.f32, "f16": Type.f16, "bf16": Type.bf16}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Form:
    """What a model depends on: what is compiled once and then serves calls of all shapes."""

    dtype: str
    """Element type of inputs and output: f32, f16, bf16. The arithmetic is float32 in any case."""
    axes: str = "BNSD"
    """Order in which the inputs come: BNSD, or BSND with transpositions in the model."""
    mask: str = ""
    """"": none, "bool" or "float"."""
    rank: int = 4
    """Rank of the mask, 4 or 2."""
    scaled: bool = True
    """Whether a scale is given, as it must be beside a sink; the operator divides by the root of D without."""
    causal: bool = False
    sink: bool = False
    strided: bool = False
    """Whether q, k and v come as regions of larger tensors. A request of its own: one that has been given a dense tensor
    before writes a strided one into the memory of that dense one (2026.4.1), which may be freed by then."""
    group: int = 1
    """Query heads that share a key head, when the model itself repeats the key heads."""
    cache: str = ""
    """Precision of the key-value cache, "" without one."""
    heads: tuple[int, int, int] = (-1, -1, -1)
    """KV_N, D and V_D, fixed where there is a cache; -1 is open."""


@contextmanager
def in_one_line() -> Iterator[None]:
    """What OpenVINO raises, with what happened before the places in its sources where it happened."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        told = [line for line in lines if line and not line.startswith("Exception from")]
        raise RuntimeError(" ".join(told) or "; ".join(lines)) from error


class Session:
    """A compiled model with its one request."""

    def __init__(self, form: Form) -> None:
        # No stream: inference runs in the calling thread. Each compiled model would have threads of its own otherwise.
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 0}
        if form.cache:
            config["KV_CACHE_PRECISION"] = form.cache
        self.form = form
        with in_one_line():
            self.compiled: CompiledModel = _core().compile_model(build(form), "CPU", config)
        self.request = self.compiled.create_infer_request()
        self.held: dict[str, tuple[Tensor, openvino.Tensor]] = {}
        """Memory that OpenVINO reads and does not keep alive."""
        if form.cache and FUSED not in self.layers():
            raise RuntimeError("the cache is not fused with the attention")

    def run(self, feeds: Mapping[str, Tensor], due: tuple[int, ...]) -> Tensor:
        """The output of one inference, copied. RuntimeError when it has not the shape that is due; what OpenVINO raises otherwise.

        What goes wrong within an inference on one thread of a stream comes back as an output of no elements (2026.4.1)."""
        for name, x in feeds.items():
            given = handed(x, 2 if self.form.strided and name in ("q", "k", "v") else 0)
            self.request.set_tensor(name, given[1])
            self.held[name] = given
        with in_one_line():
            self.request.infer()
        found = self.request.get_output_tensor(0)
        if tuple(found.shape) != due:
            raise RuntimeError(f"the output has shape {tuple(found.shape)}, not {due}")
        data = np.array(found.data)
        if self.form.dtype == "bf16":
            return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(data)

    def put(self, states: Mapping[str, Tensor]) -> None:
        """Write the cache from outside; (B, KV_N, S, D) by the name of the state."""
        for state in self.request.query_state():
            x = states[state.name]
            self.held[state.name] = handed(x if self.form.axes == "BNSD" else x.transpose(1, 2))
            state.state = self.held[state.name][1]

    def layers(self) -> list[str]:
        """Kinds of the layers that the model was compiled to."""
        return [str(node.get_rt_info()["layerType"].astype(str)) for node in self.compiled.get_runtime_model().get_ops()]


_kept: OrderedDict[Form, Session] = OrderedDict()
_cores: list[Core] = []


def _core() -> Core:
    if not _cores:
        _cores.append(Core())
    return _cores[0]


def session(form: Form) -> Session:
    """The session of a form: the kept one or a new one; the least recently used goes when there are too many."""
    found = _kept.pop(form, None)
    if found is None:
        found = Session(form)
        while len(_kept) >= MODELS:
            _kept.popitem(last=False)
    _kept[form] = found
    return found


def versions() -> dict[str, str]:
    """OpenVINO's version, and what its CPU plugin says about the processor."""
    able = ",".join(_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    return {"openvino": openvino.__version__, "openvino_cpu": able, "cpu": torch.backends.cpu.get_cpu_capability()}


def handed(x: Tensor, margin: int = 0) -> tuple[Tensor, openvino.Tensor]:
    """Memory and the tensor on it that OpenVINO is given; the memory must outlive the tensor. With a ``margin`` the tensor is a
    region of a larger one of NaN."""
    if margin:
        outer = torch.full([n + margin for n in x.shape], torch.nan, dtype=x.dtype)
        begin = [margin // 2] * x.dim()
        end = [first + n for first, n in zip(begin, x.shape)]
        outer[tuple(slice(*ends) for ends in zip(begin, end))] = x
        outer, whole = handed(outer)
        return outer, openvino.Tensor(whole, openvino.Coordinate(begin), openvino.Coordinate(end))
    x = x.contiguous()
    if x.dtype == torch.bfloat16:
        return x, openvino.Tensor(x.view(torch.int16).numpy().view(np.uint16), openvino.Shape(x.shape), Type.bf16)
    return x, openvino.Tensor(x.numpy(), shared_memory=True)


def build(form: Form) -> Model:
    """The model of a form: inputs q, k, v and, as the form has them, s (scale), m (mask), t (sink), b (order of the cache)."""
    kind, kv_n, (d, v_d) = TYPES[form.dtype], form.heads[0], form.heads[1:]
    q_n = kv_n * form.group if kv_n > 0 else -1

    def sizes(heads: int, head: int) -> list[int]:
        return [-1, heads, -1, head] if form.axes == "BNSD" else [-1, -1, heads, head]

    q, k, v = (_input(n, sizes(h, e), kind) for n, h, e in (("q", q_n, d), ("k", kv_n, d), ("v", kv_n, v_d)))
    inputs, sinks = [q, k, v], []
    keys, values = k, v
    if form.cache:
        order = _input("b", [-1], Type.i32)
        inputs.append(order)
        keys, key_store = _cached("key", k, order, sizes(kv_n, d), form)
        values, value_store = _cached("value", v, order, sizes(kv_n, v_d), form)
        sinks = [key_store, value_store]
    if form.group > 1:
        keys, values = _repeated(keys, form), _repeated(values, form)
    operands = [_heads_first(x, form) for x in (q, keys, values)]
    if form.mask:
        operands.append(_input("m", [-1] * form.rank, Type.boolean if form.mask == "bool" else kind))
        inputs.append(operands[-1])
    elif form.scaled:
        # The documented way to give a scale without a mask: a mask that is the number 0.
        operands.append(op.convert(op.constant(np.zeros((), np.float32)), form.dtype))
    if form.scaled:
        operands.append(_input("s", [], kind))
        inputs.append(operands[-1])
    if form.sink:
        operands.append(_input("t", [1, q_n, 1, 1], kind))
        inputs.append(operands[-1])
    # The public function has no argument for a sink; the operator itself has.
    node = _get_node_factory_opset13().create(
        "ScaledDotProductAttention", [x.output(0) for x in operands], {"causal": form.causal}
    )
    return Model([op.result(node)], sinks, inputs, "sdpa")


def _input(name: str, sizes: list[int], kind: Type) -> Any:
    found = op.parameter(PartialShape(sizes), kind, name=name)
    found.output(0).get_tensor().set_names({name})
    return found


def _heads_first(x: Any, form: Form) -> Any:
    return x if form.axes == "BNSD" else op.transpose(x, op.constant(np.array([0, 2, 1, 3], np.int32)))


def _cached(name: str, x: Any, order: Any, sizes: list[int], form: Form) -> tuple[Any, Any]:
    """New keys or values behind those of the cache, whose batches are first brought into ``order``; and what stores them."""
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = PartialShape(sizes), TYPES[form.dtype], name
    store = Variable(info)
    empty = [np.array([n], np.int64) for n in (0 if n < 0 else n for n in sizes[1:])]
    start = op.concat([op.shape_of(order), *(op.constant(n) for n in empty)], 0)
    past = op.read_value(op.broadcast(op.constant(np.zeros((), np.float32)), start), store)
    past = op.gather(past, order, op.constant(np.array(0, np.int32)))
    joined = op.concat([past, x], 2 if form.axes == "BNSD" else 1)
    return joined, op.assign(joined, store)


def _repeated(x: Any, form: Form) -> Any:
    """Each key head ``group`` times, neighbours: KV_N becomes Q_N in (B, KV_N, S, D) or (B, S, KV_N, D)."""
    shape, at = op.shape_of(x), form.axes.index("N")

    def axes(*which: int) -> Any:
        return op.gather(shape, op.constant(np.array(which)), op.constant(np.array(0, np.int32)))

    group, before, after = op.constant(np.array([form.group])), range(at + 1), range(at + 1, 4)
    wide = op.unsqueeze(x, op.constant(np.array(at + 1)))
    wide = op.broadcast(wide, op.concat([axes(*before), group, axes(*after)], 0), broadcast_spec="BIDIRECTIONAL")
    if form.heads[0] > 0:
        head = int(x.get_output_partial_shape(0)[3].get_length())
        sizes = [0, 0, 0, head]
        sizes[at] = form.heads[0] * form.group
        sizes[3 - at] = -1
        return op.reshape(wide, op.constant(np.array(sizes)), special_zero=True)
    heads = op.multiply(axes(at), group)
    target = [axes(0), heads, axes(2, 3)] if at == 1 else [axes(0, 1), heads, axes(3)]
    return op.reshape(wide, op.concat(target, 0), special_zero=False)
