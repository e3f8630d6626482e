"""A strict reader of safetensors headers that bounds memory and time before it believes a byte.

Format: https://github.com/huggingface/safetensors#format. Stricter than the reference reader:
a header of at most 4 MiB and 20,000 tensors, no duplicate keys, only floating dtypes that LoRA
uses, no holes, no trailing bytes. Content that is something else (a pickle, an archive, a Git
LFS pointer) is recognised by its first bytes and never parsed.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tenora_engine.adapter_files.findings import listed, quoted

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 20_000
MAX_NAME_CHARS = 256
MAX_DIMENSIONS = 8
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
METADATA_KEY = "__metadata__"

_FOREIGN_CONTENT = (
    (b"version https://git-lfs", "lfs_pointer", "a Git LFS pointer; upload the file it stands for"),
    (b"PK\x03\x04", "archive_refused", "a zip archive (PyTorch .bin, .npz or .zip)"),
    (b"\x1f\x8b", "archive_refused", "a gzip archive"),
    (b"GGUF", "gguf_refused", "a GGUF file"),
    *(
        (bytes((0x80, protocol)), "pickle_refused", "a Python pickle, which is never opened here")
        for protocol in range(2, 6)
    ),
)


class HeaderError(Exception):
    """The file is not a safetensors file that we accept; `code` says why."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `offset` counts bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """All tensors in the order of their bytes; together they fill the file."""

    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of the file at `path`.

    Guarantees that every tensor lies inside the file, that tensors neither overlap nor leave a
    byte between or after them, and that dtype and shape account for every byte.

    Raises:
        HeaderError: anything about the file is not so.
    """
    with path.open("rb") as file:
        raw = _read_raw_header(file, path.stat().st_size)
    return parse_header(raw, path.stat().st_size - LENGTH_BYTES - len(raw))


def parse_header(raw: bytes, data_bytes: int) -> Header:
    """Check header text that is followed by `data_bytes` bytes of tensors.

    Raises:
        HeaderError: see `read_header`.
    """
    entries = _load_json(raw)
    metadata = _metadata(entries.pop(METADATA_KEY, {}))
    if len(entries) > MAX_TENSORS:
        _refuse("too_many_tensors", f"it lists {len(entries)} tensors; at most {MAX_TENSORS}")
    _check_dtypes(entries)
    data_start = LENGTH_BYTES + len(raw)
    tensors = [_tensor(name, entry, data_start) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    _check_layout(tensors, data_start, data_bytes)
    return Header(tensors=tuple(tensors), metadata=metadata)


def _refuse(code: str, message: str, field: str | None = None) -> NoReturn:
    raise HeaderError(code, f"The weights file is refused: {message}.", field)


def _read_raw_header(file: BinaryIO, file_bytes: int) -> bytes:
    start = file.read(max(LENGTH_BYTES + 1, len(_FOREIGN_CONTENT[0][0])))
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    looks_right = length <= MAX_HEADER_BYTES and start[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"
    if not looks_right:
        _refuse_foreign_content(start)
    if file_bytes < LENGTH_BYTES:
        _refuse("file_truncated", f"it has {file_bytes} bytes, too few for a header")
    if length > MAX_HEADER_BYTES:
        _refuse("header_too_large", f"its header claims {length} bytes; at most {MAX_HEADER_BYTES}")
    if length > file_bytes - LENGTH_BYTES:
        _refuse("file_truncated", f"its header claims {length} bytes of {file_bytes} in the file")
    file.seek(LENGTH_BYTES)
    return file.read(length)


def _refuse_foreign_content(start: bytes) -> None:
    for magic, code, what in _FOREIGN_CONTENT:
        if start.startswith(magic):
            _refuse(code, f"it is {what}; save the adapter with safe_serialization=True")


def _load_json(raw: bytes) -> dict[str, Any]:
    # Counted first, so that parsing makes a bounded number of objects whatever the text is.
    if raw.count(b"{") + raw.count(b"[") > 4 * MAX_TENSORS or raw.count(b",") > 16 * MAX_TENSORS:
        _refuse("too_many_tensors", f"its header lists more than {MAX_TENSORS} tensors")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise HeaderError(
            "header_invalid",
            "The weights file is refused: its header is not JSON. Save the adapter again.",
        ) from error
    if not raw.startswith(b"{") or not isinstance(header, dict):
        _refuse("header_invalid", "its header is not a JSON object")
    return header


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            _refuse("duplicate_key", f"its header names {quoted(name)} twice", name)
        made[name] = value
    return made


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _refuse("header_invalid", f"{METADATA_KEY} must map text to text", METADATA_KEY)
    return value


def _check_dtypes(entries: dict[str, Any]) -> None:
    """All wrong dtypes in one sentence; entries of another form are left to `_tensor`."""
    dtypes = {name: e.get("dtype") for name, e in entries.items() if isinstance(e, dict)}
    wrong = [
        n for n, dtype in dtypes.items() if isinstance(dtype, str) and dtype not in DTYPE_BYTES
    ]
    if wrong:
        _refuse(
            "unsupported_dtype",
            f"dtypes other than {', '.join(DTYPE_BYTES)} in {listed(wrong)}; "
            "save the adapter in float32, float16 or bfloat16",
            wrong[0],
        )


def _tensor(name: str, entry: object, data_start: int) -> TensorInfo:
    if len(name) > MAX_NAME_CHARS:
        _refuse("name_too_long", f"a tensor's name has {len(name)} characters", name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse("header_invalid", f"tensor {quoted(name)} needs dtype, shape, data_offsets", name)
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not (_are_sizes(shape) and _are_sizes(offsets) and isinstance(entry["dtype"], str)):
        _refuse("header_invalid", f"tensor {quoted(name)} has an ill-typed shape or offset", name)
    if len(shape) > MAX_DIMENSIONS:
        _refuse("header_invalid", f"tensor {quoted(name)} has {len(shape)} dimensions", name)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse("offsets_out_of_range", f"tensor {quoted(name)} has offsets {offsets}", name)
    num_bytes = math.prod(shape) * DTYPE_BYTES[entry["dtype"]]
    if num_bytes != offsets[1] - offsets[0]:
        _refuse(
            "size_mismatch",
            f"tensor {quoted(name)} of shape {shape} needs {num_bytes} bytes "
            f"but its offsets span {offsets[1] - offsets[0]}",
            name,
        )
    return TensorInfo(name, entry["dtype"], tuple(shape), data_start + offsets[0], num_bytes)


def _are_sizes(values: object) -> bool:
    """Whether `values` is a list of integers that fit in 63 bits; True and 8.0 are not integers."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 63 for value in values
    )


def _check_layout(tensors: list[TensorInfo], data_start: int, data_bytes: int) -> None:
    position = data_start
    end = data_start + data_bytes
    for tensor in tensors:
        if tensor.offset + tensor.num_bytes > end:
            _refuse(
                "file_truncated", f"tensor {quoted(tensor.name)} ends beyond the file", tensor.name
            )
        if tensor.offset < position:
            _refuse(
                "offsets_overlap",
                f"tensor {quoted(tensor.name)} shares bytes with another",
                tensor.name,
            )
        if tensor.offset > position:
            _refuse(
                "offsets_hole",
                f"{tensor.offset - position} unused bytes lie before {quoted(tensor.name)}",
                tensor.name,
            )
        position += tensor.num_bytes
    if position != end:
        _refuse("trailing_bytes", f"{end - position} bytes follow the last tensor")
