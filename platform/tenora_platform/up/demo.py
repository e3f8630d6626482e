"""The demo's tenants: who they are, and how they come to be. Safe to repeat and to interrupt.

Accounts are made in the database before the API serves; adapters are uploaded through the API, as
a tenant would. `demo.json` is written when all is there. A key that it does not hold cannot be
known any more, so the next start gives that tenant a new one.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import get_args

import httpx
import msgspec

from tenora_platform.auth.authenticator import Authenticator
from tenora_platform.auth.operators import verify_operator
from tenora_platform.billing.rating import PriceTarget
from tenora_platform.billing.service import BillingService
from tenora_platform.db.session import Database
from tenora_platform.errors import Unauthenticated
from tenora_platform.kit.clock import Clock, SystemClock
from tenora_platform.tenants.api_keys import ApiKeyService
from tenora_platform.tenants.operators import create_operator, set_operator_password
from tenora_platform.tenants.provisioning import TenantLimit, provision_tenant
from tenora_platform.tenants.service import TenantService
from tenora_platform.up.demo_file import Admin, DemoFile, DemoTenant
from tenora_platform.up.errors import UpError
from tenora_platform.up.roles import Installation

DEMO_MODEL = "smollm2-135m-instruct"
ADMIN_EMAIL = "admin@tenora.local"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "adapters"
UPLOAD_TIMEOUT_S = 300.0  # inspection and probe of one adapter; seconds on an idle machine

Progress = Callable[[str, float], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class TenantPlan:
    """One demo tenant; `adapters` maps the name it calls to the example it uploads."""

    slug: str
    name: str
    adapters: dict[str, str]


PLANS = (
    TenantPlan("acme", "Acme", {"support": "support-json", "style": "pirate"}),
    TenantPlan("globex", "Globex", {"style": "couplet"}),
)
LIMITS = (
    TenantLimit("requests_per_minute", 6_000),
    TenantLimit("tokens_per_minute", 2_000_000),
    TenantLimit("concurrency", 64),
    TenantLimit("budget", 1_000_000_000_000, period="month"),  # 1,000 USD
)
INPUT_NANOUSD_PER_MTOK = 100_000_000
CACHED_INPUT_NANOUSD_PER_MTOK = 10_000_000
OUTPUT_NANOUSD_PER_MTOK = 400_000_000


async def seed_accounts(
    installation: Installation, base_model: str, known: DemoFile | None
) -> DemoFile:
    """Operator, prices, tenants, limits and keys. What is in `known` and still valid stays."""
    clock = SystemClock()
    database = Database(installation.database_url, pool_size=2)
    try:
        await _publish_prices(database, clock, base_model)
        admin = await _seed_admin(database, clock, known.admin if known else None)
        tenants = [await _seed_tenant(database, clock, plan, known) for plan in PLANS]
    finally:
        await database.close()
    return DemoFile(
        base_url=installation.base_url, base_model=base_model, admin=admin, tenants=tenants
    )


async def seed_adapters(demo: DemoFile, progress: Progress, note: Note) -> DemoFile:
    """Uploads what a tenant cannot call yet, and returns `demo` with what each can call.

    An adapter that does not fit the base model is left out, with a note.
    Raises `UpError` where the API does not take an upload.
    """
    count = sum(len(plan.adapters) for plan in PLANS)
    tenants: list[DemoTenant] = []
    done = 0
    async with _client(demo.base_url) as client:
        for plan, tenant in zip(PLANS, demo.tenants, strict=True):
            headers = {"authorization": f"Bearer {tenant.api_key}"}
            callable_now = await _callable_models(client, headers)
            ready: list[str] = []
            for name, example in plan.adapters.items():
                progress(f"{plan.slug} uploads {name}", done / count)
                if name in callable_now or await _upload(client, headers, name, example, note):
                    ready.append(name)
                done += 1
            tenants.append(msgspec.structs.replace(tenant, adapters=ready))
    return msgspec.structs.replace(demo, tenants=tenants)


@asynccontextmanager
async def _client(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    try:
        async with httpx.AsyncClient(base_url=base_url, timeout=UPLOAD_TIMEOUT_S) as client:
            yield client
    except httpx.HTTPError as error:
        raise UpError(
            f"The API did not answer while the demo was made ({error!r}): start again, and what "
            "is there already is kept."
        ) from error


async def _publish_prices(database: Database, clock: Clock, base_model: str) -> None:
    async with database.system() as session:
        billing = BillingService(session, clock)
        priced = {version.target for version in await billing.list_prices(base_model)}
        for target in get_args(PriceTarget):
            if target not in priced:
                await billing.publish_price(
                    base_model=base_model,
                    target=target,
                    input_nanousd_per_mtok=INPUT_NANOUSD_PER_MTOK,
                    cached_input_nanousd_per_mtok=CACHED_INPUT_NANOUSD_PER_MTOK,
                    output_nanousd_per_mtok=OUTPUT_NANOUSD_PER_MTOK,
                )


async def _seed_admin(database: Database, clock: Clock, known: Admin | None) -> Admin:
    if known is not None:
        try:
            await verify_operator(database, known.email, known.password)
        except Unauthenticated:
            pass
        else:
            return known
    admin = Admin(email=ADMIN_EMAIL, password=secrets.token_urlsafe(18))
    async with database.system() as session:
        if not await set_operator_password(session, email=admin.email, password=admin.password):
            await create_operator(
                session, clock, email=admin.email, name="Admin", password=admin.password
            )
    return admin


async def _seed_tenant(
    database: Database, clock: Clock, plan: TenantPlan, known: DemoFile | None
) -> DemoTenant:
    async with database.system() as session:
        tenant = await TenantService(session, clock).find_tenant(plan.slug)
    if tenant is None:
        made = await provision_tenant(
            database, clock, slug=plan.slug, name=plan.name, limits=LIMITS
        )
        return DemoTenant(id=str(made.tenant.id), name=plan.slug, api_key=made.secret)
    before = known.tenant(str(tenant.id)) if known else None
    if before is not None and await _is_valid(database, clock, before):
        return before
    async with database.system() as session:
        keys = ApiKeyService(session, clock)
        usable = [key for key in await keys.list_api_keys(tenant.id) if key.revoked_at is None]
        if not usable:
            raise UpError(
                f"The demo tenant {plan.slug} has no API key that is not revoked: start with "
                "another folder (--data)."
            )
        _, secret = await keys.rotate_api_key(tenant.id, usable[-1].id, overlap=timedelta())
    return DemoTenant(id=str(tenant.id), name=plan.slug, api_key=secret)


async def _is_valid(database: Database, clock: Clock, tenant: DemoTenant) -> bool:
    try:
        principal = await Authenticator(database, clock).authenticate(f"Bearer {tenant.api_key}")
    except Unauthenticated:
        return False
    return str(principal.tenant_id) == tenant.id


async def _callable_models(client: httpx.AsyncClient, headers: dict[str, str]) -> set[str]:
    response = await client.get("/v1/models", headers=headers)
    _require_success(response, "list a demo tenant's models")
    return {model["id"] for model in response.json()["data"]}


async def _upload(
    client: httpx.AsyncClient, headers: dict[str, str], name: str, example: str, note: Note
) -> bool:
    """Whether the adapter is READY now; False where it was refused for what it contains."""
    files = {}
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        path = EXAMPLES / example / file
        if not path.is_file():
            raise UpError(f"{path} is missing: run the demo from a checkout of the repository.")
        files[file] = (file, path.read_bytes(), "application/octet-stream")
    response = await client.post("/v1/adapters", headers=headers, data={"name": name}, files=files)
    if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        note(f"The demo adapter {example} does not fit this base model and is left out.")
        return False
    _require_success(response, f"upload the demo adapter {example}")
    return True


def _require_success(response: httpx.Response, purpose: str) -> None:
    if not response.is_success:
        raise UpError(f"Could not {purpose}: {response.status_code} {response.text[:500]}")
