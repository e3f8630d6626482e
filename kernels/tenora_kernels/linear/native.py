"""Products with a packed weight in C++: weights in their own dtype, sums in float32."""

import torch
from torch import Tensor

from tenora_kernels.errors import BackendUnavailableError, DtypeError, ShapeError
from tenora_kernels.linear.int8 import quantise
from tenora_kernels.native import library
from tenora_kernels.native.library import PackedMemory, PackedWeight, Product
from tenora_kernels.native.screen import SCREENED, Largest, PackedScreen


class NativeProduct:
    """y = x W^T + b, the twin of `reference.linear` for float32 x.

    Each output adds its terms in the order of k in one chain of fused multiply-adds, so its bits
    depend on its own row of x alone.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        rounds_input: bool = False,
        rounds_to_int8: bool = False,
        finds_largest: bool = False,
        memory: PackedMemory | None = None,
    ) -> None:
        """Pack `weight`, as it is or rounded to int8 (see `int8.py`), into `memory` if given.

        `rounds_input` rounds x to bfloat16 for a weight that is packed in bfloat16.
        `finds_largest` adds what `largest` needs, where the weight and the processor allow it.
        """
        steps = None
        if rounds_to_int8:
            weight, steps = quantise(weight)
        self._weight = PackedWeight(weight, memory, steps=steps)
        self._screen = None
        if finds_largest and bias is None:
            self._screen = _screen(weight, self._weight, memory, steps)
        self._rounds = rounds_input
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self._bias_pointer = None if self._bias is None else self._bias.data_ptr()
        self._out_features, self._in_features = weight.shape
        self._run = library.library().tn_linear

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of its weight."""
        return self._weight.nbytes

    @property
    def descriptor(self) -> Product:
        """The product as C++ reads it; valid for as long as this object lives."""
        return Product(self._weight.address, self._bias_pointer, self._rounds)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, in] times the weight: float32 [T, out]."""
        self._check(x)
        y = torch.empty(x.shape[0], self._out_features)
        self._multiply(x, y, adds=False)
        return y

    @property
    def finds_largest(self) -> bool:
        """Whether `largest` may be called."""
        return self._screen is not None

    def largest(self, x: Tensor, left_out: Tensor) -> Largest:
        """Return each row's largest output without computing most of them: `PackedScreen.largest`.

        Raises:
            BackendUnavailableError: the product was not made for it, or could not be.
        """
        if self._screen is None:
            raise BackendUnavailableError("this product has no screen for its largest output")
        return self._screen.largest(x, left_out, rounds_input=self._rounds)

    def add_(self, y: Tensor, x: Tensor) -> None:
        """Add the product to y [T, out], float32 and contiguous."""
        self._check(x)
        if y.dtype != torch.float32 or not y.is_contiguous():
            raise DtypeError(f"the product is added to contiguous float32, got {y.dtype}")
        if y.shape != (x.shape[0], self._out_features):
            raise ShapeError(f"y is {tuple(y.shape)}, the product {x.shape[0], self._out_features}")
        self._multiply(x, y, adds=True)

    def _multiply(self, x: Tensor, y: Tensor, *, adds: bool) -> None:
        self._run(
            self._weight.address,
            self._bias_pointer,
            x.data_ptr(),
            x.stride(0),
            y.data_ptr(),
            self._out_features,
            x.shape[0],
            adds,
            self._rounds,
        )

    def _check(self, x: Tensor) -> None:
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise DtypeError(f"the native product takes float32 on the CPU, got {x.dtype}")
        if x.dim() != 2 or x.shape[1] != self._in_features or x.stride(1) != 1:
            raise ShapeError(
                f"x is {tuple(x.shape)}, the weight takes contiguous rows of {self._in_features}"
            )


def _screen(
    weight: Tensor, packed: PackedWeight, memory: PackedMemory | None, steps: Tensor | None
) -> PackedScreen | None:
    if not library.has_screens() or weight.dtype not in SCREENED:
        return None
    try:
        return PackedScreen(weight, packed, memory, steps=steps)
    except ValueError:  # not finite, and so are all its products
        return None
