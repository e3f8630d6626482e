"""Compiling `src/` for the processor at hand, once, into a cache of the user.

The name of a build is a digest of everything that went into it: sources, compiler, flags and
processor. A build counts only after a child process has run it and its results were right, so an
instruction that this machine lacks kills that child and nothing else.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tenora_kernels.errors import BackendUnavailableError

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-march=native")
COMPILERS = ("g++", "c++", "clang++")
COMPILE_TIMEOUT_S = 300
CHECK_TIMEOUT_S = 60


def built_library(cache_dir: Path | None = None) -> Path:
    """Return the path of the checked library, building it when it is not there yet.

    Raises:
        BackendUnavailableError: no compiler, a failed build, or a build that fails its check.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise BackendUnavailableError(
            "no C++ compiler was found; install g++ for the fast CPU kernels"
        )
    folder = _usable_folder(cache_dir)
    library = folder / f"{_digest(compiler)}.so"
    if library.is_file():
        return library
    with _only_one(folder / "build.lock"):
        if not library.is_file():
            _build(compiler, library)
    return library


def default_cache_dir() -> Path:
    """Where builds are kept: the user's cache folder."""
    return Path.home() / ".cache" / "tenora" / "native"


def _usable_folder(cache_dir: Path | None) -> Path:
    """A folder that only this user may write: what lies there is loaded as code."""
    try:
        folder = cache_dir or default_cache_dir()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return folder
    except (OSError, RuntimeError):  # no home folder, or none that can be written
        pass
    return _process_folder()


@cache
def _process_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tenora-native-"))


def _digest(compiler: str) -> str:
    facts = hashlib.sha256()
    version = subprocess.run(  # noqa: S603 - a compiler found on PATH
        [compiler, "--version"], capture_output=True, check=False
    ).stdout
    for fact in (version, " ".join(FLAGS).encode(), _processor().encode()):
        facts.update(len(fact).to_bytes(8, "little") + fact)
    for source in sorted(SOURCES.iterdir()):
        content = source.read_bytes()
        facts.update(source.name.encode() + len(content).to_bytes(8, "little") + content)
    return facts.hexdigest()[:32]


def _processor() -> str:
    """What decides which instructions `-march=native` may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    found = {line.partition(":")[0].strip(): line for line in reversed(lines) if ":" in line}
    return "\n".join(found[name] for name in wanted if name in found)


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / "tenora_native.so"
        command = [compiler, *FLAGS, str(SOURCES / "tenora_native.cpp"), "-o", str(built)]
        _run(command, COMPILE_TIMEOUT_S, "the build of the CPU kernels failed")
        check = [sys.executable, str(Path(__file__).with_name("check.py")), str(built)]
        _run(check, CHECK_TIMEOUT_S, "the CPU kernels give wrong results on this machine")
        built.replace(library)


def _run(command: list[str], timeout_s: float, failure: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own command line
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailableError(f"{failure}: {error}") from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise BackendUnavailableError(f"{failure} (status {done.returncode}): {reason[0]}")
