"""Decoder-only transformers driven by a Hugging Face config, and their weights."""
