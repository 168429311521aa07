"""PagedAttention.erase does not forget which pages a sequence had: after its pages went to another one, it sees both.

Two sequences share four pages of four keys. Sequence 0 takes two, is erased, sequence 1 takes the same pages (values 5), sequence
0 takes the other two (values 2). All scores are 0, so each output is the mean of the values of its own sequence: 2 and 5.
erase() assigns through ``self.physical_to_logical[batch_idx][:, pages] = -1``, which writes into a copy when batch_idx is a
tensor of shape (1), as documented. The eager kernel goes by the mask function alone; a compiled one skips the stale pages.
Exit code 1: the defect shows, 0: it is gone, 2: cannot be run here.
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


def write(sequence: int, value: float) -> None:
    """Reserve two pages for a sequence and fill them with one value."""
    pages.reserve(torch.tensor([sequence]), torch.tensor([KEYS]))
    keys, values = torch.zeros(1, 1, KEYS, HEAD), torch.full((1, 1, KEYS, HEAD), value)
    pages.assign(torch.tensor([sequence]), torch.arange(KEYS).unsqueeze(0), keys, values, k_cache, v_cache)


write(0, 1.0)
pages.erase(torch.tensor([0]))
write(1, 5.0)
write(0, 2.0)

lengths = torch.tensor([KEYS, KEYS])
logical = flex.create_block_mask(lambda b, h, i, j: j < lengths[b], 2, None, 1, KEYS, "cpu", BLOCK_SIZE=(128, PAGE))
block_mask = pages.convert_logical_block_mask(logical, kv_len=lengths)
out = flex.flex_attention(torch.zeros(2, 1, 1, HEAD), k_cache, v_cache, block_mask=block_mask)
got = out[:, 0, 0, 0].tolist()
due = [sum([2.0] * KEYS) / KEYS, sum([5.0] * KEYS) / KEYS]
print("torch", torch.__version__, "got", got, "due", due)
print("pages that sequence 0 still maps:", pages.physical_to_logical[0].tolist(), "its page table:", pages.page_table[0].tolist())
sys.exit(0 if got == due else 1)
