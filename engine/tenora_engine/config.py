"""Settings of one engine replica. Only `__main__.py` reads arguments and the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

DtypeName = Literal["auto", "float32", "bfloat16", "float16", "int8"]
DeviceName = Literal["auto", "cpu", "cuda"]
BackendName = Literal["auto", "reference", "cpu", "native", "triton"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a replica needs to know at start.

    Sizes are in tokens, blocks or bytes as named. `run_dir` holds sockets, `state_dir` the usage
    journal; both are private to this replica.
    """

    model_dir: Path
    base_model: str
    """The base model's public id, as clients write it."""
    run_dir: Path
    state_dir: Path
    object_store_url: str
    listen_url: str
    """ZeroMQ address of the front, e.g. `ipc:///run/tenora/engine.sock`."""
    replica_id: str = "local"
    device: DeviceName = "auto"
    """Where the model runs; `auto` takes a GPU if torch finds one."""
    kernel_backend: BackendName = "auto"
    """Which kernels run; `auto` takes the fastest of the device."""
    weight_dtype: DtypeName = "auto"
    """What the base model's weights are held in; `int8` rounds them, on the native CPU kernels."""
    batch_invariant: bool = False
    """On a GPU: whether an answer has the same bits whoever shares its steps. Costs speed."""
    kv_cache_bytes: int = 1 << 30
    block_size: int = 16
    max_context_tokens: int | None = None
    """Lowers the model's own window; None keeps it."""
    max_running_sequences: int = 64
    max_waiting_sequences: int = 2048
    max_step_tokens: int = 512
    """Token budget of a step: decodes first, prefill chunks fill the rest."""
    max_device_adapters: int = 32
    device_adapter_ranks: int = 1024
    """Sum of the ranks that a GPU has room for in each projection, in steps of 8."""
    max_lora_rank: int = 128
    max_adapter_bytes: int = 512 << 20
    host_adapter_bytes: int = 2 << 30
    prefix_cache: bool = True
    num_threads: int | None = None
    """Torch threads of the core; None takes the cores that this process may use."""

    @property
    def journal_path(self) -> Path:
        """The usage journal of this replica."""
        return self.state_dir / "usage.sqlite3"

    @property
    def adapter_cache_dir(self) -> Path:
        """Local copies of canonical adapter files, by digest."""
        return self.state_dir / "adapters"


def encode_config(config: EngineConfig) -> bytes:
    """The settings as JSON, for a child process."""
    return msgspec.json.encode(config, enc_hook=str)


def decode_config(data: bytes) -> EngineConfig:
    """Settings from `encode_config`.

    Raises:
        msgspec.ValidationError: a field is missing or has the wrong type.
    """
    return msgspec.json.decode(data, type=EngineConfig, dec_hook=_to_path)


def read_config(settings: Mapping[str, object]) -> EngineConfig:
    """Settings by field name, with numbers and booleans also as text.

    Raises:
        msgspec.ValidationError: a field is missing or has the wrong type.
        ValueError: there is no such field.
    """
    unknown = settings.keys() - {field.name for field in msgspec.structs.fields(EngineConfig)}
    if unknown:
        raise ValueError(f"There is no setting {', '.join(sorted(unknown))}.")
    return msgspec.convert(settings, EngineConfig, strict=False, dec_hook=_to_path)


def _to_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{kind.__name__} cannot be read from {type(value).__name__}")
