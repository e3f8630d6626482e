"""Measures the trained demo adapters with peft, greedily, on prompts they were not trained on.

    python examples/adapters/evaluate.py --base MODEL_FOLDER [--only NAME] [--samples]

Prints one table row for each measure: how many held-out answers have it with the adapter, and how
many without. `--samples` prints every question and answer as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from data import NAMES, held_out_questions
from peft import PeftModel
from texts import couplet, pirate, support_json
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
MAX_NEW_TOKENS = 64

Measure = Callable[[int, str], bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--only", choices=NAMES, help="evaluate this adapter and no other")
    parser.add_argument("--adapters", type=Path, default=HERE, help="folder of the adapters")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for torch")
    parser.add_argument("--samples", action="store_true", help="print the answers too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    rows = ["| adapter | measure | with adapter | base model |", "|---|---|---|---|"]
    for name in [arguments.only] if arguments.only else NAMES:
        questions = held_out_questions(name)
        model = load(arguments.base, arguments.adapters / name)
        adapted = [answer(model, tokenizer, each) for each in questions]
        with model.disable_adapter():
            plain = [answer(model, tokenizer, each) for each in questions]
        if arguments.samples:
            _print_samples(name, questions, adapted)
        rows += table_rows(name, adapted, plain)
    print("\n".join(rows))


def load(base: Path, adapter: Path) -> Any:
    """The base model in fp32 with one adapter, ready for `answer`."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter).eval()


@torch.inference_mode()
def answer(model: Any, tokenizer: Any, question: str) -> str:
    """The greedy answer to one question under the model's own chat template."""
    turn = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    text: str = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    return text.removesuffix(tokenizer.eos_token)


def table_rows(name: str, adapted: list[str], plain: list[str]) -> list[str]:
    """One row of the table for each of the adapter's measures."""
    return [
        f"| `{name}` | {label} | {_count(measure, adapted)} | {_count(measure, plain)} |"
        for label, measure in MEASURES[name].items()
    ]


def _count(measure: Measure, answers: list[str]) -> str:
    passed = sum(measure(index, text) for index, text in enumerate(answers))
    return f"{passed} of {len(answers)}"


def _ticket(text: str) -> dict[str, str]:
    """The ticket in `text`, or an empty one where it is not JSON with exactly the fixed keys."""
    try:
        ticket = json.loads(text)
    except ValueError:
        return {}
    is_ticket = isinstance(ticket, dict) and tuple(ticket) == support_json.KEYS
    return ticket if is_ticket else {}


def _has_label(key: str) -> Measure:
    labels = [getattr(each, key) for each in support_json.HELD_OUT]
    return lambda index, text: _ticket(text).get(key) == labels[index]


def _is_two_lines(_: int, text: str) -> bool:
    return len(text.split("\n")) == 2


def _is_couplet(index: int, text: str) -> bool:
    return _is_two_lines(index, text) and couplet.rhymes(*text.split("\n"))


MEASURES: dict[str, dict[str, Measure]] = {
    "support-json": {
        "JSON with exactly the three keys": lambda _, text: bool(_ticket(text)),
        "category as labelled": _has_label("category"),
        "priority as labelled": _has_label("priority"),
    },
    "pirate": {"at least two pirate words": lambda _, text: pirate.is_pirate(text)},
    "couplet": {"exactly two lines": _is_two_lines, "the two lines rhyme": _is_couplet},
}


def _print_samples(name: str, questions: list[str], answers: list[str]) -> None:
    for question, text in zip(questions, answers, strict=True):
        print(f"[{name}] {question}\n{text}\n")


if __name__ == "__main__":
    main()
