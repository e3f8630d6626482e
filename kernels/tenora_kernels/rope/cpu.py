"""Rotary position embedding in three operators, q and k together where they lie together."""

from torch import Tensor


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return rotated `(q, k)` as new memory, maybe as two views of one; nothing is mutated.

    Args: q [T, Hq, D]; k [T, Hkv, D]; cos, sin [T, D], rounded to q's dtype first.
    q and k may be strided; when they are neighbours in one projection's output they are rotated
    together, and the results are strided alike.
    """
    cos = cos.to(q.dtype).unsqueeze(1)  # [T, 1, D]
    sin = sin.to(q.dtype).unsqueeze(1)
    if not _are_neighbours(q, k):
        return _rotate(q, cos, sin), _rotate(k, cos, sin)
    tokens, heads, head_dim = q.shape
    joined = q.as_strided((tokens, heads + k.shape[1], head_dim), q.stride())
    rotated_q, rotated_k = _rotate(joined, cos, sin).split_with_sizes((heads, k.shape[1]), dim=1)
    return rotated_q, rotated_k


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rotated = x * cos
    rotated[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return rotated


def _are_neighbours(q: Tensor, k: Tensor) -> bool:
    """Whether k's heads follow q's heads in memory, token by token."""
    return (
        q.dtype == k.dtype
        and q.stride() == k.stride()
        and q.stride(1) == q.shape[2]
        and q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
        and k.storage_offset() == q.storage_offset() + q.shape[1] * q.stride(1)
        and q.stride(0) >= (q.shape[1] + k.shape[1]) * q.shape[2]
    )
