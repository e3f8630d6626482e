"""Which adapters are in host memory, and bringing in those that are not.

Loading runs on a thread of its own, so the step loop never waits for a disk or a network. An
adapter that running sequences hold is pinned; the others are evicted, least recently used first,
when host memory for adapters is full.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tenora_engine.core.adapters.base import Residency
from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_engine.protocol.errors import AdapterUnavailableError, EngineError
from tenora_engine.protocol.messages import AdapterState

RETRY_FAILED_AFTER_S = 5.0


@dataclass(slots=True)
class _Entry:
    loading: Future[AdapterWeights] | None = None
    weights: AdapterWeights | None = None
    error: EngineError | None = None
    failed_at: float = 0.0
    num_running: int = 0
    last_used: float = 0.0


class AdapterResidency(Residency):
    """Host tier of adapter weights. Called from the step loop only; no call blocks.

    `load` runs on the loader thread and raises `AdapterUnavailableError` where it fails.
    """

    def __init__(
        self,
        load: Callable[[str], AdapterWeights],
        *,
        capacity_bytes: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._load = load
        self._capacity_bytes = capacity_bytes
        self._monotonic = monotonic
        self._entries: dict[str, _Entry] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="adapter-loader")

    @property
    def is_loading(self) -> bool:
        """Whether any load is under way."""
        return any(entry.loading is not None for entry in self._entries.values())

    def is_resident(self, digest: str) -> bool:
        """Whether the weights are here; starts loading them if not."""
        entry = self._entries.setdefault(digest, _Entry())
        now = self._monotonic()
        if entry.weights is not None:
            entry.last_used = now
            return True
        if entry.loading is None:
            if entry.error is not None and now - entry.failed_at < RETRY_FAILED_AFTER_S:
                return False
            entry.error = None
            entry.loading = self._loader.submit(self._load, digest)
        elif entry.loading.done():
            self._collect(entry, now)
        return entry.weights is not None

    def _collect(self, entry: _Entry, now: float) -> None:
        future, entry.loading = entry.loading, None
        if future is None:
            return
        try:
            weights = future.result()
        except EngineError as error:
            entry.error, entry.failed_at = error, now
        except Exception:  # noqa: BLE001 - whatever a damaged file does, only its requests fail
            entry.error = AdapterUnavailableError("the adapter's weights cannot be loaded")
            entry.failed_at = now
        else:
            entry.last_used = now
            self._make_room(weights.size_bytes)
            entry.weights = weights

    def _make_room(self, size_bytes: int) -> None:
        resident = {d: e for d, e in self._entries.items() if e.weights is not None}
        used = sum(e.weights.size_bytes for e in resident.values() if e.weights is not None)
        idle = sorted(
            (d for d, e in resident.items() if e.num_running == 0),
            key=lambda d: resident[d].last_used,
        )
        for digest in idle:
            if used + size_bytes <= self._capacity_bytes:
                return
            weights = self._entries.pop(digest).weights
            used -= weights.size_bytes if weights is not None else 0

    def load_error(self, digest: str) -> EngineError | None:
        """Why the last load failed, until it is tried again."""
        entry = self._entries.get(digest)
        return entry.error if entry is not None else None

    def weights(self, digest: str) -> AdapterWeights:
        """The weights of a resident adapter."""
        weights = self._entries[digest].weights
        if weights is None:
            raise AdapterUnavailableError("the adapter is not resident")
        return weights

    def acquire(self, digest: str) -> None:
        """Pin for one more running sequence."""
        self._entries[digest].num_running += 1

    def release(self, digest: str) -> None:
        """Unpin for one running sequence."""
        self._entries[digest].num_running -= 1

    def states(self, epoch_ms: Callable[[], float]) -> tuple[AdapterState, ...]:
        """State of every adapter that was asked for and not evicted since."""
        offset_ms = epoch_ms() - self._monotonic() * 1e3
        return tuple(
            AdapterState(
                digest=digest,
                tier="absent" if entry.weights is None else "host",
                size_bytes=0 if entry.weights is None else entry.weights.size_bytes,
                num_running=entry.num_running,
                last_used_at_ms=int(offset_ms + entry.last_used * 1e3),
            )
            for digest, entry in self._entries.items()
        )

    def close(self) -> None:
        """Stop the loader thread; loads under way are abandoned."""
        self._loader.shutdown(wait=False, cancel_futures=True)
