"""Accounting periods as names: `2026-11-29` is a day and `2026-11` a month, in a time zone.

A period is a name derived from an instant, never a counter that a job resets. An instant has
exactly one local date in a zone, so it lies in exactly one day and one month, also where the
clock is put forward or back.
"""

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

PeriodKind = Literal["day", "month"]
PERIOD_KINDS: tuple[PeriodKind, ...] = ("day", "month")


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The IANA time zone called `name`. Raises ValueError if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {name!r}; use an IANA name such as Europe/Vienna"
        ) from error


def period_name(kind: PeriodKind, at: datetime, time_zone: str) -> str:
    """The name of the `kind` of period that contains the aware instant `at`."""
    local = _local(at, time_zone)
    return f"{local:%Y-%m-%d}" if kind == "day" else f"{local:%Y-%m}"


def period_kind(name: str) -> PeriodKind:
    """Which kind of period `name` names, by its shape."""
    return "day" if name.count("-") == 2 else "month"


def period_end(kind: PeriodKind, at: datetime, time_zone: str) -> datetime:
    """The first instant, in UTC, after the period of `kind` that contains `at`.

    This is when a budget of that period starts afresh.
    """
    local = _local(at, time_zone)
    if kind == "day":
        following = local.date() + timedelta(days=1)
    else:
        following = date(local.year + local.month // 12, local.month % 12 + 1, 1)
    return _first_instant(following, zone(time_zone))


def _local(at: datetime, time_zone: str) -> datetime:
    if at.tzinfo is None:
        raise ValueError("an instant must be timezone-aware")
    return at.astimezone(zone(time_zone))


def _first_instant(day: date, tz: ZoneInfo) -> datetime:
    """Midnight of `day` in UTC, or the end of the gap where the clock skips midnight."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=tz)
    instant = midnight.astimezone(UTC)
    # A midnight inside a gap maps to an instant that may still lie in the day before.
    while instant.astimezone(tz).date() < day:
        instant += timedelta(minutes=1)
    return instant
