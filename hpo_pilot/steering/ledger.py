"""The ledger of one search: the results of its folds and the states of its trials.

Pure bookkeeping: no I/O, and the clock is an argument. Results arrive in any order, late, twice or never. The ledger
says what each of them changes. A fold is in one of these conditions:

- It has a *verdict*: a figure of merit, or the payload's own failure. The first verdict counts. Later ones are logged.
- It was *lost*: its task ended without a verdict on it. It is submitted again, at most `MAX_RESUBMISSIONS` times.
- It was *not run*: the walltime of its job ended after other folds. It is submitted again. This cannot go on forever,
  because each such job brings at least one verdict.
- It is *halted*: its trial was told to stop early, and its jobs are over without a verdict. A verdict that comes before
  that counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from hpo_pilot.jobs import JobReport, JobState, Member, Members, Verdict
from hpo_pilot.panda.task_parameters import output_name
from hpo_pilot.search import EarlyStop, Point, Search, TrialState
from hpo_pilot.search.trials import means_and_stds, measured_joules
from hpo_pilot.store import JobOutcome, TaskRecord, TrialEnd

#: A fold that was lost more often than this counts as failed.
MAX_RESUBMISSIONS = 2


class Ledger:
    """The open trials of one search."""

    def __init__(self, *, uid: str, folds: int, needed: int, told: int, objectives: int = 1) -> None:
        """Starts a ledger.

        Args:
            uid: the search's random identity. Results of another search are refused.
            folds: folds per trial.
            needed: good folds that a trial needs for a result.
            told: number of results so far.
            objectives: figures of merit per fold.
        """
        self._uid = uid
        self._folds = folds
        self._needed = needed
        self._objectives = objectives
        self.told = told
        self.open: dict[int, OpenTrial] = {}
        self._known: dict[tuple[int, int, int, int], JobOutcome] = {}
        self._not_run: set[tuple[int, int, int]] = set()  # (task, trial, fold): a later task holds these folds
        self._warned: set[tuple[int, int | None]] = set()
        self._noted: set[str] = set()
        self._stopped: set[int] = set()  # trials that were stopped early; their tasks may still report

    @classmethod
    def of(cls, search: Search, uid: str, told: int) -> Self:
        """Returns an empty ledger for a search."""
        folds, objectives = search.folds, len(search.objectives)
        return cls(uid=uid, folds=folds.k, needed=folds.needed, told=told, objectives=objectives)

    def add(self, trial: OpenTrial) -> None:
        """Adds a trial that is about to be submitted, or that was open when the store was loaded."""
        self.open[trial.number] = trial

    def restore(self, outcomes: Iterable[JobOutcome]) -> None:
        """Loads the job outcomes that the store has for open trials and for trials that were stopped early."""
        tasks: dict[tuple[int, int], set[int]] = defaultdict(set)
        for outcome in outcomes:
            self._known[_key(outcome)] = outcome
            trial = self.open.get(outcome.trial)
            if trial is None:
                self._stopped.add(outcome.trial)
                continue
            tasks[outcome.trial, outcome.fold].add(outcome.task_id)
            trial.started = trial.started or outcome.started is not None
            if outcome.is_verdict:
                trial.verdicts.setdefault(outcome.fold, outcome)
            if outcome.state is JobState.NOT_RUN:
                self._not_run.add((outcome.task_id, outcome.trial, outcome.fold))
        for (number, fold), ids in tasks.items():
            # Every task but the last one lost the fold or did not run it.
            self.open[number].lost[fold] = sum((task, number, fold) not in self._not_run for task in ids) - 1

    @property
    def outcomes(self) -> Collection[JobOutcome]:
        """The job outcomes of open trials and of trials that were stopped early."""
        return self._known.values()

    def missing(self, task: TaskRecord) -> list[int]:
        """Returns the numbers of the task's jobs that still owe a verdict."""
        return [n for n, job in enumerate(task.jobs, start=1) if any(self._is_expected(task, each) for each in job)]

    def _is_expected(self, task: TaskRecord, member: Member) -> bool:
        """Whether the task still owes a verdict on the member, and no later task has taken it over."""
        trial, fold, _ = member
        is_open = trial in self.open and self.open[trial].awaits(fold)
        return is_open and (task.id, trial, fold) not in self._not_run

    # --- reports of the server ---

    def absorb(self, task: TaskRecord, reports: Sequence[JobReport], now: float) -> Changes:
        """Takes the reports of one task's jobs.

        Returns:
            The changes. Empty if the reports bring nothing new.
        """
        changes = Changes()
        for report in sorted(reports, key=lambda r: (r.attempt, r.panda_id)):
            outcomes = self._outcomes(task, report, now, changes)
            not_run = [outcome for outcome in outcomes if self._take(outcome, changes)]
            self._resubmit(report, task, not_run, changes)
        halted = self._halt(task, reports)
        self._close(changes, [outcome.trial for outcome in changes.outcomes] + halted, now)
        return changes

    def _halt(self, task: TaskRecord, reports: Sequence[JobReport]) -> list[int]:
        """Halts folds of stopping trials that have no live job any more. Returns the numbers of these trials."""
        alive: dict[tuple[int, int], bool] = defaultdict(bool)
        for report in reports:
            if report.number is not None and 1 <= report.number <= len(task.jobs):
                for trial, fold, _ in task.jobs[report.number - 1]:
                    alive[trial, fold] |= not report.state.is_over
        halted = [each for each, lives in alive.items() if not lives and each[0] in self.open]
        halted = [(n, fold) for n, fold in halted if self.open[n].stop and fold not in self.open[n].verdicts]
        for number, fold in halted:
            self.open[number].halted.add(fold)
        return [number for number, _ in halted]

    def _take(self, outcome: JobOutcome, changes: Changes) -> bool:
        """Enters an outcome that is new. Returns True if the job reports that it did not run the member."""
        trial = self.open.get(outcome.trial)
        known = self._known.get(_key(outcome))
        if outcome.trial in self._stopped:
            self._take_late_cost(outcome, changes)
            return False
        if trial is None or outcome.fold in trial.verdicts or (*_key(outcome)[:3],) in self._not_run:
            if known != outcome:
                self._log_second_verdict(outcome, changes)
            return False
        if known == outcome:
            return False
        self._enter(outcome, changes)
        if not trial.started and outcome.started is not None:
            trial.started = True
            changes.started.append((trial.number, outcome.started))
        if outcome.is_verdict:
            trial.verdicts[outcome.fold] = outcome
        return outcome.state is JobState.NOT_RUN

    def _enter(self, outcome: JobOutcome, changes: Changes) -> None:
        known = self._known.get(_key(outcome))
        self._known[_key(outcome)] = outcome
        changes.outcomes.append(outcome)
        changes.seconds += (outcome.seconds or 0.0) - ((known.seconds if known else None) or 0.0)

    def _take_late_cost(self, outcome: JobOutcome, changes: Changes) -> None:
        """Enters an outcome of a trial that was stopped early: its run time is charged, its result does not count."""
        if self._known.get(_key(outcome)) == outcome:
            return
        self._enter(outcome, changes)
        if outcome.value is not None:
            text = f"trial {outcome.trial} fold {outcome.fold}: a result came after it was stopped; it does not count"
            self._warn(outcome.task_id, outcome.panda_id, changes, text)

    def _log_message(self, verdict: Verdict, changes: Changes) -> None:
        """Logs the runner's message on a good result, such as missing outputs; each message once."""
        if verdict.value is not None and verdict.message and verdict.message not in self._noted:
            self._noted.add(verdict.message)
            changes.events.append(f"trial {verdict.trial} fold {verdict.fold}: {verdict.message}")

    def _resubmit(self, report: JobReport, task: TaskRecord, not_run: list[JobOutcome], changes: Changes) -> None:
        """Resubmits the members that a job did not run, in jobs of the size that this job had time for."""
        if not not_run:
            return
        for outcome in not_run:
            self._not_run.add((task.id, outcome.trial, outcome.fold))
        size = sum(verdict.was_run for verdict in report.verdicts)
        members = [Member(outcome.trial, outcome.fold, self.open[outcome.trial].seed) for outcome in not_run]
        changes.again += [tuple(members[at : at + size]) for at in range(0, len(members), size)]
        changes.events.append(
            f"job {report.panda_id} ran {size} of its {len(report.verdicts)} points, then {not_run[0].error}; "
            "the others are submitted again"
        )

    def give_up(self, task: TaskRecord, reason: str, now: float) -> Changes:
        """Counts the folds of an ended task that have no verdict as lost; resubmits them or fails them.

        Returns:
            The changes.
        """
        changes = Changes()
        for job in task.jobs:
            lost = tuple(each for each in job if self._is_expected(task, each))
            again = tuple(each for each in lost if self._count_loss(task, each, reason, now, changes))
            changes.again += [again] if again else []
        self._close(changes, [member.trial for job in task.jobs for member in job], now)
        return changes

    def _count_loss(self, task: TaskRecord, member: Member, reason: str, now: float, changes: Changes) -> bool:
        """Counts a loss of a fold. Returns whether the fold is submitted again; else it is halted or has failed."""
        number, fold, _ = member
        trial = self.open[number]
        if trial.stop:
            trial.halted.add(fold)
            return False
        trial.lost[fold] += 1
        last = self._last_error(task, number, fold) or reason
        if trial.lost[fold] <= MAX_RESUBMISSIONS:
            changes.events.append(f"trial {number} fold {fold} was lost ({last}); it is submitted again")
            return True
        before = [outcome for key, outcome in self._known.items() if key[:3] == (task.id, number, fold)]
        newest = max(before, key=lambda outcome: outcome.attempt, default=None)
        outcome = JobOutcome(
            task.id,
            number,
            fold,
            newest.attempt if newest else 1,
            JobState.FAILED,
            error=f"lost {trial.lost[fold]} times; last: {last}",
            seconds=newest.seconds if newest else None,
            joules=newest.joules if newest else None,
            ended=now,
        )
        trial.verdicts[fold] = outcome
        changes.outcomes.append(outcome)
        return False

    def orphans(self, tasks: Iterable[TaskRecord]) -> list[Member]:
        """Returns the folds without a verdict that none of the tasks holds.

        Such folds of a trial that was told to stop are halted instead.
        """
        held = {member[:2] for task in tasks for job in task.jobs for member in job if self._is_expected(task, member)}
        found = []
        for trial in self.open.values():
            free = [fold for fold in range(self._folds) if trial.awaits(fold) and (trial.number, fold) not in held]
            if trial.stop:
                trial.halted.update(free)
            else:
                found += [Member(trial.number, fold, trial.seed) for fold in free]
        return found

    def settle(self, now: float) -> Changes:
        """Ends the open trials that have all their folds; called after loading."""
        changes = Changes()
        self._close(changes, list(self.open), now)
        return changes

    # --- from a report to outcomes ---

    def _outcomes(self, task: TaskRecord, report: JobReport, now: float, changes: Changes) -> Iterator[JobOutcome]:
        """Yields an outcome for each member of the reported job; none if the job is not one of the task's jobs."""
        number = report.verdicts[0].number if report.verdicts else report.number
        if number is None or not 1 <= number <= len(task.jobs):
            if report.state.is_over:
                text = f"it has the number {number}, which task {task.name} does not have; it is ignored"
                self._warn(task.id, report.panda_id, changes, text)
            return
        job = task.jobs[number - 1]
        verdicts: dict[tuple[int, int], Verdict] = {}
        for verdict in report.verdicts:
            place = (verdict.trial, verdict.fold)
            identity = (verdict.uid, verdict.generation, verdict.number)
            if identity != (self._uid, task.generation, number) or place not in {each[:2] for each in job}:
                text = "it reports as another search, trial or fold; it is ignored"
                self._warn(task.id, report.panda_id, changes, text)
                return
            verdicts.setdefault(place, verdict)
        for member in job:
            base = self._without_verdict(task, report, job, member, now)
            if report.state is not JobState.FINISHED:
                yield base
            elif found := verdicts.get(member[:2]):
                self._log_message(found, changes)
                yield from self._with_verdict(task, report, base, found)
            else:
                yield replace(
                    base, error="finished without a figure of merit: no word of the payload runner in its metadata"
                )

    def _without_verdict(
        self, task: TaskRecord, report: JobReport, job: Members, member: Member, now: float
    ) -> JobOutcome:
        """Returns the outcome of a member from the server's own fields of a report."""
        attempt = self._attempt(task, report, member)
        places = [each[:2] for each in job]
        running = places.index(report.running) if report.running in places else 0
        place = places.index(member[:2])
        started, seconds = report.started if place == 0 else None, None
        if 0 < place <= running and not report.state.is_over:
            known = self._known.get((task.id, *member[:2], attempt))
            # No report has the start of a later member: the first look that sees it run is close enough.
            started = known.started if known and known.started is not None else now
        if report.state.is_over and report.started is not None and report.ended is not None:
            seconds = max(0.0, report.ended - report.started) / len(job)  # Lost time is charged too, shared by all.
        return JobOutcome(
            task.id,
            member.trial,
            member.fold,
            attempt,
            report.state,
            panda_id=report.panda_id,
            node=report.node,
            started=started,
            ended=report.ended,
            error=report.error,
            seconds=seconds,
            progress=report.progress if place == running else (),
        )

    def _attempt(self, task: TaskRecord, report: JobReport, member: Member) -> int:
        """Returns the attempt number of a report. Released pilots always report 1: then the PandaID decides."""
        attempt = report.attempt
        while known := self._known.get((task.id, *member[:2], attempt)):
            if known.panda_id in (None, report.panda_id):
                break
            attempt += 1
        return attempt

    def _with_verdict(
        self, task: TaskRecord, report: JobReport, base: JobOutcome, verdict: Verdict
    ) -> Iterator[JobOutcome]:
        """Yields the outcome of a member with the runner's verdict, after a correction of an earlier attempt."""
        verdict = self._complete(verdict)
        failed = verdict.value is None
        output = None
        if verdict.has_outputs and task.jedi_task_id is not None:
            output = report.output or output_name(task.name, task.jedi_task_id, verdict.number)
            output += f"/{verdict.folder}" if verdict.folder else ""
        before = self._known.get((*_key(base)[:3], verdict.ran_in or base.attempt))
        if before and before.attempt != base.attempt and before.seconds:
            yield replace(before, seconds=0.0)  # Its share there was an estimate; the exact time follows here.
        state = base.state
        if not verdict.was_run:
            # A job that ran no member at all counts as lost: else it would be resubmitted forever.
            state = JobState.NOT_RUN if any(each.was_run for each in report.verdicts) else JobState.FAILED
        yield replace(
            base,
            state=state,
            value=verdict.value,
            values=verdict.values if verdict.values and self._objectives > 1 else None,
            metrics=dict(verdict.metrics),
            metadata=dict(verdict.metadata) if verdict.metadata else None,
            error=verdict.message if failed else None,
            log_tail=verdict.log_tail if failed else None,
            output=output,
            node=verdict.node or base.node,
            seconds=verdict.seconds,
            joules=measured_joules(verdict.metrics),
            started=verdict.started or base.started,
            ended=verdict.ended or base.ended,
            progress=verdict.progress,
        )

    def _complete(self, verdict: Verdict) -> Verdict:
        """Returns the verdict, as a failure if figures of merit are missing (a payload packed for fewer objectives)."""
        if verdict.value is None:
            return replace(verdict, values=())
        if self._objectives == 1 or len(verdict.values) == self._objectives:
            return verdict
        text = f"{len(verdict.values)} of {self._objectives} figures of merit came back from the payload runner"
        return replace(verdict, value=None, values=(), message=text)

    # --- events ---

    def _log_second_verdict(self, outcome: JobOutcome, changes: Changes) -> None:
        """Logs a second verdict on a fold, once. The store keeps the first."""
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

    # --- ends of trials ---

    def _close(self, changes: Changes, numbers: Iterable[int], now: float) -> None:
        """Ends each of these trials that has a verdict or a halt for every fold."""
        for number in dict.fromkeys(numbers):
            trial = self.open.get(number)
            if trial is not None and len(trial.verdicts.keys() | trial.halted) == self._folds:
                changes.ends.append(end := self._end(trial, now))
                del self.open[number]
                if end.state is TrialState.STOPPED:
                    self._stopped.add(number)
                    continue
                for key in [key for key in self._known if key[1] == number]:
                    del self._known[key]
                self._not_run = {key for key in self._not_run if key[1] != number}

    def _end(self, trial: OpenTrial, now: float) -> TrialEnd:
        told = None
        if trial.confirms is None:
            self.told += 1
            told = self.told
        rules = {"folds": self._folds, "needed": self._needed, "objectives": self._objectives}
        return trial_end(trial, told, now, **rules)


def _key(outcome: JobOutcome) -> tuple[int, int, int, int]:
    return (outcome.task_id, outcome.trial, outcome.fold, outcome.attempt)


@dataclass
class OpenTrial:
    """A trial that is not over.

    Attributes:
        verdicts: by fold.
        lost: number of losses, by fold.
        stop: set once the trial was told to stop early.
        halted: folds whose jobs ended without a verdict after that.
    """

    number: int
    point: Point
    seed: int
    confirms: int | None
    started: bool = False
    verdicts: dict[int, JobOutcome] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    stop: EarlyStop | None = None
    halted: set[int] = field(default_factory=set)

    def awaits(self, fold: int) -> bool:
        """Whether a verdict on the fold can still come."""
        return fold not in self.verdicts and fold not in self.halted


@dataclass
class Changes:
    """The changes after one query to the server. The store commits them in one transaction.

    Attributes:
        again: jobs to submit again.
        seconds: growth of the run time of all jobs together.
        look: number of this query, if it brought intermediate values for the early-stopping rule.
        stops: trials that are told to stop early, by number.
    """

    outcomes: list[JobOutcome] = field(default_factory=list)
    ends: list[TrialEnd] = field(default_factory=list)
    started: list[tuple[int, float]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    again: list[Members] = field(default_factory=list)
    seconds: float = 0.0
    look: int | None = None
    stops: dict[int, EarlyStop] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.ends or self.started or self.events or self.again)


def trial_end(
    trial: OpenTrial, told: int | None, now: float, *, folds: int, needed: int, objectives: int = 1
) -> TrialEnd:
    """Returns the end of a trial.

    Enough good folds give a result, even if the trial was told to stop early: the full result counts.

    Args:
        trial: the trial. Each of its folds has a verdict or is halted.
        told: its place in the order of results; None for a confirmation run.
        now: seconds since the epoch.
        folds: folds per trial.
        needed: good folds that a trial needs.
        objectives: figures of merit per fold.
    """
    good = [o.values or (o.value,) for _, o in sorted(trial.verdicts.items()) if o.value is not None]
    seconds = max((o.seconds for o in trial.verdicts.values() if o.seconds is not None), default=None)
    end = TrialEnd(trial.number, TrialState.FINISHED, None, None, None, told, now, len(good), seconds)
    if len(good) < needed and trial.halted:
        return replace(end, state=TrialState.STOPPED)
    if len(good) < needed:
        return replace(end, state=TrialState.FAILED, error=_reason(trial, len(good), folds, needed))
    means, stds = means_and_stds(good)
    end = replace(end, value=means[0], std=stds[0] if stds else None)
    return replace(end, values=means, stds=stds) if objectives > 1 else end


def _reason(trial: OpenTrial, good: int, folds: int, needed: int) -> str:
    """Returns the reason of a failed trial; folds with the same error are named together."""
    errors: dict[str, list[str]] = defaultdict(list)
    for fold, outcome in sorted(trial.verdicts.items()):
        if outcome.value is None:
            errors[outcome.error or "no reason given"].append(str(fold))
    if folds == 1:
        return next(iter(errors))
    parts = [f"fold{'s' * (len(n) > 1)} {', '.join(n)}: {error}" for error, n in errors.items()]
    return f"{good} of {folds} folds good, {needed} required: {'; '.join(parts)}"
