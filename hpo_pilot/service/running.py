"""The jobs of a search that run at the moment, by what its ledger knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpo_pilot.jobs import JobState
from hpo_pilot.store import JobOutcome


@dataclass(frozen=True)
class RunningJob:
    """A job that runs.

    Attributes:
        seconds: for how long.
        members: what it runs, one after another.
    """

    seconds: float
    members: tuple[JobOutcome, ...]

    def cut_off(self, now: float) -> list[JobOutcome]:
        """What becomes of its members where it was killed and nobody waits for its end: they are paid for till now."""
        share = self.seconds / len(self.members)
        return [replace(each, state=JobState.CANCELLED, seconds=share, ended=now) for each in self.members]


def running_jobs(known: Iterable[JobOutcome], now: float, limit: float) -> list[RunningJob]:
    """The jobs that run.

    Args:
        known: attempts of folds; of several attempts of one fold the newest counts.
        now: seconds since the epoch.
        limit: seconds after which a job is ended: one that seems to run for longer has ended unseen.
    """
    newest: dict[tuple[int, int], JobOutcome] = {}
    for outcome in sorted(known, key=lambda each: (each.task_id, each.attempt)):
        newest[outcome.trial, outcome.fold] = outcome
    by_job: dict[tuple[int, int | None], list[JobOutcome]] = {}
    for outcome in newest.values():
        if not outcome.state.is_over and outcome.seconds is None:
            by_job.setdefault((outcome.task_id, outcome.panda_id), []).append(outcome)
    found = []
    for members in by_job.values():
        started = min((each.started for each in members if each.started is not None), default=None)
        if started is not None:
            found.append(RunningJob(min(max(0.0, now - started), limit), tuple(members)))
    return found
