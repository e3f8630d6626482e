"""Who may import whom, and what must never be imported at all."""

import subprocess
import sys

import pytest

from tests.architecture.sources import PLATFORM, REPOSITORY, SOURCE_ROOTS, python_sources

PRODUCT = (*SOURCE_ROOTS, "migrations", "examples")
UNSAFE_TO_LOAD = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal")
PRIVATE_TO_A_SLICE = ("models", "repository", "controllers", "tasks")


def slices() -> set[str]:
    """The platform's vertical slices: the folders that own tables or speak business verbs."""
    folders = (REPOSITORY / PLATFORM).iterdir()
    return {
        folder.name
        for folder in folders
        if (folder / "service.py").exists() or (folder / "models.py").exists()
    }


def test_import_linter_contracts_hold() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module", ["tenora_platform.app", "tenora_platform.worker", "tenora_platform.__main__"]
)
def test_platform_runs_without_torch(module: str) -> None:
    check = (
        f"import {module}, sys; "
        "heavy = {'torch', 'triton', 'transformers', 'tokenizers'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", check], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_source_roots_are_no_packages() -> None:
    """A package called `platform` would shadow the standard library's."""
    stray = [root for root in SOURCE_ROOTS if (REPOSITORY / root / "__init__.py").exists()]
    assert stray == []


def test_every_test_folder_is_a_package() -> None:
    """Otherwise two test files of one name collide."""
    missing = {
        path.parent.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "tests").rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert missing == set()


def test_nothing_that_runs_code_on_loading_is_imported() -> None:
    """Tests may make such files, to see them refused."""
    found = [
        f"{source.name}:{line}: {module}"
        for source in python_sources(*PRODUCT)
        for line, module in source.imported_modules()
        if module.split(".")[0] in UNSAFE_TO_LOAD
    ]
    assert found == []


def test_torch_load_is_never_called() -> None:
    """Weights come as safetensors; `torch.load` reads pickles."""
    found = [
        source.name for source in python_sources(*PRODUCT) if "torch.load" + "(" in source.text
    ]
    assert found == []


def test_slices_do_not_reach_into_each_other() -> None:
    """Another slice's rows, tables and endpoints are reached through its service."""
    assert slices() >= {"adapters", "billing", "quotas", "tenants", "usage"}
    private = {f"tenora_platform.{name}.{part}" for name in slices() for part in PRIVATE_TO_A_SLICE}
    found = [
        f"{source.name}:{line}: {module}"
        for name in slices()
        for source in python_sources(f"{PLATFORM}/{name}")
        for line, module in source.imported_modules()
        if module in private and not module.startswith(f"tenora_platform.{name}.")
    ]
    assert found == []


def test_kit_knows_no_slice() -> None:
    found = [
        f"{source.name}:{line}: {module}"
        for source in python_sources(f"{PLATFORM}/kit")
        for line, module in source.imported_modules()
        if module.startswith("tenora_platform.") and not module.startswith("tenora_platform.kit")
    ]
    assert [line for line in found if "tenora_platform.errors" not in line] == []
