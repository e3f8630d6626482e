"""The Tenora engine: one base model, many adapters, one step loop.

Importing this package loads nothing heavy; `tenora_engine.protocol` stays free of torch.
"""
