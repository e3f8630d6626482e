"""One request inside the core, as data. Policy is the scheduler's, tensors are the runner's."""

import enum
from dataclasses import dataclass, field

from tenora_engine.core.messages import AddSequence
from tenora_engine.protocol.messages import Timings


class Status(enum.Enum):
    """Where a sequence stands; it leaves the core when FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Clockings:
    """Instants of one sequence on the core's monotonic clock, in seconds."""

    arrived: float
    first_scheduled: float | None = None
    adapter_ready: float | None = None
    first_token: float | None = None

    def timings(self, now: float) -> Timings:
        """Durations up to `now`, in milliseconds."""
        ready = self.adapter_ready if self.adapter_ready is not None else self.arrived
        start = self.first_scheduled if self.first_scheduled is not None else now
        first = self.first_token
        return Timings(
            queue_ms=(start - ready) * 1e3,
            load_ms=(ready - self.arrived) * 1e3,
            prefill_ms=(first - start) * 1e3 if first is not None else 0.0,
            first_token_ms=(first - self.arrived) * 1e3 if first is not None else 0.0,
            total_ms=(now - self.arrived) * 1e3,
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """Token ids, block table and progress of one request.

    `token_ids` is prompt plus output. `num_computed_tokens` counts the positions whose keys and
    values are in the block table; it falls to 0 on preemption. `num_cached_tokens` is fixed at
    the first admission.
    """

    request: AddSequence
    clock: Clockings
    arrival_index: int
    token_ids: list[int] = field(default_factory=list)
    max_tokens: int = 0
    status: Status = Status.WAITING
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_registered_blocks: int = 0
    num_cached_tokens: int | None = None
    total_computed_tokens: int = 0
    num_preemptions: int = 0

    @classmethod
    def of(cls, request: AddSequence, *, now: float, arrival_index: int) -> "Sequence":
        """A waiting sequence that has computed nothing."""
        return cls(
            request=request,
            clock=Clockings(arrived=now),
            arrival_index=arrival_index,
            token_ids=list(request.token_ids),
            max_tokens=request.max_tokens,
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - len(self.request.token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens whose keys and values must be computed before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens
