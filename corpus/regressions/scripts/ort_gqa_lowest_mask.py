"""ONNX Runtime GroupQueryAttention on the CPU: the blockwise kernel takes the lowest float32 of a mask for -inf.

A row whose visible keys are all masked with the lowest float32 (what torch.finfo(torch.float32).min masks export as) still has keys
of equal weight, since a score is lost beside 3.4e38: the mean of the values is due. The kernel without blocks gives it, the
blockwise one (float32 or a quantised cache, causal, no sink) answers 0, as it does for -inf.

Exit code 1: the defect shows, 0: it is gone, 2: a package is missing.
"""

import os
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError as error:
    print(error)
    sys.exit(2)

D, LOWEST = 8, float(np.finfo(np.float32).min)
NAMES = ["query", "key", "value", "", "", "seqlens_k", "total_sequence_length", "", "", "", "attention_bias"]
FEEDS = {
    "query": np.zeros((1, 2, D), np.float32),
    "key": np.zeros((1, 2, D), np.float32),
    "value": np.repeat(np.float32([1.0, 4.0]), D).reshape(1, 2, D),
    "seqlens_k": np.array([1], np.int32),
    "total_sequence_length": np.array(2, np.int32),
    "attention_bias": np.full((1, 1, 2, 2), LOWEST, np.float32),
}


def run(blockwise):
    """The first number of the second row, which sees both keys."""
    os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] = "0" if blockwise else "1"
    outputs = ["output", "present_key", "present_value"]
    node = helper.make_node("GroupQueryAttention", NAMES, outputs, domain="com.microsoft", num_heads=1, kv_num_heads=1)
    kinds = {n: TensorProto.INT32 if x.dtype == np.int32 else TensorProto.FLOAT for n, x in FEEDS.items()}
    given = [helper.make_tensor_value_info(n, kinds[n], list(x.shape)) for n, x in FEEDS.items()]
    wanted = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", given, wanted), opset_imports=domains, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(["output"], FEEDS)[0][0, 1, 0])


due = (1.0 + 4.0) / 2
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
print("due", due, "without blocks", run(False), "blockwise", run(True))
sys.exit(0 if abs(run(True) - due) < 1e-6 else 1)
