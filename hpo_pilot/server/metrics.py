"""What the embedded server counts for Prometheus; `web.metrics_http` shows it.

One server is one process, so that its instruments are the module's.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client import Counter as PrometheusCounter

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

#: Calls that wait for jobs or for changes take as long as the caller lets them wait.
CALL_SECONDS = Histogram(
    "hpo_pilot_server_call_seconds",
    "How long calls took, by path below /api/v1/; acquire_jobs includes the wait for a job, changes that for news.",
    ["call"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
CALL_FAILURES = PrometheusCounter(
    "hpo_pilot_server_call_failures", "Calls that the server could not answer (5xx).", ["call"], registry=REGISTRY
)
ATTEMPTS_ENDED = PrometheusCounter(
    "hpo_pilot_server_job_attempts_ended", "Attempts of jobs that have ended, by state.", ["state"], registry=REGISTRY
)
HEARTBEATS_LOST = PrometheusCounter(
    "hpo_pilot_server_heartbeats_lost", "Attempts that ended since nothing was heard of them.", registry=REGISTRY
)
