"""Which adapters are in device slots: into host memory first, then copied beside the steps.

Copies run on a thread and a stream of their own, so no step waits for one. A slot that running
sequences hold is pinned. One that was filled for a waiting sequence is promised to it: it is not
given away before it was used, or nobody has asked for it for a while.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from tenora_engine.core.adapters.base import Residency
from tenora_engine.core.adapters.residency import RETRY_FAILED_AFTER_S, AdapterResidency
from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_engine.protocol.errors import AdapterUnavailableError, EngineError
from tenora_engine.protocol.messages import AdapterState

PROMISE_S = 1.0
"""How long a filled slot waits for a sequence that no longer asks for it."""


class AdapterPlaces(Protocol):
    """Device memory for adapters; `DeviceAdapters` is the real one."""

    def fits(self, weights: AdapterWeights) -> bool:
        """Whether there is memory for the adapter now."""
        ...

    def load(self, lora_index: int, weights: AdapterWeights) -> None:
        """Put it at a place that no step uses; returns when the device has it."""
        ...

    def unload(self, lora_index: int) -> None:
        """Free the place and its memory."""
        ...


@dataclass(slots=True, eq=False)
class _Slot:
    index: int
    digest: str
    copying: Future[None] | None
    size_bytes: int
    last_wanted: float
    is_promised: bool = True
    num_running: int = 0

    def may_be_given_away(self, now: float) -> bool:
        if self.num_running or self.copying is not None:
            return False
        return not self.is_promised or now - self.last_wanted > PROMISE_S


class DeviceResidency(Residency):
    """The device tier over the host tier. Called from the step loop only.

    `adapters.load` runs on the copier thread; nothing else is asked of `adapters` meanwhile.
    """

    def __init__(
        self,
        host: AdapterResidency,
        adapters: AdapterPlaces,
        *,
        num_slots: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._host = host
        self._adapters = adapters
        self._monotonic = monotonic
        self._free = list(range(num_slots - 1, -1, -1))
        self._slots: dict[str, _Slot] = {}
        self._errors: dict[str, tuple[EngineError, float]] = {}
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="adapter-copier")

    @property
    def is_loading(self) -> bool:
        """Whether any load into host or device memory is under way."""
        return self._host.is_loading or any(s.copying is not None for s in self._slots.values())

    def is_resident(self, digest: str) -> bool:
        """Whether the factors are in a slot; starts bringing them there if not."""
        now = self._monotonic()
        slot = self._slots.get(digest)
        if slot is None:
            slot = self._begin(digest, now)
            if slot is None:
                return False
        slot.last_wanted = now
        if slot.copying is not None and slot.copying.done():
            self._collect(slot, now)
        return slot.copying is None and digest in self._slots

    def _begin(self, digest: str, now: float) -> _Slot | None:
        """Start the copy of an adapter in host memory; None where it or a slot is missing."""
        failed = self._errors.get(digest)
        if failed is not None:
            if now - failed[1] < RETRY_FAILED_AFTER_S:
                return None
            del self._errors[digest]
        if not self._host.is_resident(digest):
            return None
        if any(slot.copying is not None for slot in self._slots.values()):
            return None  # one copy at a time; this one begins after it
        weights = self._host.weights(digest)
        if not self._make_room(weights, now):
            return None
        index = self._free.pop()
        copying = self._copier.submit(self._adapters.load, index, weights)
        slot = _Slot(index, digest, copying, weights.size_bytes, now)
        self._slots[digest] = slot
        return slot

    def _make_room(self, weights: AdapterWeights, now: float) -> bool:
        """Give idle places away until one is free and the adapter fits, least wanted first."""
        idle = sorted(
            (slot for slot in self._slots.values() if slot.may_be_given_away(now)),
            key=lambda slot: slot.last_wanted,
        )
        for slot in idle:
            if self._free and self._adapters.fits(weights):
                return True
            del self._slots[slot.digest]
            self._adapters.unload(slot.index)
            self._free.append(slot.index)
        return bool(self._free) and self._adapters.fits(weights)

    def _collect(self, slot: _Slot, now: float) -> None:
        future, slot.copying = slot.copying, None
        error = future.exception() if future is not None else None
        if error is None:
            return
        if not isinstance(error, EngineError):
            error = AdapterUnavailableError("the adapter's weights cannot be put on the device")
        self._errors[slot.digest] = (error, now)
        del self._slots[slot.digest]
        self._free.append(slot.index)

    def load_error(self, digest: str) -> EngineError | None:
        """Why the last load into either memory failed, until it is tried again."""
        failed = self._errors.get(digest)
        return failed[0] if failed is not None else self._host.load_error(digest)

    def lora_index_of(self, digest: str) -> int:
        """The slot of a resident adapter; it stays the same while the adapter is pinned."""
        return self._slots[digest].index

    def acquire(self, digest: str) -> None:
        """Pin the slot of a resident adapter for one more running sequence."""
        slot = self._slots[digest]
        slot.num_running += 1
        slot.is_promised = False

    def release(self, digest: str) -> None:
        """Unpin for one running sequence."""
        self._slots[digest].num_running -= 1

    def states(self, epoch_ms: Callable[[], float]) -> tuple[AdapterState, ...]:
        """State of every adapter in either memory; `device` where a slot holds it."""
        offset_ms = epoch_ms() - self._monotonic() * 1e3
        on_device = {
            digest: AdapterState(
                digest=digest,
                tier="device" if slot.copying is None else "host",
                size_bytes=slot.size_bytes,
                num_running=slot.num_running,
                last_used_at_ms=int(offset_ms + slot.last_wanted * 1e3),
            )
            for digest, slot in self._slots.items()
        }
        below = [s for s in self._host.states(epoch_ms) if s.digest not in on_device]
        return (*below, *on_device.values())

    def close(self) -> None:
        """Stop the threads; loads under way are abandoned."""
        self._copier.shutdown(wait=False, cancel_futures=True)
        self._host.close()
