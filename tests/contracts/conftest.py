"""A real server, a manager that talks to it through panda-client, and a pilot played by hand."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import requests

from hpo_pilot.jobs import JobNeeds, TaskSpec
from hpo_pilot.panda.manager import PandaManager, PandaServer
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.server.auth import Role
from hpo_pilot.server.process import ServerProcess, write_tokens


@dataclass
class HandPilot:
    """Acquires jobs and ends them as a test says, through the server's real pilot API."""

    url: str

    def call(self, path: str, **arguments: Any) -> dict[str, Any]:
        answer = requests.post(
            f"{self.url}/api/v1/pilot/{path}",
            json=arguments,
            headers={"Authorization": "Bearer pilot-token", "Origin": "hpo_pilot"},
            timeout=30,
        )
        answer.raise_for_status()
        return answer.json()

    def acquire(self, count: int = 1) -> list[dict[str, Any]]:
        answer = self.call("acquire_jobs", site_name="LOCAL", prod_source_label="user", node="n1", n_jobs=count)
        return answer["data"]["jobs"] if answer["success"] else []

    def end(self, job: dict[str, Any], state: str, **arguments: Any) -> dict[str, Any]:
        return self.call(
            "update_job", job_id=job["PandaID"], job_status=state, attempt_nr=job["attemptNr"], node="n1", **arguments
        )

    def finish(self, job: dict[str, Any], value: float | None, message: str = "") -> None:
        """Ends a job as the payload runner would have it."""
        command = unquote(re.search(r'-p "([^"]*)"', job["jobPars"])[1])
        encoded, number = re.search(r"--task (\S+) --number (\d+)", command).groups()
        task = json.loads(zlib.decompress(base64.urlsafe_b64decode(encoded)))
        trial, fold, _seed = task["jobs"][int(number) - 1]
        verdict = {
            **{key: task[key] for key in ("search", "uid", "generation")},
            **{"version": 1, "trial": trial, "fold": fold, "number": int(number), "attempt": int(job["attemptNr"])},
            **{"status": 0 if value is not None else 1, "value": value, "message": message},
            **{"started": 10.0, "ended": 12.0, "seconds": 2.0},
        }
        self.end(job, "finished", meta_data=json.dumps({"user_job_metadata": {"hpo_pilot": verdict}}))


@dataclass
class Ground:
    """What a contract test stands on."""

    manager: PandaManager
    pilot: HandPilot
    server: ServerProcess
    sandbox: Path

    def task(
        self, generation: int = 1, jobs: Sequence[tuple[int, int]] = ((1, 0), (2, 0)), revision: int = 0
    ) -> TaskSpec:
        return TaskSpec(
            name=f"user.me.demo.cafecafe.g{generation}.r{revision}/",
            search="demo",
            uid="cafecafe",
            generation=generation,
            folds=1,
            points={trial: {"x": trial / 10} for trial, _ in jobs},
            jobs=tuple((trial, fold, 7) for trial, fold in jobs),
            sandbox=self.sandbox,
            needs=JobNeeds(minutes=1.0),
            container=None,
            has_outputs=True,
            queue="LOCAL",
        )


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    callers = {"user-token": ("me", Role.USER), "pilot-token": ("pilot", Role.PILOT)}
    write_tokens(tmp_path / "tokens.json", callers)
    token = tmp_path / "user.token"
    token.write_text("user-token")
    server = ServerProcess(
        database=f"sqlite:///{tmp_path / 'panda.db'}", files=tmp_path / "files", tokens=tmp_path / "tokens.json"
    )
    manager = PandaManager(PandaServer(server.url, token, "me"), tmp_path / "client.log")
    yield Ground(manager, HandPilot(server.url), server, build_sandbox(None, {"command": "true"}, tmp_path / "sandbox"))
    manager.close()
    server.stop()
