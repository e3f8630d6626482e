"""The three adapters' shapes and training settings, deliberately different from one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BASE_MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL_SEVEN = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
NUM_LAYERS = 30


@dataclass(frozen=True, slots=True)
class Recipe:
    """`lora` are the arguments of `peft.LoraConfig`; one step takes `batch_size` examples."""

    lora: dict[str, Any]
    steps: int = 150
    batch_size: int = 6
    learning_rate: float = 1.5e-3
    warmup_steps: int = 10
    seed: int = 0


RECIPES = {
    "support-json": Recipe(
        lora={"r": 8, "lora_alpha": 16, "target_modules": ATTENTION},
    ),
    "pirate": Recipe(
        lora={"r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": ALL_SEVEN},
    ),
    # Ranks 2, 4, 8 and 12 in one adapter, in the upper half of the layers only.
    "couplet": Recipe(
        lora={
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ALL_SEVEN,
            "layers_to_transform": list(range(NUM_LAYERS // 2, NUM_LAYERS)),
            "rank_pattern": {
                "q_proj": 12,
                "v_proj": 8,
                "down_proj": 8,
                f"layers.{NUM_LAYERS - 1}.self_attn.o_proj": 2,
            },
            "alpha_pattern": {"q_proj": 24, "v_proj": 12, "down_proj": 16},
        },
        steps=200,
    ),
}
