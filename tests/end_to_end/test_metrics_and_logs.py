"""What service, server and pilots tell Prometheus and their logs, in real processes; and the examples in deploy/."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.conftest import Scan
from tests.end_to_end.test_service import SLOW

DEPLOY = Path(__file__).parents[2] / "deploy"


class Stage:
    """A service without a pilot, a pilot of its own, and where each is asked."""

    def __init__(self, scan, pilot, lines):
        self.scan, self.pilot, self.lines = scan, pilot, lines
        self.api = (scan.workdir / "service.url").read_text().strip()
        self.panda = (scan.workdir / "tokens" / "address").read_text().partition("\n")[0]

    def text(self, url: str, role: str | None = "user") -> str:
        answer = self.asked(url, role)
        answer.raise_for_status()
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.text

    def asked(self, url: str, role: str | None) -> requests.Response:
        token = (self.scan.workdir / "tokens" / f"{role}.token").read_text().strip() if role else ""
        headers = {"Authorization": f"Bearer {token}"} if role else {}
        return requests.get(f"{url}/metrics", headers=headers, timeout=600)


def read_until(process, pattern, lines):
    """Keeps a process's lines until one fits; a thread goes on reading."""
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True).start()
            return found
    raise AssertionError("".join(lines))


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    scan = Scan(tmp_path_factory.mktemp("metrics"))
    scan.write({"budget": {"trials": 4, "parallel": 2}}, SLOW)
    scan.here("submit", str(scan.file))
    lines: dict[str, list[str]] = {"service": [], "pilot": []}
    service = scan.start("serve", "--slots", "0", "--log-format", "json")
    pilot = None
    try:
        read_until(service, "the REST API is at", lines["service"])
        where = (scan.workdir / "tokens" / "address").read_text().partition("\n")[0]
        words = [sys.executable, "-m", "hpo_pilot.pilot", "--server", where, "--queue", "LOCAL", "--slots", "2"]
        words += ["--token-file", str(scan.workdir / "tokens" / "pilot.token"), "--workdir", str(scan.root / "pilot")]
        words += ["--metrics-port", "0", "--log-format", "json", "--debug"]
        pilot = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
        )
        metrics = read_until(pilot, r"metrics are at (http://[\d.:]+)/metrics", lines["pilot"])[1]
        scan.until("done")
        yield Stage(scan, metrics, lines)
    finally:
        for process in (pilot, service):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(600)


def families(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels; the parser refuses what Prometheus would."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples = found.setdefault(sample.name, {})
            key = tuple(sorted(sample.labels.items()))
            assert key not in samples, f"{sample.name} comes twice with {key}"
            samples[key] = sample.value
    return found


def eventually(look, seconds=600.0):
    end = time.monotonic() + seconds
    while True:
        try:
            return look()
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


def test_the_service_tells_of_searches_and_of_the_steering_process(stage):
    def look():
        found = families(stage.text(stage.api))
        assert found["hpo_pilot_searches"] == {(("state", "done"),): 1}
        assert found["hpo_pilot_search_trials"] == {(("search", "demo"), ("state", "finished")): 4}
        assert found["hpo_pilot_search_budget_trials"] == {(("search", "demo"),): 4}
        (best,) = found["hpo_pilot_search_best_value"].values()
        assert best == stage.scan.json("best", "demo")["value"]
        assert found["hpo_pilot_steering_up"] == {(): 1}
        assert found["hpo_pilot_store_bytes"][()] > 10_000
        # From the other process:
        assert found["hpo_pilot_results_told_total"] == {(): 4}
        assert found["hpo_pilot_ask_seconds_count"][("optimizer", "random"),] >= 1
        assert sum(found["hpo_pilot_panda_call_seconds_count"].values()) > 3
        assert abs(time.time() - found["hpo_pilot_steering_loop_timestamp_seconds"][()]) < 30
        assert any(dict(key)["path"] == "/api/v1/searches" for key in found["hpo_pilot_api_call_seconds_count"])

    stage.scan.here("list", "--service", stage.api, "--token-file", str(stage.scan.workdir / "tokens" / "user.token"))
    eventually(look)


def test_the_server_tells_of_jobs_and_calls(stage):
    found = families(stage.text(stage.panda, role="pilot"))
    assert found["hpo_pilot_server_job_attempts_ended_total"] == {(("state", "finished"),): 4}
    assert found["hpo_pilot_server_heartbeats_lost_total"] == {(): 0}
    assert found["hpo_pilot_server_call_seconds_count"][("call", "pilot/update_job"),] >= 4
    assert found["hpo_pilot_server_database_bytes"][()] > 10_000
    assert found["hpo_pilot_server_pilots_busy"] == {(): 0}


def test_the_pilot_tells_of_its_jobs(stage):
    text = requests.get(f"{stage.pilot}/metrics", timeout=600).text
    found = families(text)
    assert found["hpo_pilot_pilot_jobs_ended_total"] == {(("outcome", "finished"), ("reason", "")): 4}
    assert found["hpo_pilot_pilot_slots"] == {(): 2}
    assert found["hpo_pilot_pilot_jobs_running"] == {(): 0}
    assert found["hpo_pilot_pilot_stage_in_seconds_count"] == {(): 4}
    assert found["hpo_pilot_pilot_disk_free_bytes"][()] > 0
    assert abs(time.time() - found["hpo_pilot_pilot_server_contact_timestamp_seconds"][()]) < 60
    assert stage.pilot.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("which", ["api", "panda"])
def test_metrics_want_a_token(stage, which):
    url = getattr(stage, which)
    assert stage.asked(url, None).status_code == 401
    refused = requests.get(f"{url}/metrics", headers={"Authorization": "Bearer nonsense"}, timeout=600)
    assert refused.status_code == 401 and "hpo_pilot_" not in refused.text
    for role in ("user", "pilot"):
        assert stage.asked(url, role).status_code == 200


def test_no_token_and_no_payload_s_text_is_in_the_figures(stage):
    texts = stage.text(stage.api) + stage.text(stage.panda) + requests.get(f"{stage.pilot}/metrics", timeout=600).text
    for path in (stage.scan.workdir / "tokens").glob("*.token"):
        assert path.read_text().strip() not in texts
    assert str(stage.scan.root) not in texts


def test_what_the_examples_ask_for_is_there(stage):
    """Every metric of the dashboard and of the alerts is one that a process tells of."""
    texts = eventually(lambda: stage.text(stage.api)) + stage.text(stage.panda)
    texts += requests.get(f"{stage.pilot}/metrics", timeout=600).text
    told = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", texts, re.MULTILINE):
        told |= {name, *(f"{name}{end}" for end in ("_bucket", "_count", "_sum"))} if kind == "histogram" else {name}
    dashboard = json.loads((DEPLOY / "grafana" / "hpo-pilot.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {name for expression in asked for name in re.findall(r"\bhpo_pilot_\w+", expression)}
    # Of allocations alone.
    assert names - told == {"hpo_pilot_pilot_nodes_up", "hpo_pilot_pilot_node_seconds_total"}
    assert len(names) > 25
    assert all(panel["description"] and panel["targets"] for panel in dashboard["panels"] if panel["type"] != "row")


def test_logs_are_objects_with_fields_and_without_tokens(stage):
    token = str(stage.scan.workdir / "tokens" / "user.token")
    stage.scan.here("list", "--service", stage.api, "--token-file", token)  # a call for the API's log
    secrets = [path.read_text().strip() for path in (stage.scan.workdir / "tokens").glob("*.token")]
    texts = {name: "".join(lines) for name, lines in stage.lines.items()}
    texts["api"] = (stage.scan.workdir / "logs" / "api.log").read_text()
    for text in texts.values():
        assert not any(secret in text for secret in secrets)
    ours = [line for line in texts["pilot"].splitlines() if line]
    records = [json.loads(line) for line in ours]
    assert {"time", "level", "logger", "message", "process", "program"} <= records[0].keys()
    assert {record["program"] for record in records} == {"pilot"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", record["time"]) for record in records)
    calls = [json.loads(line) for line in texts["api"].splitlines() if line.startswith('{"')]
    assert any(record["program"] == "api" and record["user"] for record in calls if "user" in record)
