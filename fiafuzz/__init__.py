"""fiafuzz: property-based fuzzer and differential tester for Ascend CANN's FusedInferAttentionScore."""

__version__ = "0.1.0"
