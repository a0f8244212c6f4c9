"""What is counted for Prometheus of the calls that go to PanDA through panda-client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()

_SECONDS = Histogram(
    "hpo_pilot_panda_call_seconds",
    "How long calls of panda-client took, by its name for them.",
    ["call"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
_ERRORS = Counter(
    "hpo_pilot_panda_call_errors",
    "Calls of panda-client that failed, by what came of them.",
    ["call", "error"],
    registry=REGISTRY,
)


@contextmanager
def measured(call: str) -> Iterator[None]:
    """A call goes on meanwhile."""
    with _SECONDS.labels(call).time():
        try:
            yield
        except Exception as error:
            _ERRORS.labels(call, type(error).__name__).inc()
            raise
