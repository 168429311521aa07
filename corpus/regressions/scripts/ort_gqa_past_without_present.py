"""ONNX Runtime GroupQueryAttention on the CPU: without its present outputs the past is not looked at.

The schema calls present_key and present_value optional and the kernel says that they "must both be provided or both omitted".
Omitted beside past_key and a new key, the kernel takes the new key's buffer for the whole cache and reads on behind its end: wrong
values, or a segmentation fault where the past is long (4,000,000 keys of two heads of 16: signal 11).

Exit code 1: the defect shows, 0: it is gone, 2: a package is missing.
"""

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
NAMES = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
FEEDS = {
    "query": np.zeros((1, 1, D), np.float32),  # all scores are 0: the output is the mean of the values
    "key": np.zeros((1, 1, D), np.float32),
    "value": np.full((1, 1, D), 1.0, np.float32),
    "past_key": np.zeros((1, 1, 3, D), np.float32),
    "past_value": np.full((1, 1, 3, D), 5.0, np.float32),
    "seqlens_k": np.array([3], np.int32),
    "total_sequence_length": np.array(4, np.int32),
}


def run(outputs):
    """The first number of the output, with these outputs asked for."""
    node = helper.make_node("GroupQueryAttention", NAMES, outputs, domain="com.microsoft", num_heads=1, kv_num_heads=1)
    kinds = {n: TensorProto.INT32 if x.dtype == np.int32 else TensorProto.FLOAT for n, x in FEEDS.items()}
    given = [helper.make_tensor_value_info(n, kinds[n], list(x.shape)) for n, x in FEEDS.items()]
    wanted = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", given, wanted), opset_imports=domains, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(["output"], FEEDS)[0][0, 0, 0])


due = (5.0 + 5.0 + 5.0 + 1.0) / 4
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
print("due", due, "with present outputs", run(["output", "present_key", "present_value"]), "without", run(["output"]))
sys.exit(0 if abs(run(["output"]) - due) < 1e-6 else 1)
