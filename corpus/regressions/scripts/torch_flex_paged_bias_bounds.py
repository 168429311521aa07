"""PagedAttention.get_score_mod calls the user's function at positions behind kv_len: a bias as wide as the keys raises.

Nine keys in pages of four. Without pages the bias (1, 1, 1, 9) serves; with pages the wrapped function is evaluated for the three
unused rows of the last page as well, whose logical positions are 9, 10 and 11, before kv_len hides them. All scores and biases
are 0 and the value of key j is j, so both outputs are (0 + 1 + ... + 8) / 9 = 4.
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
PAGE, KEYS, HEAD = 4, 9, 8
query, keys = torch.zeros(1, 1, 1, HEAD), torch.zeros(1, 1, KEYS, HEAD)
values = torch.arange(float(KEYS)).reshape(1, 1, KEYS, 1).repeat(1, 1, 1, HEAD)
bias, lengths, one = torch.zeros(1, 1, 1, KEYS), torch.tensor([KEYS]), torch.tensor([0])


def biased(score, b, h, i, j):
    """The score and a bias that has one element a key."""
    return score + bias[b, h, i, j]


due = sum(range(KEYS)) / KEYS
plain = flex.flex_attention(query, keys, values, biased)[0, 0, 0, 0].item()
pages = PagedAttention(n_pages=3, page_size=PAGE, max_batch_size=1, device="cpu")
k_cache, v_cache = torch.zeros(1, 1, 12, HEAD), torch.zeros(1, 1, 12, HEAD)
pages.reserve(one, lengths)
pages.assign(one, torch.arange(KEYS).unsqueeze(0), keys, values, k_cache, v_cache)
logical = flex.create_block_mask(lambda b, h, i, j: j < lengths[b], 1, None, 1, KEYS, "cpu", BLOCK_SIZE=(128, PAGE))
block_mask = pages.convert_logical_block_mask(logical, kv_len=lengths)
try:
    found = flex.flex_attention(query, k_cache, v_cache, pages.get_score_mod(biased, lengths), block_mask)
    got = found[0, 0, 0, 0].item()
except IndexError as error:
    got = f"IndexError: {error}"
print("torch", torch.__version__, "got", got, "due", due, "without pages", plain)
sys.exit(0 if isinstance(got, float) and abs(got - due) < 1e-5 else 1)
