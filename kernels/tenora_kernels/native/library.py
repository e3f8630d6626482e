"""The loaded C++ library: its functions with their types, and the structures they read."""

import ctypes
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from tenora_kernels.errors import BackendUnavailableError, DtypeError, ShapeError
from tenora_kernels.native.build import built_library

INTERFACE = 8
LINE = 64  # bytes of a cache line
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 4}


class PackedMatrix(Structure):
    """A weight [n, k] in panels; `data` is memory that someone else keeps alive."""

    _fields_ = (("kind", c_int64), ("n", c_int64), ("k", c_int64), ("data", c_void_p))


class Screen(Structure):
    """A weight [n, k] rounded to 8 bits, and how far that is from it; see `src/screen.h`."""

    _fields_ = (("n", c_int64), ("k", c_int64), ("data", c_void_p))


class LargestArgs(Structure):
    """See `src/screen.h`."""

    _fields_ = (
        ("screen", c_void_p),
        ("weight", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("rows", c_int64),
        ("rounds", c_int64),
        ("is_left_out", c_void_p),
        ("index", c_void_p),
        ("is_finite", c_void_p),
        ("exact_panels", c_void_p),
    )


class LoraSlice(Structure):
    """One projection of an adapter's fused module."""

    _fields_ = (
        ("b", PackedMatrix),
        ("a_column", c_int64),
        ("y_column", c_int64),
        ("scaling", c_double),
    )


class LoraModule(Structure):
    """One adapter's factors of one fused module."""

    _fields_ = (("a", PackedMatrix), ("num_slices", c_int64), ("slices", POINTER(LoraSlice)))


class KVCache(Structure):
    """See `src/kv_cache.h`."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("kind", c_int64),
        ("kv_heads", c_int64),
        ("num_blocks", c_int64),
        ("block_size", c_int64),
        ("head_dim", c_int64),
        ("block_stride", c_int64),
        ("head_stride", c_int64),
        ("key_slot_stride", c_int64),
        ("key_dim_stride", c_int64),
    )


def kv_cache(keys: Tensor, values: Tensor) -> KVCache:
    """Describe one layer's cache: two views [Hkv, num_blocks, block_size, D] of the same strides
    over heads and blocks, float32 or bfloat16. The values of a block are contiguous slots; so are
    its keys, or the transpose of that, which attention reads without a copy when block_size is a
    multiple of 16.

    Raises:
        DtypeError: another dtype.
        ShapeError: the views differ in shape, dtype or outer strides, or a block is scattered.
    """
    if keys.dtype not in {torch.float32, torch.bfloat16}:
        raise DtypeError(f"a KV cache is float32 or bfloat16 here, not {keys.dtype}")
    heads, blocks, block_size, head_dim = keys.shape
    outer = values.stride()[:2]
    if (keys.shape, keys.dtype) != (values.shape, values.dtype) or not _stands(keys, *outer):
        raise ShapeError("keys and values are alike: [Hkv, num_blocks, block_size, D]")
    are_slots, are_transposed = (*outer, head_dim, 1), (*outer, 1, block_size)
    if not _stands(values, *are_slots) or not (
        _stands(keys, *are_slots) or _stands(keys, *are_transposed)
    ):
        raise ShapeError("a block of a KV cache is contiguous slots; its keys may be transposed")
    head_stride, block_stride, key_slot_stride, key_dim_stride = keys.stride()
    return KVCache(
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        kind=KINDS[keys.dtype],
        kv_heads=heads,
        num_blocks=blocks,
        block_size=block_size,
        head_dim=head_dim,
        block_stride=block_stride,
        head_stride=head_stride,
        key_slot_stride=key_slot_stride,
        key_dim_stride=key_dim_stride,
    )


def _stands(x: Tensor, *strides: int) -> bool:
    """Whether the first dimensions have these strides, where they have more than one place."""
    places = zip(x.shape, x.stride(), strides, strict=False)
    return all(size == 1 or own == wanted for size, own, wanted in places)


class AttentionArgs(Structure):
    """See `src/attention.h`."""

    _fields_ = (
        ("q", c_void_p),
        ("q_stride", c_int64),
        ("out", c_void_p),
        ("cache", KVCache),
        ("q_heads", c_int64),
        ("num_sequences", c_int64),
        ("query_starts", c_void_p),
        ("seq_lens", c_void_p),
        ("blocks", c_void_p),
        ("table_starts", c_void_p),
        ("scale", c_double),
        ("soft_cap", c_double),
        ("window", c_int64),
    )


class RopeArgs(Structure):
    """See `src/pointwise.h`."""

    _fields_ = (
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("q_stride", c_int64),
        ("k_stride", c_int64),
        ("v_stride", c_int64),
        ("q_heads", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("cache", KVCache),
    )


class Product(Structure):
    """One product of a layer; see `src/decoder.h`, as for all below."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("rounds", c_int64))


class DecoderLayer(Structure):
    """One layer's weights and its cache."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Product),
        ("o", Product),
        ("gate_up", Product),
        ("down", Product),
        ("cache", KVCache),
    )


class LayerLora(Structure):
    """Tables of one layer's adapted modules, null where no active adapter has one."""

    _fields_ = (("qkv", c_void_p), ("o", c_void_p), ("gate_up", c_void_p), ("down", c_void_p))


class LoraRows(Structure):
    """A step's rows gathered by adapter."""

    _fields_ = (("segments", c_void_p), ("num_segments", c_int64), ("rows", c_void_p))


class DecoderStep(Structure):
    """One step through all layers."""

    _fields_ = (
        ("hidden", c_void_p),
        ("tokens", c_int64),
        ("hidden_size", c_int64),
        ("intermediate_size", c_int64),
        ("logit_rows", c_void_p),
        ("num_logit_rows", c_int64),
        ("out", c_void_p),
        ("norm_eps", c_double),
        ("rope", RopeArgs),
        ("attention", AttentionArgs),
        ("lora", LoraRows),
        ("logit_lora", LoraRows),
        ("layer_lora", c_void_p),
    )


_P, _I, _D = c_void_p, c_int64, c_double
SIGNATURES: dict[str, tuple[type, ...]] = {
    "tn_set_threads": (_I,),
    "tn_pack": (_I, _P, _P, _I, _I, _P),
    "tn_linear": (_P, _P, _P, _I, _P, _I, _I, _I, _I),
    "tn_lora_add": (_P, _I, _P, _I, _P, _P, _I, _P),
    "tn_attention": (_P,),
    "tn_decode": (_P, _I, _P),
    "tn_rope_write_kv": (_P, _I),
    "tn_rms_norm": (_P, _I, _P, _D, _P, _I, _I),
    "tn_add_rms_norm": (_P, _P, _P, _D, _P, _P, _I, _I),
    "tn_silu_mul": (_P, _P, _I, _I),
    "tn_gelu_tanh_mul": (_P, _P, _I, _I),
    "tn_greedy": (_P, _I, _I, _I, _P, _P),
    "tn_largest_outputs": (_P,),
}


@cache
def library() -> ctypes.CDLL:
    """Return the library of this machine, built if need be.

    Raises:
        BackendUnavailableError: it cannot be built or loaded here.
    """
    try:
        loaded = ctypes.CDLL(str(built_library()))
    except OSError as error:
        raise BackendUnavailableError(f"the CPU kernels cannot be loaded: {error}") from error
    loaded.tn_interface.restype = c_int64
    if loaded.tn_interface() != INTERFACE:
        raise BackendUnavailableError("the built CPU kernels are of another version; rebuild them")
    for name, argtypes in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = argtypes
        function.restype = None
    loaded.tn_variant.restype = ctypes.c_char_p
    loaded.tn_has_bf16_products.restype = c_int64
    loaded.tn_packed_bytes.argtypes = (_I, _I, _I)
    loaded.tn_packed_bytes.restype = c_int64
    loaded.tn_has_screens.restype = c_int64
    loaded.tn_screen_bytes.argtypes = (_I, _I)
    loaded.tn_screen_bytes.restype = c_int64
    loaded.tn_pack_screen.argtypes = (_I, _P, _P, _I, _I, _P)
    loaded.tn_pack_screen.restype = c_int64
    loaded.tn_set_threads(torch.get_num_threads())
    return loaded


@cache
def is_available() -> bool:
    """Whether the C++ kernels run on this machine; builds them on the first call."""
    try:
        library()
    except BackendUnavailableError:
        return False
    return True


@cache
def variant() -> str:
    """Which instructions the library uses, such as `avx2`: part of what a result depends on."""
    name: bytes = library().tn_variant()
    return name.decode()


def set_threads(threads: int) -> None:
    """Let jobs run on `threads` threads, the caller included. Not while one runs."""
    library().tn_set_threads(threads)


@cache
def has_bf16_products() -> bool:
    """Whether this processor multiplies bfloat16 by bfloat16 faster than float32."""
    return bool(library().tn_has_bf16_products())


@cache
def has_screens() -> bool:
    """Whether this processor finds largest outputs through a screen (`screen.py`)."""
    return bool(library().tn_has_screens())


@cache
def has_kind(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype can be stored packed as they are."""
    return dtype in KINDS and bool(library().tn_has_kind(c_int64(KINDS[dtype])))


class PackedMemory:
    """Memory that many packed weights share, so that it can lie in few large pages.

    A step reads hundreds of matrices one after the other, most of them smaller than such a page;
    in small pages of their own it searches for them more than once for each.
    """

    def __init__(self, expected_bytes: int = 0, *, growth: int = 2 << 20) -> None:
        """Reserve `expected_bytes`; when they are used up, take `growth` more at a time."""
        self._growth = growth
        self._block = torch.empty(expected_bytes + LINE, dtype=torch.uint8)
        self._used = 0
        self.nbytes = self._block.nbytes
        """Bytes of all that was reserved."""

    def take(self, size: int) -> Tensor:
        """Return `size` bytes that begin a cache line; the block lives as long as any of them."""
        start = self._used + -(self._block.data_ptr() + self._used) % LINE
        if start + size > self._block.shape[0]:
            self._block = torch.empty(max(size, self._growth) + LINE, dtype=torch.uint8)
            self.nbytes += self._block.nbytes
            start = -self._block.data_ptr() % LINE
        self._used = start + size
        return self._block[start : start + size]


class PackedWeight:
    """A frozen weight [n, k] in the layout of the C++ products, and its descriptor."""

    def __init__(
        self, weight: Tensor, memory: PackedMemory | None = None, *, steps: Tensor | None = None
    ) -> None:
        """Copy `weight`, of a dtype that `has_kind` knows, into `memory` or into its own.

        `steps`, float32 [n, groups], are what each group of an int8 weight is whole numbers of.
        """
        source = weight.detach().contiguous()
        kind, (n, k) = KINDS[source.dtype], source.shape
        size = library().tn_packed_bytes(kind, n, k)
        self._data = (memory or PackedMemory(size)).take(size)
        step_data = None if steps is None else steps.data_ptr()
        library().tn_pack(kind, source.data_ptr(), step_data, n, k, self._data.data_ptr())
        self.descriptor = PackedMatrix(kind, n, k, self._data.data_ptr())
        self.address = ctypes.addressof(self.descriptor)

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return self._data.nbytes
