"""What an API node or a worker is told from outside: frozen, checked once, read once.

This is the platform's only reader of the environment, and only composition roots call it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

_KIB = 1024
_MIB = 1024 * _KIB
_HOST = "127.0.0.1"
_PORT = 8000
_LOG_LEVEL = "info"
_QUOTA_DEADLINE_MS = 250


class SettingsError(ValueError):
    """A setting is missing or unusable; the sentence names the variable."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much of a request is read before it is refused with 413."""

    max_body_bytes: int = 2 * _MIB
    """A JSON body. About half a million tokens of text, more than any served window."""
    max_adapter_config_bytes: int = 256 * _KIB
    """The file `adapter_config.json` of an upload."""
    max_adapter_bytes: int = 512 * _MIB
    """The file `adapter_model.safetensors` of an upload."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that differs between two installations of the same code."""

    database_url: str = field(repr=False)
    """`postgresql+asyncpg://...`"""
    redis_url: str = field(repr=False)
    """`redis://...` or `unix://...`"""
    engine_url: str
    """The front of an engine replica, `ipc://...`"""
    object_store_url: str
    """`file:///...`, `s3://...`: shared with the engine."""
    host: str = _HOST
    port: int = _PORT
    log_level: str = _LOG_LEVEL
    metrics_token: str | None = field(default=None, repr=False)
    """Bearer token of `/metrics`. Without one only loopback may read it."""
    quota_deadline_ms: int = _QUOTA_DEADLINE_MS
    """The longest that one question to Redis may take; then the request is refused with 503."""
    limits: RequestLimits = RequestLimits()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the variables `TENORA_*`.

        Raises SettingsError for a missing or unusable one.
        """
        read = _Reader(os.environ if environ is None else environ)
        limits = RequestLimits()
        return cls(
            database_url=read.required("TENORA_DATABASE_URL"),
            redis_url=read.required("TENORA_REDIS_URL"),
            engine_url=read.required("TENORA_ENGINE_URL"),
            object_store_url=read.required("TENORA_OBJECT_STORE_URL"),
            host=read.text("TENORA_HOST", _HOST),
            port=read.whole("TENORA_PORT", _PORT),
            log_level=read.text("TENORA_LOG_LEVEL", _LOG_LEVEL),
            metrics_token=read.text("TENORA_METRICS_TOKEN", "") or None,
            quota_deadline_ms=read.whole("TENORA_QUOTA_DEADLINE_MS", _QUOTA_DEADLINE_MS),
            limits=RequestLimits(
                max_body_bytes=read.whole("TENORA_MAX_BODY_BYTES", limits.max_body_bytes),
                max_adapter_bytes=read.whole("TENORA_MAX_ADAPTER_BYTES", limits.max_adapter_bytes),
            ),
        )


class _Reader:
    """Typed access to environment variables, with errors that name them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str, default: str) -> str:
        return self._environ.get(name, "").strip() or default

    def required(self, name: str) -> str:
        value = self.text(name, "")
        if not value:
            raise SettingsError(f"{name} is not set; 'tenora up' sets it, other roots must")
        return value

    def whole(self, name: str, default: int) -> int:
        value = self.text(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise SettingsError(f"{name} must be a whole number of at least 1, not {value!r}")
        return int(value)
