"""The envelopes between a `RemoteEngine` (DEALER) and an engine's front (ROUTER), as msgpack.

A client is known by the identity of its socket. Its heartbeat, once a second, is its handshake
too: the front answers each with a `Pulse` that names the session. A session ends when the front
restarts or when the client was silent for too long; both sides then give up its requests, so
neither waits for the other. All other messages name the session they belong to.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tenora_engine.protocol.errors import EngineError, EngineUnavailableError, ErrorPayload
from tenora_engine.protocol.messages import (
    PROTOCOL_VERSION,
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

HEARTBEAT_INTERVAL_S = 1.0
CLIENT_SILENCE_LIMIT = 5
"""Heartbeats that a client may miss before its requests are aborted."""
FRONT_SILENCE_LIMIT = 3
"""Pulses that a front may miss before its requests are given up."""
MAX_MESSAGE_BYTES = 64 << 20
MAX_QUEUED_MESSAGES = 100_000
"""Per connection and direction; far above what a live peer leaves waiting."""

_NIL = msgspec.Raw(b"\xc0")


class WireMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every envelope."""


# Client to front


class Heartbeat(WireMessage, frozen=True, tag="heartbeat"):
    """The client lives, and speaks this version. Its shape never changes."""

    protocol_version: int


class Call(WireMessage, frozen=True, tag="call"):
    """One question of `Method`, answered by one `Answer`."""

    session: str
    call_id: int
    method: str
    argument: msgspec.Raw = _NIL


class StartGeneration(WireMessage, frozen=True, tag="generate"):
    """Run a request; its events come back until a `Finished` or an error."""

    session: str
    request: GenerateRequest


class AbortGeneration(WireMessage, frozen=True, tag="abort"):
    """The reader is gone. Unknown and finished ids are ignored."""

    session: str
    request_id: str


class Goodbye(WireMessage, frozen=True, tag="goodbye"):
    """The client closes; its running requests are aborted."""


ToFront = Heartbeat | Call | StartGeneration | AbortGeneration | Goodbye


# Front to client


class Pulse(WireMessage, frozen=True, tag="pulse"):
    """Answer to a heartbeat. With `error` the client is refused, whatever it sends."""

    protocol_version: int
    session: str
    error: ErrorPayload | None = None


class Answer(WireMessage, frozen=True, tag="answer"):
    """Result of a `Call`, or its error."""

    call_id: int
    result: msgspec.Raw = _NIL
    error: ErrorPayload | None = None


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of one generation; exactly one of `event` and `error` is set."""

    request_id: str
    event: GenerateEvent | None = None
    error: ErrorPayload | None = None


class StreamEvents(WireMessage, frozen=True, tag="events"):
    """All events that one step brought for this client, in order."""

    events: tuple[StreamEvent, ...]


ToClient = Pulse | Answer | StreamEvents

encoder = msgspec.msgpack.Encoder()
to_front_decoder = msgspec.msgpack.Decoder(ToFront)
to_client_decoder = msgspec.msgpack.Decoder(ToClient)


# Calls

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Method(Generic[ArgumentT, ResultT]):
    """A named call with the types of its argument and result."""

    name: str
    argument: type[ArgumentT]
    result: type[ResultT]
    timeout_s: float = 10.0


DESCRIBE: Method[None, EngineInfo] = Method("describe", type(None), EngineInfo)
HEALTH: Method[None, Health] = Method("health", type(None), Health, timeout_s=2.0)
PREPARE = Method("prepare", PrepareRequest, PreparedPrompt, timeout_s=60.0)
INSPECT_ADAPTER = Method("inspect_adapter", InspectRequest, AdapterReport, timeout_s=600.0)
PROBE_ADAPTER = Method("probe_adapter", AdapterRef, ProbeReport, timeout_s=300.0)
ADAPTER_STATES: Method[None, tuple[AdapterState, ...]] = Method(
    "adapter_states", type(None), tuple[AdapterState, ...]
)
PURGE_SCOPE = Method("purge_scope", bytes, PurgeReceipt)
PULL_USAGE = Method("pull_usage", int, UsageBatch)
ACKNOWLEDGE_USAGE: Method[int, None] = Method("acknowledge_usage", int, type(None))


def error_of_version(their_version: int) -> EngineError | None:
    """The refusal for a peer that speaks another version, else None."""
    if their_version == PROTOCOL_VERSION:
        return None
    return EngineUnavailableError(
        f"This side speaks protocol version {PROTOCOL_VERSION}, the other {their_version}: "
        "run the same release on the API nodes and the engine.",
        code="protocol_mismatch",
    )
