"""A real API process over a work folder, and a search file with its payload, for the tests of clients."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from hpo_pilot.jobs import JobState, Member
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.remote import RemoteService
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.server.tokens import Role
from hpo_pilot.store import NewTask, SearchState, SteeringStore, lease
from tests.bearer import make_token_folder, token
from tests.certificates import self_signed
from tests.made import made_attempt, made_end

_READY = " ready on "


@dataclass
class RunningApi:
    """An API and the folder that it serves; `stop`, or the end of a ``with`` block, ends it."""

    process: subprocess.Popen[str]
    url: str
    root: Path
    ca: Path | None

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    @property
    def log(self) -> str:
        return (self.root / "api.log").read_text()

    def token_file(self, name: str, role: Role = Role.USER) -> Path:
        path = self.root / f"{name}-{role.value}.token"
        path.write_text(token(name, role))
        path.chmod(0o600)
        return path

    def client(self, name: str, role: Role = Role.USER) -> SearchClient:
        token = self.token_file(name, role)
        return SearchClient(RemoteService(self.url, token, ca=self.ca, workdir=self.root / f"of-{name}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(600)
        if self.process.stdout is not None:
            self.process.stdout.close()


def start_api(root: Path, *more: str, tls: bool = False, port: int = 0) -> RunningApi:
    """Starts an API in `root`, which may have one's leavings; returns when it is ready."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "tokens").exists():
        make_token_folder(root / "tokens")
    command = [sys.executable, "-m", "hpo_pilot.web", "--workdir", str(root / "work"), "--port", str(port), *more]
    command += ["--tokens", str(root / "tokens")]
    if tls:
        command += self_signed(root / "tls").options
    with (root / "api.log").open("a") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "HPO_PILOT_STORE"},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert _READY in line, (line, (root / "api.log").read_text())
    return RunningApi(process, line.strip().rsplit(" ", 1)[1], root, root / "tls" / "cert.pem" if tls else None)


def write_search(folder: Path, name: str, /, **document: Any) -> Path:
    """A search file with a payload's folder beside it."""
    payload = folder / "training"
    payload.mkdir(parents=True, exist_ok=True)
    (payload / "train.py").write_text("print('training')\n")
    (payload / "run.sh").write_text("#!/bin/sh\n")
    (payload / "run.sh").chmod(0o755)
    path = folder / f"{name}.yaml"
    base: Mapping[str, Any] = {
        "search": name,
        "space": {
            "x": {"type": "real", "low": 0.0, "high": 1.0},
            "kind": {"type": "categorical", "choices": ["a", "b"]},
        },
        "optimizer": "random",
        "budget": {"trials": 4, "parallel": 2, "hours": 5},
        "folds": 2,
        "payload": {"files": "training", "command": "python3 train.py", "outputs": ["model.npz"]},
        "resources": {"minutes": 1, "memory_mb": 100},
    }
    path.write_text(yaml.safe_dump({**base, **document}, sort_keys=False))
    return path


def store_of(workdir: Path) -> SteeringStore:
    return SteeringStore.open(f"sqlite:///{workdir / 'hpo-pilot.db'}")


def add_trials(store: SteeringStore, name: str, trials: list[Trial], *, folds: int = 1, generation: int = 1) -> int:
    """Gives a search a generation of trials, one job a fold; returns the number of its task in the store."""
    record = store.search(name)
    jobs = tuple((Member(trial.number, fold, trial.seed),) for trial in trials for fold in range(folds))
    task = NewTask(f"user.me.{name}.{record.uid}.g{generation}/", generation, 0, jobs)
    return store.add_generation(record.id, history=0, pending=[], trials=trials, task=task).id


def add_results(workdir: Path, name: str, count: int = 3, log: str = "Traceback") -> None:
    """Gives a search trials: the first failed, the others finished; the second is the best."""
    with closing(store_of(workdir)) as store:
        number = store.search(name).id
        store.set_state(number, SearchState.RUNNING, "service")
        trials = [Trial(n, 1, {"x": n / 10_000, "kind": "a"}, seed=n) for n in range(1, count + 1)]
        task = add_trials(store, name, trials, folds=2)
        now = time.time()
        ran = {"metrics": {"accuracy": float("nan")}, "node": "wn1", "seconds": 2.0, "started": now - 2, "ended": now}
        broke = {"panda_id": 101, "error": "exit status 1", "log_tail": log}
        outcomes = [made_attempt(task, 1, fold, 1, JobState.FINISHED, **broke, **ran) for fold in range(2)]
        outcomes += [
            made_attempt(task, n, fold, 1, JobState.FINISHED, n + fold, panda_id=100 + n, **ran)
            for n in range(2, count + 1)
            for fold in range(2)
        ]
        ends = [made_end(1, TrialState.FAILED, error="fold 0: exit status 1", told=1, ended=now)]
        ends += [made_end(n, TrialState.FINISHED, n + 0.5, stds=(0.7,), told=n, ended=now) for n in range(2, count + 1)]
        store.record(number, outcomes, ends, ended_tasks=[task])


@contextmanager
def steered(workdir: Path, server: str | None = None) -> Iterator[None]:
    """This process is the service that steers the searches of a work folder, for the length of a block."""
    with closing(store_of(workdir)) as store, lease.held_lease(store.engine, "serve", server):
        yield


def set_state(workdir: Path, name: str, state: SearchState, message: str = "") -> None:
    """Moves a search as its service would."""
    with closing(store_of(workdir)) as store:
        store.set_state(store.search(name).id, state, "service", message)
