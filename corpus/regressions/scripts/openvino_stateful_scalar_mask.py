"""OpenVINO: beside a key-value cache, the mask that is the number 0 is refused.

scaled_dot_product_attention documents attention_mask as "tensor of shape [N, ..., L, S] or scalar float type zero value": the only way
to give a scale without a mask. One query and one key with the value 3: 3 is due, and a model without state gives it. With a cache, which
OpenVINO fuses into another kernel, the inference ends with "attention_mask do not match q and k".
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
    """The first element of the output, or the exception."""
    inputs = [op.parameter(ov.PartialShape([-1, 1, -1, 4]), np.float32) for _ in range(3)]
    order = op.parameter(ov.PartialShape([-1]), np.int32)
    operands, stores = list(inputs), []
    for i in (1, 2) if stateful else ():
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, 1, -1, 4]), ov.Type.f32, f"cache {i}"
        start = op.concat([op.shape_of(order), op.constant(np.array([1, 0, 4]))], 0)
        variable = Variable(info)
        past = op.read_value(op.broadcast(op.constant(np.float32(0)), start), variable)
        operands[i] = op.concat([op.gather(past, order, op.constant(np.int32(0))), inputs[i]], 2)
        stores.append(op.assign(operands[i], variable))
    mask, scale = op.constant(np.float32(0)), op.constant(np.float32(0.5))
    output = op.result(op.scaled_dot_product_attention(*operands, mask, scale))
    model = ov.Model([output], stores, [*inputs, *([order] if stateful else [])], "attention")
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    one = np.ones((1, 1, 1, 4), np.float32)
    try:
        return float(request.infer([one, one, one * 3, *([np.int32([0])] if stateful else [])])[0].flat[0])
    except RuntimeError as error:
        return next(line for line in str(error).splitlines() if line and "Exception from" not in line)


print("openvino", ov.__version__)
got = {stateful: attend(stateful) for stateful in (False, True)}
print("without state: got", got[False], "due 3.0")
print("with a cache: got", got[True], "due 3.0")
sys.exit(1 if got[True] != 3.0 else 0)
