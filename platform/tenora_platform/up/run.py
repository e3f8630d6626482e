"""The composition of `tenora up`: starts everything in order, waits, and stops it in order."""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tenora_platform.up import roles
from tenora_platform.up.demo import DEMO_MODEL, seed_accounts, seed_adapters
from tenora_platform.up.demo_file import DemoFile, read_demo_file, write_demo_file
from tenora_platform.up.embedded import EmbeddedPostgres, EmbeddedRedis
from tenora_platform.up.errors import UpError
from tenora_platform.up.folder import (
    DataFolder,
    default_root,
    lock_data_folder,
    open_data_folder,
    rotate_logs,
)
from tenora_platform.up.roles import Installation
from tenora_platform.up.screen import Screen, Step
from tenora_platform.up.supervisor import Supervisor

SERVING_TIMEOUT_S = 900.0  # a large model takes minutes to read
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What the command line and the environment said."""

    data: Path | None
    host: str
    port: int
    model: Path | None
    model_cache: Path | None
    """The folder of the converted demo model, in place of one in the data folder."""
    demo: bool
    environ: Mapping[str, str]


async def run_up(options: UpOptions, screen: Screen) -> None:
    """Runs an installation until a stop signal; afterwards no process of it is left.

    Raises `UpError` where it cannot start.
    """
    _require_model(options)
    root = options.data or default_root(options.environ)
    folder = open_data_folder(root, options.environ)
    lock = lock_data_folder(folder)
    try:
        _require_free_port(options.host, options.port)
        rotate_logs(folder)
        async with _until_stop_signal(screen):
            supervisor = Supervisor(lock=lock, note=screen.note)
            try:
                await _start_and_wait(options, folder, supervisor, screen)
            finally:
                await supervisor.stop_all(roles.STOP_ORDER)
    finally:
        os.close(lock)


async def _start_and_wait(
    options: UpOptions, folder: DataFolder, supervisor: Supervisor, screen: Screen
) -> None:
    installation = _plan(options, folder)
    async with screen.live():
        model_dir = options.model or await _demo_model(options, installation, supervisor, screen)
        base_model = options.model.name if options.model else DEMO_MODEL
        supervisor.start(installation.engine(model_dir, base_model))  # loads while the rest starts
        await _start_stores(installation, supervisor, screen)
        demo: DemoFile | None = None
        if options.demo:
            with screen.step("Demo accounts"):
                known = read_demo_file(folder.demo_file)
                demo = await seed_accounts(installation, base_model, known)
        with screen.step("Engine and API") as step:
            await _serve(installation, supervisor, step)
        if demo is not None:
            with screen.step("Demo adapters") as step:
                demo = await seed_adapters(demo, step.update, screen.note)
            write_demo_file(folder.demo_file, demo)
    screen.summary(installation.base_url, base_model, folder.root, demo)
    await asyncio.get_running_loop().create_future()


def _plan(options: UpOptions, folder: DataFolder) -> Installation:
    """Addresses of all roles; servers that the environment names take the place of our own."""
    environ = options.environ
    return Installation(
        folder=folder,
        host=options.host,
        port=options.port,
        database_url=environ.get("TENORA_DATABASE_URL") or EmbeddedPostgres(folder, environ).url,
        redis_url=environ.get("TENORA_REDIS_URL") or EmbeddedRedis(folder, environ).url,
        environ=environ,
    )


async def _start_stores(installation: Installation, supervisor: Supervisor, screen: Screen) -> None:
    """The servers that the environment does not name, and the newest schema."""
    folder, environ = installation.folder, installation.environ
    if not environ.get("TENORA_DATABASE_URL"):
        with screen.step("PostgreSQL"):
            await EmbeddedPostgres(folder, environ).start(supervisor)
    if not environ.get("TENORA_REDIS_URL"):
        with screen.step("Redis"):
            await EmbeddedRedis(folder, environ).start(supervisor)
    with screen.step("Database schema"):
        await supervisor.run(installation.platform("migrate"))


async def _demo_model(
    options: UpOptions, installation: Installation, supervisor: Supervisor, screen: Screen
) -> Path:
    """Converts the demo base model, unless that was done before."""
    target = options.model_cache or installation.folder.models / DEMO_MODEL
    with screen.step("Demo model") as step:

        def show(line: str) -> None:
            share, percent, stage = line.strip().partition("% ")
            if percent and share.isdigit():
                step.update(stage, int(share) / 100)

        await supervisor.run(installation.converter(target), on_line=show)
    return target


async def _serve(installation: Installation, supervisor: Supervisor, step: Step) -> None:
    """Starts the API and the worker, and waits until a request would be served."""
    api = supervisor.start(installation.platform("api"))
    supervisor.start(installation.platform("worker"))
    async with httpx.AsyncClient(base_url=installation.base_url, timeout=5) as client:

        async def is_serving() -> bool:
            try:
                response = await client.get("/health")
            except httpx.HTTPError:
                step.update("starting")
                return False
            if response.status_code == httpx.codes.OK:
                return True
            step.update(f"waiting for {_missing_parts(response)}")
            return False

        await supervisor.until_ready(api, is_serving, timeout_s=SERVING_TIMEOUT_S)
    supervisor.mark_all_ready()


def _missing_parts(response: httpx.Response) -> str:
    """What keeps the API from serving, in the words of its own `/health`."""
    try:
        parts: dict[str, str] = response.json()["parts"]
    except (ValueError, KeyError, TypeError):
        return "the API"
    return ", ".join(name for name, state in parts.items() if state != "ok") or "the API"


@asynccontextmanager
async def _until_stop_signal(screen: Screen) -> AsyncIterator[None]:
    """Ends the block, by cancellation, at the first stop signal.

    A second signal gives up waiting: the process ends, and the kernel ends its children.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(130)
        is_stopping = True
        screen.note("Stopping. A second Ctrl-C stops at once.")
        task.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        if not is_stopping:
            raise
        task.uncancel()
        screen.note("Stopped.")
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _require_model(options: UpOptions) -> None:
    if options.model is None:
        if not options.demo:
            raise UpError("Nothing to serve: name a model folder with --model, or use --demo.")
    elif not (options.model / "config.json").is_file():
        raise UpError(
            f"{options.model} has no config.json: name a Hugging Face model folder with --model."
        )


def _require_free_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"is closed ({error})"
            raise UpError(f"Port {port} of {host} {reason}: choose another with --port.") from error
