"""From limits to charges: which counter a request touches, and by how much."""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from tenora_platform.kit.periods import period_end, period_kind, period_name
from tenora_platform.quotas.limits import MAX_RATE, MAX_VALUE, Limit, ScopeKind
from tenora_platform.quotas.store import Charge

CONCURRENCY_WAIT_MS = 1_000
"""Nobody knows when a running request ends; this is how soon it is worth asking again."""


def plan_charges(
    limits: Iterable[Limit], *, tokens: int, cost_nanousd: int, at: datetime, time_zone: str
) -> tuple[Charge, ...]:
    """One charge for each limit, in order. `tokens` is the prompt plus the reserved output."""
    return tuple(
        _plan_charge(limit, tokens=tokens, cost_nanousd=cost_nanousd, at=at, time_zone=time_zone)
        for limit in limits
    )


def budget_stem(scope_kind: ScopeKind, scope_id: str, name: str) -> str:
    """The budget that a period's name belongs to, without the name."""
    return f"{scope_kind}:{scope_id}:{period_kind(name)}"


def budget_field(scope_kind: ScopeKind, scope_id: str, name: str) -> str:
    """The counter of one budget in one period."""
    return f"{budget_stem(scope_kind, scope_id, name)}:{name}"


def _plan_charge(
    limit: Limit, *, tokens: int, cost_nanousd: int, at: datetime, time_zone: str
) -> Charge:
    if limit.period is not None:
        name = period_name(limit.period, at, time_zone)
        end = period_end(limit.period, at, time_zone)
        return Charge(
            kind="budget",
            unit="nanousd",
            field=budget_field(limit.scope_kind, limit.scope_id, name),
            stem=budget_stem(limit.scope_kind, limit.scope_id, name),
            value=limit.value,
            capacity=limit.capacity,
            amount=min(cost_nanousd, MAX_VALUE),
            wait_ms=max(1, math.ceil((end - at).total_seconds() * 1000)),
        )
    if limit.kind == "concurrency":
        return Charge(
            kind="concurrency",
            unit="requests",
            field=f"{limit.scope_kind}:{limit.scope_id}",
            value=limit.value,
            capacity=limit.capacity,
            amount=1,
            wait_ms=CONCURRENCY_WAIT_MS,
        )
    if limit.kind == "requests_per_minute":
        return _rate_charge(limit, "requests", 1)
    return _rate_charge(limit, "tokens", min(tokens, MAX_RATE))


def _rate_charge(limit: Limit, unit: Literal["requests", "tokens"], amount: int) -> Charge:
    return Charge(
        kind="rate",
        unit=unit,
        field=f"{limit.scope_kind}:{limit.scope_id}:{unit}",
        value=limit.value,
        capacity=limit.capacity,
        amount=amount,
    )
