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

from hpo_pilot.jobs import JobNeeds, Member, TaskSpec
from hpo_pilot.panda import tasks
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.panda.foreign_panda import ForeignPanda
from tests.server_process import ServerProcess


@dataclass
class HandPilot:
    """Acquires jobs and ends them as a test says, through the server's real pilot API."""

    url: str
    queue: str

    def call(self, path: str, **arguments: Any) -> dict[str, Any]:
        answer = requests.post(
            f"{self.url}/api/v1/pilot/{path}",
            json=arguments,
            headers={"Authorization": f"Bearer {token('pilot', Role.PILOT)}", "Origin": "hpo_pilot"},
            timeout=30,
        )
        answer.raise_for_status()
        return answer.json()

    def acquire(self, count: int = 1) -> list[dict[str, Any]]:
        answer = self.call("acquire_jobs", site_name=self.queue, prod_source_label="user", node="n1", n_jobs=count)
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
    files: Path
    sandbox: Path
    uid: str
    foreign: ForeignPanda | None = None

    def task(
        self, generation: int = 1, jobs: Sequence[tuple[int, int]] = ((1, 0), (2, 0)), revision: int = 0
    ) -> TaskSpec:
        return TaskSpec(
            name=f"user.me.demo.{self.uid}.g{generation}.r{revision}/",
            search="demo",
            uid=self.uid,
            generation=generation,
            folds=1,
            points={trial: {"x": trial / 10} for trial, _ in jobs},
            jobs=tuple((Member(trial, fold, 7),) for trial, fold in jobs),
            sandbox=self.sandbox,
            needs=JobNeeds(minutes=1.0),
            container=None,
            has_outputs=True,
            queue=self.pilot.queue,
        )


class KeptServer:
    """One server for the tests of a module, each of which has a queue and a search of its own there."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self._database = f"sqlite:///{folder / 'panda.db'}"
        self._tokens = make_token_folder(folder / "tokens")
        self._queues = folder / "queues.json"
        self._queues.write_text(json.dumps({"queues": {f"Q{number}": {} for number in range(100)}}))
        self._server: ServerProcess | None = None
        self._given = 0

    def server(self) -> ServerProcess:
        """It runs; started again where a test has stopped it."""
        if self._server is None or self._server.process.poll() is not None:
            options = ["--queues", str(self._queues)]
            self._server = ServerProcess(
                database=self._database, files=self.files, tokens=self._tokens, options=options
            )
        return self._server

    def next(self) -> int:
        """A number that no test had before."""
        self._given += 1
        return self._given

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


@pytest.fixture(scope="module")
def kept_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptServer]:
    kept = KeptServer(tmp_path_factory.mktemp("kept"))
    yield kept
    kept.stop()


@pytest.fixture(params=["ours", "foreign"])
def ground(
    request: pytest.FixtureRequest, kept_server: KeptServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    """A server of ours as we made it; and one that behaves as real ones do, with the user's own credentials."""
    token_file = tmp_path / "user.token"
    token_file.write_text(token("me", Role.USER))
    server, number = kept_server.server(), kept_server.next()
    pilot = HandPilot(server.url, f"Q{number}")
    more = (server, kept_server.files)
    sandbox = build_sandbox(None, {"command": "true"}, tmp_path / "sandbox")
    log = tmp_path / "client.log"
    if request.param == "ours":
        manager = PandaManager.connect(server.url, token_file, "me", log)
        yield Ground(manager, pilot, *more, sandbox, f"{number:08x}")
    else:
        monkeypatch.setattr(tasks, "INTERVAL", (0.2, 0.5))
        monkeypatch.setattr(tasks, "UNKNOWN_SECONDS", 0.0)
        for name, value in (
            ("PANDA_AUTH", "oidc"),
            ("PANDA_AUTH_VO", "hpo_pilot"),
            ("OIDC_AUTH_TOKEN_FILE", str(token_file)),
        ):
            monkeypatch.setenv(name, value)
        foreign = ForeignPanda(server.url)
        manager = PandaManager.connect(foreign.url, None, "me", log)
        yield Ground(manager, pilot, *more, sandbox, f"{number:08x}", foreign)
        foreign.stop()
    manager.close()
