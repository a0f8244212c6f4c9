"""The examples for Prometheus and Grafana, and the figures themselves, as Prometheus' own tool reads them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from hpo_pilot.panda.client_process import CALL_METRICS, time_call
from hpo_pilot.pilot.report import METRICS_REGISTRY as PILOT_METRICS
from hpo_pilot.server import metrics as server_metrics
from hpo_pilot.server.metrics import exposition
from hpo_pilot.steering import metrics as service_metrics
from hpo_pilot.web import app as rest_metrics
from tests.real.processes import missing
from tests.rest_api import add_results, store_of, write_search

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def promtool():
    """Runs promtool; it must have nothing to complain of."""
    tool = shutil.which("promtool") or missing("promtool, of Debian's package prometheus")

    def run(*words: str, given: bytes | None = None) -> str:
        done = subprocess.run([tool, *words], input=given, capture_output=True, check=False, timeout=600)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return (done.stdout + done.stderr).decode()

    return run


def test_configuration_and_alerts(promtool, tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for name in ("hpo-pilot.token", "hpo-pilot-ca.pem"):
        (tmp_path / name).write_text("")
        text = text.replace(f"/etc/prometheus/{name}", str(tmp_path / name))
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))
    assert "4 rules found" in promtool("check", "rules", str(tmp_path / "alerts.yml"))


def test_the_dashboard_s_expressions(promtool, tmp_path: Path) -> None:
    """Each as a rule, for such files promtool reads."""
    dashboard = json.loads((DEPLOY / "grafana" / "hpo-pilot.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = [{"record": f"x:{n}", "expr": one.replace("$search", ".*")} for n, one in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


def test_the_figures(promtool, tmp_path: Path) -> None:
    """Names, units and help texts as Prometheus' conventions have them."""
    from hpo_pilot.operations.client import SearchClient

    with SearchClient.local(tmp_path / "work") as client:
        client.submit(write_search(tmp_path, "demo"))
    add_results(tmp_path / "work", "demo")
    server_metrics.CALL_SECONDS.labels("pilot/update_job").observe(0.1)
    with service_metrics.ASK_SECONDS.labels("random").time(), time_call("getTaskStatus"):
        pass
    store = store_of(tmp_path / "work")
    try:
        texts = [exposition(rest_metrics.metrics_of(store), rest_metrics.METRICS_REGISTRY).body]
    finally:
        store.close()
    registries = (server_metrics.REGISTRY, service_metrics.REGISTRY, CALL_METRICS, PILOT_METRICS)
    texts += [generate_latest(registry) for registry in registries]
    for text in texts:
        promtool("check", "metrics", given=bytes(text))
