"""ncnn's SDPA layer: a key-value cache that is taken out of a net without an allocator of its own is garbage when it is given back.

Two keys in two inferences, the first by way of the cache. The query scores 5 with the first key and 0 with the second, whose values are
1 and 0: 1 / (1 + exp(-5)) = 0.993 is due. It comes where set_kvcache_allocator was called and the cache is extracted as it is (type 1).
Without the allocator, or extracted as usual (type 0), extract() copies as much as the shape of the cache says; the keys lie transposed
in a larger buffer, so most of them are lost, memory that was never written is read, and no status tells. Nothing in the package says
that an allocator is needed.
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
"""

import math
import sys
from importlib.metadata import version

try:
    import ncnn
    import numpy as np
except ImportError as error:
    print(error)
    sys.exit(2)

TEXT = """7767517
6 8
Input q 0 1 q
Input k 0 1 k
Input v 0 1 v
Input past_k 0 1 past_k
Input past_v 0 1 past_v
SDPA sdpa 5 3 q k v past_k past_v o all_k all_v 6=1.0 7=1
"""
allocator = ncnn.PoolAllocator()


def attend(with_allocator, kind):
    """The first element of the output of the second inference."""
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.load_param_mem(TEXT)
    query = np.float32([[[0, 0, 0, 1]]])
    past = (ncnn.Mat(), ncnn.Mat())
    for key, value in ((5, 1), (0, 0)):
        extractor = net.create_extractor()
        if with_allocator:
            extractor.set_kvcache_allocator(allocator)
        mats = [ncnn.Mat(x).clone() for x in (query, query * key, np.full((1, 1, 4), value, np.float32))]
        for name, mat in zip(("q", "k", "v", "past_k", "past_v"), (*mats, *past)):
            assert extractor.input(name, mat) == 0
        found = extractor.extract("o")
        states = [extractor.extract(name, kind) for name in ("all_k", "all_v")]
        assert [status for status, _ in (found, *states)] == [0, 0, 0]
        past = tuple(mat for _, mat in states)
    return float(np.array(found[1]).flat[0])


print("ncnn", version("ncnn"))
due, wrong = 1 / (1 + math.exp(-5)), False
for with_allocator in (True, False):
    for kind in (1, 0):
        got = attend(with_allocator, kind)
        print(f"{'an' if with_allocator else 'no'} allocator, extracted with type {kind}: got", got, "due", due)
        wrong |= not abs(got - due) < 1e-3
sys.exit(1 if wrong else 0)
