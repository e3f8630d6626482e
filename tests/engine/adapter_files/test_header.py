"""A30, A31: malformed and foreign weight files are refused by content, each with its own code."""

import json
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.adapter_files import header as header_module
from tenora_engine.adapter_files.header import HeaderError, read_header
from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import Tensor, container_bytes, mk, safetensors_bytes

GOOD = safetensors_bytes(
    {
        "a": Tensor.of(np.arange(6).reshape(2, 3)),
        "b": Tensor.of(np.ones((3, 1)), "F16"),
        "c": Tensor.of(np.ones((1, 2)), "BF16"),
    }
)


def entry(start: int, end: int, shape: list[Any], dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def container(entries: dict[str, Any], data_bytes: int) -> bytes:
    return container_bytes(json.dumps(entries).encode(), bytes(data_bytes))


MALFORMED: dict[str, tuple[bytes, str]] = {
    "header length 2^63-1": (container_bytes(b"{}", claimed=2**63 - 1), "header_too_large"),
    "100 MB header": (container_bytes(b"{}", claimed=100_000_000), "header_too_large"),
    "header longer than the file": (container_bytes(b"{}", claimed=1000), "file_truncated"),
    "empty file": (b"", "file_truncated"),
    "seven bytes": (b"\0" * 7, "file_truncated"),
    "two tensors sharing bytes": (
        container({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, 12),
        "offsets_overlap",
    ),
    "a hole between tensors": (
        container({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, 12),
        "offsets_hole",
    ),
    "data cut short": (container({"a": entry(0, 16, [4])}, 15), "file_truncated"),
    "trailing bytes": (container({"a": entry(0, 16, [4])}, 17), "trailing_bytes"),
    "end before start": (container({"a": entry(8, 0, [2])}, 8), "offsets_out_of_range"),
    "shape [2^31, 2^31]": (container({"a": entry(0, 8, [2**31, 2**31])}, 8), "size_mismatch"),
    "shape beyond 63 bits": (container({"a": entry(0, 8, [2**64])}, 8), "header_invalid"),
    "negative offset": (container({"a": entry(-8, 0, [2])}, 8), "header_invalid"),
    "bytes do not fit the shape": (container({"a": entry(0, 8, [3])}, 8), "size_mismatch"),
    "nine dimensions": (container({"a": entry(0, 4, [1] * 9)}, 4), "header_invalid"),
    "fractional shape": (container({"a": entry(0, 8, [2.0])}, 8), "header_invalid"),
    "boolean shape": (container({"a": entry(0, 4, [True])}, 4), "header_invalid"),
    "three offsets": (
        container({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, 4),
        "offsets_out_of_range",
    ),
    "integers": (container({"a": entry(0, 4, [1], "I32")}, 4), "unsupported_dtype"),
    "8-bit floats": (container({"a": entry(0, 4, [4], "F8_E4M3")}, 4), "unsupported_dtype"),
    "dtype is a list": (container({"a": entry(0, 4, [1], ["F32"])}, 4), "header_invalid"),
    "an unknown key": (container({"a": {**entry(0, 4, [1]), "x": 1}}, 4), "header_invalid"),
    "an entry that is no object": (container({"a": [1]}, 0), "header_invalid"),
    "metadata that is no text": (container({"__metadata__": {"a": 1}}, 0), "header_invalid"),
    "a name of 257 characters": (container({"n" * 257: entry(0, 4, [1])}, 4), "name_too_long"),
    "a list": (container_bytes(b"[]"), "header_invalid"),
    "not JSON": (container_bytes(b"{]"), "header_invalid"),
    "not UTF-8": (container_bytes(b'{"\xff":1}'), "header_invalid"),
    "deep nesting": (container_bytes(b'{"a":' * 50_000), "header_invalid"),
    "an integer of 5,000 digits": (
        container_bytes(b'{"a":' + b"9" * 5000 + b"}"),
        "header_invalid",
    ),
    "a tensor named twice": (
        container_bytes(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
        "duplicate_key",
    ),
    "20,001 tensors": (
        container({f"t{i}": entry(0, 0, [0]) for i in range(20_001)}, 0),
        "too_many_tensors",
    ),
    "a million lists": (
        container_bytes(b'{"a":[' + b"[]," * 1_000_000 + b"[]]}"),
        "too_many_tensors",
    ),
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n",
        "lfs_pointer",
    ),
    "zip": (b"PK\x03\x04" + bytes(100), "archive_refused"),
    "gzip": (b"\x1f\x8b\x08" + bytes(100), "archive_refused"),
    "GGUF": (b"GGUF" + bytes(100), "gguf_refused"),
    "pickle": (pickle.dumps({"weights": [1.0] * 100}, protocol=4), "pickle_refused"),
    "old pickle": (pickle.dumps({"weights": [1.0] * 100}, protocol=2), "pickle_refused"),
}


@pytest.mark.parametrize(("content", "code"), MALFORMED.values(), ids=MALFORMED.keys())
def test_refuses_malformed_file_with_its_own_code(
    content: bytes, code: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(HeaderError) as caught:
        read_header(path)
    assert caught.value.code == code
    assert len(caught.value.message) < 2000


def test_accepts_a_good_file_and_tells_where_the_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(GOOD)
    header = read_header(path)
    assert [(t.name, t.dtype, t.shape, t.num_bytes) for t in header.tensors] == [
        ("a", "F32", (2, 3), 24),
        ("b", "F16", (3, 1), 6),
        ("c", "BF16", (1, 2), 4),
    ]
    first = header.tensors[0]
    assert GOOD[first.offset : first.offset + 24] == np.arange(6, dtype=np.float32).tobytes()


def test_accepts_a_header_whose_length_looks_like_the_start_of_a_pickle(tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": {"pad": ""}}).encode()
    text += b" " * (0x280 - len(text))
    path = tmp_path / "file"
    path.write_bytes(container_bytes(text))
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert read_header(path).tensors == ()


@given(data=st.data())
def test_mutated_bytes_raise_nothing_but_the_readers_own_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 8))
        content[position : position + cut] = data.draw(st.binary(max_size=8))
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_bytes(content)
    try:
        header = read_header(path)
    except HeaderError:
        return
    assert sum(tensor.num_bytes for tensor in header.tensors) < len(content)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":[' + b"[]," * 1_390_000 + b"[]]}",
        b'{"a":[' + b"1," * 2_090_000 + b"1]}",
        b'{"' + b'a":0,"' * 690_000 + b'b":0}',
        b"{" * header_module.MAX_HEADER_BYTES,
    ],
    ids=["lists", "numbers", "keys", "braces"],
)
def test_a_hostile_header_of_full_size_takes_bounded_memory(text: bytes, tmp_path: Path) -> None:
    assert len(text) <= header_module.MAX_HEADER_BYTES
    path = tmp_path / "file"
    path.write_bytes(container_bytes(text))
    tracemalloc.start()
    try:
        with pytest.raises(HeaderError):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


class _Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self._path, "executed")


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_named_safetensors_is_never_unpickled(
    protocol: int, judge: Judge, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps(_Canary(canary), protocol=protocol)
    report = judge.weights(content, mk())
    assert report.ref is None
    assert not canary.exists()
    pickle.loads(content)
    assert canary.exists(), "the canary would have sung"


def test_a_wrong_container_and_a_wrong_configuration_are_reported_together(judge: Judge) -> None:
    report = judge.weights(b"PK\x03\x04" + bytes(99), mk(use_dora=True))
    assert {problem.code for problem in report.problems} == {"archive_refused", "dora_unsupported"}
