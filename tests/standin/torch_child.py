"""A child process that drives torch_npu by hand on the stand-in: runs the scenario that is named, prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import fiafuzz  # noqa: F401  (keeps torch from loading torch_npu by itself)

# isort: split
import torch
import torch_npu

OP: Any = torch.ops.npu


def call(heads: int = 8, dtype: torch.dtype = torch.float16, second: bool = False, layout: str = "BNSD", **more: Any) -> list[torch.Tensor]:
    """One call on seeded tensors; gives query, key, value and both outputs on the host."""
    torch.manual_seed(7)
    query, key, value = (torch.randn(2, n, s, 64).to(dtype) for n, s in ((heads, 3), (heads // 2, 40), (heads // 2, 40)))
    on_device = [x.npu() for x in (query, key, value)]
    if layout == "BSND":  # query is a view with other strides; V5 wants dense keys and values
        on_device = [on_device[0].transpose(1, 2), *(x.transpose(1, 2).contiguous() for x in on_device[1:])]
    if second:
        names = {"num_query_heads": heads, "softmax_scale": 0.125, "num_key_value_heads": heads // 2, "input_layout": layout}
        out = OP.npu_fused_infer_attention_score_v2(*on_device, **names, **more)
    else:
        names = {"num_heads": heads, "scale": 0.125, "num_key_value_heads": heads // 2, "input_layout": layout}
        out = OP.npu_fused_infer_attention_score(*on_device, **names, **more)
    return [query, key, value, *(x.cpu() for x in out)]


def worst(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, _: torch.Tensor) -> float:
    """Largest difference from torch's own attention."""
    wide = (key.float().repeat_interleave(2, 1), value.float().repeat_interleave(2, 1))
    reference = torch.nn.functional.scaled_dot_product_attention(query.float(), *wide, scale=0.125)
    if out.shape != reference.shape:
        out = out.transpose(1, 2)
    return float((out.float() - reference).abs().max())


def error_of(make: Callable[[], Any]) -> str:
    """The text of what is raised; "" when nothing is."""
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def good() -> dict[str, Any]:
    """Both operators, two dtypes, a view, lse, copies and fills."""
    lse = call(softmax_lse_flag=True)[4]
    base = torch.arange(24.0).reshape(2, 3, 4)
    strided = base.npu().transpose(0, 2)
    return {
        "name": torch_npu.npu.get_device_name(0),
        "errors": [worst(*call()), worst(*call(second=True)), worst(*call(dtype=torch.bfloat16)), worst(*call(layout="BSND"))],
        "lse": list(lse.shape),
        "strided": torch.equal(strided.contiguous().cpu(), base.transpose(0, 2)),
        "filled": torch.full((3,), 2.5, dtype=torch.float16).npu().fill_(-1.5).cpu().tolist(),
        "zeros": torch.zeros(3, device="npu").cpu().tolist(),
        "codes": [torch.arange(256, dtype=torch.uint8).npu().cpu().sum().item()],
    }


def refused() -> dict[str, Any]:
    """A refusal in the first phase, then a good call."""
    text = error_of(lambda: (call(sparse_mode=77), torch.npu.synchronize()))
    return {"error": text, "after": error_of(call)}


def launch() -> dict[str, Any]:
    """A planted fault of the second call, and what calls after it see."""
    first = error_of(call)
    hit = error_of(lambda: (call(), torch.npu.synchronize()))
    after = error_of(lambda: (call(), torch.npu.synchronize()))
    return {"first": first, "hit": hit, "after": after}


def memory() -> dict[str, Any]:
    """More memory than the device has."""
    return {"error": error_of(lambda: torch.empty(1 << 30, dtype=torch.uint8, device="npu")), "after": error_of(call)}


if __name__ == "__main__":
    result = {"good": good, "refused": refused, "launch": launch, "memory": memory}[sys.argv[1]]()
    print(json.dumps(result), flush=True)
    os._exit(0)
