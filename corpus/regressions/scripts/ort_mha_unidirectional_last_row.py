"""MultiHeadAttention (com.microsoft) with unidirectional=1 hides nothing in the last row when there are more keys than queries.

"Whether every token can only attend to previous tokens": two queries and four keys without a past. All scores are 0 and the value of
key j is 2**j, so row i is the mean of 1, 2, .. 2**i: row 0 gives 1, row 1 (1 + 2) / 2 = 1.5. The kernel hides columns 1 to 3 from
row 0, but gives (1 + 2 + 4 + 8) / 4 = 3.75 in row 1. With a third query row 1 is right and row 2 sees all keys.
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

KEYS, HEAD = 4, 8
names = ["query", "key", "value"]
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, None, HEAD]) for name in names]
output = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
node = helper.make_node("MultiHeadAttention", names, ["output"], domain="com.microsoft", num_heads=1, unidirectional=1)
graph = helper.make_graph([node], "g", inputs, [output])
imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
model = helper.make_model(graph, opset_imports=imports, ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

keys = np.zeros((1, KEYS, HEAD), np.float32)
values = np.repeat(np.float32([1, 2, 4, 8])[None, :, None], HEAD, axis=2)
wrong = False
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
for rows in (2, 3):
    found = session.run(None, {"query": np.zeros((1, rows, HEAD), np.float32), "key": keys, "value": values})[0]
    got = [float(found[0, i, 0]) for i in range(rows)]
    due = [sum(2.0**j for j in range(i + 1)) / (i + 1) for i in range(rows)]
    print(f"{rows} queries, {KEYS} keys: got", got, "due", due)
    wrong |= any(abs(a - b) > 1e-5 for a, b in zip(got, due))
sys.exit(1 if wrong else 0)
