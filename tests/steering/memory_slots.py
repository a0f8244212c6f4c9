"""A workflow manager in memory whose jobs train by a table, in simulated time and in a given number of slots."""

from __future__ import annotations

import heapq
import statistics
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hpo_pilot.jobs import JobReport, JobState, RunReport, TaskRef, TaskSpec, TaskState
from hpo_pilot.search import Search, Trial
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.store import SteeringStore
from tests.made import made_report
from tests.steering.memory_panda import AtOnce, Panda

#: So often does a training report, in parts of the usual training time.
PERIOD = 1 / 20


@dataclass(frozen=True)
class Training:
    """One fold of one trial.

    Attributes:
        curve: the value that it reports at each step, from 1.
        final: its figure of merit; None where it fails.
        seconds: that it takes.
    """

    curve: list[float]
    final: float | None
    seconds: float

    def steps_after(self, seconds: float) -> int:
        """To which step it has come after a time."""
        return min(len(self.curve), int(len(self.curve) * seconds / self.seconds + 1e-9))


@dataclass
class _Job:
    task: int
    number: int
    training: Training
    begun: float | None = None
    reported: int = 0
    over: bool = False


class Slots(Panda):
    """Jobs wait in the order in which they came, and report as they go on.

    Attributes:
        now: the simulated time.
        used: seconds that jobs ran.
    """

    def __init__(self, trials: Sequence[Sequence[Training]], slots: int) -> None:
        """Starts empty; `trials` are the folds of each trial, from the first one on."""
        super().__init__()
        self.now = self.used = 0.0
        self._trials, self._free = trials, slots
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[int] = deque()
        self._events: list[tuple[float, int]] = []
        self._period = PERIOD * statistics.median(fold.seconds for trial in trials for fold in trial)

    def submit(self, task: TaskSpec, *, maybe_submitted: bool = False) -> TaskRef:
        ref: TaskRef = super().submit(task)
        for number, ((trial, fold, _),) in enumerate(task.jobs, start=1):
            panda_id = len(self._jobs) + 1
            self._jobs[panda_id] = _Job(ref.jedi_task_id, number, self._trials[trial - 1][fold])
            self._waiting.append(panda_id)
            self._say(panda_id, JobState.ACTIVATED)
        return ref

    def kill_jobs(self, panda_ids: Sequence[int]) -> None:
        super().kill_jobs(panda_ids)
        for panda_id in panda_ids:
            self._end(panda_id, JobState.CANCELLED)

    def go_on(self) -> set[int]:
        """Goes on to the next report of a job.

        Returns:
            The tasks that may have changed; all of them where nothing runs.
        """
        while self._free and self._waiting:
            panda_id = self._waiting.popleft()
            if not self._jobs[panda_id].over:
                self._free -= 1
                self._jobs[panda_id].begun = self.now
                self._wake(panda_id, self.now)
        while self._events:
            self.now, panda_id = heapq.heappop(self._events)
            job = self._jobs[panda_id]
            if job.over:
                continue
            assert job.begun is not None
            if self.now >= job.begun + job.training.seconds:
                self._end(panda_id, JobState.FINISHED)
            else:
                self._say(panda_id, JobState.RUNNING)
                self._wake(panda_id, job.begun)
            return {job.task}
        return set(self.tasks)

    def _wake(self, panda_id: int, begun: float) -> None:
        heapq.heappush(
            self._events, (min(self.now + self._period, begun + self._jobs[panda_id].training.seconds), panda_id)
        )

    def _end(self, panda_id: int, state: JobState) -> None:
        job = self._jobs[panda_id]
        if job.over:
            return
        if job.begun is not None:
            self.used += self.now - job.begun
            self._free += 1
        self._say(panda_id, state)
        job.over = True
        if all(each.over for each in self._jobs.values() if each.task == job.task):
            self.states[job.task] = TaskState.DONE

    def _say(self, panda_id: int, state: JobState) -> None:
        """The job's report: the values that are new; with its verdict where it is finished."""
        job = self._jobs[panda_id]
        task = self.tasks[job.task]
        done = 0 if job.begun is None else job.training.steps_after(self.now - job.begun)
        new = tuple((step + 1, job.training.curve[step]) for step in range(job.reported, done))
        job.reported = done
        verdicts: tuple[RunReport, ...] = ()
        if state is JobState.FINISHED:
            member, final = task.jobs[job.number - 1][0], job.training.final
            who = (task.uid, task.generation, member.trial, member.fold, job.number, 1)
            message = "" if final is not None else "it diverged"
            verdicts = (made_report(*who, final, message, seconds=job.training.seconds, progress=new),)
        self.reports[job.task][panda_id] = JobReport(panda_id, state, 1, job.number, verdicts, progress=new)


def replay(trials: Sequence[Sequence[Training]], slots: int, **document: Any) -> tuple[list[Trial], float]:
    """A search over a table by the product's own steering.

    Args:
        trials: the folds of trial 1, 2, …
        slots: how many jobs run at once.
        document: what the search file says, such as `early_stopping`.

    Returns:
        The trials, and the seconds that their jobs ran.
    """
    folds, count = len(trials[0]), len(trials)
    search = {
        "search": "replay",
        "space": {"number": {"type": "integer", "low": 1, "high": count}},
        "start": [{"number": number} for number in range(1, count + 1)],
        "optimizer": "random",
        "folds": folds,
        "budget": {"trials": count, "parallel": max(2, -(-slots // folds)), "queued": 0, "failures": count},
        "payload": {"command": "true"},
        **document,
    }
    panda = Slots(trials, slots)
    # A look that takes long is followed by a pause: here time passes between two looks only.
    with tempfile.TemporaryDirectory() as folder, mock.patch("time.monotonic", lambda: panda.now):
        store = SteeringStore.open(f"sqlite:///{Path(folder) / 'store.db'}")
        try:
            record = store.create_search(Search.model_validate(search), source="", sandbox="/s", owner="me")
            steering = SearchSteering(record, store, panda, AtOnce(), lambda: None)  # type: ignore[arg-type]
            changed: set[int] = set()
            for _ in range(200_000):
                steering.advance(changed, steering.state)
                if steering.state.is_over:
                    return store.trials(record.id), panda.used
                changed = panda.go_on()
        finally:
            store.close()
    raise AssertionError(f"the search never ends: it is {steering.state.value}")
