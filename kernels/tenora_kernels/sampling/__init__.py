"""Choosing the next token of every row, and the random numbers that choice consumes."""

from tenora_kernels.dispatch import Op
from tenora_kernels.sampling import cpu, reference
from tenora_kernels.sampling.random import uniform, uniform_rows

greedy = Op(
    reference.greedy,
    cpu.greedy,
    native="tenora_kernels.sampling.native:greedy",
    triton="tenora_kernels.sampling.triton_ops:greedy",
)
sample = Op(reference.sample, cpu.sample, triton="tenora_kernels.sampling.triton_ops:sample")
finite_rows = Op(
    reference.finite_rows,
    cpu.finite_rows,
    native="tenora_kernels.sampling.native:finite_rows",
    triton="tenora_kernels.sampling.triton_ops:finite_rows",
)

__all__ = ["finite_rows", "greedy", "sample", "uniform", "uniform_rows"]
