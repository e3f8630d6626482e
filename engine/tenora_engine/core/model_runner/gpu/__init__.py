"""The model runner of a GPU: fixed buffers, captured decode graphs, one read per step.

Only `runner.py` knows sequences and digests. The rest needs torch, triton and these packages
alone, so that `make gpu-check` runs on a machine with nothing else installed.
"""
