"""A service without pilots of its own in a work folder, as a process, and a pilot that does as a script says."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import requests

COMMAND = str(Path(sys.executable).parent / "hpo-pilot")
_OURS = ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE", "HPO_PILOT_TOKEN_FILE", "PANDA_URL_SSL")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    return {**kept, "COLUMNS": "200", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def until(found: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Looks until there is something; returns it."""
    end = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)
    return it


class Service:
    """`hpo-pilot serve --slots 0`; a context manager.

    Attributes:
        api: URL of the REST API and the pages.
        panda: URL of the embedded server.
    """

    def __init__(self, workdir: Path, *options: str) -> None:
        self.workdir, self.log = workdir, workdir.parent / f"{workdir.name}-serve.log"
        words = [COMMAND, "serve", "--slots", "0", "--workdir", str(workdir), *options]
        for stale in ("service.url", "tokens/address"):
            (workdir / stale).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment())
        self.api = until(lambda: self._address("service.url"), "the service's API")
        self.panda = self._address("tokens/address")
        self._session = requests.Session()

    def _address(self, name: str) -> str:
        path = self.workdir / name
        assert self.process.poll() is None, self.log.read_text()
        return path.read_text().partition("\n")[0].strip() if path.is_file() else ""

    def token(self, role: str = "user") -> str:
        return (self.workdir / "tokens" / f"{role}.token").read_text().strip()

    def get(self, url: str, role: str | None = "user", **arguments: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token(role)}", "Origin": "hpo_pilot"} if role else {}
        return self._session.get(url, params=arguments, headers=headers, timeout=60, allow_redirects=False)

    def searches(self, path: str = "") -> Any:
        answer = self.get(f"{self.api}/api/v1/searches{path}")
        assert answer.ok, (path, answer.text)
        return answer.json()

    def trials(self, name: str) -> list[dict[str, Any]]:
        return list(self.searches(f"/{name}/trials")["trials"])

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@dataclass(frozen=True)
class Part:
    """A fold of a trial in a job: what the pilot is to run."""

    search: str
    trial: int
    fold: int
    attempt: int


class Job:
    """A job as the server handed it out."""

    def __init__(self, document: dict[str, Any]) -> None:
        words = unquote(document["jobPars"])
        packed = re.search(r"--task ([\w=-]+)", words)
        number = re.search(r"--number (\d+)", words)
        assert packed and number, words
        self.document = document
        self.table = json.loads(zlib.decompress(base64.urlsafe_b64decode(packed[1])))
        self.number, self.id, self.attempt = int(number[1]), document["PandaID"], document["attemptNr"]
        job = self.table["jobs"][self.number - self.table.get("first", 1)]
        self.members = job if isinstance(job[0], list) else [job]
        self.is_series = isinstance(job[0], list)
        self.parts = [Part(self.table["search"], trial, fold, self.attempt) for trial, fold, _ in self.members]


class ScriptedPilot:
    """Takes jobs and reports what a script says, one call at a time."""

    #: When the jobs of the script ran: each has 10 s of its own.
    BEGIN = 1_750_000_000.0

    def __init__(self, panda: str, token: str) -> None:
        self.url, self.begun = panda, 0
        self.session = requests.Session()
        self.session.headers.update(
            {
                "Authorization": f"Bearer {token}",
                "Origin": "hpo_pilot",
                "User-Agent": "hpo-pilot/0.1.0",
                "X-HPO-Pilot-Key": "a-key-that-the-script-always-has-0123456789",
            }
        )

    def call(self, path: str, **body: Any) -> Any:
        answer = self.session.post(f"{self.url}/api/v1/pilot/{path}", json=body, timeout=60)
        document = answer.json()
        assert answer.ok, document
        return document["data"]

    def acquire(self, jobs: int = 64) -> list[Job]:
        body = {"site_name": "LOCAL", "prod_source_label": "user", "node": "wn1", "n_jobs": jobs}
        body |= {"target_architecture": {"gpus": []}, "disk_space": 70000, "harvester_id": "script", "worker_id": 1}
        data = self.call("acquire_jobs", **body)
        return [Job(document) for document in (data or {}).get("jobs") or ()]

    def update(self, job: Job, status: str, **more: Any) -> str:
        who = {"job_id": job.id, "attempt_nr": job.attempt, "job_status": status, "node": "wn1", "site_name": "LOCAL"}
        who |= {"pilot_id": "hpo-pilot|script|1", "batch_id": "1"}
        return str(self.call("update_job", **who, **more)["command"] or "")

    def finish(self, job: Job, said: Callable[[Part], dict[str, Any]]) -> None:
        """Reports the end of a job whose folds each brought what `said` says, on top of a good result's document."""
        self.begun += 1
        start = self.BEGIN + 10 * self.begun
        mine = {"uid": job.table["uid"], "generation": job.table["generation"], "number": job.number}
        verdicts = []
        for place, (part, (trial, fold, seed)) in enumerate(zip(job.parts, job.members, strict=True)):
            began = start + place
            verdict = {**mine, "attempt": job.attempt, "trial": trial, "fold": fold, "seed": seed, "version": 1}
            verdict |= {"status": 0, "message": "", "cause": "", "log_tail": "", "outputs": [], "node": "wn1"}
            verdict |= {"started": began, "ended": began + 0.5, "seconds": 0.5, "progress": [], "metrics": {}}
            verdict |= said(part)
            verdict.setdefault("value", verdict["values"][0])
            verdicts.append(verdict)
        if job.is_series:
            members = [{"metadata": None, "folder": bool(one["outputs"]), "ran_in": None, **one} for one in verdicts]
            ours = {**mine, "search": job.table["search"], "attempt": job.attempt, "node": "wn1", "version": 2}
            metadata = {"hpo_pilot": {**ours, "members": members}}
        else:
            metadata = {"hpo_pilot": {"search": job.table["search"], "folds": job.table["folds"], **verdicts[0]}}
        moment = [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start + late)) for late in (0, len(verdicts))]
        self.update(
            job,
            "finished",
            start_time=moment[0],
            end_time=moment[1],
            trans_exit_code=0,
            meta_data=json.dumps({"exitCode": 0, "user_job_metadata": metadata}),
        )

    def lose(self, job: Job, code: int = 1305, why: str = "the node died") -> None:
        self.begun += 1
        start = self.BEGIN + 10 * self.begun
        moment = [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start + late)) for late in (0, 2)]
        self.update(
            job, "failed", start_time=moment[0], end_time=moment[1], pilot_error_code=code, pilot_error_diag=why
        )

    def store(self, name: str, content: bytes) -> None:
        self.session.put(f"{self.url}/storage/{name}", data=content, timeout=60).raise_for_status()
