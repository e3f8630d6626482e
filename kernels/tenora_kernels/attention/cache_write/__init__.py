"""Storing keys and values on a GPU, alone or with the rotation that precedes it."""
