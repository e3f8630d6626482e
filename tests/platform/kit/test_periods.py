"""Periods by name, across month ends, leap days and clock changes (cases E16)."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.kit.periods import (
    PERIOD_KINDS,
    PeriodKind,
    period_end,
    period_kind,
    period_name,
    zone,
)

ZONES = [
    "UTC",
    "Pacific/Tongatapu",  # UTC+13
    "America/St_Johns",  # UTC-3:30, with daylight saving
    "Europe/Vienna",
    "America/Asuncion",  # puts its clock forward at midnight
    "Africa/Cairo",  # puts its clock forward at midnight
    "Pacific/Apia",  # skipped a whole day in 2011
    "Australia/Lord_Howe",  # a clock change of half an hour
]


@pytest.mark.parametrize("time_zone", ZONES)
def test_a_request_over_a_month_end_belongs_to_the_period_of_its_completion(
    time_zone: str,
) -> None:
    started = datetime(2026, 10, 31, 23, 59, 58, tzinfo=ZoneInfo(time_zone))
    completed = started.astimezone(UTC) + timedelta(seconds=5)
    assert period_name("day", started, time_zone) == "2026-10-31"
    assert period_name("month", started, time_zone) == "2026-10"
    assert period_name("day", completed, time_zone) == "2026-11-01"
    assert period_name("month", completed, time_zone) == "2026-11"


def test_an_ambiguous_local_hour_is_one_day_of_25_hours() -> None:
    midnight = datetime(2026, 10, 25, tzinfo=ZoneInfo("Europe/Vienna")).astimezone(UTC)
    end = period_end("day", midnight, "Europe/Vienna")
    assert end - midnight == timedelta(hours=25)
    for hour in range(25):
        at = midnight + timedelta(hours=hour, minutes=59)
        assert period_name("day", at, "Europe/Vienna") == "2026-10-25"


def test_a_day_with_a_missing_hour_has_23() -> None:
    midnight = datetime(2026, 3, 29, tzinfo=ZoneInfo("Europe/Vienna")).astimezone(UTC)
    assert period_end("day", midnight, "Europe/Vienna") - midnight == timedelta(hours=23)


def test_a_day_whose_midnight_is_skipped_starts_when_the_gap_ends() -> None:
    before = datetime(2024, 4, 25, 21, 59, 59, tzinfo=UTC)  # 23:59:59 in Cairo
    assert period_name("day", before, "Africa/Cairo") == "2024-04-25"
    end = period_end("day", before, "Africa/Cairo")
    assert end == datetime(2024, 4, 25, 22, tzinfo=UTC)  # 01:00, for there is no 00:00
    assert period_name("day", end, "Africa/Cairo") == "2024-04-26"


@pytest.mark.parametrize(("year", "last_day"), [(2027, 28), (2028, 29)])
def test_months_follow_the_calendar_without_drift(year: int, last_day: int) -> None:
    at = datetime(year, 1, 31, 12, tzinfo=UTC)
    names = []
    for _ in range(4):
        names.append(period_name("month", at, "UTC"))
        at = period_end("month", at, "UTC")
    assert names == [f"{year}-0{month}" for month in (1, 2, 3, 4)]
    last = datetime(year, 2, last_day, 23, 59, 59, tzinfo=UTC)
    assert period_end("month", last, "UTC") == datetime(year, 3, 1, tzinfo=UTC)


def test_the_end_of_december_is_the_new_year() -> None:
    at = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert period_end("month", at, "UTC") == datetime(2027, 1, 1, tzinfo=UTC)
    assert period_end("day", at, "UTC") == datetime(2027, 1, 1, tzinfo=UTC)


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(ZONES),
    st.sampled_from(PERIOD_KINDS),
)
def test_a_period_ends_where_the_next_begins(
    at: datetime, time_zone: str, kind: PeriodKind
) -> None:
    end = period_end(kind, at, time_zone)
    name = period_name(kind, at, time_zone)
    assert end > at
    assert period_name(kind, end - timedelta(microseconds=1), time_zone) == name
    assert period_name(kind, end, time_zone) > name
    assert period_kind(name) == kind


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "UTC\0"])
def test_an_unknown_zone_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="IANA"):
        zone(name)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        period_name("day", datetime(2026, 1, 1), "UTC")  # noqa: DTZ001
