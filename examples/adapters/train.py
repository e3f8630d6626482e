"""Trains the demo adapters: peft for the shapes, a plain torch loop for the training.

    python examples/adapters/train.py --base MODEL_FOLDER [--only NAME]

Writes `adapter_config.json` and `adapter_model.safetensors` into a folder for each adapter, beside
this file unless `--out` names another place. The loss is on the answer's tokens only.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from data import NAMES, training_examples
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from recipes import BASE_MODEL_NAME, RECIPES, Recipe
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
EVERYONE = -1  # owns the tokens that all examples of a batch share


class Tokens(NamedTuple):
    """One rendered example; the first `prompt_tokens` of `token_ids` carry no loss."""

    token_ids: list[int]
    prompt_tokens: int


class Packed(NamedTuple):
    """A batch as one row of `t` tokens; `targets[i]` is predicted at `predictors[i]`."""

    token_ids: Tensor  # [t]
    positions: Tensor  # [t]
    mask: Tensor  # [t, t], added to the attention scores
    predictors: Tensor  # [n]
    targets: Tensor  # [n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--only", choices=NAMES, help="train this adapter and no other")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the trained adapters")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in [arguments.only] if arguments.only else NAMES:
        train(name, arguments.base, arguments.out / name)


def train(name: str, base: Path, out: Path) -> None:
    """Trains one adapter on the model in `base`, in fp32, and writes it to `out` in bf16."""
    recipe = RECIPES[name]
    torch.manual_seed(recipe.seed)
    model, tokenizer = _load(base, recipe)
    started_at = time.monotonic()
    optimizer = torch.optim.AdamW(_trainable(model), lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe))
    for step, batch in enumerate(_batches(name, recipe, tokenizer), start=1):
        loss = answer_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(_trainable(model), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            seconds = time.monotonic() - started_at
            print(f"{name} step {step}/{recipe.steps} loss {loss:.3f} {seconds:.0f}s", flush=True)
    save(model, out)


def answer_loss(model: Any, batch: list[Tokens]) -> Tensor:
    """Mean cross entropy over the answers' tokens; the head runs where one is predicted only."""
    packed = pack(batch)
    llama = model.get_base_model()
    hidden = llama.model(
        input_ids=packed.token_ids[None],
        position_ids=packed.positions[None],
        attention_mask=packed.mask[None, None],
        use_cache=False,
    ).last_hidden_state[0]
    logits = llama.lm_head(hidden[packed.predictors])
    return functional.cross_entropy(logits, packed.targets)


def pack(batch: list[Tokens]) -> Packed:
    """Lays the examples end to end behind one copy of the tokens that all prompts begin with.

    Every example sees that shared prefix and itself, at the positions it would have alone, so the
    loss is that of separate rows: the system turn is computed once and nothing is padded.
    """
    # A prompt's last token predicts the answer, so each example keeps its own.
    shared = _shared_tokens([each.token_ids[: each.prompt_tokens - 1] for each in batch])
    token_ids = batch[0].token_ids[:shared]
    positions, owners = list(range(shared)), [EVERYONE] * shared
    predictors: list[int] = []
    for owner, each in enumerate(batch):
        moved = len(token_ids) - shared  # how far the example's tokens stand from their positions
        predictors += range(moved + each.prompt_tokens - 1, moved + len(each.token_ids) - 1)
        token_ids = token_ids + each.token_ids[shared:]
        positions += range(shared, len(each.token_ids))
        owners += [owner] * (len(each.token_ids) - shared)
    return Packed(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        mask=_mask(torch.tensor(owners)),
        predictors=torch.tensor(predictors),
        targets=torch.tensor([t for each in batch for t in each.token_ids[each.prompt_tokens :]]),
    )


def _mask(owners: Tensor) -> Tensor:
    """Zero where a row may look: at or before itself, at its owner's tokens or everyone's."""
    row = torch.arange(len(owners))
    is_own = (owners[None] == EVERYONE) | (owners[None] == owners[:, None])
    is_hidden = ~(is_own & (row[None] <= row[:, None]))
    return torch.zeros(is_hidden.shape).masked_fill(is_hidden, torch.finfo(torch.float32).min)


def _shared_tokens(prompts: list[list[int]]) -> int:
    columns = zip(*prompts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def save(model: Any, out: Path) -> None:
    """Writes the adapter as peft would, in bf16, without anything that names this machine."""
    out.mkdir(parents=True, exist_ok=True)
    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    stored = {key: value.to(torch.bfloat16).contiguous() for key, value in weights.items()}
    save_file(stored, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": BASE_MODEL_NAME, "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=sorted)
    (out / "adapter_config.json").write_text(text + "\n")


def _load(base: Path, recipe: Recipe) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    )
    peft_model: Any = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **recipe.lora))
    return peft_model.train(), tokenizer


def _trainable(model: Any) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


def _batches(name: str, recipe: Recipe, tokenizer: Any) -> Iterator[list[Tokens]]:
    drawn = training_examples(name, recipe.steps * recipe.batch_size, recipe.seed)
    rendered = [_render(tokenizer, each.question, each.answer) for each in drawn]
    for start in range(0, len(rendered), recipe.batch_size):
        yield rendered[start : start + recipe.batch_size]


def _render(tokenizer: Any, question: str, answer: str) -> Tokens:
    turn = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    return Tokens(prompt + tokenizer.encode(answer + tokenizer.eos_token), len(prompt))


if __name__ == "__main__":
    main()
