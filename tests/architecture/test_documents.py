"""What documents say about the tree is true: every path exists, and every function named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY

TOP_FOLDERS = (
    "platform", "engine", "kernels", "migrations", "admin_ui", "tests", "docs", "deploy",
    "examples", ".ci",
)  # fmt: skip
CODE_SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(rf"^(?:{'|'.join(map(re.escape, TOP_FOLDERS))})/[\w./<>*-]*(?:::[\w.]+)?$")


def documents() -> list[Path]:
    """Every Markdown file of the product."""
    found = [*REPOSITORY.glob("*.md")]
    for folder in TOP_FOLDERS:
        found += (REPOSITORY / folder).rglob("*.md")
    return [path for path in found if "node_modules" not in path.parts]


def named_paths(document: Path) -> Iterator[str]:
    """Code spans that look like a path of the repository, `path::function` included."""
    for span in CODE_SPAN.findall(document.read_text(encoding="utf-8")):
        if PATH.match(span):
            yield span


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.name))
def test_paths_in_documents_exist(document: Path) -> None:
    missing = [name for name in named_paths(document) if not is_true(name)]
    links = LINK.findall(document.read_text(encoding="utf-8"))
    missing += [
        link
        for link in links
        if "://" not in link
        and not link.startswith("mailto:")
        and not (document.parent / link).exists()
    ]
    assert missing == []


def test_architecture_names_the_function_of_each_of_eight_steps() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    steps = re.findall(r"^([1-8])\. (.+(?:\n {3}.+)*)", text, flags=re.MULTILINE)
    assert [number for number, _ in steps] == list("12345678")
    unnamed = [number for number, step in steps if "::" not in step]
    assert unnamed == []


def test_decision_records_are_short_and_numbered() -> None:
    records = sorted((REPOSITORY / "docs" / "adr").glob("*.md"))
    assert [record.name[:4] for record in records] == [
        f"{number:04}" for number in range(1, len(records) + 1)
    ]
    long = [record.name for record in records if len(record.read_text().splitlines()) > 40]
    assert long == []


def is_true(name: str) -> bool:
    """Whether a `path` exists, or a `path::qualified.name` is defined."""
    path, _, qualified = name.partition("::")
    if "<" in path or "*" in path:
        pattern = re.sub(r"<[^>]*>", "*", path)
        return any(REPOSITORY.glob(pattern))
    target = REPOSITORY / path
    if not qualified:
        return target.exists()
    return target.is_file() and _defines(target, qualified.split("."))


def _defines(path: Path, names: list[str]) -> bool:
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in names:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                node.name == name
            ):
                body = node.body
                break
        else:
            return False
    return True
