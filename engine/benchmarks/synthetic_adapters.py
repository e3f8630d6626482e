"""Random PEFT adapters of given ranks on all seven projections, and their upload."""

import json
import random
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MIXED_RANKS = (8, 8, 16, 16, 24, 24, 32, 32)


def adapter_files(config: dict[str, Any], rank: int, seed: int) -> dict[str, bytes]:
    """`adapter_config.json` and `adapter_model.safetensors` for a Llama-style base."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, config["num_key_value_heads"] * head_dim
    shapes = dict(
        zip(
            TARGETS,
            ((hidden, q), (hidden, kv), (hidden, kv), (q, hidden))
            + ((hidden, inner),) * 2
            + ((inner, hidden),),
            strict=True,
        )
    )
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for target, (inputs, outputs) in shapes.items():
            block = "self_attn" if target in TARGETS[:4] else "mlp"
            prefix = f"base_model.model.model.layers.{layer}.{block}.{target}"
            a = rng.standard_normal((rank, inputs), dtype=np.float32) / inputs**0.5
            b = rng.standard_normal((outputs, rank), dtype=np.float32) * 0.02
            tensors[f"{prefix}.lora_A.weight"] = a.astype(np.float16)
            tensors[f"{prefix}.lora_B.weight"] = b.astype(np.float16)
    peft = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": list(TARGETS),
    }
    return {
        "adapter_config.json": json.dumps(peft).encode(),
        "adapter_model.safetensors": save(tensors),
    }


def upload_mixed_adapters(
    base_url: str, api_key: str, model_dir: Path, ranks: tuple[int, ...] = MIXED_RANKS
) -> list[str]:
    """Upload one adapter per rank; returns their names. An existing name is left as it is."""
    config = json.loads((model_dir / "config.json").read_text())
    headers = {"Authorization": f"Bearer {api_key}"}
    names = [f"bench-{index}-r{rank}" for index, rank in enumerate(ranks)]
    with httpx.Client(base_url=base_url, headers=headers, timeout=120) as client:
        known = {model["id"] for model in client.get("/v1/models").json()["data"]}
        for index, (name, rank) in enumerate(zip(names, ranks, strict=True)):
            if name not in known:
                files = adapter_files(config, rank, seed=index)
                answer = client.post("/v1/adapters", data={"name": name}, files=files)
                if answer.status_code != httpx.codes.CREATED:
                    raise SystemExit(f"the upload of {name} was refused: {answer.text}")
    return names


def random_bodies(
    models: list[str], count: int, *, prompt_tokens: int, output_tokens: int, seed: int
) -> list[dict[str, Any]]:
    """Requests over `models` in turn, with prompts of random token ids that no cache has seen."""
    rng = random.Random(seed)
    return [
        {
            "model": models[index % len(models)],
            "prompt": [rng.randrange(1000, 40000) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "temperature": 0,
        }
        for index in range(count)
    ]
