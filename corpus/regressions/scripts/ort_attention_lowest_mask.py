"""Attention, opsets 23 and 24: a row whose additive mask holds the lowest finite number everywhere gives 0.

Schema: a float mask "is added to the attention scores rather than disabling positions", and only a row whose every bias is -inf is a
zero row. One query, two keys with the values 1 and 3, all scores 0, the same bias for both: both count one half, 2 is due. With
-3.4028235e38 (and -65504 in float16) the kernel gives 0, with any other finite number 2; the function body of opset 25 gives 2.
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
"""

import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import helper
except ImportError as error:
    print(error)
    sys.exit(2)

names = ["Q", "K", "V", "attn_mask"]


def attend(opset, kind, bias):
    """The output for two keys with the same bias."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    inputs = [helper.make_tensor_value_info(name, element, [1, 1, None, None]) for name in names]
    output = helper.make_tensor_value_info("Y", element, None)
    graph = helper.make_graph([helper.make_node("Attention", names, ["Y"])], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = np.array([1, 3], kind).reshape(1, 1, 2, 1)
    mask = np.full((1, 1, 1, 2), bias, kind)
    return float(session.run(None, {"Q": values[:, :, :1] * 0, "K": values * 0, "V": values, "attn_mask": mask})[0].item())


wrong = False
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
for opset in (23, 24, 25):
    for kind in ("float32", "float16"):
        lowest = np.finfo(kind).min
        for bias in (lowest, lowest / 2):
            got, due = attend(opset, kind, bias), (1.0 + 3.0) / 2
            print(f"opset {opset}, {kind}, bias {float(bias):g}: got", got, "due", due)
            wrong |= abs(got - due) > 1e-3
sys.exit(1 if wrong else 0)
