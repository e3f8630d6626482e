"""Choosing the next token of every row, and the random numbers that choice consumes."""

from tenora_kernels.dispatch import Op
from tenora_kernels.sampling import cpu, reference
from tenora_kernels.sampling.random import uniform, uniform_rows

greedy = Op(reference.greedy, cpu.greedy)
sample = Op(reference.sample, cpu.sample)
finite_rows = Op(reference.finite_rows, cpu.finite_rows)

__all__ = ["finite_rows", "greedy", "sample", "uniform", "uniform_rows"]
