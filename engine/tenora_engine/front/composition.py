"""Puts one replica's front together, runs it until told to stop, and takes it down in order."""

import asyncio
import signal
from collections.abc import Sequence

import structlog

from tenora_engine.config import EngineConfig
from tenora_engine.front.core_process import CORE_COMMAND, CoreProcess
from tenora_engine.front.server import FrontServer
from tenora_engine.front.service import EngineFront
from tenora_engine.protocol.errors import EngineUnavailableError

log = structlog.get_logger(__name__)


async def serve(config: EngineConfig, core_command: Sequence[str] = CORE_COMMAND) -> None:
    """Serve until SIGTERM or SIGINT. Running requests then end with a record each.

    Raises:
        EngineUnavailableError: the journal cannot be opened, or the core refuses the model.
        OSError, ValueError: the model folder cannot be served.
    """
    for folder in (config.run_dir, config.state_dir, config.adapter_cache_dir):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = EngineFront(config, CoreProcess(config, core_command))
    server = FrontServer(engine, config.listen_url)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    try:
        await _until_over(engine, stopping)
    finally:
        log.info("engine_stopping")
        await engine.close()
        await server.close()


async def _until_over(engine: EngineFront, stopping: asyncio.Event) -> None:
    """Start the engine; return when told to stop, raise when it can never serve."""
    starting = asyncio.create_task(engine.start())
    waiting = asyncio.create_task(stopping.wait())
    refusing = asyncio.create_task(engine.until_refused())
    try:
        await asyncio.wait([starting, waiting, refusing], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await asyncio.wait([waiting, refusing], return_when=asyncio.FIRST_COMPLETED)
        if refusing.done():
            raise EngineUnavailableError(refusing.result(), code="core_refused")
    finally:
        for task in (starting, waiting, refusing):
            task.cancel()
        await asyncio.gather(starting, waiting, refusing, return_exceptions=True)
