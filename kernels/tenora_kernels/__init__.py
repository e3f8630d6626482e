"""Batched-LoRA, attention and small-operator kernels, each beside its slow reference twin."""
