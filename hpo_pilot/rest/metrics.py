"""``/metrics`` of the service: what is in the store, how calls go, and what the steering process says of itself.

Any valid token will do, of whatever role.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from hpo_pilot import __version__
from hpo_pilot.rest.guard import PREFIX
from hpo_pilot.rest.problem import problem_response
from hpo_pilot.server.access.auth import TokenRefused
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.server.web.metrics_http import PATH, exposition
from hpo_pilot.service.metrics import last_snapshot
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.lease import holder
from hpo_pilot.store.tallies import generations_made, size_of

#: Searches that have figures of their own: those that are not over, and the last ones that are, so many in all.
_SEARCHES = 100

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
_CALL_SECONDS = Histogram(
    "hpo_pilot_api_call_seconds",
    "How long calls of the API and pages took, by their pattern; those that wait for news take what they may.",
    ["method", "path"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


class Measured:
    """An ASGI application around another: measures its calls, and tells Prometheus."""

    def __init__(self, app: ASGIApp, gate: Gate, store: Store, workdir: WorkDir) -> None:
        """Lets those read the figures whom `gate` knows."""
        self._app, self._gate, self._store, self._workdir = app, gate, store, workdir

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == PATH and scope["method"] == "GET":
            try:
                self._gate.caller(Request(scope))
            except TokenRefused as error:
                await problem_response(401, "unauthorized", str(error))(scope, receive, send)
                return
            response = await run_in_threadpool(self._answer)
            await response(scope, receive, send)
            return
        begun = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        finally:
            # The pattern, which the router leaves in the scope: a path would be a label without bounds.
            pattern = getattr(scope.get("route"), "path", "other")
            if scope["path"].startswith(PREFIX) and not pattern.startswith(PREFIX):
                pattern = f"{PREFIX}/{pattern.lstrip('/')}"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            _CALL_SECONDS.labels(method, pattern).observe(time.perf_counter() - begun)

    def _answer(self) -> Any:
        found = metrics_of(self._store)
        return exposition(found, REGISTRY, more=last_snapshot(self._workdir.steering_metrics))


def metrics_of(store: Store) -> list[Metric]:
    """What the store tells, now."""
    records = store.searches()
    shown = _shown(records)
    searches = GaugeMetricFamily("hpo_pilot_searches", "Searches, by state.", labels=["state"])
    for state, number in sorted(Counter(record.state.value for record in records).items()):
        searches.add_metric([state], number)
    return [
        InfoMetricFamily("hpo_pilot_service", "The service.", {"version": __version__}),
        searches,
        *_of_searches(store, shown),
        GaugeMetricFamily("hpo_pilot_store_bytes", "Size of the store.", size_of(store.engine)),
        GaugeMetricFamily(
            "hpo_pilot_steering_up",
            "1 where a process holds the lease on the store.",
            int(holder(store.engine) is not None),
        ),
    ]


def _shown(records: list[SearchRecord]) -> list[SearchRecord]:
    """Those with figures of their own, the newest first where there are too many."""
    return sorted(records, key=lambda record: (record.state.is_over, -record.id))[:_SEARCHES]


def _of_searches(store: Store, records: list[SearchRecord]) -> list[Metric]:
    trials = GaugeMetricFamily("hpo_pilot_search_trials", "Trials, by state.", labels=["search", "state"])
    budget = GaugeMetricFamily("hpo_pilot_search_budget_trials", "Trials of the budget.", labels=["search"])
    made = GaugeMetricFamily("hpo_pilot_search_generations", "Generations so far.", labels=["search"])
    spent = GaugeMetricFamily("hpo_pilot_search_job_seconds", "Seconds that its jobs ran.", labels=["search"])
    best = GaugeMetricFamily(
        "hpo_pilot_search_best_value",
        "The best figure of merit, of searches with one objective.",
        labels=["search", "metric"],
    )
    generations = generations_made(store.engine)
    for record in records:
        for state, number in sorted(store.counts(record.id).items()):
            trials.add_metric([record.name, state.value], number)
        budget.add_metric([record.name], record.search.budget.trials)
        made.add_metric([record.name], generations.get(record.id, 0))
        spent.add_metric([record.name], store.job_seconds(record.id))
        if len(record.search.objectives) == 1 and (found := store.best_so_far(record.id, record.search.objective.sign)):
            best.add_metric([record.name, record.search.objective.metric[:100]], found[1])
    return [trials, budget, made, spent, best]
