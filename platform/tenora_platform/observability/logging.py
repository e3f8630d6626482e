"""Logging of a process: one JSON object a line on stderr, with the request's context on each.

Event names are dotted and past tense (`quota.refused`). Prompts, answers and keys are never
logged: what is worth logging about them is an id, a hash or a length. Tracebacks are rendered
without local variables for the same reason.
"""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers through one JSON formatter.

    For composition roots; replaces the root logger's handlers. Raises ValueError for an
    unknown `level`.
    """
    threshold = logging.getLevelNamesMapping().get(level.upper())
    if threshold is None:
        raise ValueError(f"unknown log level {level!r}; use debug, info, warning or error")
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=list(_SHARED),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for noisy in ("httpx", "httpcore", "sqlalchemy.engine", "asyncio"):
        logging.getLogger(noisy).setLevel(max(threshold, logging.WARNING))
