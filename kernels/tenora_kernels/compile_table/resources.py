"""Compiles one case for one target and reads what the binary takes: registers, memory, spills."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tenora_kernels.compile_table.case import CompileCase


class Target(NamedTuple):
    """A GPU as the compiler names it, and the shared memory that one block of it may take."""

    gpu: GPUTarget
    shared_bytes: int


TARGETS = {
    "sm_80": Target(GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_90": Target(GPUTarget("cuda", 90, 32), 227 * 1024),
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), 64 * 1024),
}
_CUBIN_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)")


def compile_case(case: CompileCase, target_name: str) -> dict[str, int]:
    """Return registers, shared, stack and spill figures of one case on one target.

    Raises:
        Exception: whatever the compiler raises for a kernel that it refuses.
    """
    target = TARGETS[target_name]
    source = ASTSource(
        case.kernel, case.ordered_signature(), dict(case.constants), case.attributes()
    )
    options = {
        "num_warps": case.num_warps,
        "num_stages": case.num_stages,
        "enable_fp_fusion": True,
    }
    compiled = triton.compile(source, target=target.gpu, options=options)
    usage = {"shared_bytes": int(compiled.metadata.shared)}
    read = _nvidia_usage if target.gpu.backend == "cuda" else _amd_usage
    return usage | read(compiled.asm)


def complaints(usage: dict[str, int], target_name: str) -> list[str]:
    """What makes a compiled case unfit for its target; empty when it is fit."""
    found = [
        f"{key} is {usage[key]}, must be 0"
        for key in ("stack_bytes", "local_bytes", "scratch_bytes", "vgpr_spills", "sgpr_spills")
        if usage.get(key)
    ]
    limit = TARGETS[target_name].shared_bytes
    if usage["shared_bytes"] > limit:
        found.append(f"shared_bytes is {usage['shared_bytes']}, a block has {limit}")
    return found


def _nvidia_usage(asm: dict[str, Any]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "-res-usage", str(cubin)]
        text = subprocess.run(  # noqa: S603 - the compiler's own tool on its own output
            command, check=True, capture_output=True, text=True
        ).stdout
    found = _CUBIN_USAGE.search(text)
    if found is None:
        raise ValueError(f"cuobjdump printed no resource usage: {text!r}")
    registers, stack, local = (int(group) for group in found.groups())
    return {"registers": registers, "stack_bytes": stack, "local_bytes": local}


def _amd_usage(asm: dict[str, Any]) -> dict[str, int]:
    def read(key: str) -> int:
        found = re.search(rf"^\s+\.{key}:\s+(\d+)$", asm["amdgcn"], re.MULTILINE)
        if found is None:
            raise ValueError(f"the AMD assembly has no {key}")
        return int(found[1])

    return {
        "vgprs": read("vgpr_count"),
        "sgprs": read("sgpr_count"),
        "scratch_bytes": read("private_segment_fixed_size"),
        "vgpr_spills": read("vgpr_spill_count"),
        "sgpr_spills": read("sgpr_spill_count"),
    }
