"""OpenVINO: scaled_dot_product_attention beside a key-value cache takes a scale of 0 for "no scale given".

Two keys score 2 and 0 with the query. With scale 0 both scores become 0 and each value counts one half: 0.5 is due for the values 1
and 0. The model without state gives it; the same operator with a cache, which OpenVINO fuses into another kernel, divides by the root
of D = 4 instead and gives 1 / (1 + exp(-1)) = 0.731. Nothing in opset13 says that 0 has a meaning of its own.
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
"""

import sys

try:
    sys.modules.setdefault("openvino_telemetry", None)  # nothing is sent on import
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op
    from openvino.op.util import Variable, VariableInfo
except ImportError as error:
    print(error)
    sys.exit(2)


def attend(stateful):
    """The first element of the output."""
    inputs = [op.parameter(ov.PartialShape([-1, 1, -1, 4]), np.float32) for _ in range(3)]
    order = op.parameter(ov.PartialShape([-1]), np.int32)
    mask = op.parameter(ov.PartialShape([-1, 1, -1, -1]), np.float32)
    scale = op.parameter(ov.PartialShape([]), np.float32)
    operands, stores = list(inputs), []
    for i in (1, 2) if stateful else ():
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, 1, -1, 4]), ov.Type.f32, f"cache {i}"
        start = op.concat([op.shape_of(order), op.constant(np.array([1, 0, 4]))], 0)
        variable = Variable(info)
        past = op.read_value(op.broadcast(op.constant(np.float32(0)), start), variable)
        operands[i] = op.concat([op.gather(past, order, op.constant(np.int32(0))), inputs[i]], 2)
        stores.append(op.assign(operands[i], variable))
    output = op.result(op.scaled_dot_product_attention(*operands, mask, scale))
    model = ov.Model([output], stores, [*inputs, mask, scale, *([order] if stateful else [])], "attention")
    key = np.float32([[[[2, 0, 0, 0], [0, 0, 0, 0]]]])
    query, value = np.float32([[[[1, 0, 0, 0]] * 2]]), np.float32([[[[1] * 4, [0] * 4]]])
    feeds = [query, key, value, np.zeros((1, 1, 2, 2), np.float32), np.float32(0), *([np.int32([0])] if stateful else [])]
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return float(compiled.create_infer_request().infer(feeds)[0].flat[0])


print("openvino", ov.__version__)
got = {stateful: attend(stateful) for stateful in (False, True)}
print("without state: got", got[False], "due 0.5")
print("with a cache: got", got[True], "due 0.5")
sys.exit(1 if abs(got[True] - 0.5) > 1e-3 else 0)
