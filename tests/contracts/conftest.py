"""A real server, a manager that talks to it through panda-client, and a pilot played by hand."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from hpo_pilot.jobs import JobNeeds, Member, TaskSpec
from hpo_pilot.panda import tasks
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.panda.server import PandaServer
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.panda.foreign_panda import ForeignPanda, Quirks
from tests.server.conftest import Api, RunningServer
from tests.server_process import ServerProcess


class HandPilot(Api):
    """Acquires jobs and ends them as a test says, through the server's real pilot API."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, "token-of-pilot")
        self.session.headers["Origin"] = "hpo_pilot"
        self.queue = queue

    def acquire(self, n_jobs: int = 1, **more: Any) -> list[dict[str, Any]]:
        return super().acquire(n_jobs, site_name=self.queue, node="n1", **more)

    def end(self, job: dict[str, Any], state: str, **arguments: Any) -> dict[str, Any]:
        who = {"job_id": job["PandaID"], "attempt_nr": job["attemptNr"], "node": "n1"}
        return self.post("pilot/update_job", job_status=state, **who, **arguments)

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


class KeptServer(RunningServer):
    """One server for the tests of a module, each of which has a queue and a search of its own there."""

    def __init__(self, folder: Path) -> None:
        queues = folder / "queues.json"
        queues.write_text(json.dumps({"queues": {f"Q{number}": {} for number in range(100)}}))
        self._numbers = itertools.count(1)
        super().__init__(folder, options=["--queues", str(queues)])

    @contextlib.contextmanager
    def ground(self, folder: Path, monkeypatch: pytest.MonkeyPatch, quirks: Quirks | None = None) -> Iterator[Ground]:
        """A server of ours as we made it; with quirks one like real servers, with the user's own credentials."""
        if self.process.process.poll() is not None:
            self.start()  # a test has stopped it
        number = next(self._numbers)
        token_file = folder / "user.token"
        token_file.write_text(token("me", Role.USER))
        foreign = ForeignPanda(self.url, quirks) if quirks else None
        if foreign:
            monkeypatch.setattr(tasks, "INTERVAL", (0.2, 0.5))
            own = {"PANDA_AUTH": "oidc", "PANDA_AUTH_VO": "hpo_pilot", "OIDC_AUTH_TOKEN_FILE": str(token_file)}
            for name, value in own.items():
                monkeypatch.setenv(name, value)
        at = PandaServer(foreign.url, None, "me") if foreign else PandaServer(self.url, token_file, "me")
        manager = PandaManager(at, folder / "client.log", folder / "checkpoints")
        sandbox = build_sandbox(None, {"command": "true"}, folder / "sandbox")
        pilot = HandPilot(self.url, f"Q{number}")
        yield Ground(manager, pilot, self.process, self.folder / "files", sandbox, f"{number:08x}", foreign)
        manager.close()
        if foreign:
            foreign.stop()


@pytest.fixture(scope="module")
def kept_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptServer]:
    kept = KeptServer(tmp_path_factory.mktemp("kept"))
    yield kept
    kept.stop()


@pytest.fixture(params=["ours", "foreign"])
def ground(
    request: pytest.FixtureRequest, kept_server: KeptServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    if request.param == "foreign":
        monkeypatch.setattr(tasks, "UNKNOWN_SECONDS", 0.0)
    with kept_server.ground(tmp_path, monkeypatch, Quirks() if request.param == "foreign" else None) as found:
        yield found
