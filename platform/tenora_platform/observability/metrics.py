"""Prometheus instruments of an API node. Every label has a small fixed set of values.

No label names a tenant, a key or an adapter: such series are unbounded and would be visible to
whoever reads the endpoint. Per-tenant figures come from usage records.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from tenora_engine.protocol.messages import Health, Timings, Usage

_SECONDS: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.96)


class Metrics:
    """The instruments of one application, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "tenora_http_requests",
            "Finished requests.",
            ["method", "path", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "tenora_http_request_duration_seconds",
            "From the first byte read to the last byte written.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "tenora_tokens", "Tokens of answered requests.", ["kind"], registry=registry
        )
        self._first_token = Histogram(
            "tenora_time_to_first_token_seconds",
            "Queue, adapter load and prefill together, as the engine saw them.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._outcomes = Counter(
            "tenora_generations", "Generations by how they ended.", ["outcome"], registry=registry
        )
        self._refusals = Counter(
            "tenora_quota_refusals", "Requests refused by a limit.", ["kind"], registry=registry
        )
        self._reservations = Gauge(
            "tenora_reservations_held", "Reservations that this node renews.", registry=registry
        )
        self._engine = {
            name: Gauge(f"tenora_engine_{name}", text, registry=registry)
            for name, text in _ENGINE_GAUGES.items()
        }

    def request_finished(self, method: str, path: str, status: int, duration_s: float) -> None:
        """Count one HTTP request. `path` is a route's template, never what the client wrote."""
        known_method = method if method in _METHODS else "other"
        self._requests.labels(known_method, path, str(status)).inc()
        self._duration.labels(path).observe(duration_s)

    def generation_finished(self, outcome: str, usage: Usage, timings: Timings) -> None:
        """Count one answered generation with the engine's own figures."""
        self._outcomes.labels(outcome).inc()
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("cached_prompt").inc(usage.cached_prompt_tokens)
        self._tokens.labels("completion").inc(usage.completion_tokens)
        self._first_token.observe(timings.first_token_ms / 1000)

    def generation_failed(self, outcome: str) -> None:
        """Count one generation that ended without `Finished`: `aborted` or `error`."""
        self._outcomes.labels(outcome).inc()

    def quota_refused(self, kind: str) -> None:
        """Count one refusal by the kind of limit that caused it."""
        self._refusals.labels(kind).inc()

    def render(self, health: Health, num_reservations: int) -> bytes:
        """The exposition text, with gauges as of now."""
        self._reservations.set(num_reservations)
        for name, gauge in self._engine.items():
            gauge.set(float(getattr(health, name)))
        return generate_latest(self._registry)


_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_ENGINE_GAUGES: Final = {
    "serving": "1 if a request would be served now.",
    "num_running": "Sequences in the running batch.",
    "num_waiting": "Sequences waiting to be scheduled.",
    "num_blocks": "KV blocks in the pool.",
    "num_free_blocks": "KV blocks that nothing holds.",
    "num_cached_blocks": "KV blocks that only the prefix cache holds.",
    "num_running_adapters": "Adapters that running sequences use.",
    "journal_backlog": "Usage records that the worker has not acknowledged.",
}
