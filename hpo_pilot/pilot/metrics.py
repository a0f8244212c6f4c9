"""What a pilot counts for Prometheus; `metrics_endpoint` serves it.

One pilot is one process, so that its instruments are the module's.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from hpo_pilot.pilot.report import Outcome

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

_ENDED = Counter(
    "hpo_pilot_pilot_jobs_ended",
    "Jobs that have ended at this pilot; `reason` is the class of a failure, empty of a good end.",
    ["outcome", "reason"],
    registry=REGISTRY,
)
_STAGE_IN = Histogram(
    "hpo_pilot_pilot_stage_in_seconds",
    "What it took to make a job ready to run: to unpack its sandbox, fetch its inputs, copy them to its nodes.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
    registry=REGISTRY,
)
_CONTACT = Gauge(
    "hpo_pilot_pilot_server_contact_timestamp_seconds",
    "When the PanDA server last answered, in seconds since the epoch; 0: never.",
    registry=REGISTRY,
)
_AWAY = Counter(
    "hpo_pilot_pilot_server_errors", "Calls of the PanDA server that were not answered, or later.", registry=REGISTRY
)


def note_end(outcome: Outcome, *, given_back: bool) -> None:
    """A job has ended here."""
    if given_back:
        _ENDED.labels("given_back", "").inc()
    elif outcome.finished:
        _ENDED.labels("finished", "").inc()
    else:
        # A fixed set of words: a message would be a label without bounds.
        _ENDED.labels("failed", outcome.failure.code.name.lower() if outcome.failure else "payload").inc()


def note_stage_in(seconds: float) -> None:
    """A job was made ready to run."""
    _STAGE_IN.observe(seconds)


def note_answer(*, is_good: bool) -> None:
    """The PanDA server has answered, or not."""
    if is_good:
        _CONTACT.set_to_current_time()
    else:
        _AWAY.inc()
