"""The repository's Python files, parsed once, for the rules that walk them."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("platform", "engine", "kernels")
PLATFORM = "platform/tenora_platform"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file. `name` is its path from the repository, with forward slashes."""

    name: str
    text: str
    tree: ast.Module

    def functions(self) -> Iterator[FunctionNode]:
        """Every function and method, nested ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, FunctionNode):
                yield node

    def calls(self) -> Iterator[ast.Call]:
        """Every call."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node

    def imported_modules(self) -> Iterator[tuple[int, str]]:
        """(line, absolute module); `from a import b` names both `a` and `a.b`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.lineno, node.module
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"


@cache
def python_sources(*folders: str) -> tuple[Source, ...]:
    """The Python files below `folders`, in the order of their names."""
    return tuple(_parse(path) for path in sorted(_python_files(folders)))


def called_name(call: ast.Call) -> str:
    """The last part of what is called: `commit` for `session.commit()`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _python_files(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        for path in (REPOSITORY / folder).rglob("*.py"):
            if "node_modules" not in path.parts:
                yield path


def _parse(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(REPOSITORY).as_posix()
    return Source(name=name, text=text, tree=ast.parse(text, filename=name))
