"""Pilot, runner and the embedded server together."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from hpo_pilot.jobs import JobNeeds, Member, TaskSpec
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.panda.task_parameters import task_parameters
from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.pilot.conftest import ROOT, PilotProcess

GOOD = """echo '{"status": 0, "loss": 0.5}' > output.json"""


class Embedded:
    """`python -m hpo_pilot.server` on a free port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "files" / "cache").mkdir(parents=True)
        make_token_folder(folder / "tokens")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        argv = [
            *(sys.executable, "-m", "hpo_pilot.server", "--database", f"sqlite:///{self.folder}/panda.db"),
            *("--files", str(self.folder / "files"), "--port", str(self.port), "--tokens", str(self.folder / "tokens")),
        ]
        env = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def submit(
        self,
        command: str,
        jobs: int,
        *,
        cores: int = 1,
        needs: JobNeeds | None = None,
        files: Path | None = None,
        search: str = "s",
        first: int = 0,
        **payload: Any,
    ) -> int:
        numbers = range(first, first + jobs)
        needs = needs or JobNeeds(cores=cores, memory_mb=500, minutes=5.0)
        document = {"command": command, "metric": "loss", "minutes": needs.minutes, **payload}
        document |= {"nodes": needs.nodes, "ranks_per_node": needs.ranks_per_node}
        task = TaskSpec(
            name=f"user.me.s.1a2b3c4d.g{time.monotonic_ns()}/",
            search=search,
            uid="1a2b3c4d",
            generation=1,
            folds=1,
            points={n: {"x": n} for n in numbers},
            jobs=tuple((Member(n, 0, place),) for place, n in enumerate(numbers)),
            sandbox=build_sandbox(files, document, self.folder / "sandboxes"),
            needs=needs,
            container=payload.get("container"),
            has_outputs="outputs" in payload,
            queue="LOCAL",
        )
        self.upload(task.sandbox)
        parameters = task_parameters(task, owner="me", vo="hpo_pilot", server=self.url, sandbox=task.sandbox.name)
        answer = self.call("POST", "task/submit", task_parameters=parameters, parent_tid=None)
        return int(re.findall(r"\d+", str(answer))[-1])

    def upload(self, sandbox: Path) -> None:
        self._send("POST", "file_server/upload_cache_file", files={"file": (sandbox.name, sandbox.read_bytes())})

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        return self._send(method, path, **{"json" if method == "POST" else "params": arguments})

    def _send(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token('me', Role.USER)}", "Origin": "hpo_pilot"}
        answer = requests.request(method, f"{self.url}/api/v1/{path}", headers=headers, timeout=20, **options).json()
        assert answer["success"], answer
        return answer["data"]

    def state(self, task: int) -> str:
        return str(self.call("GET", "task/get_status", task_id=task))

    def verdicts(self, task: int) -> list[dict[str, Any]]:
        found = self.call("GET", "job/get_metadata_for_analysis_jobs", task_id=task)
        return [json_of(x)["user_job_metadata"]["hpo_pilot"] for x in found.values()]


def json_of(value: Any) -> dict[str, Any]:
    return dict(json.loads(value) if isinstance(value, str) else value)


@pytest.fixture
def embedded(tmp_path):
    server = Embedded(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def pilot(tmp_path, embedded):
    process = PilotProcess(tmp_path, embedded.url, token("me", Role.PILOT))
    yield process
    for started in process.processes:
        started.kill()
        started.wait()


def test_kill_9_of_pilot_and_server_costs_an_attempt_and_no_result(embedded, pilot, until):
    script = (
        "kept=$HPO_PILOT_CHECKPOINT_DIR; i=$(cat $kept/i || echo 0); while [ $i -lt 12 ]; do i=$((i+1)); "
        "echo $i > $kept/new; mv $kept/new $kept/i; sleep 0.2; "
        """echo '{"step": '$i', "value": 1}' >> progress.jsonl; done; """
        """echo '{"status": 0, "loss": '$i'}' > output.json"""
    )
    task = embedded.submit(script, 3)
    process = pilot.start()
    until(lambda: list(pilot.workdir.glob("checkpoints/1a2b3c4d/t*f0/i")))
    embedded.kill()
    time.sleep(0.5)
    process.kill()
    process.wait()
    embedded.start()
    pilot.start()
    until(lambda: embedded.state(task) == "done")
    verdicts = embedded.verdicts(task)
    assert sorted(v["trial"] for v in verdicts) == [0, 1, 2]
    assert all(v["value"] == 12 for v in verdicts)
    again = [v for v in verdicts if v["attempt"] == 2]
    assert again and all(v["progress"][0][0] > 1 for v in again)  # they went on, and did not begin anew
    assert not list(pilot.workdir.glob("checkpoints/1a2b3c4d/t*f0"))


def test_a_report_that_a_killed_pilot_kept_counts(embedded, pilot, until):
    """The next pilot of its name sends it, under another token, and is known by its key."""
    started, gate = pilot.folder / "started", pilot.folder / "gate"
    task = embedded.submit(f"touch {started}; while [ ! -e {gate} ]; do sleep 0.1; done; {GOOD}", 1)
    process = pilot.start()
    until(started.exists)
    (key,) = pilot.workdir.glob("jobs/*.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_text()
    embedded.kill()
    gate.touch()
    until(lambda: list(pilot.workdir.glob("unsent/*/*.json")))
    process.kill()
    process.wait()
    embedded.start()
    pilot.token_file.write_text(token("renamed", Role.PILOT))
    pilot.start()
    until(lambda: embedded.state(task) == "done")
    assert [verdict["attempt"] for verdict in embedded.verdicts(task)] == [1]
    assert key.read_text() == before
