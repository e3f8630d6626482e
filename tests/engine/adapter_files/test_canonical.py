"""The canonical file: deterministic, named by its bytes, readable by others, verified by us."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tenora_engine.adapter_files.canonical import digest_of, read_canonical
from tenora_engine.protocol.errors import AdapterUnavailableError
from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import PREFIX, Tensor, Upload, mk


def written(judge: Judge, upload: Upload) -> tuple[Path, str]:
    report = judge(upload)
    assert report.ref is not None
    return judge.canonical_path, report.ref.digest


def test_digest_is_of_the_bytes_and_the_same_every_time(judge: Judge) -> None:
    path, digest = written(judge, mk())
    assert digest_of(path) == digest
    shuffled = Upload(mk().config, dict(reversed(mk().tensors.items())))
    other_path, other = written(judge, shuffled)
    assert other_path != path
    assert other == digest


def test_digest_covers_weights_and_scales(judge: Judge) -> None:
    digests = {
        written(judge, upload)[1]
        for upload in (mk(), mk(seed=1), mk(alpha=32), mk(use_rslora=True), mk(dtype="BF16"))
    }
    assert len(digests) == 5
    assert written(judge, mk(alpha=8, use_rslora=False, lora_dropout=0.5))[1] not in digests


def test_configurations_of_one_function_share_a_digest(judge: Judge) -> None:
    same = mk(alpha=4, alpha_pattern={".*": 16}, lora_dropout=0.3)
    assert written(judge, same)[1] == written(judge, mk(alpha=16))[1]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_come_back_bit_for_bit(dtype: str, judge: Judge) -> None:
    upload = mk(r=3, dtype=dtype)
    adapter = judge.accepted(upload)
    assert len(adapter.modules) == 28
    module = adapter.modules["layers.3.down_proj"]
    path = f"{PREFIX}model.layers.3.mlp.down_proj"
    assert (module.lora_a_dtype, module.lora_b_dtype) == (dtype, dtype)
    assert np.array_equal(module.lora_a, upload.tensors[f"{path}.lora_A.weight"].array)
    assert np.array_equal(module.lora_b, upload.tensors[f"{path}.lora_B.weight"].array)
    assert adapter.size_bytes == judge.canonical_path.stat().st_size


def test_a_stock_reader_reads_the_file(judge: Judge) -> None:
    upload = mk(dtype="BF16")
    path, _ = written(judge, upload)
    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == sorted(file.keys())
        tensor = file.get_tensor("layers.0.q_proj.lora_b")
        facts = json.loads(file.metadata()["tenora_adapter"])
    expected = upload.tensors[f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.weight"].array
    assert tensor.dtype == torch.bfloat16
    assert np.array_equal(tensor.view(torch.uint16).numpy(), expected)
    assert facts["modules"]["layers.0.q_proj"] == {"rank": 8, "scaling": 2.0}


def test_mixed_dtypes_keep_their_own_and_are_aligned(judge: Judge) -> None:
    name = f"{PREFIX}model.layers.0.mlp.down_proj.lora_A.weight"
    upload = mk(r=1, targets=["down_proj", "k_proj"], layers=[0], dtype="F32")
    odd = np.linspace(0.1, 1, 128).reshape(1, 128)
    adapter = judge.accepted(upload.with_tensors({name: Tensor.of(odd, "F16")}))
    assert adapter.modules["layers.0.down_proj"].lora_a_dtype == "F16"
    assert adapter.modules["layers.0.down_proj"].lora_b_dtype == "F32"
    for module in adapter.modules.values():
        assert module.lora_a.flags.aligned
        assert module.lora_b.flags.aligned
        torch.from_numpy(module.lora_b)


def test_writing_to_a_view_leaves_the_file_alone(judge: Judge) -> None:
    path, digest = written(judge, mk())
    read_canonical(path).modules["layers.0.q_proj"].lora_a[:] = 0
    assert digest_of(path) == digest


def test_a_damaged_file_is_refused(judge: Judge, tmp_path: Path) -> None:
    path, digest = written(judge, mk())
    content = path.read_bytes()
    damaged = tmp_path / "damaged"
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for bad in (flipped, content[:-1], content[:4], b"", content + b"\0"):
        damaged.write_bytes(bad)
        with pytest.raises(AdapterUnavailableError):
            read_canonical(damaged, digest)
    damaged.write_bytes(mk().weights())
    with pytest.raises(AdapterUnavailableError, match="canonical form"):
        read_canonical(damaged)
    with pytest.raises(AdapterUnavailableError):
        read_canonical(tmp_path / "missing", digest)
