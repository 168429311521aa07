"""Attention, opsets 23 and 24: is_causal is ignored for a single query beside a past when there is more than one new key.

Schema: "query i attends key j iff j <= i + past_sequence_length". One query, one past key and three new ones: it attends keys 0 and 1.
All scores are 0 and the value of key j is 2**j, so (1 + 2) / 2 = 1.5 is due. The kernel gives the mean of all four, 3.75. Two queries
get what is due, and so does one on the function body of opset 25.
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

PAST, NEW, HEAD = 1, 3, 8
names = ["Q", "K", "V", "", "past_key", "past_value"]
given = [name for name in names if name]


def attend(opset, rows):
    """The first element of every output row."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, None, HEAD]) for name in given]
    outputs = ["Y", "present_key", "present_value"]
    wanted = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    node = helper.make_node("Attention", names, outputs, is_causal=1)
    graph = helper.make_graph([node], "g", inputs, wanted)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    keys = np.zeros((1, 1, PAST + NEW, HEAD), np.float32)
    values = keys + np.float32([1, 2, 4, 8])[:, None]
    feeds = {"Q": keys[:, :, :rows], "K": keys[:, :, PAST:], "V": values[:, :, PAST:]}
    feeds |= {"past_key": keys[:, :, :PAST], "past_value": values[:, :, :PAST]}
    return [float(x) for x in session.run(["Y"], feeds)[0][0, 0, :, 0]]


wrong = False
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
for opset in (23, 24, 25):
    for rows in (1, 2):
        got = attend(opset, rows)
        due = [sum(2.0**j for j in range(i + PAST + 1)) / (i + PAST + 1) for i in range(rows)]
        print(f"opset {opset}, {rows} queries: got", got, "due", due)
        wrong |= any(abs(a - b) > 1e-5 for a, b in zip(got, due))
sys.exit(1 if wrong else 0)
