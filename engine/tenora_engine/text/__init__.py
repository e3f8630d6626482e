"""Text work of the front: templates, tokenizers, detokenizing and stop strings. Never torch."""
