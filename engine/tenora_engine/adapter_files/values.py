"""Looks at every value of an adapter, a bounded piece at a time.

A value is refused when it is not finite, or when it becomes infinite in the dtype that serves it:
one such value would spoil the logits of its requests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from tenora_engine.adapter_files.findings import Findings, listed, quoted
from tenora_engine.adapter_files.header import TensorInfo
from tenora_engine.adapter_files.pairing import Pair
from tenora_engine.adapter_files.tensor_names import ModuleKey

ServingDtype = Literal["float32", "bfloat16", "float16"]

CHUNK_BYTES = 4 << 20

OVERFLOW_AT: dict[ServingDtype, float] = {
    "float32": float("inf"),
    "bfloat16": (2 - 2.0**-8) * 2.0**127,
    "float16": 65520.0,
}
"""The smallest magnitude that rounds to infinity in each dtype (half a step above its largest)."""


def check_values(
    path: Path, pairs: dict[ModuleKey, Pair], serving_dtype: ServingDtype, findings: Findings
) -> None:
    """Report values that cannot be served, and modules that have no effect."""
    idle: list[str] = []
    with path.open("rb") as file:
        for pair in pairs.values():
            has_a = _scan(file, pair.lora_a, serving_dtype, findings)
            has_b = _scan(file, pair.lora_b, serving_dtype, findings)
            if not (has_a and has_b):
                idle.append(pair.lora_b.name)
    if idle and len(idle) == len(pairs):
        findings.problem(
            "no_effect",
            "In every module lora_A or lora_B is zero throughout, so the adapter computes what the "
            "base does. Was it saved before training?",
            idle[0],
        )
    elif idle:
        findings.warning(
            "partial_effect",
            f"Only {len(pairs) - len(idle)} of {len(pairs)} modules have an effect; in the others "
            f"lora_A or lora_B is zero throughout: {listed(idle)}.",
            idle[0],
        )


def _scan(
    file: BinaryIO, tensor: TensorInfo, serving_dtype: ServingDtype, findings: Findings
) -> bool:
    """Whether any value is not zero; the first that cannot be served is reported."""
    limit = OVERFLOW_AT[serving_dtype]
    has_value = False
    is_reported = False
    for values in _chunks(file, tensor):
        has_value = has_value or bool(values.any())
        is_served = np.abs(values) < limit  # false for NaN too
        if not is_reported and not is_served.all():
            is_reported = True
            _refuse_value(tensor, float(values[np.argmin(is_served)]), serving_dtype, findings)
    return has_value


def _chunks(file: BinaryIO, tensor: TensorInfo) -> Iterator[NDArray[np.float32]]:
    """The tensor's values as float32, which holds every value of the three dtypes exactly."""
    file.seek(tensor.offset)
    left = tensor.num_bytes
    while left:
        raw = file.read(min(left, CHUNK_BYTES))
        if not raw:
            raise EOFError(tensor.name)
        left -= len(raw)
        yield _decoded(raw, tensor.dtype)


def _decoded(raw: bytes, dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":  # bfloat16 is the upper half of a float32
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return np.frombuffer(raw, np.float16).astype(np.float32)
    return np.frombuffer(raw, np.float32)


def _refuse_value(
    tensor: TensorInfo, value: float, serving_dtype: ServingDtype, findings: Findings
) -> None:
    if np.isfinite(value):
        what = f"the value {value:g}, which becomes infinite in {serving_dtype}, as it is served"
    else:
        what = f"the value {value}"
    findings.problem(
        "non_finite",
        f"Tensor {quoted(tensor.name)} holds {what}; the training diverged, or the scale belongs "
        "into lora_alpha.",
        tensor.name,
    )
