"""Case: one call of the operator, as data. Frozen, hashable by content, JSON both ways, free of tensors.

Reading is strict about the *form* (unknown keys, wrong types, limits) and lenient about the *content*: shapes that
do not fit, unknown layouts and negative sizes are cases, since the operator must answer them too.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal, Union

import msgspec

from .dtypes import DTYPES
from .parameters import ATTRIBUTES, INT_ARRAYS, INT_MAX, TENSOR_INPUTS, TENSOR_LISTS

SCHEMA_VERSION = 1
MAX_JSON_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 32
MAX_RANK = 16
MAX_LIST = 4096
MAX_LITERALS = 1 << 22
MAX_PATCH_DEPTH = 8
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

FORMATS: frozenset[str] = frozenset({
    "ND", "NCHW", "NHWC", "NCDHW", "NDHWC", "HWCN", "NCL", "NC1HWC0", "NDC1HWC0", "FRACTAL_Z", "FRACTAL_NZ",
    "FRACTAL_NZ_C0_16", "FRACTAL_NZ_C0_32", "FRACTAL_Z_3D", "DHWCN", "UNDEFINED",
})

Number = Union[int, float, Literal["nan", "inf", "-inf"]]
"""A number of a case; what JSON has no number for is written as one of three words."""


class CaseError(ValueError):
    """A case that cannot be read: ``path`` is the JSON path of the fault, the text is one line."""

    def __init__(self, message: str, path: str = "$") -> None:
        self.path = path
        super().__init__(f"{message} (at {path})")


class _Fill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class Grid(_Fill, frozen=True, tag="grid"):
    """Multiples of 1/8 in [low, high]: exact in every float format of 4 bits of fraction or more."""

    low: float = -2.0
    high: float = 2.0


class Uniform(_Fill, frozen=True, tag="uniform"):
    """Uniform in [low, high), rounded to the dtype."""

    low: float = -1.0
    high: float = 1.0


class Normal(_Fill, frozen=True, tag="normal"):
    """Normal with mean and standard deviation, rounded to the dtype."""

    mean: float = 0.0
    std: float = 1.0


class Constant(_Fill, frozen=True, tag="constant"):
    """The same value everywhere."""

    value: Number = 0


class Bernoulli(_Fill, frozen=True, tag="bernoulli"):
    """1 with probability p, else 0."""

    p: float = 0.5


class Triu(_Fill, frozen=True, tag="triu"):
    """``inside`` where column - row >= diagonal (last two axes), else ``outside``."""

    diagonal: int = 0
    inside: Number = 1
    outside: Number = 0


class Band(_Fill, frozen=True, tag="band"):
    """0 where -pre <= column - row <= next (last two axes), 1 outside."""

    pre: int = 0
    next: int = 0


class ColumnsFrom(_Fill, frozen=True, tag="columns_from"):
    """1 from column start[b] on in batch b (first axis; the last entry serves all further batches), else 0."""

    start: tuple[int, ...] = (0,)


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rectangle of a tensor set to one value: ``at`` has a [begin, end) pair or null (all) for each axis."""

    at: tuple[Union[tuple[int, int], None], ...]
    value: Number


class Patched(_Fill, frozen=True, tag="patched"):
    """Another fill with rectangles set to values, in order."""

    base: Fill
    patches: tuple[Patch, ...] = ()


Fill = Union[Grid, Uniform, Normal, Constant, Bernoulli, Triu, Band, ColumnsFrom, Patched]


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor of a case: shape, dtype (the documents' name), format, optional element strides and offset, and how
    its values are made: a fill, literal values (row-major), or neither (the parameter's default fill)."""

    shape: tuple[int, ...]
    dtype: str
    format: str = "ND"
    strides: Union[tuple[int, ...], None] = None
    offset: int = 0
    fill: Union[Fill, None] = None
    values: Union[tuple[Number, ...], None] = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements by the shape (negative axes are not forgiven: the product as it is)."""
        return math.prod(self.shape)

    @property
    def empty(self) -> bool:
        """Whether the shape has no element."""
        return 0 in self.shape

    @property
    def contiguous(self) -> bool:
        """Whether the strides, if given, are the dense row-major ones (axes of size 1 are free)."""
        if self.strides is None:
            return True
        if len(self.strides) != len(self.shape):
            return False
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


Tensors = Union[tuple[Union[TensorSpec, None], ...], None]
Tensor = Union[TensorSpec, None]
Ints = Union[tuple[int, ...], None]


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename=None):
    """The 31 inputs, in C order; None is a null pointer."""

    query: Tensor = None
    key: Tensors = None
    value: Tensors = None
    pseShift: Tensor = None
    attenMask: Tensor = None
    actualSeqLengths: Ints = None
    actualSeqLengthsKv: Ints = None
    deqScale1: Tensor = None
    quantScale1: Tensor = None
    deqScale2: Tensor = None
    quantScale2: Tensor = None
    quantOffset2: Tensor = None
    antiquantScale: Tensor = None
    antiquantOffset: Tensor = None
    blockTable: Tensor = None
    queryPaddingSize: Tensor = None
    kvPaddingSize: Tensor = None
    keyAntiquantScale: Tensor = None
    keyAntiquantOffset: Tensor = None
    valueAntiquantScale: Tensor = None
    valueAntiquantOffset: Tensor = None
    keySharedPrefix: Tensor = None
    valueSharedPrefix: Tensor = None
    actualSharedPrefixLen: Ints = None
    queryRope: Tensor = None
    keyRope: Tensor = None
    keyRopeAntiquantScale: Tensor = None
    dequantScaleQuery: Tensor = None
    learnableSink: Tensor = None
    qStartIdx: Ints = None
    kvStartIdx: Ints = None


class Attrs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The 15 attributes with their documented defaults; numHeads has none. inputLayout None is a null pointer."""

    numHeads: int
    scaleValue: Number = 1.0
    preTokens: int = INT_MAX
    nextTokens: int = INT_MAX
    inputLayout: Union[str, None] = "BSH"
    numKeyValueHeads: int = 0
    sparseMode: int = 0
    innerPrecise: int = 1
    blockSize: int = 0
    antiquantMode: int = 0
    softmaxLseFlag: bool = False
    keyAntiquantMode: int = 0
    valueAntiquantMode: int = 0
    queryQuantMode: int = 0
    pseType: int = 0


class Outputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The two output tensors as the caller allocates them; None is a null pointer."""

    attentionOut: Tensor = None
    softmaxLse: Tensor = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"version": "fiafuzz"}):
    """One call: API version, product, seed of the fills, inputs, attributes, outputs."""

    version: int = SCHEMA_VERSION
    api: Literal["v1", "v2", "v3", "v4", "v5"] = "v5"
    product: str = "950"
    seed: int = 0
    inputs: Inputs
    attrs: Attrs
    outputs: Outputs = Outputs()

    def get(self, name: str) -> object:
        """The value of any parameter by its C name (input, attribute or output)."""
        return getattr(getattr(self, _SECTIONS[name]), name)

    def replace(self, **changes: object) -> Case:
        """A copy with parameters (C names) or ``seed``, ``api``, ``product`` changed."""
        own: dict[str, object] = {k: changes.pop(k) for k in ("seed", "api", "product") if k in changes}
        for part in ("inputs", "attrs", "outputs"):
            section = getattr(self, part)
            mine = {k: changes.pop(k) for k in tuple(changes) if k in section.__struct_fields__}
            if mine:
                own[part] = msgspec.structs.replace(section, **mine)
        if changes:
            raise KeyError(next(iter(changes)))
        return msgspec.structs.replace(self, **own) if own else self

    @property
    def digest(self) -> str:
        """16 hex digits that depend on the content alone."""
        return hashlib.blake2b(encode_case(self), digest_size=8).hexdigest()


_SECTIONS: dict[str, str] = {
    name: section
    for section, part in (("outputs", Outputs), ("attrs", Attrs), ("inputs", Inputs))
    for name in part.__struct_fields__
}
"""Where a parameter of that C name stands."""

_INT_ATTRS: tuple[str, ...] = tuple(
    p.name for p in ATTRIBUTES if p.name not in ("scaleValue", "inputLayout", "softmaxLseFlag"))

_decoder = msgspec.json.Decoder(Case)
_encoder = msgspec.json.Encoder()


def encode_case(case: Case) -> bytes:
    """The canonical JSON of a case: C order, no blanks. ``decode_case`` gives an equal case back."""
    return _encoder.encode(case)


def case_to_dict(case: Case) -> dict[str, object]:
    """The case as plain JSON data."""
    return msgspec.to_builtins(case)  # type: ignore[no-any-return]


def decode_case(data: Union[bytes, str]) -> Case:
    """Read one case from JSON text. CaseError with the JSON path when the form is wrong."""
    if len(data) > MAX_JSON_BYTES:
        raise CaseError(f"case of {len(data)} bytes is over the limit of {MAX_JSON_BYTES}")
    try:
        case = _decoder.decode(data)
    except RecursionError:
        raise CaseError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _as_case_error(error) from None
    return _checked(case)


def case_from_dict(data: object) -> Case:
    """Read one case from plain JSON data. CaseError with the JSON path when the form is wrong."""
    try:
        case = msgspec.convert(data, Case)
    except RecursionError:
        raise CaseError("nested too deeply") from None
    except msgspec.ValidationError as error:
        raise _as_case_error(error) from None
    return _checked(case)


def _as_case_error(error: Exception) -> CaseError:
    text = " ".join(str(error).split())
    message, mark, path = text.rpartition(" - at `")
    if not mark:
        return CaseError(text)
    return CaseError(message, path.rstrip("`"))


def _checked(case: Case) -> Case:
    if case.version != SCHEMA_VERSION:
        raise CaseError(f"schema version {case.version} is not {SCHEMA_VERSION}", "$.fiafuzz")
    product = case.product.lower()
    if product not in ("950", "a2", "a3"):
        raise CaseError(f"unknown product {case.product!r}; known: 950, a2, a3", "$.product")
    if product != case.product:
        case = msgspec.structs.replace(case, product=product)
    if not 0 <= case.seed < 1 << 64:
        raise CaseError("seed is outside 0 .. 2**64-1", "$.seed")
    for name in TENSOR_INPUTS:
        spec = getattr(case.inputs, name)
        if spec is not None:
            _check_tensor(spec, f"$.inputs.{name}")
    for name in TENSOR_LISTS:
        items = getattr(case.inputs, name) or ()
        if len(items) > MAX_LIST:
            raise CaseError(f"{len(items)} tensors are over the limit of {MAX_LIST}", f"$.inputs.{name}")
        for i, spec in enumerate(items):
            if spec is not None:
                _check_tensor(spec, f"$.inputs.{name}[{i}]")
    for name in INT_ARRAYS:
        numbers = getattr(case.inputs, name) or ()
        if len(numbers) > MAX_LITERALS:
            raise CaseError(f"more than {MAX_LITERALS} integers", f"$.inputs.{name}")
        _check_int64(numbers, f"$.inputs.{name}")
    for name in _INT_ATTRS:
        if not INT64_MIN <= getattr(case.attrs, name) <= INT64_MAX:
            raise CaseError(f"{getattr(case.attrs, name)} does not fit into 64 bits", f"$.attrs.{name}")
    for name in ("attentionOut", "softmaxLse"):
        spec = getattr(case.outputs, name)
        if spec is not None:
            _check_tensor(spec, f"$.outputs.{name}")
    return case


def _check_int64(numbers: tuple[int, ...], path: str) -> None:
    if numbers and (min(numbers) < INT64_MIN or max(numbers) > INT64_MAX):
        at = next(i for i, n in enumerate(numbers) if not INT64_MIN <= n <= INT64_MAX)
        raise CaseError(f"{numbers[at]} does not fit into 64 bits", f"{path}[{at}]")


def _check_tensor(spec: TensorSpec, path: str) -> None:
    if spec.dtype not in DTYPES:
        raise CaseError(f"unknown dtype {spec.dtype!r}; known: {', '.join(DTYPES)}", f"{path}.dtype")
    if spec.format not in FORMATS:
        raise CaseError(f"unknown format {spec.format!r}", f"{path}.format")
    if len(spec.shape) > MAX_RANK:
        raise CaseError(f"rank {len(spec.shape)} is over the limit of {MAX_RANK}", f"{path}.shape")
    _check_int64(spec.shape, f"{path}.shape")
    _check_int64(spec.strides or (), f"{path}.strides")
    if spec.values is not None:
        if spec.fill is not None:
            raise CaseError("fill and values exclude each other", path)
        if len(spec.values) > MAX_LITERALS:
            raise CaseError(f"more than {MAX_LITERALS} values", f"{path}.values")
    fill, depth = spec.fill, 0
    while isinstance(fill, Patched):
        fill, depth = fill.base, depth + 1
        if depth > MAX_PATCH_DEPTH:
            raise CaseError(f"patched fills nested over {MAX_PATCH_DEPTH} deep", f"{path}.fill")
