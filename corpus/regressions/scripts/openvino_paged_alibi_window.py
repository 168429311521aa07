"""OpenVINO's PagedAttentionExtension: ALiBi slopes beside a sliding window are applied to the wrong keys.

One query behind three cached keys, window 2: it sees keys 2 (in the cache) and 3 (its own). All scores are 0, so ALiBi alone decides:
with slope ln 2 a key counts half for each step back, 1/2 and 1, whatever constant is added. With the values 0 and 1 of these two keys
1 / (1 + 1/2) = 0.667 is due. Without the window (values 0, 0, 0, 1) 1 / (1 + 1/2 + 1/4 + 1/8) = 0.533 is due and comes.
The operator is experimental ("Use with care"); it is what openvino.genai turns attention into.
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
"""

import math
import sys

try:
    sys.modules.setdefault("openvino_telemetry", None)  # nothing is sent on import
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op
    from openvino.op import _PagedAttentionExtension as PagedAttention
except ImportError as error:
    print(error)
    sys.exit(2)

F32, I32, D, PAST = np.float32, np.int32, 16, 3


def attend(window):
    """The first element of the output of one query."""
    shapes = [[-1, D]] * 3 + [[-1, 1, 32, D]] * 2 + [[-1]] * 4
    kinds = [F32] * 5 + [I32] * 4
    inputs = [op.parameter(ov.PartialShape(s), k) for s, k in zip(shapes, kinds)]
    slopes, total = op.constant(F32([math.log(2)])), op.constant(I32(PAST + 1))
    # Scores, rotation, sparsity, sinks, eviction and more: not used.
    none = [I32, I32, I32, F32, F32, None, None, F32, None, I32, I32, I32, I32, np.uint8, I32]
    rest = [op.constant(I32(0)) if kind is None else op.constant(np.zeros(0, kind)) for kind in none]
    node = PagedAttention([x.output(0) for x in [*inputs, op.constant(F32(1)), op.constant(I32(window)), slopes, total, *rest]])
    for name, size in {"num_k_heads": 1, "k_head_size": D, "num_v_heads": 1, "v_head_size": D}.items():
        node.get_rt_info()[name] = size
    model = ov.Model([op.result(node.output(0))], inputs, "paged")
    config = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    request = ov.Core().compile_model(model, "CPU", config).create_infer_request()
    cache, row = np.zeros((1, 1, 32, D), F32), np.zeros((1, D), F32)
    arrays = [row, row, row + 1, cache, cache.copy(), I32([PAST]), I32([0, 1]), I32([0]), I32([0, 1])]
    return float(request.infer([ov.Tensor(x) for x in arrays])[0].flat[0])


print("openvino", ov.__version__)
wrong = False
for window, keys in ((0, 4), (2, 2)):
    got, due = attend(window), 1 / sum(2.0**-n for n in range(keys))
    print("no window" if not window else f"window {window}", "got", got, "due", due)
    wrong |= window > 0 and abs(got - due) > 1e-3
sys.exit(1 if wrong else 0)
