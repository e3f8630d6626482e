"""The one form in which adapters are stored and served, and the digest that names it.

A safetensors file of `layers.{i}.{target}.lora_a` [rank, in_features] and `.lora_b`
[out_features, rank] in the dtypes of the upload. Its metadata holds rank and effective scale of
every module, so equal bytes mean an equal function, and the digest is the SHA-256 of all bytes.
Writing is deterministic: sorted names, compact JSON, a header padded with spaces to 8 bytes.
"""

import hashlib
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from tenora_engine.adapter_files.header import (
    LENGTH_BYTES,
    METADATA_KEY,
    Header,
    HeaderError,
    TensorInfo,
    read_header,
)
from tenora_engine.adapter_files.planning import Piece, PlannedModule
from tenora_engine.protocol.errors import AdapterUnavailableError

FORMAT = 1
FORMAT_KEY = "tenora_adapter"
COPY_BYTES = 4 << 20

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""How tensors are handed out; numpy has no bfloat16, so its bit patterns come as uint16."""


class _ModuleFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int
    scaling: float


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    modules: dict[str, _ModuleFacts]


@dataclass(frozen=True, slots=True)
class CanonicalModule:
    """One module's update: scaling * lora_b @ lora_a.

    The arrays are copy-on-write views of the file: writing to one changes nothing on disk. Where
    a dtype is "BF16" the array holds bit patterns as uint16.
    """

    rank: int
    scaling: float
    lora_a: NDArray[Any]  # [rank, in_features]
    lora_b: NDArray[Any]  # [out_features, rank]
    lora_a_dtype: str
    lora_b_dtype: str


@dataclass(frozen=True, slots=True)
class CanonicalAdapter:
    """All modules of one adapter by name, such as `layers.0.q_proj`."""

    modules: dict[str, CanonicalModule]
    size_bytes: int


def write_canonical(source: Path, modules: tuple[PlannedModule, ...], target: Path) -> str:
    """Write the canonical file of `modules`, whose bytes lie in `source`; returns the digest."""
    pieces = dict(sorted(_pieces(modules)))
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("xb") as writer:
        for block in _blocks(reader, _encode_header(modules, pieces), pieces):
            digest.update(block)
            writer.write(block)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    """SHA-256 (hex) of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_canonical(path: Path, expected_digest: str | None = None) -> CanonicalAdapter:
    """Map the canonical file at `path`; with `expected_digest`, read and verify all of it first.

    Raises:
        AdapterUnavailableError: the file is missing, damaged or of another format.
    """
    try:
        if expected_digest is not None and digest_of(path) != expected_digest:
            raise AdapterUnavailableError(
                "The adapter's stored file is damaged: its digest is not its name."
            )
        header = read_header(path)
        facts = msgspec.json.decode(header.metadata[FORMAT_KEY], type=_Facts)
        return _build(path, header, facts)
    except (OSError, HeaderError, msgspec.DecodeError, KeyError) as error:
        raise AdapterUnavailableError(
            "The adapter's stored file is missing or not in canonical form."
        ) from error


def _pieces(modules: tuple[PlannedModule, ...]) -> Iterator[tuple[str, Piece]]:
    for module in modules:
        yield f"{module.name}.lora_a", module.lora_a
        yield f"{module.name}.lora_b", module.lora_b


def _encode_header(modules: tuple[PlannedModule, ...], pieces: dict[str, Piece]) -> bytes:
    facts = {
        "format": FORMAT,
        "modules": {m.name: {"rank": m.rank, "scaling": float(m.scaling)} for m in modules},
    }
    entries: dict[str, Any] = {METADATA_KEY: {FORMAT_KEY: _compact(facts)}}
    offset = 0
    for name, piece in pieces.items():
        end = offset + piece.num_bytes
        entries[name] = {"dtype": piece.dtype, "shape": piece.shape, "data_offsets": (offset, end)}
        offset = end
    text = _compact(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _blocks(reader: BinaryIO, header: bytes, pieces: dict[str, Piece]) -> Iterator[bytes]:
    yield header
    for piece in pieces.values():
        reader.seek(piece.offset)
        left = piece.num_bytes
        while left:
            block = reader.read(min(left, COPY_BYTES))
            if not block:
                raise EOFError("the upload became shorter while it was read")
            left -= len(block)
            yield block


def _build(path: Path, header: Header, facts: _Facts) -> CanonicalAdapter:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    if facts.format != FORMAT or len(tensors) != 2 * len(facts.modules):
        raise KeyError(f"format {facts.format} with {len(tensors)} tensors")
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    modules = {
        name: _module(memory, fact, tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"])
        for name, fact in facts.modules.items()
    }
    return CanonicalAdapter(modules=modules, size_bytes=len(memory))


def _module(
    memory: mmap.mmap, fact: _ModuleFacts, lora_a: TensorInfo, lora_b: TensorInfo
) -> CanonicalModule:
    shapes = (lora_a.shape, lora_b.shape)
    if any(len(shape) != 2 for shape in shapes) or (shapes[0][0], shapes[1][1]) != (fact.rank,) * 2:
        raise KeyError(f"rank {fact.rank} with shapes {shapes}")
    return CanonicalModule(
        rank=fact.rank,
        scaling=fact.scaling,
        lora_a=_view(memory, lora_a),
        lora_b=_view(memory, lora_b),
        lora_a_dtype=lora_a.dtype,
        lora_b_dtype=lora_b.dtype,
    )


def _view(memory: mmap.mmap, tensor: TensorInfo) -> NDArray[Any]:
    dtype = NUMPY_DTYPES[tensor.dtype]
    count = tensor.num_bytes // dtype.itemsize
    flat = np.frombuffer(memory, dtype, count=count, offset=tensor.offset)
    # A float32 tensor behind an odd number of 16-bit values is not aligned: that one is copied.
    return np.require(flat.reshape(tensor.shape), requirements="A")
