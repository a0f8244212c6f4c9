"""The ledger of one search: which folds of which trials have spoken. Pure bookkeeping, no I/O, the clock handed in.

Results come in any order, late, twice or not at all; the ledger says what each changes. A fold has at most one
*verdict* (a figure of merit, or the payload's own failure): the first counts, what comes later is logged and ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hpo_pilot.jobs import JobReport, JobState, Verdict
from hpo_pilot.panda.task_parameters import output_name
from hpo_pilot.search import Point, TrialState
from hpo_pilot.search.trial import mean_and_std
from hpo_pilot.store import JobOutcome, TaskRecord, TrialEnd

#: How often a fold that PanDA itself has given up is submitted again before the fold counts as failed.
MAX_RESUBMISSIONS = 2


@dataclass
class OpenTrial:
    """A trial that is out.

    Attributes:
        verdicts: by fold.
        lost: how many tasks gave up on each fold.
    """

    number: int
    point: Point
    seed: int
    confirms: int | None
    started: bool = False
    verdicts: dict[int, JobOutcome] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class Changes:
    """What a look at the server brought; all of it goes to the store in one transaction."""

    outcomes: list[JobOutcome] = field(default_factory=list)
    ends: list[TrialEnd] = field(default_factory=list)
    started: list[tuple[int, float]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.ends or self.started or self.events)

    def __add__(self, other: Changes) -> Changes:
        return Changes(
            self.outcomes + other.outcomes,
            self.ends + other.ends,
            self.started + other.started,
            self.events + other.events,
        )


class Ledger:
    """The open trials of one search."""

    def __init__(self, *, uid: str, folds: int, needed: int, told: int) -> None:
        """Starts a ledger.

        Args:
            uid: the search's random identity; results of another search are refused.
            folds: folds per trial.
            needed: good folds that a trial needs.
            told: how many results are in the history already.
        """
        self._uid = uid
        self._folds = folds
        self._needed = needed
        self.told = told
        self.open: dict[int, OpenTrial] = {}
        self._known: dict[tuple[int, int, int, int], JobOutcome] = {}
        self._warned: set[tuple[int, int | None]] = set()

    def add(self, trial: OpenTrial) -> None:
        """A trial is about to go out, or was out when the store was loaded."""
        self.open[trial.number] = trial

    def restore(self, outcomes: Iterable[JobOutcome]) -> None:
        """Takes what the store knows of the open trials' jobs."""
        tasks: dict[tuple[int, int], set[int]] = defaultdict(set)
        for outcome in outcomes:
            self._known[_key(outcome)] = outcome
            trial = self.open.get(outcome.trial)
            if trial is None:
                continue
            tasks[outcome.trial, outcome.fold].add(outcome.task_id)
            trial.started = trial.started or outcome.started is not None
            if outcome.is_verdict:
                trial.verdicts.setdefault(outcome.fold, outcome)
        for (number, fold), ids in tasks.items():
            self.open[number].lost[fold] = len(ids) - 1  # every task but the last had lost it

    def missing(self, task: TaskRecord) -> list[int]:
        """The numbers of the task's jobs whose folds have no verdict yet."""
        return [n for n, (trial, fold, _) in enumerate(task.jobs, start=1) if self._is_open(trial, fold)]

    def _is_open(self, trial: int, fold: int) -> bool:
        return trial in self.open and fold not in self.open[trial].verdicts

    # --- what the server says ---

    def absorb(self, task: TaskRecord, reports: Sequence[JobReport], now: float) -> Changes:
        """Takes the reports of one task's jobs.

        Returns:
            What they change; nothing where all of it was known.
        """
        changes = Changes()
        for report in sorted(reports, key=lambda r: (r.attempt, r.panda_id)):
            outcome = self._outcome(task, report, changes)
            if outcome is None or self._known.get(_key(outcome)) == outcome:
                continue
            trial = self.open.get(outcome.trial)
            if trial is None or outcome.fold in trial.verdicts:
                self._late(outcome, changes)
                continue
            self._known[_key(outcome)] = outcome
            changes.outcomes.append(outcome)
            if not trial.started and outcome.started is not None:
                trial.started = True
                changes.started.append((trial.number, outcome.started))
            if outcome.is_verdict:
                trial.verdicts[outcome.fold] = outcome
        self._close(changes, [outcome.trial for outcome in changes.outcomes], now)
        return changes

    def give_up(self, task: TaskRecord, reason: str, now: float) -> tuple[Changes, list[tuple[int, int, int]]]:
        """The task is over, and some of its folds have no verdict: they are lost.

        Returns:
            What that changes, and the jobs to submit again.
        """
        changes = Changes()
        again: list[tuple[int, int, int]] = []
        for trial_number, fold, seed in task.jobs:
            if not self._is_open(trial_number, fold):
                continue
            trial = self.open[trial_number]
            trial.lost[fold] += 1
            last = self._last_error(task, trial_number, fold) or reason
            if trial.lost[fold] <= MAX_RESUBMISSIONS:
                again.append((trial_number, fold, seed))
                changes.events.append(f"trial {trial_number} fold {fold} was lost ({last}); it is submitted again")
                continue
            attempts = [key[3] for key in self._known if key[:3] == (task.id, trial_number, fold)]
            outcome = JobOutcome(
                task.id,
                trial_number,
                fold,
                max(attempts, default=1),
                JobState.FAILED,
                error=f"lost {trial.lost[fold]} times; last: {last}",
                ended=now,
            )
            trial.verdicts[fold] = outcome
            changes.outcomes.append(outcome)
        self._close(changes, [outcome.trial for outcome in changes.outcomes], now)
        return changes, again

    def orphans(self, tasks: Iterable[TaskRecord]) -> list[tuple[int, int, int]]:
        """(trial, fold, seed) of the folds without a verdict that none of the tasks has: nobody will report on them."""
        held = {(trial, fold) for task in tasks for trial, fold, _ in task.jobs}
        return [
            (trial.number, fold, trial.seed)
            for trial in self.open.values()
            for fold in range(self._folds)
            if fold not in trial.verdicts and (trial.number, fold) not in held
        ]

    def settle(self, now: float) -> Changes:
        """Ends the trials whose folds had all spoken when the store was loaded."""
        changes = Changes()
        self._close(changes, list(self.open), now)
        return changes

    # --- inside ---

    def _outcome(self, task: TaskRecord, report: JobReport, changes: Changes) -> JobOutcome | None:
        """The report as an outcome of one of the task's jobs; None where it is of no job of ours."""
        verdict = report.verdict
        number = verdict.number if verdict else report.number
        if number is None or not 1 <= number <= len(task.jobs):
            if report.state.is_over:
                text = f"it has the number {number}, which task {task.name} does not have; it is ignored"
                self._warn(task.id, report.panda_id, changes, text)
            return None
        trial, fold, _seed = task.jobs[number - 1]
        if verdict and (verdict.uid, verdict.generation, verdict.trial, verdict.fold) != (
            self._uid,
            task.generation,
            trial,
            fold,
        ):
            text = "it reports as another search, trial or fold; it is ignored"
            self._warn(task.id, report.panda_id, changes, text)
            return None
        base = JobOutcome(
            task.id,
            trial,
            fold,
            report.attempt,
            report.state,
            panda_id=report.panda_id,
            node=report.node,
            started=report.started,
            ended=report.ended,
            error=report.error,
            progress=(report.progress,) if report.progress else (),
        )
        if report.state is not JobState.FINISHED:
            if report.state.is_over and report.started is not None and report.ended is not None:
                return replace(base, seconds=max(0.0, report.ended - report.started))  # lost, and paid for all the same
            return base
        if verdict is None:
            return replace(
                base, error="finished without a figure of merit: no word of the payload runner in its metadata"
            )
        return self._judged(task, number, base, verdict)

    @staticmethod
    def _judged(task: TaskRecord, number: int, base: JobOutcome, verdict: Verdict) -> JobOutcome:
        failed = verdict.value is None
        output = None
        if verdict.has_outputs and task.jedi_task_id is not None:
            output = output_name(task.name, task.jedi_task_id, number)
        return replace(
            base,
            value=verdict.value,
            metrics=dict(verdict.metrics),
            error=verdict.message if failed else None,
            log_tail=verdict.log_tail if failed else None,
            output=output,
            node=verdict.node or base.node,
            seconds=verdict.seconds,
            started=verdict.started or base.started,
            ended=verdict.ended or base.ended,
            progress=verdict.progress,
        )

    def _late(self, outcome: JobOutcome, changes: Changes) -> None:
        """Logs a second verdict on a fold, once; the store keeps the first."""
        trial = self.open.get(outcome.trial)
        first = trial.verdicts.get(outcome.fold) if trial else None
        if first is None or not outcome.is_verdict or first.panda_id in (None, outcome.panda_id):
            return
        text = f"trial {outcome.trial} fold {outcome.fold}: a second result came late; the first counts"
        self._warn(outcome.task_id, outcome.panda_id, changes, text)

    def _warn(self, task_id: int, panda_id: int | None, changes: Changes, text: str) -> None:
        if (task_id, panda_id) not in self._warned:
            self._warned.add((task_id, panda_id))
            changes.events.append(f"job {panda_id}: {text}")

    def _last_error(self, task: TaskRecord, trial: int, fold: int) -> str | None:
        errors = [o.error for key, o in sorted(self._known.items()) if key[:3] == (task.id, trial, fold) and o.error]
        return errors[-1] if errors else None

    def _close(self, changes: Changes, numbers: Iterable[int], now: float) -> None:
        """Ends those of the trials whose folds have all spoken."""
        for number in dict.fromkeys(numbers):
            trial = self.open.get(number)
            if trial is not None and len(trial.verdicts) == self._folds:
                changes.ends.append(self._end(trial, now))
                del self.open[number]
                for key in [key for key in self._known if key[1] == number]:
                    del self._known[key]

    def _end(self, trial: OpenTrial, now: float) -> TrialEnd:
        told = None
        if trial.confirms is None:
            self.told += 1
            told = self.told
        good = [o.value for _, o in sorted(trial.verdicts.items()) if o.value is not None]
        seconds = max((o.seconds for o in trial.verdicts.values() if o.seconds is not None), default=None)
        state, mean, std, error = TrialState.FINISHED, None, None, None
        if len(good) >= self._needed:
            mean, std = mean_and_std(good)
        else:
            state = TrialState.FAILED
            error = self._reason(trial, len(good))
        return TrialEnd(trial.number, state, mean, std, error, told, now, good_folds=len(good), seconds=seconds)

    def _reason(self, trial: OpenTrial, good: int) -> str:
        """Why a trial failed; folds that failed alike share a line."""
        folds: dict[str, list[str]] = defaultdict(list)
        for fold, outcome in sorted(trial.verdicts.items()):
            if outcome.value is None:
                folds[outcome.error or "no reason given"].append(str(fold))
        if self._folds == 1:
            return next(iter(folds))
        parts = [f"fold{'s' * (len(n) > 1)} {', '.join(n)}: {error}" for error, n in folds.items()]
        return f"{good} of {self._folds} folds good, {self._needed} required: {'; '.join(parts)}"


def _key(outcome: JobOutcome) -> tuple[int, int, int, int]:
    return (outcome.task_id, outcome.trial, outcome.fold, outcome.attempt)
