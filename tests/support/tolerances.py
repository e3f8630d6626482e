"""How far a whole model may be from its oracle. Kernels have `tenora_kernels.testing.TOLERANCES`.

Loosening a value is an ADR.
"""

FP32_LOGIT_TOLERANCE = 1e-4
"""Largest absolute difference of a float32 logit from transformers or peft, unmerged."""

BF16_ERROR_RATIO = 1.5
"""Our bfloat16 error against float32, as a multiple of peft's own."""
