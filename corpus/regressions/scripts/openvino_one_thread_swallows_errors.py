"""OpenVINO's CPU plugin: with INFERENCE_NUM_THREADS=1 an error within an inference gives an old or an empty output, no exception.

A MatMul of open shapes is given (2, 4) and (3, 4), which do not fit. An exception is due, and comes with two threads. With one thread
infer() returns as if all were well: a new request has an output of shape (0, 0), one that was used before gives the output of then,
which is for other inputs.
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


def product(threads, used):
    """What comes back: "an exception" or the output, on a new request or on one that was used before."""
    a, b = (op.parameter(ov.PartialShape([-1, -1]), np.float32) for _ in range(2))
    model = ov.Model([op.result(op.matmul(a, b, False, False))], [a, b], "product")
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads}).create_infer_request()
    if used:
        request.infer([np.full((1, 2), 5, np.float32), np.full((2, 1), 7, np.float32)])
    try:
        found = request.infer([np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)])
    except RuntimeError:
        return "an exception"
    return f"an output of shape {found[0].shape}: {found[0].tolist()}"


print("openvino", ov.__version__)
got = {(threads, used): product(threads, used) for threads in (2, 1) for used in (False, True)}
for (threads, used), what in got.items():
    print(f"{threads} threads, {'used' if used else 'new'} request: got", what, "due an exception")
sys.exit(0 if set(got.values()) == {"an exception"} else 1)
