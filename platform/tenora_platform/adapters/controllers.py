"""/v1/adapters: upload, list, look at."""

from typing import Annotated

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from tenora_platform.adapters.names import check_name
from tenora_platform.adapters.schemas import AdapterBody, AdapterPage, RevisionBody
from tenora_platform.adapters.service import AdapterService
from tenora_platform.adapters.tasks import AdapterAdmission
from tenora_platform.adapters.uploads import UploadReceiver
from tenora_platform.auth.principal import Principal
from tenora_platform.engine_facts import EngineFacts
from tenora_platform.errors import InvalidInput
from tenora_platform.http.bodies import StrictRequest
from tenora_platform.http.error_responses import documented
from tenora_platform.http.policies import ADAPTERS

Limit = Annotated[int, QueryParameter(ge=1, le=100)]
After = Annotated[str, QueryParameter(max_length=64)]


class AdapterController(Controller):
    """A tenant's adapters. The same name again is a new revision; nothing is overwritten."""

    path = "/v1/adapters"
    opt = ADAPTERS
    tags = ("Adapters",)

    @post("/", responses=documented(413, 422, 429))
    async def upload(
        self,
        request: StrictRequest,
        principal: NamedDependency[Principal],
        uploads: NamedDependency[UploadReceiver],
        admission: NamedDependency[AdapterAdmission],
        facts: NamedDependency[EngineFacts],
    ) -> RevisionBody:
        """Store, inspect and probe an adapter: 201 with its report when it is READY.

        Multipart parts: the files `adapter_config.json` and `adapter_model.safetensors`, and the
        field `name`. An adapter that is refused answers 422 with all reasons.
        """
        content_type, options = request.content_type
        if content_type != "multipart/form-data" or not options.get("boundary"):
            raise InvalidInput("Send the adapter as multipart/form-data.", code="invalid_multipart")
        base_model = (await facts.info()).base_model
        upload = await uploads.receive(request.stream(), options["boundary"])
        try:
            name = check_name(upload.name, base_model)
            return await admission.admit(principal.scope, name, upload.prefix)
        finally:
            await uploads.discard(upload.prefix)

    @get("/", responses=documented())
    async def list_adapters(
        self,
        principal: NamedDependency[Principal],
        adapters: NamedDependency[AdapterService],
        limit: Limit = 20,
        after: After = "",
    ) -> AdapterPage:
        """Adapters in any state, by name, with their revisions."""
        return await adapters.list(principal.scope, after=after, limit=limit)

    @get("/{name:str}", responses=documented(404))
    async def get_adapter(
        self,
        name: FromPath[str],
        principal: NamedDependency[Principal],
        adapters: NamedDependency[AdapterService],
    ) -> AdapterBody:
        """One adapter with all its revisions."""
        return await adapters.get(principal.scope, name)
