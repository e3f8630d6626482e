"""A frozen weight, stored in the layout its product runs fastest from.

The native backend has its own product (`native.py`). Under the others, oneDNN's packed product
adds its terms in the order of k for every row, whatever the number of rows, when the weight was
packed for several rows. `kernels/README.md` has the measurements.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from tenora_kernels import dispatch
from tenora_kernels.errors import BackendUnavailableError, DtypeError, ShapeError
from tenora_kernels.linear import reference
from tenora_kernels.linear.native import NativeProduct
from tenora_kernels.native import library
from tenora_kernels.native.library import PackedMemory

# packing for one row picks a layout whose one-row product is a gemv with another order of sums
PACKED_FOR_ROWS = 64
# the unpacked product treats the last rows apart unless their number is a multiple of this
ROW_MULTIPLE = 4


class PackedLinear:
    """y = x W^T + b for a weight that never changes.

    A row's result does not depend on the number of rows or on the other rows, bit for bit.
    Only one copy of the weight is kept: packed where that pays, as given elsewhere.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        rounds_input: bool = False,
        is_batch_invariant: bool = False,
        rounds_to_int8: bool = False,
        finds_largest: bool = False,
        memory: PackedMemory | None = None,
    ) -> None:
        """Take `weight` [out, in] and `bias` [out], of one floating dtype.

        `rounds_input` lets the native product of a bfloat16 weight round x to bfloat16.
        `rounds_to_int8` holds the weight in 8 bits (`int8.py`); the native backend alone can.
        `finds_largest` lets the native product find its largest outputs (`native/screen.py`), for
        half as much memory again as the weight takes in bfloat16.
        `memory` is where the native product keeps its copy, beside others.
        `is_batch_invariant` takes the deterministic product of the triton backend, whose promise
        is the class's; the vendor's product of a GPU, which is taken otherwise, does not keep it.

        Raises:
            ShapeError, DtypeError: weight and bias do not fit together.
            BackendUnavailableError: int8 is asked for where no native product runs.
        """
        _check(weight, bias)
        self.out_features, self.in_features = weight.shape
        self.dtype = torch.int8 if rounds_to_int8 else weight.dtype
        self.bias = bias
        self._native = None
        if _is_native(weight):
            self._native = NativeProduct(
                weight,
                bias,
                rounds_input=rounds_input,
                rounds_to_int8=rounds_to_int8,
                finds_largest=finds_largest,
                memory=memory,
            )
        elif rounds_to_int8:
            raise BackendUnavailableError(
                f"int8 weights need the native kernels; {dispatch.active_backend()} is bound"
            )
        self.is_packed = self._native is None and _packing_pays(weight)
        self._deterministic = _deterministic() if is_batch_invariant else None
        self._is_reference = dispatch.active_backend() == "reference"
        self._weight = _pack(weight) if self.is_packed else weight
        if self._native is not None:
            self._weight = weight.new_empty(0)  # the packed copy is the only one

    @property
    def adds_in_place(self) -> bool:
        """Whether `add_` costs no more than the product itself."""
        return self._native is not None

    @property
    def native(self) -> NativeProduct | None:
        """The C++ product, where that is what runs."""
        return self._native

    def add_(self, y: Tensor, x: Tensor) -> None:
        """Add x [T, in] times the weight to y [T, out]."""
        if self._native is not None:
            self._native.add_(y, x)
        else:
            y.add_(self(x))

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, in] times the weight: [T, out], a new tensor of x's dtype.

        The native product takes float32 x whatever the weight's dtype; the others want one dtype.
        """
        if self._native is not None:
            return self._native(x)
        if self._deterministic is not None:
            return self._deterministic(x, self._weight, self.bias)
        if self.is_packed:
            return _packed_product(x, self._weight, self.bias)
        if self._is_reference:
            return reference.linear(x, self._weight, self.bias)
        return _padded_product(x, self._weight, self.bias)


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with a packed weight: rows are independent of each other, bit for bit."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # noqa: SLF001
    return y


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(  # noqa: SLF001
        weight.contiguous(), PACKED_FOR_ROWS
    )
    return packed


def _padded_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.shape[0]
    missing = -rows % ROW_MULTIPLE
    if missing == 0 or weight.is_cuda:  # a GPU's rows are not filled up: see `triton_ops.linear`
        return F.linear(x, weight, bias)
    return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[:rows]


def _deterministic() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    if dispatch.active_backend() != "triton":
        return None
    from tenora_kernels.linear.triton_ops import linear

    return linear


def _is_native(weight: Tensor) -> bool:
    return (
        dispatch.active_backend() == "native"
        and weight.device.type == "cpu"
        and library.has_kind(weight.dtype)
    )


def _packing_pays(weight: Tensor) -> bool:
    if (
        dispatch.active_backend() not in ("cpu", "native")
        or weight.device.type != "cpu"
        or weight.shape[0] < 2
    ):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return weight.dtype == torch.float32 and bool(has_onednn)


def _check(weight: Tensor, bias: Tensor | None) -> None:
    if weight.dim() != 2:
        raise ShapeError(f"a linear weight is [out, in], got {tuple(weight.shape)}")
    if not weight.is_floating_point():
        raise DtypeError(f"a linear weight is floating point, got {weight.dtype}; dequantise it")
    if bias is None:
        return
    if bias.shape != weight.shape[:1]:
        raise ShapeError(f"bias is {tuple(bias.shape)}, the weight has {weight.shape[0]} rows")
    if bias.dtype != weight.dtype:
        raise DtypeError(f"bias is {bias.dtype} and weight {weight.dtype}; convert one of them")
