"""RMS normalisation, alone and fused with the residual sum."""

from tenora_kernels.dispatch import Op
from tenora_kernels.norm import cpu, reference

rms_norm = Op(
    reference.rms_norm,
    cpu.rms_norm,
    native="tenora_kernels.norm.native:rms_norm",
    triton="tenora_kernels.norm.triton_ops:rms_norm",
)
add_rms_norm = Op(
    reference.add_rms_norm,
    cpu.add_rms_norm,
    native="tenora_kernels.norm.native:add_rms_norm",
    triton="tenora_kernels.norm.triton_ops:add_rms_norm",
)

__all__ = ["add_rms_norm", "rms_norm"]
