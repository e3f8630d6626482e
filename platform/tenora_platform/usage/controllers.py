"""/v1/usage/records: a tenant's own records, page by page."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from tenora_platform.auth.principal import Principal
from tenora_platform.errors import InvalidInput
from tenora_platform.http.error_responses import documented
from tenora_platform.http.policies import USAGE
from tenora_platform.usage.repository import UsageFilter
from tenora_platform.usage.schemas import UsageRecordPage, record_page
from tenora_platform.usage.service import MAX_PAGE, UsageService

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)]


class UsageController(Controller):
    """What was used and what it cost."""

    path = "/v1/usage"
    opt = USAGE
    tags = ("Usage",)

    @get("/records", responses=documented())
    async def list_records(
        self,
        *,
        principal: NamedDependency[Principal],
        usage: NamedDependency[UsageService],
        limit: Limit = 100,
        after: FromQuery[str | None] = None,
        start: FromQuery[datetime | None] = None,
        end: FromQuery[datetime | None] = None,
        project_id: FromQuery[UUID | None] = None,
        api_key_id: FromQuery[UUID | None] = None,
        model: FromQuery[str | None] = None,
    ) -> UsageRecordPage:
        """Records completed in `[start, end)`, the latest first. Instants carry an offset."""
        _check_aware("start", start)
        _check_aware("end", end)
        if model is not None and "\0" in model:
            raise InvalidInput("'model' is not a model's name.", param="model")
        where = UsageFilter(start, end, project_id, api_key_id, model)
        page = await usage.list_records(principal.scope, where, limit=limit, after=after)
        return record_page(page)


def _check_aware(param: str, at: datetime | None) -> None:
    if at is not None and at.tzinfo is None:
        raise InvalidInput(f"'{param}' needs an offset, such as 2026-01-31T00:00:00Z.", param=param)
