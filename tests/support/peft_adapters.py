"""Adapters made by a real peft, and peft itself as the oracle: unmerged, on the same base."""

import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():
    # peft and transformers warn about optional backends that are not installed.
    warnings.simplefilter("ignore")
    import peft

from tenora_engine.adapter_files.inspection import AdapterInspector
from tenora_engine.config import EngineConfig
from tenora_engine.protocol.messages import InspectRequest
from tests.support.tiny_model import load_reference

ALL_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_peft_adapter(model_dir: Path, folder: Path, *, seed: int, **lora: Any) -> Path:
    """Save an adapter with random A and B, strong enough to change greedy tokens."""
    settings: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": ALL_TARGETS}
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings | lora)
    torch.manual_seed(seed)
    model = peft.get_peft_model(load_reference(model_dir), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.08)
    model.save_pretrained(folder)
    return folder


def load_peft(model_dir: Path, adapters: dict[str, Path], dtype: torch.dtype) -> Any:
    """One peft model that holds all `adapters`; choose one with `set_adapter`."""
    names = iter(adapters)
    first = next(names)
    model = peft.PeftModel.from_pretrained(
        load_reference(model_dir, dtype), adapters[first], adapter_name=first
    )
    for name in names:
        model.load_adapter(adapters[name], adapter_name=name)
    return model.eval()


def peft_logits(model: Any, adapter: str | None, token_ids: list[int]) -> torch.Tensor:
    """Logits `[len(token_ids), vocab]` in float32; `adapter` None is the plain base."""
    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        if adapter is None:
            with model.disable_adapter():
                logits = model(ids).logits
        else:
            model.set_adapter(adapter)
            logits = model(ids).logits
    last: torch.Tensor = logits[0].float()
    return last


def peft_greedy(model: Any, adapter: str | None, token_ids: list[int], count: int) -> list[int]:
    """Greedy continuation of one request alone, recomputed without a cache."""
    ids = list(token_ids)
    for _ in range(count):
        ids.append(int(peft_logits(model, adapter, ids)[-1].argmax()))
    return ids[len(token_ids) :]


def peft_generate(model: Any, adapter: str | None, token_ids: list[int], count: int) -> list[int]:
    """Greedy continuation of one request alone by peft's own `generate`, end token included."""
    if adapter is not None:
        model.set_adapter(adapter)
    ids = torch.tensor([token_ids])
    with torch.inference_mode(), model.disable_adapter() if adapter is None else nullcontext():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
        )
    sampled: list[int] = output[0, len(token_ids) :].tolist()
    return sampled


async def install_adapter(config: EngineConfig, folder: Path) -> str:
    """Put a saved adapter through inspection into the replica's store; returns its digest."""
    prefix = f"incoming/{folder.name}"
    target = Path(config.object_store_url.removeprefix("file://")) / prefix
    target.mkdir(parents=True, exist_ok=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(folder / name, target / name)
    report = await AdapterInspector(config).inspect(InspectRequest(prefix=prefix))
    if report.ref is None:
        raise AssertionError(report.problems)
    return report.ref.digest
