"""What the step loop asks about adapters, whatever memory they must be in. No call blocks."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from tenora_engine.protocol.errors import EngineError
from tenora_engine.protocol.messages import AdapterState


class Residency(ABC):
    """Brings adapters in, keeps those that are in use, says why one cannot come."""

    @property
    @abstractmethod
    def is_loading(self) -> bool:
        """Whether any load is under way."""

    @abstractmethod
    def is_resident(self, digest: str) -> bool:
        """Whether a step may use the adapter now; starts loading it if not."""

    @abstractmethod
    def load_error(self, digest: str) -> EngineError | None:
        """Why the last load failed, until it is tried again."""

    @abstractmethod
    def acquire(self, digest: str) -> None:
        """Pin a resident adapter for one more running sequence."""

    @abstractmethod
    def release(self, digest: str) -> None:
        """Unpin for one running sequence."""

    @abstractmethod
    def states(self, epoch_ms: Callable[[], float]) -> tuple[AdapterState, ...]:
        """State of every adapter that was asked for and not evicted since."""

    @abstractmethod
    def close(self) -> None:
        """Stop background work; loads under way are abandoned."""
