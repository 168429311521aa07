"""MultiHeadAttention (com.microsoft) with past_key and past_value reads beyond its new keys when no present output is asked for.

present_key and present_value are optional outputs in the schema. Without them the kernel does not join past and new keys, but still
counts both: it reads past_sequence_length + 1 keys and values from tensors that hold one. Scores are 0, the past values are 8, the
new one is 2, so the output is (n * 8 + 2) / (n + 1); what the kernel gives depends on foreign memory (it may even crash).
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
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

PAST, HEAD = 7, 8
names = ["query", "key", "value", "", "", "", "past_key", "past_value"]
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, HEAD]) for name in names[:3]]
inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, PAST, HEAD]) for name in names[-2:]]


def attend(outputs):
    """The first element of the output of a node with these outputs."""
    node = helper.make_node("MultiHeadAttention", names, outputs, domain="com.microsoft", num_heads=1)
    wanted = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, wanted), opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    one, past = np.zeros((1, 1, HEAD), np.float32), np.zeros((1, 1, PAST, HEAD), np.float32)
    feeds = {"query": one, "key": one, "value": one + 2, "past_key": past, "past_value": past + 8}
    return float(session.run(None, feeds)[0][0, 0, 0])


due = (PAST * 8.0 + 2.0) / (PAST + 1)
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
print("with present outputs got", attend(["output", "present_key", "present_value"]), "due", due)
got = attend(["output"])
print("without              got", got, "due", due)
sys.exit(0 if abs(got - due) < 1e-4 else 1)
