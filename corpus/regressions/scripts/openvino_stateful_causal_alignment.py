"""OpenVINO: causal=True means another triangle when OpenVINO fuses the operator with a key-value cache.

Two keys, one query, all scores 0, the values 1 and 3. The causal mask of scaled_dot_product_attention ("from PyTorch") is aligned at
the top left: query 0 sees key 0 alone, 1 is due, and a model without state gives it. The same operator on the same two keys, the first
of which comes from a cache, sees both and gives 2: the triangle is aligned at the bottom right there. The mask depends on an
optimisation. (Bottom right is what a decoder wants; it is not what the same model computes where the cache is not fused.)
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
    """The first element of the output for the query that comes with the second key."""
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
    output = op.result(op.scaled_dot_product_attention(*operands, causal=True))
    model = ov.Model([output], stores, [*inputs, *([order] if stateful else [])], "attention")
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}).create_infer_request()
    zeros, values = np.zeros((1, 1, 2, 4), np.float32), np.float32([[[[1] * 4, [3] * 4]]])
    if not stateful:
        return float(request.infer([zeros[:, :, :1], zeros, values])[0].flat[0])
    for i in range(2):
        found = request.infer([zeros[:, :, :1], zeros[:, :, :1], values[:, :, i : i + 1], np.int32([0])])
    return float(found[0].flat[0])


print("openvino", ov.__version__)
got = {stateful: attend(stateful) for stateful in (False, True)}
print("without state: got", got[False], "due 1.0")
print("first key from a cache: got", got[True], "due 1.0")
sys.exit(1 if got[True] != 1.0 else 0)
