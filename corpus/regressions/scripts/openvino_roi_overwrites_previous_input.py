"""OpenVINO's CPU plugin: a strided input tensor is copied into the memory of the tensor that the request had before.

A request is given a dense tensor on an array of the caller and infers; then it is given a region of another array (a tensor with
strides) and infers again. The first array belongs to the caller and is an input: it must still hold 1. It holds the 2 of the region.
Where the caller has freed the first array by then, memory of others is written. The operator does not matter (here: ReLU).
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
"""

import sys

try:
    sys.modules.setdefault("openvino_telemetry", None)  # nothing is sent on import
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op
except ImportError as error:
    print(error)
    sys.exit(2)

x = op.parameter([1, 4], np.float32)
compiled = ov.Core().compile_model(ov.Model([op.result(op.relu(x))], [x], "relu"), "CPU")
request = compiled.create_infer_request()

first = np.full((1, 4), 1, np.float32)
dense = ov.Tensor(first, shared_memory=True)
request.set_tensor(compiled.input(0), dense)
request.infer()

outer = np.full((1, 8), 2, np.float32)
whole = ov.Tensor(outer, shared_memory=True)
request.set_tensor(compiled.input(0), ov.Tensor(whole, ov.Coordinate([0, 2]), ov.Coordinate([1, 6])))
request.infer()

print("openvino", ov.__version__)
print("output got", request.get_output_tensor(0).data.tolist(), "due", [[2.0] * 4])
print("the caller's first array got", first.tolist(), "due", [[1.0] * 4])
sys.exit(0 if (first == 1).all() else 1)
