"""From a running admission to a response: whole or streamed, in either endpoint's dialect."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog
from litestar import Response

from tenora_engine.protocol.messages import Delta, EngineInfo, Finished, GenerateEvent
from tenora_platform.adapters.schemas import ResolvedModel
from tenora_platform.errors import PlatformError
from tenora_platform.http.disconnect import ClientDisconnected
from tenora_platform.inference import sse
from tenora_platform.inference.admission import Admission
from tenora_platform.inference.rendering import ChatRenderer, Envelope, Renderer, TextRenderer
from tenora_platform.observability.request_context import Access
from tenora_platform.quotas.headers import ratelimit_headers

_log = structlog.get_logger(__name__)
_RENDERERS: Final[dict[str, type[ChatRenderer] | type[TextRenderer]]] = {
    "chat.completions": ChatRenderer,
    "completions": TextRenderer,
}

Events = AsyncGenerator[GenerateEvent, None]


async def whole_answer(
    admission: Admission, events: Events, access: Access
) -> Response[msgspec.Struct]:
    """Collect all events into one body. Raises what `events` raises."""
    texts: list[str] = []
    async with aclosing(events):
        async for item in events:
            if isinstance(item, Delta):
                texts.append(item.text)
            else:
                finished = item
    _note_finish(access, finished)
    headers = _headers(admission)
    headers["x-tenora-execution"] = finished.identity.execution_hash()
    if finished.reason != "length":
        headers.pop("x-quota-clamped", None)
    body = _renderer(admission).whole("".join(texts), finished)
    return Response(body, status_code=200, headers=headers)


async def streamed_answer(
    admission: Admission, events: Events, access: Access, *, keep_alive_s: float = sse.KEEP_ALIVE_S
) -> Response[Any]:
    """A stream of `events`, begun once the first is there, so early errors are plain responses.

    A request that waits for longer than `keep_alive_s` begins without it, to keep proxies from
    giving up; its errors then are events. Raises what `events` raises before that.
    """
    first = asyncio.ensure_future(anext(events))
    try:
        await asyncio.wait({first}, timeout=keep_alive_s)
        if first.done():
            first.result()
    except BaseException:
        await _close(first, events)
        raise
    stream = _framed(_renderer(admission), first, events, access, admission.plan.call.include_usage)
    return sse.EventStream(stream, headers=_headers(admission), keep_alive_s=keep_alive_s)


async def _framed(
    renderer: Renderer,
    first: "asyncio.Future[GenerateEvent]",
    events: Events,
    access: Access,
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    try:
        if (opening := renderer.opening()) is not None:
            yield sse.event(opening)
        item = await first
        while isinstance(item, Delta):
            if item.text:
                yield sse.event(renderer.delta(item.text))
            item = await anext(events)
        _note_finish(access, item)
        yield sse.event(renderer.closing(item))
        if include_usage:
            yield sse.event(renderer.usage(item))
        yield sse.DONE
    except (GeneratorExit, asyncio.CancelledError):
        access.facts["error_code"] = ClientDisconnected.code
        raise
    except Exception as error:  # noqa: BLE001 - the headers are out: every error must be an event
        yield sse.error_event(_shown(error, access))
    finally:
        await _close(first, events)


async def _close(first: "asyncio.Future[GenerateEvent]", events: Events) -> None:
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await events.aclose()


def _shown(error: Exception, access: Access) -> PlatformError:
    """What a client may read about `error`; the log has the rest."""
    shown = error if isinstance(error, PlatformError) else PlatformError()
    access.facts["error_code"] = shown.code
    if shown is not error:
        _log.error("http.unexpected_error", exc_info=error)
    return shown


def _renderer(admission: Admission) -> Renderer:
    plan = admission.plan
    envelope = Envelope(
        id=plan.request_id,
        created=int(admission.admitted_at.timestamp()),
        model=plan.resolved.model,
        system_fingerprint=_fingerprint(plan.info, plan.resolved),
        include_usage=plan.call.include_usage,
        adapter=plan.resolved.name,
        revision=plan.resolved.revision,
    )
    return _RENDERERS[plan.call.endpoint](envelope)


def _fingerprint(info: EngineInfo, resolved: ResolvedModel) -> str:
    """Changes when the weights or the software that runs them change."""
    digest = resolved.adapter.digest if resolved.adapter else None
    facts = (info.model_digest, digest, info.engine_version, info.kernel_backend, info.weight_dtype)
    return f"fp_{hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:12]}"


def _headers(admission: Admission) -> dict[str, str]:
    headers = ratelimit_headers(admission.reservation)
    if admission.is_clamped:
        headers["x-quota-clamped"] = "1"
    return headers


def _note_finish(access: Access, finished: Finished) -> None:
    usage = finished.usage
    access.facts.update(
        finish_reason=finished.reason,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
        adapter_digest=usage.adapter_digest,
        first_token_ms=finished.timings.first_token_ms,
    )
