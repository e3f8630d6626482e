"""The way of one upload: stored, inspected, probed; then READY or REJECTED with all reasons.

The revision's row is written at each step, so a crash leaves the step that was reached and never
a READY that was not proven.
"""

from collections.abc import Sequence

import msgspec
import structlog

from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.errors import AdapterUnavailableError, EngineError, InvalidRequestError
from tenora_engine.protocol.messages import AdapterProblem, AdapterRef, InspectRequest
from tenora_platform.adapters.errors import AdapterRejected
from tenora_platform.adapters.models import PROBING, READY, REJECTED, AdapterRevision
from tenora_platform.adapters.reports import inspection_findings, probe_findings, probe_problems
from tenora_platform.adapters.schemas import RevisionBody, revision_body
from tenora_platform.adapters.service import AdapterService
from tenora_platform.auth.scope import TenantScope
from tenora_platform.engine_errors import from_engine
from tenora_platform.kit.clock import Clock

_log = structlog.get_logger(__name__)


class AdapterAdmission:
    """Turns a stored upload into a proven revision."""

    def __init__(self, service: AdapterService, engine: EngineClient, clock: Clock) -> None:
        self._service = service
        self._engine = engine
        self._clock = clock

    async def admit(self, scope: TenantScope, name: str, prefix: str) -> RevisionBody:
        """Make a revision of `name` from the files under `prefix` and prove it.

        Raises:
            AdapterRejected: the file or its effect was refused; the revision says why.
            PlatformError: the engine failed. The revision is rejected; upload again.
        """
        row = await self._service.start_revision(scope, name)
        try:
            problems = await self._inspect(scope, row, prefix) or await self._probe(row)
        except (AdapterUnavailableError, InvalidRequestError) as error:
            problems = [_problem(error)]
        except EngineError as error:
            await self._reject(scope, row, [_problem(error)])
            raise from_engine(error) from error
        if problems:
            await self._reject(scope, row, problems)
            raise AdapterRejected(name, row.revision, row.report)
        await self._service.advance(scope, row, status=READY, ready_at=self._clock.now())
        _log.info("adapter.ready", adapter_id=str(row.adapter_id), digest=row.digest)
        return revision_body(name, row)

    async def _inspect(
        self, scope: TenantScope, row: AdapterRevision, prefix: str
    ) -> Sequence[AdapterProblem]:
        report = await self._engine.inspect_adapter(InspectRequest(prefix=prefix))
        row.report = inspection_findings(report)
        if report.ref is None:
            return report.problems
        await self._service.advance(
            scope,
            row,
            status=PROBING,
            digest=report.ref.digest,
            size_bytes=report.size_bytes,
            max_rank=report.max_rank,
        )
        return ()

    async def _probe(self, row: AdapterRevision) -> Sequence[AdapterProblem]:
        probe = await self._engine.probe_adapter(AdapterRef(digest=row.digest or ""))
        row.report = {**row.report, **probe_findings(probe)}
        return probe_problems(probe)

    async def _reject(
        self, scope: TenantScope, row: AdapterRevision, problems: Sequence[AdapterProblem]
    ) -> None:
        report = {**row.report, "problems": msgspec.to_builtins(problems)}
        await self._service.advance(scope, row, status=REJECTED, report=report)
        _log.info(
            "adapter.rejected",
            adapter_id=str(row.adapter_id),
            codes=[problem.code for problem in problems],
        )


def _problem(error: EngineError) -> AdapterProblem:
    return AdapterProblem(code=error.code, message=error.message)
