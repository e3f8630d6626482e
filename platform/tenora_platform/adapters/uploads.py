"""Multipart uploads, streamed part by part into the object store with limits while reading.

Nothing here depends on a tenant's text: objects are stored under an id of ours, and only the two
file names that the engine reads are accepted.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec
import obstore
import obstore.store
import structlog
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore

from tenora_platform.errors import InvalidInput, PayloadTooLarge, ServiceUnavailable
from tenora_platform.settings import RequestLimits

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"

_log = structlog.get_logger(__name__)
_MAX_NAME_BYTES: Final = 1024
_OVERHEAD_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 5 * 1024 * 1024


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A complete upload: the name as it was sent, and where its two files lie."""

    name: str
    prefix: str


def open_object_store(url: str) -> ObjectStore:
    """The store at `url`; a folder is made if it is missing and keeps no empty ones."""
    if url.startswith("file:"):
        return obstore.store.from_url(url, mkdir=True, automatic_cleanup=True)
    return obstore.store.from_url(url)


def max_upload_bytes(limits: RequestLimits) -> int:
    """The largest body that can hold two files within their limits."""
    return limits.max_adapter_bytes + limits.max_adapter_config_bytes + _OVERHEAD_BYTES


class UploadReceiver:
    """Reads uploads into `incoming/<id>/` and removes them again."""

    def __init__(self, store: ObjectStore, limits: RequestLimits) -> None:
        self._store = store
        self._limits: Mapping[str, int] = {
            "name": _MAX_NAME_BYTES,
            CONFIG_FILE: limits.max_adapter_config_bytes,
            WEIGHTS_FILE: limits.max_adapter_bytes,
        }

    async def receive(self, chunks: AsyncIterator[bytes], boundary: str) -> Upload:
        """Store the parts of one body. On failure nothing of it stays behind.

        Raises:
            InvalidInput: not multipart, or a part that is unexpected, repeated or missing.
            PayloadTooLarge: a part is over its limit; the rest is not read.
        """
        reading = _Reading(self._store, f"incoming/{uuid4().hex}", self._limits)
        try:
            await self._read(reading, chunks, boundary)
            return reading.complete()
        except BaseException:
            await self.discard(reading.prefix)
            raise

    async def discard(self, prefix: str) -> None:
        """Remove the files under `prefix`, as far as they exist and the store answers."""
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            try:
                await obstore.delete_async(self._store, f"{prefix}/{file}")
            except (NotFoundError, FileNotFoundError):
                continue
            except BaseError as error:
                _log.warning("adapter.upload_kept", prefix=prefix, error=type(error).__name__)

    async def _read(self, reading: "_Reading", chunks: AsyncIterator[bytes], boundary: str) -> None:
        try:
            with PushMultipartParser(boundary, max_segment_count=8, strict=True) as parser:
                async for chunk in chunks:
                    for part in parser.parse(chunk):
                        await reading.take(part)
                    if parser.closed:
                        break
        except MultipartError as error:
            raise InvalidInput(
                "The body is not valid multipart/form-data. Send two files and 'name'.",
                code="invalid_multipart",
            ) from error
        except BaseError as error:
            raise ServiceUnavailable("The object store cannot be reached. Retry soon.") from error


class _Reading:
    """The parts of one body so far."""

    def __init__(self, store: ObjectStore, prefix: str, limits: Mapping[str, int]) -> None:
        self.prefix = prefix
        self._store = store
        self._limits = limits
        self._seen: set[str] = set()
        self._name = bytearray()
        self._part = ""
        self._part_bytes = 0
        self._writer: Any = None

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        """One parser event: the head of a part, a piece of it, or its end (None)."""
        if isinstance(event, MultipartSegment):
            self._open(event)
        elif event:
            await self._write(bytes(event))
        elif self._writer is not None:
            await self._writer.close()
            self._writer = None

    def complete(self) -> Upload:
        """The upload, if all parts came. Raises InvalidInput naming one that is missing."""
        for part in self._limits:
            if part not in self._seen:
                raise InvalidInput(
                    f"The part '{part}' is missing.", code="missing_required_field", param=part
                )
        try:
            return Upload(name=self._name.decode(), prefix=self.prefix)
        except UnicodeDecodeError as error:
            raise InvalidInput("The name is not UTF-8.", param="name") from error

    def _open(self, segment: MultipartSegment) -> None:
        # Clients name a file by its field, by its file name, or by both.
        part = segment.name if segment.name in self._limits else segment.filename or ""
        if part not in self._limits or (part == "name") != (segment.filename is None):
            raise InvalidInput(
                f"Send the files '{CONFIG_FILE}' and '{WEIGHTS_FILE}' and the field 'name', and "
                "nothing else.",
                code="unexpected_part",
            )
        if part in self._seen:
            raise InvalidInput(f"The part '{part}' came twice.", param=part)
        self._seen.add(part)
        self._part, self._part_bytes = part, 0
        if part != "name":
            self._writer = obstore.open_writer_async(
                self._store, f"{self.prefix}/{part}", buffer_size=_BUFFER_BYTES
            )

    async def _write(self, data: bytes) -> None:
        self._part_bytes += len(data)
        limit = self._limits[self._part]
        if self._part_bytes > limit:
            raise PayloadTooLarge(f"'{self._part}' is over the limit of {limit} bytes.")
        if self._writer is None:
            self._name += data
        else:
            await self._writer.write(data)
