"""Writes PEFT-style adapters for a tiny base model with numpy alone.

The values are large enough that a greedy token changes against the base. `Upload` is a value:
tests take a good one and spoil exactly what they are about.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TINY_BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "float32",
}

FEATURES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (64, 32),
    "self_attn.v_proj": (64, 32),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (64, 128),
    "mlp.up_proj": (64, 128),
    "mlp.down_proj": (128, 64),
}
"""In and out features of the tiny base's modules."""

ALL_TARGETS = tuple(name.partition(".")[2] for name in FEATURES)
PREFIX = "base_model.model."

Array = NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """One tensor as it will stand in the file; bfloat16 comes as uint16 bit patterns."""

    array: Array
    dtype: str

    @classmethod
    def of(cls, values: Array, dtype: str = "F32") -> "Tensor":
        """Round float32 values to `dtype`."""
        if dtype == "BF16":
            return cls((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), dtype)
        return cls(values.astype(np.float16 if dtype == "F16" else np.float32), dtype)


@dataclass(frozen=True)
class Upload:
    """The two files of an upload."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def configured(self, **fields: Any) -> "Upload":
        """The same with these configuration fields."""
        return replace(self, config={**self.config, **fields})

    def without_field(self, name: str) -> "Upload":
        """The same without one configuration field."""
        return replace(self, config={k: v for k, v in self.config.items() if k != name})

    def with_tensors(self, tensors: Mapping[str, Tensor | Array]) -> "Upload":
        """The same with these tensors added or replaced; bare arrays become float32."""
        added = {k: v if isinstance(v, Tensor) else Tensor.of(v) for k, v in tensors.items()}
        return replace(self, tensors={**self.tensors, **added})

    def renamed(self, old: str, new: str) -> "Upload":
        """The same with `old` replaced by `new` in every tensor name."""
        return replace(self, tensors={k.replace(old, new): v for k, v in self.tensors.items()})

    def only(self, part: str) -> "Upload":
        """The same with only those tensors whose name contains `part`."""
        return replace(self, tensors={k: v for k, v in self.tensors.items() if part in k})

    def weights(self) -> bytes:
        """The safetensors file."""
        return safetensors_bytes(self.tensors)

    def write(self, folder: Path) -> Path:
        """Write both files into `folder` and return it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config))
        (folder / "adapter_model.safetensors").write_bytes(self.weights())
        return folder


def mk(
    *,
    r: int = 8,
    alpha: float = 16,
    targets: Iterable[str] = ALL_TARGETS,
    layers: Iterable[int] = range(4),
    ranks: Mapping[str, int] | None = None,
    dtype: str = "F32",
    seed: int = 0,
    **fields: Any,
) -> Upload:
    """A good adapter with random A and B. `ranks` gives ranks by the end of a module's path."""
    random = np.random.default_rng(seed)
    wanted = tuple(targets)
    tensors: dict[str, Tensor] = {}
    for layer in layers:
        for module, (in_features, out_features) in FEATURES.items():
            if module.partition(".")[2] not in wanted:
                continue
            path = f"model.layers.{layer}.{module}"
            rank = next((v for end, v in (ranks or {}).items() if path.endswith(end)), r)
            for half, shape in (("A", (rank, in_features)), ("B", (out_features, rank))):
                values = random.normal(0, 0.2, shape)
                tensors[f"{PREFIX}{path}.lora_{half}.weight"] = Tensor.of(values, dtype)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "tenora/tiny",
        "r": r,
        "lora_alpha": alpha,
        "target_modules": list(wanted),
        **fields,
    }
    return Upload(config, tensors)


def safetensors_bytes(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file with the tensors in the given order."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.array.nbytes
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    data = b"".join(tensor.array.tobytes() for tensor in tensors.values())
    return container_bytes(json.dumps(entries).encode(), data)


def container_bytes(header: bytes, data: bytes = b"", claimed: int | None = None) -> bytes:
    """Any header before any data; `claimed` is a false header length."""
    length = len(header) if claimed is None else claimed
    return length.to_bytes(8, "little") + header + data


def write_base(folder: Path, **fields: Any) -> Path:
    """A model folder that holds the tiny base's `config.json` and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY_BASE, **fields}))
    return folder
