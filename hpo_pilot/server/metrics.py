"""The server's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from sqlalchemy import and_, func, select
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hpo_pilot import __version__
from hpo_pilot.databases import database_bytes
from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.database import AT_PILOT, WAITS, Database, Transaction, jobs, tasks
from hpo_pilot.server.job_records import jobs_at_queues
from hpo_pilot.server.tokens import TokenRefused, Tokens

# Instruments. A process runs one server, so the module owns them.

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


# ``/metrics``. A valid token of any role is enough: the figures show amounts of work, not whose work it is.

PATH = "/metrics"

#: Number of queues with figures of their own; all others are `other`, because any name can be a queue.
_QUEUES = 50


class Found(Collector):
    """Metrics that were looked up for one answer."""

    def __init__(self, metrics: list[Metric]) -> None:
        """Takes them."""
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        yield from self._metrics


def exposition(found: list[Metric], *registries: CollectorRegistry, more: bytes = b"") -> Response:
    """Returns the text for Prometheus: `found`, the metrics of `registries`, and `more`, already in that format."""
    own = CollectorRegistry()
    own.register(Found(found))
    texts = [generate_latest(registry) for registry in (own, *registries)]
    return Response(b"".join(texts) + more, media_type=CONTENT_TYPE_LATEST)


def route(database: Database, tokens: Tokens, n_waiting: Callable[[], int]) -> Route:
    """Returns the route; `n_waiting` returns the number of pilots that wait for a job."""

    async def answer(request: Request) -> Response:
        try:
            tokens.caller(request)
        except TokenRefused as error:
            return PlainTextResponse(f"{error}\n", 401, {"WWW-Authenticate": "Bearer"})
        found = await database.read(_in_database)
        waiting = GaugeMetricFamily("hpo_pilot_server_pilots_waiting", "Pilots that wait for a job.", n_waiting())
        version = InfoMetricFamily("hpo_pilot_server", "The embedded PanDA server.", {"version": __version__})
        return exposition([version, waiting, *found], REGISTRY)

    return Route(PATH, answer, methods=["GET"])


def _in_database(tx: Transaction) -> list[Metric]:
    of_jobs = GaugeMetricFamily(
        "hpo_pilot_server_jobs",
        "Jobs that are not over; of more than 50 queues the rest is `other`.",
        labels=("queue", "state"),
    )
    by_queue: Counter[tuple[str, str]] = Counter()
    sizes: Counter[str] = Counter()
    active = _active(tx)
    for (queue, _), number in active.items():
        sizes[queue] += number
    named = {queue for queue, _ in sizes.most_common(_QUEUES)}
    for (queue, state), number in active.items():
        by_queue[queue if queue in named else "other", state] += number
    for labels, number in sorted(by_queue.items()):
        of_jobs.add_metric(labels, number)
    pilots = select(jobs.c.harvester_id, jobs.c.worker_id).where(AT_PILOT).distinct().subquery()
    busy = tx.connection.scalar(select(func.count()).select_from(pilots)) or 0
    size = database_bytes(tx.connection)
    return [
        of_jobs,
        GaugeMetricFamily("hpo_pilot_server_pilots_busy", "Pilots that have jobs.", busy),
        GaugeMetricFamily("hpo_pilot_server_database_bytes", "Size of the server's database.", size),
    ]


def _active(tx: Transaction) -> Counter[tuple[str, str]]:
    """Jobs that are not over, by queue and state; counted through the partial indices."""
    paused = select(tasks.c.task_id).where(tasks.c.status == TaskState.PAUSED.value)
    aside = and_(jobs.c.task_id.in_(paused), jobs.c.status == JobState.DEFINED.value)
    return Counter(
        {at: number for condition in (WAITS, AT_PILOT, aside) for at, number in jobs_at_queues(tx, condition).items()}
    )
