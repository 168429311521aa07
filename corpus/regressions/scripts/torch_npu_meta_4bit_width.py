"""torch_npu infers half the width of attentionOut for 4-bit keys and values. Needs torch, torch_npu and gcc; no NPU, no CANN.

Decode with antiquantised INT4 (dtype code 285, operator v2) or FLOAT4_E2M1 (native float4_e2m1fn_x2, operator v1) keys and values: two
4-bit numbers share a byte, so a value tensor of 64 columns has 32 bytes. The output has the columns of value, 64, not the bytes.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

spec = find_spec("torch_npu")
if spec is None:
    print("torch_npu is not installed")
    sys.exit(2)
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# Without CANN its libraries are replaced by empty functions, enough to import torch_npu and to infer shapes.
root = Path(next(iter(spec.submodule_search_locations)))
libraries = [str(path) for path in (*root.glob("_C*.so"), *root.glob("lib/*.so"))]
cann = r"NEEDED\).*\[(lib(?:acl|ascendcl|ge_|graph|hccl).*)\]"
needed = {name for lib in libraries for name in re.findall(cann, run("readelf", "-dW", lib))}
wanted = {name for lib in libraries for name in re.findall(r" U ((?:acl|Msp|rt[DFGK]|Hccl)\w*)", run("nm", "-D", lib))}
scratch = Path(tempfile.mkdtemp())
(scratch / "all.c").write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(wanted)))
(scratch / "none.c").write_text("int nothing;\n")
for name in sorted(needed):
    source = "all.c" if name == "libascendcl.so" else "none.c"
    run("cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", str(scratch / name), str(scratch / source))
    ctypes.CDLL(str(scratch / name), mode=ctypes.RTLD_GLOBAL)
import torch_npu

print("torch", torch.__version__, "torch_npu", torch_npu.__version__)
query = torch.empty(1, 1, 1, 64, dtype=torch.float16, device="meta")
scale = torch.empty(64, dtype=torch.float16, device="meta")
due, wrong = [1, 1, 1, 64], 0

packed = torch.empty(1, 1, 2, 32, dtype=torch.uint8, device="meta")  # two numbers a byte: 64 columns
out, _ = torch.ops.npu.npu_fused_infer_attention_score_v2(
    query, packed, packed, num_query_heads=1, input_layout="BNSD", key_dtype=285, value_dtype=285,
    dequant_scale_key=scale, dequant_scale_value=scale,
)
print("v2, INT4 key and value: got", list(out.shape), "due", due)
wrong += list(out.shape) != due

fp4 = torch.empty(1, 1, 2, 32, dtype=torch.float4_e2m1fn_x2, device="meta")
out, _ = torch.ops.npu.npu_fused_infer_attention_score(
    query, fp4, fp4, num_heads=1, input_layout="BNSD", key_antiquant_scale=scale, value_antiquant_scale=scale
)
print("v1, FLOAT4_E2M1 key and value: got", list(out.shape), "due", due)
wrong += list(out.shape) != due
sys.exit(1 if wrong else 0)
