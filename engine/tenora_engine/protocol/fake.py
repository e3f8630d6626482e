"""A deterministic `EngineClient` without a model, for tests and for building the platform.

Every answer follows a script of token texts. Counts, stop strings, aborts and the usage journal
behave as the real engine's; the contract suite holds both to the same cases.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from tenora_engine.protocol.errors import (
    ContextLengthError,
    EngineError,
    EngineOverloadedError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tenora_engine.protocol.fake_script import Script, name_the_adapter, plan_answer
from tenora_engine.protocol.messages import (
    AdapterRef,
    AdapterReport,
    AdapterState,
    Delta,
    EngineInfo,
    ExecutionIdentity,
    Finished,
    FinishReason,
    GenerateEvent,
    GenerateRequest,
    Health,
    InspectRequest,
    Outcome,
    PreparedPrompt,
    PrepareRequest,
    ProbeReport,
    PurgeReceipt,
    Timings,
    Usage,
    UsageBatch,
    UsageRecord,
)

FAKE_TEMPLATE_VERSION = "fake-template"
_VOCAB_SIZE = 256


class FakeEngine:
    """Serves scripts. Set the public attributes at any time to change what happens next.

    `script` gives the text of each token, as a sequence for all requests or as a function of the
    request; after it comes one end token, so `completion_tokens` is the script's length plus one
    unless `max_tokens` or a stop string ends the answer before. Prompt tokens are UTF-8 bytes.
    """

    def __init__(
        self,
        *,
        script: Sequence[str] | Script = name_the_adapter,
        base_model: str = "fake-base",
        replica_id: str = "fake",
        context_length: int = 2048,
        token_interval_s: float = 0.0,
    ) -> None:
        self.script = script
        self.token_interval_s = token_interval_s
        self.info = EngineInfo(
            replica_id=replica_id,
            engine_version="fake",
            base_model=base_model,
            model_digest=hashlib.sha256(base_model.encode()).hexdigest(),
            context_length=context_length,
            vocab_size=_VOCAB_SIZE,
            max_lora_rank=128,
            kernel_backend="fake",
            weight_dtype="float32",
        )
        self.refuse_with: EngineError | None = None
        """Raised by `generate` before acceptance: no record is left."""
        self.fail_after_tokens: int | None = None
        """Lose the request after that many tokens: outcome `error`, `EngineUnavailableError`."""
        self.cached_prompt_tokens = 0
        self.is_serving = True
        self.reports: dict[str, AdapterReport] = {}
        """Inspection reports by prefix; any other prefix is accepted."""
        self.probes: dict[str, ProbeReport] = {}
        """Probe reports by digest; any other adapter is found to have an effect."""
        self.accepted: list[GenerateRequest] = []
        self.running: set[str] = set()
        self._states: dict[str, AdapterState] = {}
        self._journal: list[UsageRecord] = []
        self._last_seq = 0

    async def describe(self) -> EngineInfo:
        """See `EngineClient.describe`."""
        self._require_serving()
        return self.info

    async def health(self) -> Health:
        """See `EngineClient.health`."""
        return Health(
            serving=self.is_serving,
            reason="ok" if self.is_serving else "set not to serve",
            num_running=len(self.running),
            num_blocks=1024,
            num_free_blocks=1024,
            journal_backlog=len(self._journal),
        )

    async def prepare(self, request: PrepareRequest) -> PreparedPrompt:
        """See `EngineClient.prepare`."""
        self._require_serving()
        if request.messages is not None:
            if not request.messages:
                raise InvalidRequestError("There are no messages.", param="messages")
            turns = (f"<{turn.role}>{turn.content}\n" for turn in request.messages)
            token_ids, version = tuple("".join(turns).encode()), FAKE_TEMPLATE_VERSION
        elif request.text is not None:
            token_ids, version = tuple(request.text.encode()), "text"
        else:
            token_ids, version = request.token_ids or (), "token_ids"
        self._require_fitting(token_ids, max_tokens=1)
        return PreparedPrompt(token_ids=token_ids, template_version=version)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `EngineClient.generate`."""
        self._admit(request)
        run = _Run(request=request, started_at_ms=_now_ms())
        outcome: Outcome = "aborted"
        error_code: str | None = None
        try:
            async for delta in self._run(run):
                yield delta
            outcome = run.reason
        except EngineError as error:
            outcome, error_code = "error", error.code
            raise
        finally:
            self.running.discard(request.request_id)
            self._record(run, outcome, error_code)
        yield Finished(
            reason=run.reason,
            usage=self._usage(run),
            timings=Timings(total_ms=float(_now_ms() - run.started_at_ms)),
            identity=self._identity(request),
        )

    async def inspect_adapter(self, request: InspectRequest) -> AdapterReport:
        """See `EngineClient.inspect_adapter`."""
        self._require_serving()
        digest = hashlib.sha256(request.prefix.encode()).hexdigest()
        accepted = AdapterReport(
            ref=AdapterRef(digest=digest),
            size_bytes=4096,
            num_parameters=1024,
            max_rank=8,
            num_modules=2,
            target_modules=("q_proj", "v_proj"),
            scalings=(2.0,),
        )
        return self.reports.get(request.prefix, accepted)

    async def probe_adapter(self, ref: AdapterRef) -> ProbeReport:
        """See `EngineClient.probe_adapter`."""
        self._require_serving()
        self._touch(ref)
        effective = ProbeReport(ref=ref, finite=True, max_logit_delta=1.5, changed_token_share=0.5)
        return self.probes.get(ref.digest, effective)

    async def adapter_states(self) -> tuple[AdapterState, ...]:
        """See `EngineClient.adapter_states`."""
        self._require_serving()
        return tuple(self._states.values())

    async def purge_scope(self, cache_scope: bytes) -> PurgeReceipt:
        """See `EngineClient.purge_scope`."""
        del cache_scope  # nothing is cached here
        self._require_serving()
        return PurgeReceipt(num_blocks_zeroed=0, completed_at_ms=_now_ms())

    async def pull_usage(self, *, limit: int) -> UsageBatch:
        """See `EngineClient.pull_usage`."""
        return UsageBatch(
            replica_id=self.info.replica_id, records=tuple(self._journal[: max(0, limit)])
        )

    async def acknowledge_usage(self, *, up_to_seq: int) -> None:
        """See `EngineClient.acknowledge_usage`."""
        self._journal = [record for record in self._journal if record.seq > up_to_seq]

    async def close(self) -> None:
        """See `EngineClient.close`."""

    # One request

    def _admit(self, request: GenerateRequest) -> None:
        self._require_serving()
        if self.refuse_with is not None:
            raise self.refuse_with
        if request.request_id in self.running:
            raise InvalidRequestError("A request with this id is running.", param="request_id")
        if request.deadline_at_ms is not None and request.deadline_at_ms <= _now_ms():
            raise EngineOverloadedError("The deadline has passed.", code="deadline_exceeded")
        self._require_fitting(request.token_ids, max_tokens=request.max_tokens)
        self.running.add(request.request_id)
        self.accepted.append(request)
        if request.adapter is not None:
            self._touch(request.adapter)

    async def _run(self, run: "_Run") -> AsyncGenerator[Delta, None]:
        script = self.script(run.request) if callable(self.script) else self.script
        plan = plan_answer(tuple(script), run.request)
        run.reason = plan.reason
        num_sent = 0
        for index, end in enumerate(plan.ends):
            if self.fail_after_tokens is not None and index >= self.fail_after_tokens:
                raise EngineUnavailableError("The engine lost the request.")
            await asyncio.sleep(self.token_interval_s)
            run.completion_tokens = index + 1
            text = plan.text[num_sent:end]
            num_sent = max(num_sent, end)
            yield Delta(text=text, token_ids=(index % _VOCAB_SIZE,))

    def _record(self, run: "_Run", outcome: Outcome, error_code: str | None) -> None:
        identity = self._identity(run.request)
        self._last_seq += 1
        self._journal.append(
            UsageRecord(
                replica_id=self.info.replica_id,
                seq=self._last_seq,
                request_id=run.request.request_id,
                outcome=outcome,
                usage=self._usage(run),
                timings=Timings(total_ms=float(_now_ms() - run.started_at_ms)),
                identity=identity,
                execution_hash=identity.execution_hash(),
                started_at_ms=run.started_at_ms,
                completed_at_ms=_now_ms(),
                attribution=run.request.attribution,
                error_code=error_code,
            )
        )

    def _usage(self, run: "_Run") -> Usage:
        prompt_tokens = len(run.request.token_ids)
        cached = min(self.cached_prompt_tokens, prompt_tokens)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=run.completion_tokens,
            cached_prompt_tokens=cached,
            computed_tokens=prompt_tokens - cached + run.completion_tokens,
            adapter_digest=run.request.adapter.digest if run.request.adapter else None,
        )

    def _identity(self, request: GenerateRequest) -> ExecutionIdentity:
        return ExecutionIdentity(
            model_digest=self.info.model_digest,
            tokenizer_digest="fake",
            template_version=request.template_version,
            adapter_digest=request.adapter.digest if request.adapter else None,
            engine_version=self.info.engine_version,
            kernel_backend="fake",
            weight_dtype="float32",
            kv_dtype="float32",
            attention_backend="fake",
            topology="fake",
            prefix_cache="off",
            sampling=request.sampling,
        )

    # Checks and bookkeeping

    def _require_serving(self) -> None:
        if not self.is_serving:
            raise EngineUnavailableError("The engine is not serving.")

    def _require_fitting(self, token_ids: Sequence[int], *, max_tokens: int) -> None:
        if not token_ids:
            raise InvalidRequestError("The prompt is empty.", param="prompt")
        if len(token_ids) + max_tokens > self.info.context_length:
            raise ContextLengthError(
                f"The prompt has {len(token_ids)} tokens and asks for {max_tokens} more; the "
                f"model's window is {self.info.context_length} tokens."
            )

    def _touch(self, ref: AdapterRef) -> None:
        self._states[ref.digest] = AdapterState(
            digest=ref.digest,
            tier="device",
            size_bytes=4096,
            num_running=0,
            last_used_at_ms=_now_ms(),
        )


@dataclass
class _Run:
    request: GenerateRequest
    started_at_ms: int
    completion_tokens: int = 0
    reason: FinishReason = "stop"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
