"""The model runner of a device, and the adapter residency that goes with it."""

import time
from collections.abc import Sequence

import torch

from tenora_engine.config import EngineConfig
from tenora_engine.core.adapters.active_set import ActiveSet
from tenora_engine.core.adapters.base import Residency
from tenora_engine.core.adapters.residency import AdapterResidency
from tenora_engine.core.model_runner.base import ModelRunner
from tenora_engine.core.model_runner.cpu_runner import CpuModelRunner
from tenora_engine.core.model_runner.kv_memory import allocate_kv
from tenora_engine.core.model_runner.sampler import Sampler
from tenora_engine.core.models.transformer import Transformer
from tenora_kernels.dispatch import active_backend


def create_model_runner(
    config: EngineConfig,
    model: Transformer,
    host: AdapterResidency,
    *,
    masked_ids: Sequence[int],
    context_length: int,
    num_blocks: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> tuple[ModelRunner, Residency]:
    """The runner of the bound kernel backend: Triton's is the GPU's, the others the CPU's."""
    if active_backend() == "triton":
        return _gpu(
            config,
            model,
            host,
            masked_ids=masked_ids,
            context_length=context_length,
            num_blocks=num_blocks,
            dtype=dtype,
            device=device,
        )
    runner = CpuModelRunner(
        model,
        Sampler(model.head, masked_ids),
        ActiveSet(model.config, dtype, host.weights),
        num_blocks=num_blocks,
        block_size=config.block_size,
        kv_dtype=kv_dtype,
    )
    return runner, host


def _gpu(
    config: EngineConfig,
    model: Transformer,
    host: AdapterResidency,
    *,
    masked_ids: Sequence[int],
    context_length: int,
    num_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[ModelRunner, Residency]:
    # these import triton, which a CPU installation does not have
    from tenora_engine.core.adapters.device_adapters import DeviceAdapters
    from tenora_engine.core.adapters.device_residency import DeviceResidency
    from tenora_engine.core.model_runner.gpu.executor import StepExecutor
    from tenora_engine.core.model_runner.gpu.runner import GpuModelRunner
    from tenora_engine.core.model_runner.gpu.step_buffers import StepLimits

    limits = StepLimits(
        max_rows=config.max_running_sequences,
        max_tokens=max(config.max_step_tokens, config.max_running_sequences),
        max_blocks_per_row=min(num_blocks, -(-context_length // config.block_size)),
        block_size=config.block_size,
    )
    num_slots = config.max_device_adapters + 1  # one for a probe beside a full step
    adapters = DeviceAdapters(
        model.config,
        dtype,
        device,
        num_slots=num_slots,
        capacity_ranks=max(config.device_adapter_ranks, config.max_lora_rank),
        max_rank=config.max_lora_rank,
        max_tokens=limits.max_tokens,
    )
    residency = DeviceResidency(host, adapters, num_slots=num_slots, monotonic=time.monotonic)
    kv = allocate_kv(model.config, num_blocks, config.block_size, dtype, device)
    executor = StepExecutor(model, kv, adapters, limits, device, masked_ids=masked_ids)
    if device.type == "cuda":
        executor.record()
    return GpuModelRunner(executor, kv, residency.lora_index_of), residency
