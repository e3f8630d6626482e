"""Puts one replica's front together, runs it until told to stop, and takes it down in order."""

import asyncio
import signal
from collections.abc import Sequence

import structlog

from tenora_engine.config import EngineConfig
from tenora_engine.front.core_process import CORE_COMMAND, CoreProcess
from tenora_engine.front.server import FrontServer
from tenora_engine.front.service import EngineFront

log = structlog.get_logger(__name__)


async def serve(config: EngineConfig, core_command: Sequence[str] = CORE_COMMAND) -> None:
    """Serve until SIGTERM or SIGINT. Running requests then end with a record each.

    Raises:
        EngineUnavailableError: the journal cannot be opened.
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
        starting = asyncio.create_task(engine.start())
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await waiting
        waiting.cancel()
        starting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
    finally:
        log.info("engine_stopping")
        await engine.close()
        await server.close()
