"""How far a whole model may be from its oracle. Kernels have `tenora_kernels.testing.TOLERANCES`.

Loosening a value is an ADR.
"""

FP32_LOGIT_TOLERANCE = 1e-4
"""Largest absolute difference of a float32 logit from transformers or peft, unmerged."""

BF16_ERROR_RATIO = 1.5
"""Our bfloat16 error against float32, as a multiple of peft's own."""

INT8_PERPLEXITY_RATIO = 1.01
"""Perplexity of real text with int8 weights, as a multiple of float32's."""

INT8_KL_NATS = 0.01
"""Mean divergence of int8's next-token distribution from float32's on real text."""
