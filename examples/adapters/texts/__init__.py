"""What the three demo adapters are taught: one module for each, plain text and no tensors.

Each module has `sample(rng)`, which makes one training example, and `HELD_OUT`, prompts that no
training example contains. Nothing here is downloaded.
"""
