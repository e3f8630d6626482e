"""Builds a `Core` from its configuration: the only place that names all parts of it."""

import os
import time
from pathlib import Path

import torch

from tenora_engine.adapter_files.source import AdapterSource
from tenora_engine.config import EngineConfig
from tenora_engine.core.adapters.host_layout import in_device_layout
from tenora_engine.core.adapters.loading import load_adapter, pack_adapter
from tenora_engine.core.adapters.residency import AdapterResidency
from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_engine.core.core import Core
from tenora_engine.core.kv_cache.block_pool import BlockPool
from tenora_engine.core.messages import CoreReady
from tenora_engine.core.model_runner.create import create_model_runner
from tenora_engine.core.model_runner.kv_memory import kv_block_bytes
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.config_file import read_model_config
from tenora_engine.core.models.errors import UnsupportedModelError
from tenora_engine.core.models.loading import load_transformer
from tenora_engine.core.models.precision import Precision
from tenora_engine.core.models.transformer import Transformer
from tenora_engine.core.scheduler.scheduler import Scheduler, SchedulerLimits
from tenora_engine.text.tokenizer import Tokenizer
from tenora_kernels.dispatch import active_backend, choose_backend, use_backend
from tenora_kernels.native import library

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def serving_device(config: EngineConfig) -> torch.device:
    """The configured device; `auto` is the first GPU that torch finds, else the CPU."""
    if config.device != "auto":
        return torch.device(config.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def serving_precision(config: EngineConfig) -> Precision:
    """The configured dtype; `auto` is what the bound kernels compute fastest without loss.

    The native kernels keep activations in float32 and take weights as they are stored; products
    of bfloat16 weights round their input where the processor has an instruction for it. Elsewhere
    everything is bfloat16 where the device multiplies it in hardware.

    Raises:
        UnsupportedModelError: int8 is configured where the native kernels do not run.
    """
    if config.weight_dtype == "int8":
        return _int8_precision()
    wanted = None if config.weight_dtype == "auto" else DTYPES[config.weight_dtype]
    if active_backend() == "triton":
        dtype = wanted or _fast_gpu_dtype()
        return Precision(dtype, dtype, is_batch_invariant=config.batch_invariant)
    if active_backend() == "native":
        rounds = library.has_bf16_products() and wanted in {None, torch.bfloat16}
        return Precision(activations=torch.float32, weights=wanted, rounds_inputs=rounds)
    if wanted is not None:
        return Precision.of(wanted)
    has_bf16 = torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001 - torch has no public name
    return Precision.of(torch.bfloat16 if has_bf16 else torch.float32)


def _int8_precision() -> Precision:
    """The base model's products in 8 bits; embeddings and adapters as they are stored."""
    if active_backend() != "native":
        raise UnsupportedModelError(
            f"weight_dtype int8 is served by the native CPU kernels, and here {active_backend()} "
            "runs; choose another weight_dtype, or install g++ where the device is the CPU"
        )
    return Precision(activations=torch.float32, weights=None, rounds_to_int8=True)


def _fast_gpu_dtype() -> torch.dtype:
    if not torch.cuda.is_available():
        return torch.float32  # the interpreter, for tests and trials
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float16


def build_core(config: EngineConfig) -> tuple[Core, CoreReady]:
    """Load the model and wire the core.

    Raises:
        UnsupportedModelError: the model folder cannot be served exactly.
    """
    torch.set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
    model_config = read_model_config(config.model_dir)
    device = serving_device(config)
    use_backend(choose_backend(device, config.kernel_backend))
    precision = serving_precision(config)
    dtype = precision.activations
    context_length = min(
        model_config.context_length, config.max_context_tokens or model_config.context_length
    )
    model = load_transformer(config.model_dir, model_config, precision, context_length, device)
    kv_dtype = _kv_dtype(model, dtype)
    num_blocks = _num_blocks(config, model_config, kv_dtype)
    runner, residency = create_model_runner(
        config,
        model,
        _build_residency(config, model_config, precision, device),
        masked_ids=_ids_without_token(config.model_dir, model_config.vocab_size),
        context_length=context_length,
        num_blocks=num_blocks,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
    )
    limits = SchedulerLimits(
        max_running_sequences=config.max_running_sequences,
        max_step_tokens=config.max_step_tokens,
        max_device_adapters=config.max_device_adapters,
        block_size=config.block_size,
    )
    pool = BlockPool(num_blocks, prefix_cache=config.prefix_cache)
    core = Core(
        Scheduler(limits, pool, residency),
        runner,
        residency,
        context_length=context_length,
        max_waiting_sequences=config.max_waiting_sequences,
    )
    return core, _ready(config, model, kv_dtype, context_length, num_blocks)


def _build_residency(
    config: EngineConfig, model_config: ModelConfig, precision: Precision, device: torch.device
) -> AdapterResidency:
    source = AdapterSource(config)

    def load(digest: str) -> AdapterWeights:
        weights = load_adapter(source.fetch(digest), digest, model_config, precision.weights)
        if active_backend() != "triton":
            return pack_adapter(weights, model_config)
        return in_device_layout(weights, pinned=device.type == "cuda")

    return AdapterResidency(
        load, capacity_bytes=config.host_adapter_bytes, monotonic=time.monotonic
    )


def _kv_dtype(model: Transformer, activations: torch.dtype) -> torch.dtype:
    """The dtype of keys and values at rest; see `docs/adr/0006-kv-cache-dtype-on-the-cpu.md`."""
    is_bf16 = active_backend() == "native" and model.weight_dtype == torch.bfloat16
    return torch.bfloat16 if is_bf16 else activations


def _num_blocks(config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype) -> int:
    return max(1, config.kv_cache_bytes // kv_block_bytes(model_config, config.block_size, dtype))


def _ids_without_token(model_dir: Path, vocab_size: int) -> list[int]:
    """Rows of the output head that the tokenizer has no token for (padded embeddings)."""
    if not (model_dir / "tokenizer.json").is_file():
        return []
    return sorted(Tokenizer(model_dir).unassigned_ids(vocab_size))


def _ready(
    config: EngineConfig,
    model: Transformer,
    kv_dtype: torch.dtype,
    context_length: int,
    num_blocks: int,
) -> CoreReady:
    return CoreReady(
        vocab_size=model.config.vocab_size,
        context_length=context_length,
        max_lora_rank=config.max_lora_rank,
        num_blocks=num_blocks,
        block_size=config.block_size,
        kernel_backend=_kernel_name(),
        attention_backend=f"{active_backend()}-paged",
        weight_dtype=_name_of(model.weight_dtype),
        kv_dtype=_name_of(kv_dtype),
    )


def _kernel_name() -> str:
    """The backend, and for the native one the instructions it was built with."""
    backend = active_backend()
    return f"{backend}-{library.variant()}" if backend == "native" else backend


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
