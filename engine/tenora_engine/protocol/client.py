"""The one interface through which the platform uses an engine.

`FakeEngine` (fake.py) and `RemoteEngine` (remote.py) implement it; one contract suite runs on
every implementation.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from tenora_engine.protocol.messages import (
    AdapterRef,
    AdapterReport,
    AdapterState,
    EngineInfo,
    GenerateEvent,
    GenerateRequest,
    Health,
    InspectRequest,
    PreparedPrompt,
    PrepareRequest,
    ProbeReport,
    PurgeReceipt,
    UsageBatch,
)


class EngineClient(Protocol):
    """An engine replica. All methods raise `EngineError` subclasses and nothing else."""

    async def describe(self) -> EngineInfo:
        """Facts about the replica. Raises `EngineUnavailableError` until it is up."""
        ...

    async def health(self) -> Health:
        """Whether a request would be served now. Never raises: a dead replica is not serving."""
        ...

    async def prepare(self, request: PrepareRequest) -> PreparedPrompt:
        """Template and tokenize off the event loop.

        Raises:
            InvalidRequestError: the template refuses the messages, or a token id is unknown.
            ContextLengthError: the prompt leaves no room for one output token.
        """
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Run one request: deltas, then exactly one `Finished`.

        Closing the generator early aborts the engine's work within a second; the usage record
        then says `aborted`. The record is durable before `Finished` is yielded. Errors are
        raised in place of `Finished`; one that arises after acceptance also leaves a record.
        """
        ...

    async def inspect_adapter(self, request: InspectRequest) -> AdapterReport:
        """Validate an upload in a limited child process; store its canonical file if accepted."""
        ...

    async def probe_adapter(self, ref: AdapterRef) -> ProbeReport:
        """Load the adapter and compare it with the base model on fixed prompts."""
        ...

    async def adapter_states(self) -> tuple[AdapterState, ...]:
        """Every adapter that this replica holds on some tier."""
        ...

    async def purge_scope(self, cache_scope: bytes) -> PurgeReceipt:
        """Drop and zero the cached prefixes of one scope."""
        ...

    async def pull_usage(self, *, limit: int) -> UsageBatch:
        """Oldest unacknowledged usage records, at least once, in order."""
        ...

    async def acknowledge_usage(self, *, up_to_seq: int) -> None:
        """Forget records with `seq <= up_to_seq`. Call only after they are committed."""
        ...

    async def close(self) -> None:
        """Release the connection. Running generations of this client are aborted."""
        ...
