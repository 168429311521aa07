"""ONNX Runtime GroupQueryAttention on the CPU: a batch of size 0 divides by zero and kills the process (signal 8).

An empty output is due, or an error as for other shapes that the operator does not take. The call is made in a child process.

Exit code 1: the defect shows, 0: it is gone, 2: a package is missing.
"""

import subprocess
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError as error:
    print(error)
    sys.exit(2)

D = 8
NAMES = ["query", "key", "value", "", "", "seqlens_k", "total_sequence_length"]


def run(batch):
    """Shape of the output for that many batches."""
    feeds = {name: np.zeros((batch, 2, D), np.float32) for name in NAMES[:3]}
    feeds |= {"seqlens_k": np.ones(batch, np.int32), "total_sequence_length": np.array(2, np.int32)}
    outputs = ["output", "present_key", "present_value"]
    node = helper.make_node("GroupQueryAttention", NAMES, outputs, domain="com.microsoft", num_heads=1, kv_num_heads=1)
    kinds = {n: TensorProto.INT32 if x.dtype == np.int32 else TensorProto.FLOAT for n, x in feeds.items()}
    given = [helper.make_tensor_value_info(n, kinds[n], [None] * x.ndim) for n, x in feeds.items()]
    wanted = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", given, wanted), opset_imports=domains, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["output"], feeds)[0].shape


if len(sys.argv) > 1:
    print(run(int(sys.argv[1])))
    sys.exit(0)
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
one, none = (subprocess.run([sys.executable, __file__, n], capture_output=True, text=True) for n in ("1", "0"))
print("one batch:", one.stdout.strip(), "; no batch, due (0, 2, 8) or an error:", none.stdout.strip() or f"exit code {none.returncode}")
sys.exit(1 if none.returncode < 0 else 0)
