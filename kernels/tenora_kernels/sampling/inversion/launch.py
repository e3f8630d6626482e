"""The order of the passes of one step's searches, and the memory they share."""

from typing import Any

import torch
import triton
from torch import Tensor

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.sampling.inversion import triton_kernels as kernels

BLOCK = 2048
NUM_WARPS = 4
NUM_BINS = 1024
PICK_WARPS = 4
# bits below each digit, from the first
SHIFTS = (20, 10, 0)


class Inversion:
    """One step's rows of logits, searched by several passes."""

    def __init__(self, logits: Tensor, temperature: Tensor, best: Tensor) -> None:
        """Compute the rows' softmax; `best` [N, num_chunks] holds the maxima of BLOCK logits."""
        self.num_rows, self.size = logits.shape
        self.num_chunks = best.shape[1]
        self.device = logits.device
        self.grid = (self.num_rows, self.num_chunks)
        self.probabilities = self._empty(torch.float32, self.size)
        self.prefix = self._empty(torch.int32)
        self.mass_before, self.count_before, self.target, self.nth = (
            self._empty(torch.int64) for _ in range(4)
        )
        total = self._zeros()
        rows = (logits, temperature, best, total)
        constants = {
            "WEIGHT_ONE": weight_one(self.size),
            "BLOCK": BLOCK,
            "BLOCK_CHUNKS": triton.next_power_of_2(self.num_chunks),
            "num_warps": NUM_WARPS,
            "enable_fp_fusion": True,
        }
        strides = (self.size, logits.stride(0))
        kernels.total_weight_kernel[self.grid](*rows, *strides, **constants)
        kernels.probability_kernel[self.grid](*rows, self.probabilities, *strides, **constants)
        self.first_masses = self._zeros(NUM_BINS)

    def choose(self, top_k: Tensor | None, top_p: Tensor, uniform: Tensor) -> Tensor:
        """Return the token of each row: int64 [N]; see `reference` and `top_k_reference`."""
        within = None
        if top_k is None:
            self._add_digits(SHIFTS[0], self.first_masses, None)
        else:
            within = self._keep_top_k(top_k)
        kernels.aim_at_cut_kernel[(self.num_rows,)](
            self.first_masses,
            top_p,
            within,
            self.target,
            NUM_BINS=NUM_BINS,
            num_warps=PICK_WARPS,
            enable_fp_fusion=True,
        )
        kept = self._search_mass()
        kernels.aim_at_choice_kernel[(self.num_rows,)](
            uniform, kept, self.target, num_warps=1, enable_fp_fusion=True
        )
        self._search_mass()
        return self._locate()

    def _keep_top_k(self, top_k: Tensor) -> Tensor:
        """The mass of each row's first `top_k` elements, all where it is not positive."""
        self.target.copy_(torch.where(top_k > 0, top_k.clamp(max=self.size), self.size))
        kept = self._empty(torch.int64)
        masses, counts = self.first_masses, self._zeros(NUM_BINS)
        for shift in SHIFTS:
            self._add_digits(shift, masses, counts)
            self._pick_digit(shift, masses, counts, kept)
            masses, counts = self._zeros(NUM_BINS), self._zeros(NUM_BINS)
        return kept

    def _search_mass(self) -> Tensor:
        """Find the element at which the target is reached; return the mass up to and with it."""
        kept = self._empty(torch.int64)
        self._pick_digit(SHIFTS[0], self.first_masses, None, kept)
        for shift in SHIFTS[1:]:
            masses = self._zeros(NUM_BINS)
            self._add_digits(shift, masses, None)
            self._pick_digit(shift, masses, None, kept)
        return kept

    def _add_digits(self, shift: int, masses: Tensor, counts: Tensor | None) -> None:
        kernels.add_digits_kernel[self.grid](
            self.probabilities,
            self.prefix,
            masses,
            counts,
            self.size,
            SHIFT=shift,
            NUM_BINS=NUM_BINS,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=True,
        )

    def _pick_digit(self, shift: int, masses: Tensor, counts: Tensor | None, kept: Tensor) -> None:
        kernels.pick_digit_kernel[(self.num_rows,)](
            masses,
            counts,
            self.target,
            self.prefix,
            self.mass_before,
            self.count_before,
            self.nth,
            kept,
            SHIFT=shift,
            NUM_BINS=NUM_BINS,
            num_warps=PICK_WARPS,
            enable_fp_fusion=True,
        )

    def _locate(self) -> Tensor:
        """The index of the element that the last search found."""
        equal = self._empty(torch.int32, self.num_chunks)
        choice = self._empty(torch.int64)
        kernels.count_equal_kernel[self.grid](
            self.probabilities,
            self.prefix,
            equal,
            self.size,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=True,
        )
        kernels.locate_kernel[(self.num_rows,)](
            self.probabilities,
            self.prefix,
            equal,
            self.nth,
            choice,
            self.size,
            self.num_chunks,
            BLOCK=BLOCK,
            BLOCK_CHUNKS=triton.next_power_of_2(self.num_chunks),
            num_warps=NUM_WARPS,
            enable_fp_fusion=True,
        )
        return choice

    def _empty(self, dtype: torch.dtype, *width: int) -> Tensor:
        return torch.empty(self.num_rows, *width, dtype=dtype, device=self.device)

    def _zeros(self, *width: int) -> Tensor:
        return torch.zeros(self.num_rows, *width, dtype=torch.int64, device=self.device)


def weight_one(size: int) -> float:
    """What a weight of 1.0 adds, so that `size` of them fit an integer of 62 bits."""
    return float(2.0 ** (62 - size.bit_length()))


def _case(
    name: str, kernel: Any, constants: dict[str, Any], num_warps: int = NUM_WARPS
) -> CompileCase:
    names = ("masses", "counts", "within", "target", "total", "nth", "kept", "choice")
    befores = ("mass_before", "count_before")
    signature = dict.fromkeys((*names, *befores), "*i64")
    signature |= dict.fromkeys(("temperature", "best", "probabilities", "top_p"), "*fp32")
    signature |= dict.fromkeys(("size", "logits_stride", "num_chunks"), "i32")
    signature |= {"logits": "*bf16", "uniform": "*fp64", "prefix": "*i32", "equal": "*i32"}
    sizes = ("size", "logits_stride")
    return CompileCase(name, kernel, signature, constants, num_warps, divisible_by_16=sizes)


_CHUNKS = {"BLOCK": BLOCK, "BLOCK_CHUNKS": 64}
_ROWS = {"WEIGHT_ONE": weight_one(128256), **_CHUNKS}
_BINS = {"NUM_BINS": NUM_BINS}
_DIGIT_CASES = [
    case
    for shift, name, counts in (
        (20, "", {"counts": None}),
        (0, "", {"counts": None}),
        (0, ".counts", {}),
    )
    for constants in [_BINS | {"SHIFT": shift} | counts]
    for case in (
        _case(f"add_digits.{shift}{name}", kernels.add_digits_kernel, constants | {"BLOCK": BLOCK}),
        _case(f"pick_digit.{shift}{name}", kernels.pick_digit_kernel, constants, PICK_WARPS),
    )
]
COMPILE_CASES = [
    _case("total_weight", kernels.total_weight_kernel, _ROWS),
    _case("probability", kernels.probability_kernel, _ROWS),
    *_DIGIT_CASES,
    _case("aim_at_cut", kernels.aim_at_cut_kernel, _BINS | {"within": None}, PICK_WARPS),
    _case("aim_at_cut.top_k", kernels.aim_at_cut_kernel, _BINS, PICK_WARPS),
    _case("aim_at_choice", kernels.aim_at_choice_kernel, {}, 1),
    _case("count_equal", kernels.count_equal_kernel, {"BLOCK": BLOCK}),
    _case("locate", kernels.locate_kernel, _CHUNKS),
]
