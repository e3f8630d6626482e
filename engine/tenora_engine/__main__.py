"""`python -m tenora_engine`: one replica. Settings come from flags, else from the environment.

Every field of `EngineConfig` is a flag (`--model-dir`) and a variable (`TENORA_ENGINE_MODEL_DIR`);
`--config FILE` names a JSON file with the same field names, which both override.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from tenora_engine.config import EngineConfig, read_config
from tenora_engine.protocol.errors import EngineError

ENVIRONMENT_PREFIX = "TENORA_ENGINE_"
_FIELDS = [field.name for field in msgspec.structs.fields(EngineConfig)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a replica until SIGTERM. Returns the exit status."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    try:
        config = read_config(gather_settings(options, os.environ))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _log_to_stderr()
    from tenora_engine.front.composition import serve

    try:
        uvloop.run(serve(config))
    except (EngineError, OSError, ValueError) as error:
        structlog.get_logger(__name__).error("engine_cannot_start", reason=str(error))
        return 1
    return 0


def gather_settings(
    options: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Flags over environment over file; only what was given.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    path = options.get("config")
    settings: dict[str, Any] = json.loads(Path(path).read_text()) if path else {}
    for name in _FIELDS:
        given = options.get(name) or environment.get(ENVIRONMENT_PREFIX + name.upper())
        if given is not None:
            settings[name] = given
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tenora engine", description=__doc__)
    parser.add_argument("--config", metavar="FILE", help="settings as a JSON object")
    for name in _FIELDS:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE")
    return parser


def _log_to_stderr() -> None:
    """JSON lines, without any text of prompts or answers."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


if __name__ == "__main__":
    sys.exit(main())
