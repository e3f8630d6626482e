"""/v1/chat/completions, /v1/completions and /v1/models."""

from datetime import datetime
from typing import Any, Final

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from tenora_platform.adapters.service import AdapterService
from tenora_platform.auth.principal import Principal
from tenora_platform.engine_facts import EngineFacts
from tenora_platform.errors import ModelNotFound
from tenora_platform.http.bodies import StrictRequest
from tenora_platform.http.disconnect import until_disconnected
from tenora_platform.http.error_responses import documented
from tenora_platform.http.policies import INFERENCE
from tenora_platform.inference.answers import streamed_answer, whole_answer
from tenora_platform.inference.openai_schemas import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    Model,
    ModelList,
    TextCompletion,
)
from tenora_platform.inference.parsing import Call, parse_chat, parse_completion
from tenora_platform.inference.service import InferenceService
from tenora_platform.observability.request_context import Access, access_of

_ID_PREFIXES: Final = {"chat.completions": "chatcmpl-", "completions": "cmpl-"}


class InferenceController(Controller):
    """Completions, whole or streamed. A client that leaves ends the engine's work."""

    path = "/v1"
    opt = INFERENCE
    tags = ("Inference",)

    @post("/chat/completions", status_code=200, responses=documented(404, 413, 429))
    async def chat(
        self,
        data: JSONBody[ChatRequest],
        request: StrictRequest,
        inference: NamedDependency[InferenceService],
    ) -> Response[ChatCompletion]:
        """Answer a conversation."""
        return await _answer(request, inference, parse_chat(data))

    @post("/completions", status_code=200, responses=documented(404, 413, 429))
    async def text(
        self,
        data: JSONBody[CompletionRequest],
        request: StrictRequest,
        inference: NamedDependency[InferenceService],
    ) -> Response[TextCompletion]:
        """Continue a text. Special tokens written in it are read as special tokens."""
        return await _answer(request, inference, parse_completion(data))


class ModelController(Controller):
    """What the caller's key may call: the base model and the tenant's READY adapters."""

    path = "/v1/models"
    opt = INFERENCE
    tags = ("Models",)

    @get("/", responses=documented())
    async def list_models(
        self,
        principal: NamedDependency[Principal],
        adapters: NamedDependency[AdapterService],
        facts: NamedDependency[EngineFacts],
    ) -> ModelList:
        """Everything that can be called."""
        return ModelList(data=await _models(principal, adapters, facts))

    @get("/{model:path}", responses=documented(404))
    async def get_model(
        self,
        model: FromPath[str],
        principal: NamedDependency[Principal],
        adapters: NamedDependency[AdapterService],
        facts: NamedDependency[EngineFacts],
    ) -> Model:
        """One of them, by its id."""
        name = model.removeprefix("/")
        for known in await _models(principal, adapters, facts):
            if known.id == name:
                return known
        raise ModelNotFound(name)


async def _answer(request: StrictRequest, inference: InferenceService, call: Call) -> Response[Any]:
    # `request.user` and not a dependency: two of those are resolved by tasks of their own
    work = _run(access_of(request.scope), request.user, inference, call)
    return await until_disconnected(request.receive, work)


async def _run(
    access: Access, principal: Principal, inference: InferenceService, call: Call
) -> Response[Any]:
    inference_id = _ID_PREFIXES[call.endpoint] + access.request_id
    access.facts.update(inference_id=inference_id, streamed=call.is_streamed)
    admission = await inference.admit(principal, call, inference_id)
    events = inference.run(admission)
    if call.is_streamed:
        return await streamed_answer(admission, events, access)
    return await whole_answer(admission, events, access)


async def _models(
    principal: Principal, adapters: AdapterService, facts: EngineFacts
) -> list[Model]:
    base = (await facts.info()).base_model
    own = await adapters.list_callable(principal.scope)
    return [
        Model(id=base, created=_epoch(None), owned_by="tenora"),
        *(
            Model(id=a.name, created=_epoch(a.ready_at), owned_by="tenant", parent=base)
            for a in own
        ),
    ]


def _epoch(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp())
