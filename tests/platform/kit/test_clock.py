from datetime import UTC, datetime, timedelta

import pytest

from tenora_platform.kit.clock import SystemClock, from_epoch_ms


def test_now_is_aware_and_in_utc() -> None:
    assert SystemClock().now().utcoffset() == timedelta(0)


@pytest.mark.parametrize("milliseconds", [0, 1, 999, 1_764_417_600_123, -1])
def test_epoch_milliseconds_are_exact(milliseconds: int) -> None:
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    assert from_epoch_ms(milliseconds) == expected
