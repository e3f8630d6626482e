"""A13, A14: values that cannot be served are refused; modules without effect are seen."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tenora_engine.adapter_files import values as values_module
from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import Tensor, Upload, mk

Codes = Callable[..., list[str]]


def with_value(upload: Upload, half: str, value: float, dtype: str = "F32") -> Upload:
    """One value somewhere in one tensor."""
    name = next(n for n in upload.tensors if f"layers.2.mlp.down_proj.lora_{half}" in n)
    array = np.full(upload.tensors[name].array.shape, 0.25, np.float32)
    array[-1, -1] = value
    return upload.with_tensors({name: Tensor.of(array, dtype)})


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("half", ["A", "B"])
def test_refuses_a_single_value_that_is_not_finite(
    half: str, value: float, dtype: str, judge: Judge
) -> None:
    report = judge(with_value(mk(), half, value, dtype))
    assert [problem.code for problem in report.problems] == ["non_finite"]
    assert f"layers.2.mlp.down_proj.lora_{half}" in (report.problems[0].field or "")


@pytest.mark.parametrize(
    ("value", "serving_dtype", "is_served"),
    [
        (1e6, "float16", False),
        (1e6, "bfloat16", True),
        (1e6, "float32", True),
        (65519.0, "float16", True),
        (65520.0, "float16", False),
        (-65520.0, "float16", False),
        (3.39e38, "bfloat16", True),
        (3.4e38, "bfloat16", False),
        (3.4e38, "float32", True),
    ],
)
def test_refuses_what_becomes_infinite_in_the_serving_dtype(
    value: float, serving_dtype: str, is_served: bool, judge: Judge
) -> None:
    """bfloat16 has the range of float32, but for what rounds up at its very end."""
    report = judge(with_value(mk(), "A", value), serving_dtype=serving_dtype)
    assert (report.ref is not None) == is_served
    assert all(problem.code == "non_finite" for problem in report.problems)


def test_limits_are_where_torch_rounds_to_infinity() -> None:
    import torch

    for name, limit in values_module.OVERFLOW_AT.items():
        if name == "float32":
            continue
        largest = np.nextafter(np.float32(limit), np.float32(0))
        cast = torch.tensor([limit, float(largest)], dtype=torch.float32).to(getattr(torch, name))
        assert cast.isinf().tolist() == [True, False]


def test_sees_values_beyond_the_first_chunk(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "CHUNK_BYTES", 64)
    assert judge(mk()).problems == ()
    assert judge(with_value(mk(), "B", np.nan)).problems[0].code == "non_finite"


def test_memory_does_not_grow_with_the_upload(judge: Judge) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    upload = mk().with_tensors({name: Tensor.of(np.ones((1 << 20, 64), np.float16), "F16")})
    folder = judge.write(upload)  # 128 MiB
    tracemalloc.start()
    try:
        assert judge.files(folder).problems[0].code == "shape_mismatch"
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def zeroed(upload: Upload, part: str) -> Upload:
    """Tensors whose name contains `part` become zero."""
    zeros = {n: np.zeros_like(t.array) for n, t in upload.tensors.items() if part in n}
    return upload.with_tensors(zeros)


def test_an_adapter_without_any_effect_is_refused(codes: Codes) -> None:
    """A13: all B zero; all A zero is the same."""
    assert codes(zeroed(mk(), "lora_B")) == ["no_effect"]
    assert codes(zeroed(mk(), "lora_A")) == ["no_effect"]


def test_negative_zero_is_zero(codes: Codes) -> None:
    upload = mk(dtype="BF16")
    negative = {
        n: Tensor(np.full_like(t.array, 0x8000), "BF16")
        for n, t in upload.tensors.items()
        if "lora_B" in n
    }
    assert codes(upload.with_tensors(negative)) == ["no_effect"]


def test_one_module_with_effect_among_28_is_a_warning_with_counts(judge: Judge) -> None:
    upload = mk()
    name = next(n for n in upload.tensors if "lora_B" in n)
    report = judge(zeroed(upload, "lora_B").with_tensors({name: upload.tensors[name]}))
    assert report.ref is not None
    assert [warning.code for warning in report.warnings] == ["partial_effect"]
    assert "1 of 28" in report.warnings[0].message
