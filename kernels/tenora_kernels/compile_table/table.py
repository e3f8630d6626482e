"""The table of one op: found by compiling, read from and written to the op's folder."""

import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import triton

import tenora_kernels
from tenora_kernels.compile_table.case import CompileCase
from tenora_kernels.compile_table.resources import TARGETS, compile_case, complaints

ROOT = Path(tenora_kernels.__file__).parent
Usage = dict[str, int]


@dataclass(slots=True)
class Table:
    """Figures by case and target, and the compiler that gave them."""

    triton: str
    kernels: dict[str, dict[str, Usage]] = field(default_factory=dict)


def ops_with_kernels() -> list[str]:
    """The ops that have Triton kernels, by folder name."""
    return sorted(path.parent.name for path in ROOT.glob("*/triton_ops.py"))


def cases_of(op: str) -> dict[str, CompileCase]:
    """The cases that an op lists, by name."""
    cases: Sequence[CompileCase] = import_module(f"tenora_kernels.{op}.triton_ops").COMPILE_CASES
    named = {case.name: case for case in cases}
    if len(named) != len(cases):
        raise ValueError(f"{op}: two compile cases share a name")
    return named


def compile_op(op: str, jobs: int) -> tuple[Table, list[str]]:
    """Compile every case of an op for every target; return the table and what is wrong with it."""
    todo = [(op, name, target) for name in cases_of(op) for target in TARGETS]
    # fork: a kernel cannot be pickled, and importing the compiler again costs more than a case
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        results = list(pool.map(_compile, todo))
    table, wrong = Table(triton.__version__), []
    for (_, name, target), result in zip(todo, results, strict=True):
        if isinstance(result, str):
            wrong.append(f"{op}.{name} on {target} does not compile: {result}")
            continue
        table.kernels.setdefault(name, {})[target] = result
        wrong += [f"{op}.{name} on {target}: {text}" for text in complaints(result, target)]
    return table, wrong


def differences(op: str, found: Table, recorded: Table) -> list[str]:
    """Where the recorded table is not what was found; figures count for one compiler only."""
    names = found.kernels.keys() ^ recorded.kernels.keys()
    wrong = [f"{op}.{name}: recorded and listed cases differ" for name in sorted(names)]
    if found.triton != recorded.triton:
        return wrong
    return wrong + [
        f"{op}.{name}: recorded {recorded.kernels[name]}, found {usage}"
        for name, usage in found.kernels.items()
        if name in recorded.kernels and recorded.kernels[name] != usage
    ]


def read_table(op: str) -> Table:
    """Return the recorded table, an empty one where none is."""
    path = _path(op)
    if not path.exists():
        return Table(triton.__version__)
    return Table(**json.loads(path.read_text()))


def write_table(op: str, table: Table) -> None:
    """Record a table, one line for each kernel and target."""
    kernels = ",\n".join(
        f"    {json.dumps(name)}: {{\n"
        + ",\n".join(f"      {json.dumps(t)}: {json.dumps(usage)}" for t, usage in targets.items())
        + "\n    }"
        for name, targets in sorted(table.kernels.items())
    )
    text = f'{{\n  "triton": {json.dumps(table.triton)},\n  "kernels": {{\n{kernels}\n  }}\n}}\n'
    _path(op).write_text(text)


def _path(op: str) -> Path:
    return ROOT / op / "compile_table.json"


def _compile(job: tuple[str, str, str]) -> Usage | str:
    op, name, target = job
    try:
        return compile_case(cases_of(op)[name], target)
    except Exception as error:  # noqa: BLE001 - the compiler raises many kinds; each is a finding
        return f"{type(error).__name__}: {error}"
