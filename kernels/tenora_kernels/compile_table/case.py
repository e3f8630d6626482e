"""One kernel as it is launched: its types, its constants and how many warps run it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# every pointer we pass is the start of an allocation or a 16-byte aligned view of one
ALIGNMENT = [["tt.divisibility", 16]]


@dataclass(frozen=True, eq=False, slots=True)
class CompileCase:
    """A specialisation of one kernel that serving launches.

    Args: name, unique within the op, the key of the table; kernel, what `@triton.jit` returns;
    signature, Triton's type ("*bf16", "i32", "fp32") of each argument that is no constant;
    constants, the value of each `tl.constexpr` argument; divisible_by_16, integer arguments that
    serving passes as multiples of 16, which is what lets loads be wide. An argument passed as
    None is a constant of value None.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    divisible_by_16: tuple[str, ...] = ()

    def ordered_signature(self) -> dict[str, str]:
        """Types in the order of the kernel's arguments, constants as "constexpr"."""
        return {
            name: "constexpr" if name in self.constants else self.signature[name]
            for name in self.kernel.arg_names
        }

    def attributes(self) -> dict[tuple[int], list[list[object]]]:
        """What the compiler may assume of each argument, by position."""
        return {
            (position,): ALIGNMENT
            for position, (name, kind) in enumerate(self.ordered_signature().items())
            if kind.startswith("*") or name in self.divisible_by_16
        }
