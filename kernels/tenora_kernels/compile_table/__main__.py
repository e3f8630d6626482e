"""`python -m tenora_kernels.compile_table [OP ...] [--write] [--jobs N] [--cache DIR]`.

Compares what compiling gives with the recorded tables, or records it.

Leave TRITON_INTERPRET unset: interpreted kernels cannot be compiled.
"""

import argparse
import sys
import tempfile

import triton

from tenora_kernels.compile_table.table import (
    Table,
    compile_op,
    differences,
    ops_with_kernels,
    read_table,
    write_table,
)


def main() -> int:
    """Print what is wrong; return 1 where something is."""
    parser = argparse.ArgumentParser(prog="python -m tenora_kernels.compile_table")
    parser.add_argument("ops", nargs="*", metavar="OP", help="folders of kernels; all by default")
    parser.add_argument("--write", action="store_true", help="record the figures found")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", help="keep what is compiled here; by default it is thrown away")
    args = parser.parse_args()
    if triton.knobs.runtime.interpret:
        parser.error("unset TRITON_INTERPRET: interpreted kernels cannot be compiled")
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as thrown_away:
        triton.knobs.cache.dir = args.cache or thrown_away
        for op in args.ops or ops_with_kernels():
            found, faults = compile_op(op, args.jobs)
            if args.write:
                write_table(op, found)
            else:
                faults += differences(op, found, read_table(op))
            _print(op, found)
            wrong += faults
    for fault in wrong:
        print(f"WRONG {fault}", file=sys.stderr)  # noqa: T201 - a command line tool
    return 1 if wrong else 0


def _print(op: str, table: Table) -> None:
    for name, targets in table.kernels.items():
        for target, usage in targets.items():
            figures = " ".join(f"{key}={value}" for key, value in usage.items())
            print(f"{op}.{name:32} {target:7} {figures}")  # noqa: T201 - a command line tool


if __name__ == "__main__":
    sys.exit(main())
