"""Exports, opened by the tools that they are for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from hpo_pilot.report import optuna
from hpo_pilot.steering.server_processes import free_port
from tests.real.processes import missing
from tests.report.exports.made import curves_of, every_kind, search_of, subject_of


@pytest.fixture
def dashboard(tmp_path: Path):
    """Starts optuna-dashboard over a storage; returns its address."""
    if importlib.util.find_spec("optuna_dashboard") is None:
        missing("optuna-dashboard is not installed: pip install -r tests/real/requirements.txt")
    processes = []

    def start(path: Path) -> str:
        port = free_port()
        words = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()", str(path)]
        words += ["--host", "127.0.0.1", "--port", str(port), "--server", "wsgiref"]
        with (tmp_path / "dashboard.log").open("w") as log:
            processes.append(subprocess.Popen(words, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if requests.get(f"{url}/api/studies", timeout=60).ok:
                    return url
            except requests.ConnectionError:
                assert processes[-1].poll() is None, (tmp_path / "dashboard.log").read_text()
                time.sleep(0.2)
        raise AssertionError((tmp_path / "dashboard.log").read_text())

    yield start
    for process in processes:
        process.terminate()
        process.wait(60)


def test_optuna_dashboard_shows_a_search(dashboard, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    optuna.write(subject_of(search_of(), every_kind(), curves_of(range(1, 13))), path)
    url = dashboard(path)
    (study,) = requests.get(f"{url}/api/studies", timeout=60).json()["study_summaries"]
    assert study["study_name"] == "digits"
    found = requests.get(f"{url}/api/studies/{study['study_id']}", timeout=60).json()
    assert [trial["number"] for trial in found["trials"]] == list(range(14))
    assert [trial["state"] for trial in found["trials"]][9:] == ["Complete", "Fail", "Pruned", "Fail", "Complete"]
    first = found["trials"][0]
    assert first["values"] == [1.5]
    assert {one["name"]: one["param_external_value"] for one in first["params"]}["solver"] == "sgd"
    assert [one["step"] for one in first["intermediate_values"]] == [1, 2, 3]
    assert requests.get(f"{url}/dashboard/", timeout=60).ok
