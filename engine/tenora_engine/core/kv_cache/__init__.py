"""KV memory: a pool of blocks, and the prefix cache over it. No torch."""
