"""The breaker opens after repeated failures and lets one caller at a time try again."""

from tenora_platform.quotas.breaker import CircuitBreaker


class Ticker:
    """Seconds that only move by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_opens_after_consecutive_failures_only() -> None:
    breaker = CircuitBreaker(Ticker(), threshold=3)
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.allows()


def test_open_circuit_lets_one_call_through_per_interval_until_one_succeeds() -> None:
    ticker = Ticker()
    breaker = CircuitBreaker(ticker, threshold=3, retry_after_s=1.0)
    for _ in range(3):
        breaker.failed()
    assert not breaker.allows()
    ticker.now += 1.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.failed()
    assert not breaker.allows()
    ticker.now += 1.0
    assert breaker.allows()
    breaker.succeeded()
    assert all(breaker.allows() for _ in range(3))
