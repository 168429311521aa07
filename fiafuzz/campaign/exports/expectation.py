"""What the operator must do with an exported call, in a form that a program without fiafuzz can check.

An element of an output is inside when low <= value <= high. The interval holds everything that the row gate (oracles.gate) would
let pass: the widest of its tolerances, under each documented order of roundings. Elements with a second allowed number are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.campaign.results import Foreseen, clean
from fiafuzz.campaign.verdict import foreseen, gives_values
from fiafuzz.model.case import CaseError
from fiafuzz.model.codecs import code_values, decode, encode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors, check_sizes, materialize, named_specs
from oracles.constraints.catalogue import rule_by_id
from oracles.constraints.predict import predict
from oracles.gate import CodeGate, gate_of
from oracles.reference import ReferenceError, reference
from oracles.reference.expected import Expected

from .common import CannotExport, Item, Remarks

F64 = NDArray[np.float64]
MAX_CHECKED = 1024
"""Elements of an output that an exported program checks."""
GOLDEN = 0.6180339887498949
REPEATS = 5
"""Runs of a call that was found to give other bits each time."""
MAX_BLIND_ELEMENTS = 1 << 24
"""Elements of a call that may be refused up to which its tensors are filled, as in a campaign."""


@dataclass(frozen=True)
class Claim:
    """One element of an output: flat index (row-major), expected number, and the interval that holds every correct one."""

    index: int
    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class Checked:
    """The checked elements of one output and how many could be checked in all."""

    output: str
    claims: tuple[Claim, ...]
    comparable: int


@dataclass(frozen=True)
class Expectation:
    """What must happen: ``answer`` is accept, reject, either (disputed: both are right) or dies (known to kill the host).

    ``codes`` are the statuses of a refusal (() means any). ``tensors`` are the inputs (None: none can be made, and none are needed).
    ``runs``: how often the same bits must come out. ``must`` and ``seen``: the prediction and the finding in words.
    """

    answer: str
    codes: tuple[int, ...]
    checked: tuple[Checked, ...]
    tensors: Optional[Tensors]
    runs: int
    must: tuple[str, ...]
    seen: tuple[str, ...]


def expect(item: Item, remarks: Remarks) -> Expectation:
    """What the operator must do with an item, from its entry where it has one, else from prediction and reference.

    CannotExport when the tensors of a call that computes something cannot be made.
    """
    case, entry = item.case, item.entry
    scene = Scene(case)
    if entry is not None and entry.profile == item.profile:
        told = entry.expected
    else:
        told = foreseen(predict(case, item.profile, scene=scene))
    values = gives_values(told)
    tensors = _tensors(item, told.verdict == "accept", remarks)
    checked: list[Checked] = []
    if values and tensors is not None:
        try:
            expected = reference(case, tensors, scene=scene)
        except ReferenceError as error:
            remarks.add(f"only the status is checked, since there is no reference: {clean(error)}")
        else:
            checked = [_checked(item, scene, expected, name, remarks) for name in expected.outputs]
    _remark_on_finding(item, checked, remarks)
    codes = () if told.verdict == "accept" else tuple(code for code in told.codes if code)
    return Expectation(_answer(told), codes, tuple(checked), tensors, _runs(item), foreseen_lines(told), seen_lines(item))


def _answer(told: Foreseen) -> str:
    if told.verdict in ("accept", "reject"):
        return told.verdict
    return "dies" if told.verdict in ("crash", "hang") else "either"


def _runs(item: Item) -> int:
    return REPEATS if item.entry is not None and item.entry.signature.code == "F105" else 1


def _tensors(item: Item, needed: bool, remarks: Remarks) -> Optional[Tensors]:
    try:
        check_sizes(item.case)
        if not needed:
            elements = sum(math.prod(spec.shape) for _, _, spec, _ in named_specs(item.case))
            if elements > MAX_BLIND_ELEMENTS:
                raise CaseError(f"{elements} elements in a call that may be refused")
        return materialize(item.case)
    except (CaseError, MemoryError) as error:
        if needed:
            raise CannotExport(f"the tensors cannot be made: {clean(error)}") from None
        remarks.add(f"the tensors hold no data: {clean(error)}")
        return None


# ---- values ---------------------------------------------------------------------------------------


def _checked(item: Item, scene: Scene, expected: Expected, name: str, remarks: Remarks) -> Checked:
    spec = scene.tensor(name)
    dtype = spec.dtype if spec is not None else "FLOAT32"
    wanted = expected.outputs[name]
    known = DTYPES.get(dtype)
    if spec is None or known is None or known.kind not in ("float", "int", "uint") or known.bits < 8 or spec.shape != wanted.shape:
        remarks.add(f"{name} is not checked: {'null' if spec is None else f'{dtype} {list(spec.shape)}'}")
        return Checked(name, (), 0)
    low, high = intervals(scene, expected, name, dtype)
    open_to_check = expected.compare[name] & ~np.isnan(wanted) & (low <= high)
    for alternative in expected.alternatives.get(name, ()):
        open_to_check &= ~alternative.where
    places = np.flatnonzero(open_to_check)
    found: dict[int, Claim] = _worst(item, name, dtype, wanted, low, high)
    flat, flat_low, flat_high = wanted.reshape(-1), low.reshape(-1), high.reshape(-1)
    for place in spread(places, MAX_CHECKED):
        if place not in found:
            found[place] = Claim(place, float(flat[place]), *_outwards(float(flat_low[place]), float(flat_high[place])))
    if len(found) < places.size:
        remarks.add(f"{name}: {len(found)} of {places.size} comparable elements are checked")
    return Checked(name, tuple(found.values()), int(places.size))


def _worst(item: Item, name: str, dtype: str, wanted: F64, low: F64, high: F64) -> dict[int, Claim]:
    """The elements that the finding shows, with the tolerance that judged them."""
    found: dict[int, Claim] = {}
    if item.entry is None or item.entry.profile != item.profile:
        return found
    for element in item.entry.got.worst:
        index = element.index
        if element.output != name or len(index) != wanted.ndim or not all(0 <= i < n for i, n in zip(index, wanted.shape)):
            continue
        place = int(np.ravel_multi_index(index, wanted.shape)) if index else 0
        number, allowed = float(element.expected), float(element.allowed)
        if number != number:
            continue
        if DTYPES[dtype].bits > 8 and math.isfinite(number) and math.isfinite(allowed):
            found[place] = Claim(place, number, *_outwards(number - allowed, number + allowed))
        elif low.reshape(-1)[place] <= high.reshape(-1)[place]:
            found[place] = Claim(place, number, *_outwards(float(low.reshape(-1)[place]), float(high.reshape(-1)[place])))
    return found


def spread(places: NDArray[Any], limit: int) -> list[int]:
    """At most ``limit`` of the places, all over them and never in step with an axis."""
    if places.size <= limit:
        return [int(p) for p in places]
    at = np.floor(np.mod(np.arange(limit) * GOLDEN, 1.0) * places.size).astype(np.int64)
    return [int(p) for p in places[np.unique(at)]]


@np.errstate(all="ignore")
def intervals(scene: Scene, expected: Expected, name: str, dtype: str) -> tuple[F64, F64]:
    """Lowest and highest allowed number of every element of an output (NaN where the reference has NaN)."""
    wanted = expected.outputs[name]
    stored = encode(dtype, np.nan_to_num(wanted, posinf=np.inf, neginf=-np.inf), overflow="saturate")
    gate = gate_of(scene, expected, name, dtype, stored, np.asarray(decode(dtype, stored), dtype=np.float64))
    near = gate.near(wanted)
    pairs = [(wanted, gate.wide(wanted, near))]
    widest = gate.widest(near)
    if widest is not None:
        pairs.append((wanted, widest))
    for arithmetic in expected.arithmetics:
        other = expected.by(arithmetic)[name]
        pairs.append((other, gate.wide(other, gate.near(other))))
    low, high = np.full(wanted.shape, np.inf), np.full(wanted.shape, -np.inf)
    for middle, tolerance in pairs:
        below, above = np.where(np.isinf(middle), middle, middle - tolerance), np.where(np.isinf(middle), middle, middle + tolerance)
        low, high = np.fmin(low, below), np.fmax(high, above)
    if isinstance(gate, CodeGate):
        low, high = _one_place(dtype, low, -1), _one_place(dtype, high, 1)
        if expected.fixed is not None and name == "attentionOut":
            zero = expected.fixed & (wanted == 0)
            low, high = np.where(zero, 0.0, low), np.where(zero, 0.0, high)
    nothing = np.isnan(wanted)
    return np.where(nothing, np.nan, low), np.where(nothing, np.nan, high)


def _one_place(dtype: str, numbers: F64, step: int) -> F64:
    """The numbers as codes of an 8-bit float, one place farther in value order."""
    codes = code_values(dtype)
    places = np.unique(codes[~np.isnan(codes)])
    codes_of = encode(dtype, np.nan_to_num(numbers, posinf=np.inf, neginf=-np.inf), overflow="saturate")
    rounded = np.asarray(decode(dtype, codes_of), dtype=np.float64)
    at = np.searchsorted(places, rounded) + step
    return np.asarray(places[np.clip(at, 0, places.size - 1)], dtype=np.float64)


def _outwards(low: float, high: float) -> tuple[float, float]:
    """The interval with short numbers: eight digits, rounded outwards; a single number stays as it is."""
    if low == high:
        return low, high
    return _short(low, -1), _short(high, 1)


def _short(number: float, side: int) -> float:
    if not math.isfinite(number) or number == 0:
        return number
    short = float(f"{number:.8g}")
    if (short - number) * side < 0:
        short = float(f"{number + side * abs(number) * 1e-7:.8g}")
    return short if (short - number) * side >= 0 else number


# ---- in words -------------------------------------------------------------------------------------


def foreseen_lines(told: Foreseen) -> tuple[str, ...]:
    """What must happen and why, one line each."""
    codes = " or ".join(str(c) for c in told.codes if c)
    answer = _answer(told)
    said = {
        "accept": "must be accepted",
        "reject": "must be refused" + (f" with {codes}" if codes else ""),
        "either": "disputed: may be accepted, or refused" + (f" with {codes}" if codes else ""),
        "dies": f"CAUTION: this call is known to {told.verdict} the process that makes it",
    }[answer]
    lines = [said]
    if told.verdict == "unspecified" and told.document and told.source:
        lines.append(f"the documents say {told.document}, the operator's source says {told.source}")
    for rule in told.rules:
        record = rule_by_id().get(rule)
        lines.append(f"{rule}: {record.title}" if record is not None else rule)
    return tuple(clean(line, 300) for line in lines)


def seen_lines(item: Item) -> tuple[str, ...]:
    """The finding in words, one line each; nothing for a bare case."""
    entry = item.entry
    if entry is None:
        return ()
    status = f", status {entry.got.code}" if entry.got.code is not None else ""
    lines = [
        f"found on {entry.signature.backend}, profile {entry.profile}, as {entry.signature.code} ({entry.title})",
        f"got {entry.got.kind}{status}" + (f": {entry.got.text}" if entry.got.text else ""),
    ]
    lines += [f"differs in {text}" for text in entry.differences]
    if entry.environment:
        lines.append("with " + ", ".join(f"{name} {text}" for name, text in sorted(entry.environment.items())))
    return tuple(clean(line, 300) for line in lines)


def _remark_on_finding(item: Item, checked: list[Checked], remarks: Remarks) -> None:
    """Say when a program of one call cannot show the finding."""
    entry = item.entry
    if entry is None:
        return
    code = entry.signature.code
    if code == "F106":
        remarks.add("the finding is a relation between two calls, which a program of one call cannot show (--as pytest replays it)")
    elif code in ("F101", "F102", "F104") and checked and not entry.got.worst:
        standard = entry.standard or "a whole-tensor standard"
        remarks.add(f"the finding names no element, {standard} judged the tensor as a whole; the program checks elements")


def decoding_table(dtype: str) -> Optional[Mapping[int, float]]:
    """Value of every code of an 8-bit float; None for other formats."""
    fmt = DTYPES[dtype]
    if not (fmt.is_coded and fmt.bits == 8):
        return None
    return dict(enumerate(float(v) for v in code_values(dtype)))
