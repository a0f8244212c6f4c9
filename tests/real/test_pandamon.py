"""The last panda-client that reads a BigPanDA (pbook's `show`, up to 1.5) reads the embedded server: PANDAMON_URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.real.processes import sdist
from tests.server.conftest import RunningServer
from tests.server.monitor import FAILED, Monitor, finished

VERSION = "1.5.80"

READER = """
import json, sys
from pandaclient import localSpecs, queryPandaMonUtils
stamp, url, tasks = queryPandaMonUtils.query_tasks(
    username="me", taskname="user.me.mon.*", status="finished", superstatus="finished|done", days=14,
    limit=100, metadata=True, sync=True, verbose=False)
specs = [localSpecs.LocalTaskSpec(task, source_url=url, timestamp=stamp) for task in tasks]
(spec,) = specs
spec.print_standard(); spec.print_long(); spec.print_plain()
_, jobs = queryPandaMonUtils.query_jobs(spec.jeditaskid)
_, every = queryPandaMonUtils.query_jobs(spec.jeditaskid, drop=False)
_, _, active = queryPandaMonUtils.query_tasks(username="me", superstatus="running|submitting|registered|ready")
json.dump({
    "over": spec.is_terminated(), "finished": spec.pctfinished, "files": spec.nfiles,
    "metadata": len(tasks[0]["jobs_metadata"]),
    "times": [str(type(job["starttime"]).__name__) for job in jobs["jobs"]],
    "jobs": [len(jobs["jobs"]), len(every["jobs"])],
    "active": [task["taskname"] for task in active],
}, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def panda_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That version, unpacked."""
    target = tmp_path_factory.mktemp("panda-client")
    with tarfile.open(sdist("panda-client", VERSION)) as archive:
        archive.extractall(target, filter="data")
    return target / f"panda_client-{VERSION}"


def test_pbooks_way_to_look(panda_client: Path, tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "server")
    try:
        monitor = Monitor(server)
        monitor.run("user.me.mon.cafecafe.g1.mon/", [finished(0.5, 0.1), FAILED], maxAttempt=2)
        (again,) = monitor.pilot.acquire(site_name="MON", node="n1")
        ended = {"pilot_error_code": 1305, "start_time": "2026-01-31 12:00:00"}
        monitor.pilot.update(again["PandaID"], "failed", **ended)
        monitor.run("user.me.mon.cafecafe.g2.busy/", [{}])
        key = (server.folder / "files" / "bigmon.key").read_text()
        answer = tmp_path / "answer.json"
        done = subprocess.run(
            [sys.executable, "-c", READER, answer],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(panda_client),
                "PANDA_BEHIND_REAL_LB": "1",
                "PANDAMON_URL": f"{server.url}/bigmon/{key}",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "user.me.mon.cafecafe.g1.mon/" in done.stdout and "50.0%" in done.stdout
        assert json.loads(answer.read_text()) == {
            "over": True,
            "finished": "50.0%",
            "files": "2",
            "metadata": 1,
            "times": ["datetime", "datetime"],
            "jobs": [2, 3],
            "active": ["user.me.mon.cafecafe.g2.busy/"],
        }
    finally:
        server.stop()
