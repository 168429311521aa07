"""The built-in candidates as records: what each is, needs and can express. Data only; nothing here imports a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ONNXRUNTIME = "onnxruntime>=1.32"
"""Releases before that lack opsets, inputs and attributes that the adapters use; those for Python 3.10 end at 1.23."""


@dataclass(frozen=True)
class Builtin:
    factory: str
    """``module:attribute`` within this package."""
    title: str
    needs: tuple[str, ...]
    """Python packages that must be there, some with the oldest version that will do."""
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


def _flex(title: str, factory: str, layouts: str, strides: str) -> Builtin:
    return Builtin(
        f"torch_flex_load:{factory}",
        title,
        ("torch", "numpy"),
        MappingProxyType(
            {
                "invalid calls": "not run",
                "layouts": layouts,
                "masks": "sparseMode 0-4 as mask_mod, pseType 0, 2, 3 as score_mod, learnableSink from the logarithms",
                "quantisation": "none",
                "softmaxLse": "yes",
                "not": f"more than 2**21 scores, other output dtype, empty calls; {strides}",
            }
        ),
        "torch_flex_load:missing",
    )


def _ort_attention(opset: int, title: str, words: str, less: str) -> Builtin:
    capabilities = {
        "invalid calls": "not run",
        "layouts": "all, gathered to BNSD or BSH; a part of the keys as past, or key lengths" if opset > 23 else "all, gathered to BNSD or "
        "BSH; a part of the keys as past",
        "masks": f"{words}, else explicit bool or additive masks; pseType 0, 2, 3 as additive masks",
        "quantisation": "none",
        "softmaxLse": "yes, from scores and probabilities",
        "not": f"learnableSink, {less}other output dtype, empty calls; strides are handed over dense",
    }
    return Builtin(
        f"ort_attention:Attention{opset}", title, (ONNXRUNTIME, "onnx", "torch", "numpy"), MappingProxyType(capabilities)
    )


def _vllm(factory: str, title: str, masks: str, less: str) -> Builtin:
    capabilities = {
        "invalid calls": "not run",
        "layouts": "all, as packed requests; caches with their block table, other keys written into blocks",
        "masks": masks,
        "quantisation": "none",
        "softmaxLse": "no",
        "not": f"{less}, other output dtype, empty calls; strides of keys are handed over dense",
    }
    return Builtin(f"vllm_library:{factory}", title, ("torch", "numpy"), MappingProxyType(capabilities), "vllm_library:missing")


def _openvino(factory: str, title: str, layouts: str) -> Builtin:
    capabilities = {
        "invalid calls": "not run",
        "layouts": layouts,
        "masks": "causal flag, else explicit bool or additive masks; pseType 0, 2, 3 as additive masks; learnableSink",
        "quantisation": "none",
        "softmaxLse": "no",
        "not": "other output dtype, empty calls",
    }
    return Builtin(f"openvino_sdpa:{factory}", title, ("openvino", "torch", "numpy"), MappingProxyType(capabilities))


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
        "torch-flex": _flex(
            "torch flex_attention, eager",
            "dense",
            "all; padded and packed ones whole with lengths as a mask, or span by span; caches, lists gathered",
            "caches are handed over dense",
        ),
        "torch-flex:paged": _flex(
            "torch flex_attention, eager, keys in the pages of PagedAttention",
            "paged",
            "all; caches with their block table, other keys written into pages",
            "strides are handed over dense",
        ),
        "ort-attention:23": _ort_attention(23, "ONNX Runtime's Attention kernel, opset 23", "causal by the flag", "scale 0, "),
        "ort-attention:24": _ort_attention(24, "ONNX Runtime's Attention kernel, opset 24", "causal by the flag", "scale 0, "),
        "ort-attention:25": _ort_attention(
            25, "ONNX Runtime on the function body of Attention, opset 25", "causal by the flag, bands by the window", ""
        ),
        "ort-gqa": Builtin(
            "ort_gqa:GqaBackend",
            "ONNX Runtime GroupQueryAttention on the CPU",
            ("torch", "numpy", "onnx", ONNXRUNTIME),
            MappingProxyType(
                {
                    "invalid calls": "not run",
                    "layouts": "all, as new keys, caches (grown, in place, of one window) and right-padded chunks",
                    "masks": "sparseMode 0-4 as causal and local_window_size or attention_bias, pseType 0, 2, 3, learnableSink",
                    "quantisation": "antiquant of INT8 and INT4 by tensor, head and channel without offset, as quantised caches",
                    "softmaxLse": "yes, from scores and probabilities",
                    "not": "other quantisation, other output dtype, empty calls",
                }
            ),
        ),
        "vllm-cpu": _vllm(
            "paged",
            "vLLM's paged attention for CPUs",
            "sparseMode 0-4 as causal and windowed requests, single rows with picked keys; pseType 2 on one side; learnableSink",
            "pseType 0 and 3, heads over 512",
        ),
        "vllm-cpu:mla": _vllm(
            "mla", "vLLM's MLA decode for CPUs", "sparseMode 0-4 row by row", "all but Decode MLA of 512 and 64, pseType, learnableSink"
        ),
        "ort-mha": Builtin(
            "ort_mha:MhaBackend",
            "ONNX Runtime's MultiHeadAttention kernel",
            (ONNXRUNTIME, "onnx", "torch", "numpy"),
            MappingProxyType(
                {
                    "invalid calls": "not run",
                    "layouts": "all, gathered to BSH, keys also to BNSD; a part of the keys as past or shared cache, key lengths",
                    "masks": "triangles by the flag, else padding masks or an additive bias; pseType 0, 2, 3 as bias",
                    "quantisation": "none",
                    "softmaxLse": "yes, from the kernel's scores",
                    "not": "learnableSink, scale 0, other output dtype, empty calls; computes in float32, keys are repeated for groups",
                }
            ),
        ),
        "openvino": _openvino(
            "OpenvinoBackend",
            "OpenVINO scaled_dot_product_attention on the CPU",
            "all, gathered to BNSD or BSND, dense or as regions of larger tensors",
        ),
        "openvino:stateful": _openvino(
            "CacheBackend",
            "OpenVINO scaled_dot_product_attention with a key-value cache on the CPU",
            "all, gathered to BNSD or BSND; earlier keys by way of the cache, in another order of batches",
        ),
        "ncnn": Builtin(
            "ncnn_sdpa:NcnnBackend",
            "ncnn's SDPA layer on the CPU",
            ("ncnn", "torch", "numpy"),
            MappingProxyType(
                {
                    "invalid calls": "not run",
                    "layouts": "all, gathered to BNSD; batches together or one by one, heads with gaps, keys by way of its cache",
                    "masks": "sparseMode 0-4 and pseType 0, 2, 3 as additive masks",
                    "quantisation": "none",
                    "softmaxLse": "no",
                    "not": "scale 0, learnableSink, other output dtype, empty calls",
                }
            ),
        ),
    }
)

FAMILIES: Mapping[str, Family] = MappingProxyType({"torch-npu": Family("torch_npu_family:choose", "torch_npu_family:make")})
"""Base names that take options: ``torch-npu:v1,queue=1``."""

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "torch-sdpa": ("torch-sdpa-math", "torch-sdpa-flash"),
        "ort-attention": ("ort-attention:23", "ort-attention:24", "ort-attention:25"),
    }
)
"""Names that mean several backends."""
