"""convert_logical_block_mask(batch_idx=...) renames the blocks, but its mask still looks at the pages of sequences 0, 1, ...

Two sequences with two pages each, values 1 and 5. A query of batch size 1 asks for sequence 1 by batch_idx = [1] ("flexibility to
convert a block mask with smaller batch size than the page table"). All scores are 0, so the output is the mean of the values of
sequence 1, 5. The block indices are right, the mask function is that of sequence 0: the eager kernel gives 1, the compiled
one, which also skips blocks, sees no key and gives 0. Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
"""

import os
import sys

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
try:
    import torch
    import torch.nn.attention.flex_attention as flex
    from torch.nn.attention.experimental._paged_attention import PagedAttention
except ImportError as error:
    print(error)
    sys.exit(2)

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # leaves tracing out; the result is the same with it
PAGE, KEYS, HEAD = 4, 8, 8
pages = PagedAttention(n_pages=4, page_size=PAGE, max_batch_size=2, device="cpu")
k_cache, v_cache = torch.zeros(1, 1, 16, HEAD), torch.zeros(1, 1, 16, HEAD)
for sequence, value in ((0, 1.0), (1, 5.0)):
    pages.reserve(torch.tensor([sequence]), torch.tensor([KEYS]))
    keys, values = torch.zeros(1, 1, KEYS, HEAD), torch.full((1, 1, KEYS, HEAD), value)
    pages.assign(torch.tensor([sequence]), torch.arange(KEYS).unsqueeze(0), keys, values, k_cache, v_cache)

logical = flex.create_block_mask(lambda b, h, i, j: j < KEYS, 1, None, 1, KEYS, "cpu", BLOCK_SIZE=(128, PAGE))
block_mask = pages.convert_logical_block_mask(logical, batch_idx=torch.tensor([1]))
out = flex.flex_attention(torch.zeros(1, 1, 1, HEAD), k_cache, v_cache, block_mask=block_mask)
got, due = out[0, 0, 0, 0].item(), sum([5.0] * KEYS) / KEYS
named = block_mask.full_kv_indices if block_mask.full_kv_indices is not None else block_mask.kv_indices
print("torch", torch.__version__, "got", got, "due", due)
print("pages in the converted block mask:", named[0, 0, 0, :2].tolist(), "page table of sequence 1:", pages.page_table[1].tolist())
sys.exit(0 if got == due else 1)
