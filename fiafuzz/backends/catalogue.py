"""The built-in candidates as records: what each is, needs and can express. Data only; nothing here imports a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Builtin:
    factory: str
    """``module:attribute`` within this package."""
    title: str
    needs: tuple[str, ...]
    """Python packages that must be there."""
    capabilities: Mapping[str, str]
    missing: str = ""
    """``module:function`` within this package that says why it cannot run here, "" when it can; loads no library."""


@dataclass(frozen=True)
class Family:
    """A base name that takes options behind a colon. ``choose`` reads a name, ``make`` gives its backend (both
    ``module:function`` within this package)."""

    choose: str
    make: str


_CPU = MappingProxyType(
    {
        "invalid calls": "answered from the constraint oracle (emulated)",
        "layouts": "all 13, caches BnBsH BnNBsD NZ, tensor lists, shared prefix, left padding",
        "masks": "sparseMode 0-4, pseType 0, 2, 3, learnableSink",
        "quantisation": "antiquant 0-6 and combined; full INT8, FP8, HIFLOAT8 per tensor, Decode MLA, FP8 GQA, MXFP8",
        "output": "FLOAT16, BFLOAT16, INT8, FLOAT8_E4M3FN, HIFLOAT8",
        "softmaxLse": "yes",
        "not": "full quantisation per block; strides are handed over dense",
    }
)
_SDPA = {
    "invalid calls": "not run",
    "layouts": "all, gathered to dense batches",
    "masks": "sparseMode 0-4 as explicit masks, pseType 0, 2, 3 as additive masks",
    "quantisation": "none",
}
_TORCH_NPU = {
    "invalid calls": "answered by the operator's own checks",
    "API": "A2, A3: V3 by the first operator, V4 by the second; 950: V5 by both",
    "options": "v1 or v2 force an operator; queue=0|1|2 a task queue mode; outputs=torch lets torch_npu allocate the outputs",
    "not": "tensor lists, pseType, start indices, V5 on A2 and A3, formats other than plain ones, null outputs",
}


def _torch_npu(title: str, less: str = "") -> Builtin:
    capabilities = MappingProxyType({**_TORCH_NPU, "not": _TORCH_NPU["not"] + less})
    return Builtin("torch_npu_family:make", title, ("torch", "torch_npu"), capabilities, "torch_npu_family:why_no_device")


_TORCH_NPU_META = Builtin(
    "torch_npu_family:make",
    "torch_npu's inference of output shapes and dtypes (meta tensors); needs no device and no CANN",
    ("torch", "torch_npu"),
    MappingProxyType(
        {
            "invalid calls": "refused for the layout, the rank of query or value, or no heads; let through otherwise",
            "options": "v1 or v2 force an operator",
            "output": "no values: shapes and dtypes alone are judged",
            "not": "tensor lists, pseType, start indices, formats other than plain ones, null tensors",
        }
    ),
    "torch_npu_family:why_no_meta",
)
PLANTED = {"invalid calls": "answered from the constraint oracle (emulated)", "like": "cpu, with one planted fault"}

_ACLNN = MappingProxyType(
    {
        "invalid calls": "answered by the operator's own checks",
        "calls": "null pointers, tensor lists with null entries, formats, strides, offsets, any dtype, shape and attribute",
        "device": "one NPU a worker; the SoC decides which profiles it stands for",
    }
)


def _aclnn(api: str = "") -> Builtin:
    title = f"the operator through CANN's C interface, always {api.upper()}" if api else "the operator through CANN's C interface, V1-V5"
    not_here = "parameters that later versions brought" if api and api != "v5" else "one stride too many or too few for a shape"
    return Builtin(f"aclnn:{api or 'automatic'}", title, ("numpy",), {**_ACLNN, "not": not_here}, "aclnn_library:missing")


BUILTIN: Mapping[str, Builtin] = MappingProxyType(
    {
        "cpu": Builtin(
            "cpu:CpuBackend", "blockwise online softmax on torch, working precision", ("torch", "numpy"), _CPU
        ),
        "torch-sdpa-math": Builtin(
            "torch_sdpa:MathBackend",
            "torch scaled_dot_product_attention, MATH kernel",
            ("torch", "numpy"),
            MappingProxyType({**_SDPA, "softmaxLse": "no", "not": "learnableSink, other output dtype, empty calls"}),
        ),
        "torch-sdpa-flash": Builtin(
            "torch_sdpa:FlashBackend",
            "torch scaled_dot_product_attention, FLASH kernel",
            ("torch", "numpy"),
            MappingProxyType(
                {
                    **_SDPA,
                    "softmaxLse": "yes, not beside a bias",
                    "not": "learnableSink, rope, unequal head sizes, other output dtype, empty calls",
                }
            ),
        ),
        "torch-npu": _torch_npu("torch_npu's operators on an NPU, the one that has words for the call"),
        "torch-npu:v1": _torch_npu("npu_fused_infer_attention_score on an NPU", ", HIFLOAT8, dequantScaleQuery, learnableSink"),
        "torch-npu:v2": _torch_npu(
            "npu_fused_infer_attention_score_v2 on an NPU", ", left padding, shared prefix, combined antiquant, deqScale1 and 2"
        ),
        "torch-npu:meta": _TORCH_NPU_META,
        "aclnn": _aclnn(),
        **{f"aclnn:{api}": _aclnn(api) for api in ("v1", "v2", "v3", "v4", "v5")},
    }
)

FAMILIES: Mapping[str, Family] = MappingProxyType({"torch-npu": Family("torch_npu_family:choose", "torch_npu_family:make")})
"""Base names that take options: ``torch-npu:v1,queue=1``."""

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({"torch-sdpa": ("torch-sdpa-math", "torch-sdpa-flash")})
"""Names that mean several backends."""
