"""Where Prometheus finds a pilot's figures: `--metrics-port`, on loopback, for it knows no tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import Info, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hpo_pilot import __version__
from hpo_pilot.errors import TryAgainError
from hpo_pilot.pilot.allocation_room import AllocationRoom
from hpo_pilot.pilot.metrics import REGISTRY
from hpo_pilot.pilot.room import Room
from hpo_pilot.pilot.running import Running
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.pilot.workdir import WorkDir

#: Whoever reaches the port reads the figures, without a token: nobody beyond this machine does.
_HOST = "127.0.0.1"

log = logging.getLogger(__name__)


class _Now(Collector):
    """What is looked up when somebody asks."""

    def __init__(self, room: Room[Any], running: Running, workdir: WorkDir) -> None:
        self._room, self._running, self._workdir = room, running, workdir

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See Collector."""
        running = self._running.all()
        yield GaugeMetricFamily("hpo_pilot_pilot_jobs_running", "Jobs whose commands run.", len(running))
        yield GaugeMetricFamily("hpo_pilot_pilot_slots", "Jobs that may be here at a time.", self._room.most)
        free = self._workdir.free_mb() << 20
        yield GaugeMetricFamily("hpo_pilot_pilot_disk_free_bytes", "Free disk of the work folder.", free)
        if isinstance(self._room, AllocationRoom):
            yield from _of_allocation(self._room)


def _of_allocation(room: AllocationRoom) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    waiting, spent = room.counts()[1], room.usage().nodes
    yield GaugeMetricFamily("hpo_pilot_pilot_jobs_waiting", "Jobs that wait for nodes of the allocation.", waiting)
    yield GaugeMetricFamily("hpo_pilot_pilot_nodes_up", "Nodes of the allocation that are of use.", len(room.up))
    seconds = CounterMetricFamily(
        "hpo_pilot_pilot_node_seconds", "Seconds of the allocation's nodes; their rate is how many.", labels=["use"]
    )
    for use in ("used", "lost", "idle"):
        seconds.add_metric([use], getattr(spent, use))
    yield seconds


@contextmanager
def metrics_served(settings: PilotSettings, room: Room[Any], running: Running, workdir: WorkDir) -> Iterator[None]:
    """Answers Prometheus for the length of a block, if the settings name a port.

    Raises:
        TryAgainError: the port is taken.
    """
    if settings.metrics_port is None:
        yield
        return
    with _registered(settings, _Now(room, running, workdir)):
        where = f"{_HOST}:{settings.metrics_port}"
        try:
            server, thread = start_http_server(settings.metrics_port, _HOST, REGISTRY)
        except OSError as error:
            raise TryAgainError(
                f"--metrics-port: {where} cannot be listened at: {error.strerror or error}; name another port"
            ) from error
        log.info("metrics are at http://%s:%d/metrics", _HOST, server.server_port)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def _registered(settings: PilotSettings, now: _Now) -> Iterator[None]:
    told = Info("hpo_pilot_pilot", "This pilot.", registry=None)
    told.info({"version": __version__, "queue": settings.queue, "worker": settings.worker_name})
    for collector in (told, now):
        REGISTRY.register(collector)
    try:
        yield
    finally:
        for collector in (told, now):
            REGISTRY.unregister(collector)
