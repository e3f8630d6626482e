"""What every Triton kernel costs on every GPU we promise, found by compiling and without a GPU.

An op's `triton_ops.py` lists its kernels as `COMPILE_CASES`; the recorded table stands beside it
in `compile_table.json`. `python -m tenora_kernels.compile_table` compares, `--write` records.
A kernel that spills, uses a stack or does not compile for a target fails.
"""

from tenora_kernels.compile_table.case import CompileCase

__all__ = ["CompileCase"]
