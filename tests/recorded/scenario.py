"""Searches that go through all that can befall one, with a service and a pilot that follows a script.

Each report waits until the service has taken in the one before, so results have one order in every run.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import yaml

from tests.command_here import command_here
from tests.recorded.service import Job, Part, ScriptedPilot, Service, until

_SPACE = {
    "rate": {"type": "real", "low": 1e-4, "high": 1e-1, "scale": "log"},
    "layers": {"type": "integer", "low": 1, "high": 4},
    "batch": {"type": "ordinal", "choices": [32, 64, 128]},
    "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
    "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"solver": "sgd"}},
}
_X = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "y": {"type": "real", "low": -1.0, "high": 1.0}}


def _budget(trials: int, parallel: int) -> dict[str, Any]:
    """New points only when all that are out are over: generations are then the same from run to run."""
    return {"trials": trials, "parallel": parallel, "queued": 0, "refill": 1}


#: Search files, in the order in which they run; all but the last to their end.
SEARCHES: dict[str, dict[str, Any]] = {
    "plain": {
        "space": _SPACE,
        "constraints": ["layers * batch <= 400"],
        "start": [{"rate": 0.01, "layers": 2, "batch": 64, "solver": "adam"}],
        "optimizer": "random",
        "budget": _budget(6, 3),
        "payload": {"outputs": ["model.txt"]},
    },
    "folded": {
        "space": _X,
        "optimizer": {"name": "evolutionary", "population": 4},
        "budget": _budget(8, 4),
        "folds": {"k": 3, "require": 2},
        "confirm": {"top": 1, "repeats": 2},
        "seed": 3,
    },
    "front": {
        "space": _X,
        "objective": [{"metric": "loss"}, {"metric": "speed", "goal": "maximize"}],
        "optimizer": {"name": "evolutionary", "population": 4},
        "budget": _budget(8, 4),
        "resources": {"minutes": 1, "memory_mb": 100, "trials_per_job": 2},
    },
    "stopped": {
        "space": _X,
        "optimizer": "random",
        "budget": _budget(4, 4),
        "folds": 2,
        "early_stopping": {"method": "median", "warmup_trials": 2},
    },
    "family": {"space": _X, "optimizer": "grid", "budget": _budget(2, 2), "segments": ["one", "two"]},
    "lossy": {"space": _X, "optimizer": "random", "budget": _budget(3, 3), "panda": {"attempts": 2}, "seed": 5},
    "warm": {
        "space": _X,
        "optimizer": "cma",
        "budget": _budget(4, 2),
        "warm_start": "folded",
        "known": [{"point": {"x": 0.25, "y": 0.5}, "value": 0.4}, {"point": {"x": 0.9, "y": 0.9}, "value": None}],
    },
    "midway": {"space": _X, "optimizer": "random", "budget": _budget(5, 3), "folds": 2, "seed": 9},
}
#: Names of searches, those of segments among them.
NAMES = [
    name
    for search, document in SEARCHES.items()
    for name in ([f"{search}-{segment}" for segment in document.get("segments", ())] or [search])
]


def said(part: Part) -> dict[str, Any]:
    """What a fold brings, by the script."""
    value = (37 * part.trial % 11) / 8 + part.fold / 64
    match part.search, part.trial, part.fold:
        case "plain", 2, _:
            return {
                "status": 1,
                "values": [None],
                "message": "exit code 1: KeyError: 'x'",
                "log_tail": "Traceback\n…\n",
            }
        case "plain", 3, _:
            return {"status": 1, "values": [None], "message": "loss is NaN"}
        case "plain", _, _:
            return {"values": [value], "outputs": ["model.txt"], "metrics": {"energy_joules": 7.5, "accuracy": 0.5}}
        case "folded", 2, 1:
            return {"status": 1, "values": [None], "message": "no convergence"}
        case "folded", 3, 0 | 2:
            return {"status": 1, "values": [None], "message": "out of memory", "cause": "memory"}
        case "front", 3, _:
            return {"status": 2, "values": [None, None], "message": "the job's time is over"}
        case "front", _, _:
            return {"values": [value, (part.trial * part.trial) % 7 + 0.5], "progress": [[1, 0.5], [2, 0.25]]}
    return {"values": [value], "progress": [[1, value + 1], [2, value + 0.5]]}


class Story:
    """The searches above in a folder; a context manager that ends the service.

    Attributes:
        jobs: every job that was handed out.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.workdir = root, root / "work"
        self.jobs: list[Job] = []
        self.write()
        self.service = Service(self.workdir, "--log-format", "json")
        self.pilot = ScriptedPilot(self.service.panda, self.service.token("pilot"))

    def write(self) -> None:
        payload = self.root / "training"
        payload.mkdir(parents=True, exist_ok=True)
        (payload / "train.py").write_text("print('training')\n")
        (payload / "data").mkdir(exist_ok=True)
        (payload / "data" / "table.txt").write_text("1 2 3\n")
        base = {"optimizer": "random", "resources": {"minutes": 1, "memory_mb": 100}}
        for name, document in SEARCHES.items():
            whole = {"search": name, **base, **document}
            whole["payload"] = {"files": "training", "command": "python3 train.py", **document.get("payload", {})}
            (self.root / f"{name}.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))

    def command(self, *words: str) -> str:
        where = ["--service", self.service.api, "--token-file", str(self.workdir / "tokens" / "user.token")]
        done = command_here(*words, *where, cwd=self.root)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *more: object) -> None:
        self.service.__exit__(*more)

    # --- the story ---

    def tell(self) -> None:
        for name in SEARCHES:
            self.command("submit", str(self.root / f"{name}.yaml"))
            if name == "midway":
                self._leave_midway()
            else:
                self._run(name)
            if name == "plain":
                self._run_more(name, "retry", name, "--trial", "2")
                self._run_more(name, "try", name, "rate=0.02", "layers=3", "batch=32", "solver=sgd", "momentum=0.75")
                self._run_more(name, "extend", name, "--trials", "+1")

    def _run_more(self, name: str, *words: str) -> None:
        before = len(self.service.trials(name))
        self.command(*words)
        until(lambda: len(self.service.trials(name)) > before, f"another trial of {name}")
        self._run(name)

    def _run(self, name: str) -> None:
        """Runs jobs until a search, or all of its segments, are over."""
        names = [one for one in NAMES if one == name or one.startswith(f"{name}-")]
        # Start points are a generation of their own: all that may be out at first are out before the first ends.
        for one in names:
            until(
                lambda one=one: len(self.service.trials(one)) >= SEARCHES[name]["budget"]["parallel"], f"{one}'s trials"
            )
        while any(self._status(one)["ended"] is None for one in names):
            jobs = sorted(self._acquire(), key=lambda job: (job.parts[0].search, job.parts[0].trial, job.parts[0].fold))
            if name == "stopped" and jobs:
                self._report_curves(jobs)
                continue
            for job in jobs:
                self._run_job(job)

    def _acquire(self, jobs: int = 64) -> list[Job]:
        found = self.pilot.acquire(jobs)
        self.jobs += found
        return found

    def _run_job(self, job: Job) -> None:
        first = job.parts[0]
        if (first.search, first.trial) == ("lossy", 1) and job.attempt == 1:
            self.pilot.lose(job)
        elif (first.search, first.trial) == ("lossy", 2):
            self.pilot.lose(job, 1201, "heartbeats were lost")
        else:
            for part in job.parts:
                if said(part).get("outputs"):
                    self.pilot.store(job.document["outFiles"].split(",")[0], archive(f"model of {part.trial}\n"))
            self.pilot.finish(job, said)
            self._taken_in(job)

    def _taken_in(self, job: Job) -> None:
        """Waits until the service knows what was said of a job."""

        def known() -> bool:
            trials = {trial["number"]: trial for trial in self.service.trials(job.parts[0].search)}
            return all(
                any(
                    fold["fold"] == part.fold
                    and (fold["attempt"] or 0, fold["panda_id"] or 0) >= (job.attempt, job.id)
                    and (fold["value"] is not None or fold["error"])
                    for fold in trials[part.trial]["folds"]
                )
                or said(part).get("status") == 2
                for part in job.parts
            )

        until(known, f"job {job.id} in the store")

    def _report_curves(self, jobs: list[Job]) -> None:
        """Trials 1 and 2 run to their end; 3 and 4 report worse values and are told to stop."""
        for job in jobs:
            self.pilot.update(job, "running", start_time="2025-06-15 15:00:00")
        for job in jobs:
            if job.parts[0].trial <= 2:
                self.pilot.finish(job, lambda part: {"values": [0.25], "progress": [[1, 0.5], [2, 0.375]]})
                self._taken_in(job)
        for job in jobs:
            trial, fold = job.parts[0].trial, job.parts[0].fold
            if trial > 2:
                # The same in both folds: their mean is then the same whichever report the service has read.
                metrics = f"hpoStep=1 hpoValue={trial}"
                until(
                    lambda job=job, metrics=metrics: self.pilot.update(job, "running", job_metrics=metrics),
                    f"trial {trial} is told to stop",
                ) if fold == 1 else self.pilot.update(job, "running", job_metrics=metrics)
        for job in jobs:
            if job.parts[0].trial > 2:
                until(lambda job=job: self.pilot.update(job, "running"), "the job is told to stop")
                self.pilot.lose(job, 1144, "killed by the server (tobekilled)")

    def _leave_midway(self) -> None:
        """Two folds over, one lost, one at the pilot; two wait."""
        until(lambda: len(self.service.trials("midway")) == 3, "the trials of midway")
        jobs: list[Job] = []
        until(lambda: jobs.extend(self._acquire(4 - len(jobs))) or len(jobs) == 4, "the jobs of midway")
        jobs.sort(key=lambda job: (job.parts[0].trial, job.parts[0].fold))
        for job in jobs[:2]:
            self._run_job(job)
        self.pilot.update(jobs[2], "running", job_metrics="hpoStep=1 hpoValue=0.5")
        trials = {"finished": 1, "running": 1, "pending": 1}
        until(lambda: self._status("midway")["trials"] == trials, "midway's first three trials")

    def _status(self, name: str) -> Any:
        return self.service.searches(f"/{name}")


def archive(text: str) -> bytes:
    """A packed output: model.txt with this text."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="w", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("model.txt")
        info.size = len(text.encode())
        tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()
