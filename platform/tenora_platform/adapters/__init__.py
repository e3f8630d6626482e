"""The adapter registry: names, immutable revisions, and the proof that one may be called."""
