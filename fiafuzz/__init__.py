"""fiafuzz: property-based fuzzer and differential tester for Ascend CANN's FusedInferAttentionScore."""

import os

__version__ = "0.1.0"

# torch_npu registers itself to be loaded by `import torch`, which then fails where CANN is not installed. Here it is
# loaded only by the backends that want it.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
