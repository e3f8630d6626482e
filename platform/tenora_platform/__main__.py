"""The command line `tenora`: one command per role, and `up` for all of them on one machine.

The composition root of the platform's processes: only here and in `settings.py` is the
environment read. Each role imports only what it needs, so that all start quickly.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tenora_platform.settings import Settings

app = typer.Typer(
    name="tenora",
    help="Multi-tenant LoRA serving: one base model, thousands of adapters, every token billed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def up(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps everything.", metavar="DIR", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the API.", min=1, max=65535)] = 8000,
    model: Annotated[
        Path | None,
        typer.Option(help="Hugging Face model folder to serve.", metavar="DIR", file_okay=False),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve the demo model to two demo tenants.")
    ] = False,
) -> None:
    """Run a whole installation on this machine until Ctrl-C."""
    from tenora_platform.up.errors import UpError
    from tenora_platform.up.run import UpOptions, run_up
    from tenora_platform.up.screen import Screen

    model_cache = os.environ.get("TENORA_MODEL_CACHE")
    options = UpOptions(
        data=data,
        host=os.environ.get("TENORA_HOST") or "127.0.0.1",
        port=port,
        model=model.resolve() if model is not None else None,
        model_cache=Path(model_cache).resolve() if model_cache else None,
        demo=demo,
        environ=dict(os.environ),
    )
    try:
        asyncio.run(run_up(options, Screen()))
    except UpError as error:
        _fail(str(error))


@app.command()
def api() -> None:
    """Serve the HTTP API (needs TENORA_{DATABASE,REDIS,ENGINE,OBJECT_STORE}_URL)."""
    settings = _settings()
    import uvicorn

    from tenora_platform.app import create_app

    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,  # the application logs its requests itself, as JSON
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing we decide may depend on a header that a client can send
        ws="none",
        timeout_graceful_shutdown=10,
    )


@app.command()
def worker() -> None:
    """Settle usage and project budgets (needs the same variables as `api`)."""
    import uvloop

    from tenora_platform.worker import run_worker

    uvloop.run(run_worker(_settings()))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def engine(context: typer.Context) -> None:
    """Run one engine replica; every flag is the engine's own (try `tenora engine -- --help`)."""
    command = (sys.executable, "-P", "-m", "tenora_engine", *context.args)
    os.execv(sys.executable, command)  # noqa: S606 - the engine takes this process's place


@app.command()
def migrate() -> None:
    """Bring the database at TENORA_DATABASE_URL to the newest schema. Safe to repeat."""
    from tenora_platform.db.migrate import upgrade

    url = os.environ.get("TENORA_DATABASE_URL")
    if not url:
        _fail("TENORA_DATABASE_URL is not set: name the database to migrate.")
    upgrade(url)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of the HTTP API."""
    import msgspec
    from litestar.serialization import encode_json

    from tenora_engine.protocol.fake import FakeEngine
    from tenora_platform.app import create_app

    unused = Settings(
        database_url="postgresql+asyncpg://",
        redis_url="redis://",
        engine_url="ipc://",
        object_store_url="memory:///",
    )
    schema = create_app(unused, engine=FakeEngine()).openapi_schema.to_schema()
    typer.echo(msgspec.json.format(encode_json(schema), indent=2).decode())


def main() -> None:
    """Entry point of the command `tenora`."""
    app()


def _settings() -> Settings:
    """The settings, with logging set up by them; an unusable one ends the process."""
    from tenora_platform.observability.logging import configure_logging

    try:
        settings = Settings.from_environ()
        configure_logging(settings.log_level)
    except ValueError as error:
        _fail(str(error))
    return settings


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    main()
