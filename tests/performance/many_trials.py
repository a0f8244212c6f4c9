"""Makes a store of many trials by the methods that registration and steering call, at the times of its own clock.

The methods make the first trials of a large search, and the first searches. The others are copies of these in SQL,
which makes 1,000,000 trials in a tenth of the time.
"""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import String, cast, func, insert, literal, select

from hpo_pilot.jobs import Attempt, JobState, Member
from hpo_pilot.search import Point, Trial, TrialState
from hpo_pilot.search.trials import means_and_stds
from hpo_pilot.store import NewTask, SearchState, SteeringStore
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import writing
from hpo_pilot.store.progress import all_progress
from tests.made import made_search
from tests.rest_api import store_of

NAME = "scan"  #: of the first search, which runs
_WIDTH, _FOLDS = 100, 2  # trials of a generation
_BLOCK, _MADE = 10_000, 10  # trials of a search, and searches, that are not copies
_BLOCK_SECONDS = _BLOCK / _WIDTH * (_WIDTH + 60)
_REAL = {name: {"type": "real", "low": 0.0, "high": 1.0} for name in ("x", "y", "z")}
_SPACE = {
    **_REAL,
    "rate": {"type": "real", "low": 1e-5, "high": 0.1, "scale": "log"},
    "layers": {"type": "integer", "low": 1, "high": 9},
    "kind": {"type": "categorical", "choices": ["a", "b"]},
}


def make(root: Path, count: int, searches: int, share: float = 0.2) -> None:
    """Makes the store of the work folder in `root`; `share`: of the trials, in the first of several searches."""
    (root / "work").mkdir(parents=True)
    first = round(count * share) if searches > 1 else count
    rest, more = divmod(count - first, max(1, searches - 1))
    with closing(store_of(root / "work")) as store:
        like = None
        for number in range(searches):
            maker = _SearchMaker(store, number, rest + (number <= more) if number else first)
            with mock.patch("time.time", lambda maker=maker: maker.now):
                maker.make(like if number >= _MADE else None)
            like = maker
        all_progress(store.engine, [record.id for record in store.searches()])  # steering writes it with each result


class _SearchMaker:
    """Makes a search. Number 0 runs, with its last confirmation runs; number 1 has two objectives."""

    def __init__(self, store: SteeringStore, number: int, size: int) -> None:
        self.now = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
        self._store, self._number, self._size, self._dice = store, number, size, random.Random(number)
        self._confirmed = 3 if number != 1 and size >= 20 else 0  # points
        self._search = made_search(
            f"{NAME}{number or ''}",
            space=_SPACE,
            objectives=[{"metric": "loss"}, {"metric": "latency"}][: 1 + (number == 1)],
            optimizer="bayesian",
            confirm={"top": self._confirmed, "repeats": 2},
            folds=_FOLDS,
            budget={"trials": size - 2 * self._confirmed, "parallel": _WIDTH},
        )
        self._generation = self._told = self._id = 0
        self._good: list[Trial] = []

    def make(self, like: _SearchMaker | None = None) -> None:
        """Makes the search; `like`: a search to copy."""
        store, who, uid = self._store, f"user{self._number % 7}", f"{self._number:08x}"
        record = store.create_search(self._search, source="search.yaml", sandbox=None, owner=who, uid=uid)
        self._id = record.id
        store.set_state(self._id, SearchState.RUNNING, "service")
        if like is None:
            self._make_trials()
        else:
            self.now = like.now
            _copy(store, like._id, self._id)
        if self._number:
            store.set_state(self._id, SearchState.DONE, "service")
        for trial in range(0, self._size, max(20, self._size // 20)):  # 0: the search itself
            store.annotate(self._id, trial, who, note=f"looked at trial {trial}", tags=["seen"])

    def _make_trials(self) -> None:
        store, last = self._store, self._size - 2 * self._confirmed
        copies = max(0, last // _BLOCK - 1)
        points = [
            self._search.space.decode([self._dice.random() for _ in _SPACE]) for _ in range(last - copies * _BLOCK)
        ]
        self._make_generations(points[:_BLOCK])
        for block in range(1, copies + 1):
            _copy(store, self._id, self._id, block)
        self._told += copies * _BLOCK
        self._generation += copies * _BLOCK // _WIDTH
        self.now += copies * _BLOCK_SECONDS
        self._make_generations(points[_BLOCK:])
        best = sorted(self._good, key=lambda trial: (trial.values, trial.number))[: self._confirmed]
        confirm = [Trial(n, 0, of.point, seed=n, confirms=of.number) for n, of in enumerate(best * 2, last + 1)]
        for half in filter(None, (confirm[: len(best)], confirm[len(best) :])):
            going, task = self._begin(half)
            if self._number or half[0] is confirm[0]:
                self._end(going, task)
                continue
            job: dict[str, Any] = {"task_id": task, "state": JobState.RUNNING, "node": "wn1", "started": self.now}
            attempts = [Attempt(trial=trial.number, fold=0, **job) for trial in going]
            store.record(self._id, attempts, started=[(trial.number, self.now) for trial in going])

    def _make_generations(self, points: list[Point]) -> None:
        trials = [Trial(number, 0, point, seed=number) for number, point in enumerate(points, self._told + 1)]
        for first in range(0, len(trials), _WIDTH):
            self._end(*self._begin(trials[first : first + _WIDTH]))

    def _begin(self, trials: list[Trial]) -> tuple[list[Trial], int]:
        self._generation += 1
        jobs = tuple((Member(trial.number, fold, trial.seed),) for trial in trials for fold in range(_FOLDS))
        name = f"user.bench.{self._search.name}.g{self._generation}/"
        task = NewTask(name, self._generation, 0, jobs)
        cut: dict[str, Any] = {"history": self._told, "pending": [], "asked": len(trials)}
        record = self._store.add_generation(self._id, trials=trials, task=task, **cut)
        self._store.task_submitted(record.id, self._id * 10_000 + self._generation)
        return trials, record.id

    def _end(self, trials: list[Trial], task: int) -> None:
        """Ends a generation, one trial a second: 3% fail, 1% lost a job, and each 100th has reported values."""
        attempts, ends, started = [], [], []
        for trial in trials:
            self.now += 1
            started.append((trial.number, self.now))
            error = f"exit status {trial.number % 3 + 1}" if self._dice.random() < 0.03 else None
            attempts += self._attempts(trial, task, error, lost=self._dice.random() < 0.01)
            figures = [one.values for one in attempts[-_FOLDS:]]
            self._told += trial.confirms is None
            place = self._told if trial.confirms is None else None
            over = replace(trial, told=place, ended=datetime.fromtimestamp(self.now + 60, UTC))
            if error:
                ends.append(replace(over, state=TrialState.FAILED, error=f"fold 0: {error}"))
                continue
            means, stds = means_and_stds(figures)
            ends.append(replace(over, state=TrialState.FINISHED, values=means, stds=stds))
            if trial.confirms is None:
                self._good.append(ends[-1])
        self.now += 60
        self._store.record(self._id, attempts, ends, started=started, ended_tasks=[task])

    def _attempts(self, trial: Trial, task: int, error: str | None, *, lost: bool) -> list[Attempt]:
        loss = sum((trial.point[name] - 0.3) ** 2 for name in _REAL)
        kept, made = [], []
        for fold in range(_FOLDS):
            job: dict[str, Any] = {"task_id": task, "trial": trial.number, "fold": fold, "started": self.now}
            job |= {"node": f"wn{trial.number % 40}", "panda_id": self._id * 1_000_000 + trial.number * 2 + fold}
            if lost:
                killed = Attempt(
                    **job, state=JobState.FAILED, error="pilot 1305: killed", seconds=9.0, ended=self.now + 9
                )
                made.append(killed)
            values = (loss + self._dice.gauss(0, 0.02), 1 - loss)[: len(self._search.objectives)]
            result: dict[str, Any] = {"values": values, "metrics": {"accuracy": 1 - loss / 9, "epochs": 20}}
            if trial.number % 100 == 0:
                result["progress"] = tuple((step, values[0] + 1 / step) for step in range(1, 11))
            if error:
                result = {"error": error, "log_tail": "Traceback\n" * 50}
            job |= {"attempt": 1 + lost, "state": JobState.FINISHED, "seconds": 60.0, "joules": 9e3}
            kept.append(Attempt(**job, ended=self.now + 60, **result))
        return made + kept


def _copy(store: SteeringStore, of: int, to: int, block: int = 0) -> None:
    """Copies the trials of a search with their tasks and jobs.

    Args:
        store: the store.
        of: the search.
        to: another search without trials; or the same: then the first block is copied to its end, with slightly other
            points and values.
        block: number of copies of the block with this one.
    """
    generations = block * _BLOCK // _WIDTH
    with writing(store.engine) as connection:
        ids, of_search = t.tasks.c.id, t.tasks.c.search_id == of
        tasks = connection.execute(
            select(select(func.max(ids)).scalar_subquery() - func.min(ids) + 1).where(of_search)
        ).scalar_one()
        shifts = {"search_id": to - of, "task_id": tasks, "generation": generations}
        shifts |= dict.fromkeys(("number", "trial", "told", "history"), block * _BLOCK)
        shifts |= dict.fromkeys(("created", "submitted", "started", "ended"), block * _BLOCK_SECONDS)
        shifts |= {"panda_id": 1_000_000 * (to - of) + 2 * block * _BLOCK}
        shifts |= {"jedi_task_id": 10_000 * (to - of) + generations}
        for table in (t.generations, t.tasks, t.trials, t.jobs, t.intermediate_values):
            c, rows = table.c, table.c.search_id == of
            values: dict[str, Any] = {one.name: one + shifts.get(one.name, 0) for one in c if one.name in shifts}
            values = {one.name: values.get(one.name, one) for one in c if one.name != "id"}
            if table is t.generations:
                values["number"] = c.number + generations
            elif table is t.tasks:
                values |= {"id": c.id + tasks, "name": literal("user.bench.copy.") + cast(c.id + tasks, String)}
            elif block and table is t.trials:
                x = func.json_extract(c.point, "$.x")
                values["point"] = func.json_set(c.point, "$.x", x * (1 - 1e-4 * block))
                values["value"] = c.value + 1e-6 * block
            if block:
                per = _WIDTH if table in (t.generations, t.tasks) else 1
                key = c["trial" if "trial" in c else "generation" if table is t.tasks else "number"]
                rows &= key <= _BLOCK // per
            connection.execute(insert(table).from_select(list(values), select(*values.values()).where(rows)))
