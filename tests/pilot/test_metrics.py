"""What a pilot tells Prometheus."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from hpo_pilot.errors import TryAgainError
from hpo_pilot.pilot import report
from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.machine import MachinePool
from hpo_pilot.pilot.pilot import metrics_served
from hpo_pilot.pilot.report import Outcome
from hpo_pilot.pilot.settings import PilotSettings


def parts(settings: PilotSettings) -> Any:
    pool, workdir = MachinePool(3, 3), SimpleNamespace(free_mb=lambda: 5)
    return SimpleNamespace(settings=settings, pool=pool, workdir=workdir, watchdog=SimpleNamespace(running=lambda: []))


def ended(outcome: str, reason: str) -> float:
    labels = {"outcome": outcome, "reason": reason}
    return report.METRICS_REGISTRY.get_sample_value("hpo_pilot_pilot_jobs_ended_total", labels) or 0.0


@pytest.mark.parametrize(
    ("outcome", "given_back", "labels"),
    [
        (Outcome(0), False, ("finished", "")),
        (Outcome(1, "it said no"), False, ("failed", "payload")),
        (Outcome(None, failure=JobFailure("full", PilotErrorCode.NO_LOCAL_SPACE)), False, ("failed", "no_local_space")),
        (Outcome(None, failure=JobFailure("told to stop", PilotErrorCode.SIGTERM)), True, ("given_back", "")),
    ],
)
def test_ends_are_counted_by_class(outcome, given_back, labels):
    before = ended(*labels)
    report.count_job_end(outcome, given_back=given_back)
    assert ended(*labels) == before + 1


def test_it_listens_where_it_is_told(make_settings, caplog):
    caplog.set_level("INFO")
    with metrics_served(parts(make_settings())):
        assert caplog.messages == []
    with metrics_served(parts(make_settings(metrics_port=0))):
        url = caplog.messages[-1].removeprefix("metrics are at ")
        assert url.startswith("http://127.0.0.1:")
        text = requests.get(url, timeout=600).text
        assert "hpo_pilot_pilot_slots 3.0" in text
        assert "hpo_pilot_pilot_disk_free_bytes 5.24288e+06" in text
        assert 'queue="LOCAL"' in text
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=600)


def test_a_port_that_is_taken_is_named(make_settings):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        served = metrics_served(parts(make_settings(metrics_port=port)))
        with pytest.raises(TryAgainError, match=f"127.0.0.1:{port} cannot be opened"), served:
            pass
