"""Brings canonical adapter files from the object store to this replica's disk, by digest."""

import hashlib
import os
import re
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.exceptions import BaseError as ObjectStoreError

from tenora_engine.adapter_files.canonical import digest_of
from tenora_engine.adapter_files.object_store import canonical_key, open_store
from tenora_engine.config import EngineConfig
from tenora_engine.protocol.errors import AdapterUnavailableError

DOWNLOAD_CHUNK_BYTES = 4 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}")


class AdapterSource:
    """The disk tier. Blocking and thread-safe; meant for the core's loader thread."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder = config.adapter_cache_dir
        self._folder.mkdir(parents=True, exist_ok=True)
        self._store = open_store(config.object_store_url)
        self._local_root = _local_root(config.object_store_url)
        self._verified: set[str] = set()
        self._lock = threading.Lock()

    def fetch(self, digest: str) -> Path:
        """The local canonical file, whose bytes were verified against `digest` in this process.

        A damaged local copy is replaced from the store. A copy appears whole or not at all.

        Raises:
            AdapterUnavailableError: the file is missing, damaged, or the store does not answer.
        """
        if not _DIGEST.fullmatch(digest):
            raise AdapterUnavailableError("The adapter's digest is not a SHA-256 in hexadecimal.")
        path = self._folder / f"{digest}.safetensors"
        with self._lock:
            if digest in self._verified and path.exists():
                return path
            if not (path.exists() and digest_of(path) == digest):
                self._bring(digest, path)
            self._verified.add(digest)
        return path

    def is_on_disk(self, digest: str) -> bool:
        """Whether a local copy exists, verified or not."""
        return (self._folder / f"{digest}.safetensors").exists()

    def _bring(self, digest: str, path: Path) -> None:
        fill = self._download if self._local_root is None else self._link
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".incoming-") as folder:
            copy = Path(folder) / path.name
            try:
                if fill(digest, copy) != digest:
                    raise AdapterUnavailableError(
                        "The adapter's stored file is damaged: its digest is not its name."
                    )
                copy.replace(path)
            except FileNotFoundError as error:
                raise AdapterUnavailableError("The adapter is not in the object store.") from error
            except (ObjectStoreError, OSError) as error:
                raise AdapterUnavailableError(
                    "The adapter could not be copied from the object store; try again."
                ) from error

    def _link(self, digest: str, copy: Path) -> str:
        """Share the file with a store on this machine where the file system can."""
        assert self._local_root is not None
        try:
            os.link(self._local_root / canonical_key(digest), copy)
        except OSError:  # another file system, or no such file: the download tells which
            return self._download(digest, copy)
        return digest_of(copy)

    def _download(self, digest: str, copy: Path) -> str:
        result = obstore.get(self._store, canonical_key(digest))
        found = hashlib.sha256()
        with copy.open("xb") as file:
            for block in result.stream(min_chunk_size=DOWNLOAD_CHUNK_BYTES):
                found.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return found.hexdigest()


def _local_root(url: str) -> Path | None:
    """The folder of a `file://` store; None for any other."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None
