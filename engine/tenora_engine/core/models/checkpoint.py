"""Reading tensors of a Hugging Face safetensors checkpoint, one at a time."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open

from tenora_engine.core.models.errors import UnsupportedModelError
from tenora_engine.core.models.precision import Precision
from tenora_kernels.native.library import PackedMemory

PACKED_GROWTH = 64 << 20


class Checkpoint:
    """Tensors by name over one or several safetensors files. Use as a context manager."""

    def __init__(self, model_dir: Path, precision: Precision, device: torch.device) -> None:
        self.precision = precision
        self.packed = PackedMemory(growth=PACKED_GROWTH)
        """Where the native products keep what is read, one matrix after the other."""
        self._device = device
        self._files = {path: safe_open(path, framework="pt") for path in _weight_files(model_dir)}
        handles: list[Any] = list(self._files.values())
        self._file_of = {name: f for f in handles for name in f.keys()}  # noqa: SIM118 - no dict

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.clear()
        self._file_of.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One tensor on the device in the dtype of the activations.

        Raises:
            UnsupportedModelError: it is missing or has another shape.
        """
        return self._read(name, shape).to(self._device, self.precision.activations)

    def read_matrix(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One operand of a product, on the device in the dtype that weights are held in.

        Raises:
            UnsupportedModelError: it is missing or has another shape.
        """
        tensor = self._read(name, shape)
        return tensor.to(self._device, self.precision.weights or tensor.dtype)

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        handle: Any = self._file_of.get(name)
        if handle is None:
            raise UnsupportedModelError(f"the checkpoint has no tensor {name}")
        tensor: torch.Tensor = handle.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise UnsupportedModelError(
                f"tensor {name} has shape {tuple(tensor.shape)}, the config asks for {shape}"
            )
        return tensor


def _weight_files(model_dir: Path) -> list[Path]:
    index = model_dir / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [model_dir / Path(name).name for name in names]
    single = model_dir / "model.safetensors"
    if single.is_file():
        return [single]
    raise UnsupportedModelError(
        f"{model_dir} has no model.safetensors; pickled checkpoints are never loaded"
    )
