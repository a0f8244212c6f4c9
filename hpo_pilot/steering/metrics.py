"""Metrics of the steering process for Prometheus.

The steering process writes its metrics in Prometheus' text format to a file in the work folder every few seconds. The
process of the REST API appends that file to its own metrics. A second port would need an address, a certificate and a
token of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hpo_pilot.files import write_whole
from hpo_pilot.panda.client_process import CALL_METRICS as PANDA_REGISTRY

log = logging.getLogger(__name__)

REGISTRY = CollectorRegistry()

#: Seconds between two writes of the file.
_EVERY = 5.0

#: An older file is ignored: the steering process has ended or hangs.
FRESH_SECONDS = 60.0

ASK_SECONDS = Histogram(
    "hpo_pilot_ask_seconds",
    "How long optimizers took to propose points, the results told before included.",
    ["optimizer"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
    registry=REGISTRY,
)
GENERATIONS = Counter("hpo_pilot_generations", "Generations that were submitted.", registry=REGISTRY)
RESULTS = Counter("hpo_pilot_results_told", "Results that optimizers were told of.", registry=REGISTRY)
_LOOP = Gauge(
    "hpo_pilot_steering_loop_timestamp_seconds",
    "When the steering loop last went round, in seconds since the epoch; its age is how far behind it is.",
    registry=REGISTRY,
)
_STARTED = Gauge("hpo_pilot_steering_start_timestamp_seconds", "When the steering process started.", registry=REGISTRY)


class _Snapshot:
    """The file with the metrics of this process."""

    def __init__(self, path: Path) -> None:
        """Writes nothing yet."""
        self._path = path
        self._due = 0.0
        _STARTED.set_to_current_time()

    def loop_went_round(self) -> None:
        """Records the time of this round and writes the file if that is due. A write error is only logged."""
        _LOOP.set_to_current_time()
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY
        text = b"".join(generate_latest(registry) for registry in (REGISTRY, PANDA_REGISTRY)).decode()
        try:
            write_whole(self._path, text, 0o600, scratch=True)
        except OSError as error:
            log.warning("%s is not written: %s", self._path, error.strerror or error)


@contextmanager
def snapshots(path: Path) -> Iterator[_Snapshot]:
    """Keeps the metrics of this process in a file during a block."""
    try:
        yield _Snapshot(path)
    finally:
        path.unlink(missing_ok=True)


def last_snapshot(path: Path) -> bytes:
    """Returns the last metrics of the steering process; empty if they are older than `FRESH_SECONDS`."""
    try:
        if time.time() - path.stat().st_mtime > FRESH_SECONDS:
            return b""
        return path.read_bytes()
    except FileNotFoundError:
        return b""
