"""Rules about single calls: transactions, tenant scopes, the environment, sizes."""

import ast

from tests.architecture.sources import (
    PLATFORM,
    SOURCE_ROOTS,
    FunctionNode,
    called_name,
    python_sources,
)

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 120
SIZED = (*SOURCE_ROOTS, "migrations", "tests")


def test_only_the_database_edge_commits() -> None:
    """One request or task is one transaction, which `db/` commits as its block ends."""
    found = [
        f"{source.name}:{call.lineno}"
        for source in python_sources(PLATFORM)
        for call in source.calls()
        if called_name(call) == "commit" and not source.name.startswith(f"{PLATFORM}/db/")
    ]
    assert found == []


def test_only_authentication_mints_tenant_scopes() -> None:
    found = [
        f"{source.name}:{call.lineno}"
        for source in python_sources(PLATFORM)
        for call in source.calls()
        if called_name(call) in {"mint", "TenantScope"}
        and not source.name.startswith(f"{PLATFORM}/auth/")
    ]
    assert found == []


def test_only_composition_roots_read_the_environment() -> None:
    found = [
        f"{source.name}:{node.lineno}"
        for root in SOURCE_ROOTS
        for source in python_sources(root)
        if "/benchmarks/" not in source.name
        and not source.name.endswith(("/__main__.py", "/settings.py"))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.stmt | ast.expr) and _reads_environment(node)
    ]
    assert found == []


def test_files_stay_small() -> None:
    found = {
        source.name: lines
        for source in python_sources(*SIZED)
        if (lines := len(source.text.splitlines())) > MAX_FILE_LINES
    }
    assert found == {}


def test_functions_stay_small() -> None:
    found = {
        f"{source.name}:{function.name}": lines
        for source in python_sources(*SIZED)
        for function in source.functions()
        if (lines := _length(function)) > _limit(function)
    }
    assert found == {}


def test_every_source_file_says_what_lives_in_it() -> None:
    silent = [
        source.name
        for source in python_sources(*SOURCE_ROOTS)
        if ast.get_docstring(source.tree) is None
    ]
    assert silent == []


def _reads_environment(node: ast.stmt | ast.expr) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(
            alias.name in {"environ", "getenv"} for alias in node.names
        )
    return (
        isinstance(node, ast.Attribute)
        and node.attr in {"environ", "environb", "getenv", "putenv"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def _length(function: FunctionNode) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _limit(function: FunctionNode) -> int:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    is_kernel = any(decorator.startswith("triton.jit") for decorator in decorators)
    return MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES
