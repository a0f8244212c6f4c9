"""The ledger of one search: the results of its folds and the states of its trials.

Pure bookkeeping: no I/O, and the clock is an argument. Results arrive in any order, late, twice or never. The ledger
says what each of them changes. A fold is in one of these conditions:

- It has a *result*: a figure of merit, or the payload's own failure. The first result counts. Later ones are logged.
- It was *lost*: its task ended without a result of it. It is submitted again, at most `MAX_RESUBMISSIONS` times.
- It was *not run*: the walltime of its job ended after other folds. It is submitted again. This cannot go on forever,
  because each such job brings at least one result.
- It is *halted*: its trial was told to stop early, and its jobs are over without a result. A result that comes before
  that counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hpo_pilot.jobs import Attempt, JobReport, JobState, Member, Members, RunReport
from hpo_pilot.jobs.results import from_epoch
from hpo_pilot.panda.task_parameters import output_name
from hpo_pilot.search import EarlyStop, Fold, Search, Trial, TrialState
from hpo_pilot.search.measured_limits import measured_figures, why_infeasible
from hpo_pilot.search.trials import Spent, means_and_stds, measured_joules
from hpo_pilot.store import TaskRecord

#: A fold that was lost more often than this counts as failed. PanDA's own retries of a job (`panda.attempts`) come
#: before a loss: each is an attempt in the store, but neither a loss nor an event.
MAX_RESUBMISSIONS = 2
#: The error of a fold that was lost once more; the store has it as a failed attempt.
_GIVEN_UP = "lost {} times; last: "


class Ledger:
    """The open trials of one search."""

    def __init__(self, uid: str, search: Search, told: int) -> None:
        """Starts a ledger.

        Args:
            uid: the search's random identity. Results of another search are refused.
            search: the search.
            told: number of results so far.
        """
        self._uid = uid
        self._folds, self._needed = search.folds.k, search.folds.needed
        self._objectives = len(search.objectives)
        self._limits = search.measured_limits
        self.told = told
        self.open: dict[int, OpenTrial] = {}
        self._known: dict[tuple[int, int, int, int], Attempt] = {}
        self._not_run: set[tuple[int, int, int]] = set()  # (task, trial, fold): a later task holds these folds
        self._warned: set[tuple[int, int | None]] = set()
        self._noted: set[str] = set()
        self._stopped: set[int] = set()  # trials that were stopped early; their tasks may still report

    def add(self, trial: OpenTrial) -> None:
        """Adds a trial that is about to be submitted, or that was open when the store was loaded."""
        self.open[trial.number] = trial

    def restore(self, attempts: Iterable[Attempt]) -> None:
        """Loads the attempts that the store has of open trials and of trials that were stopped early."""
        tasks: dict[tuple[int, int], set[int]] = defaultdict(set)
        for attempt in attempts:
            self._known[attempt.key] = attempt
            trial = self.open.get(attempt.trial)
            if trial is None:
                self._stopped.add(attempt.trial)
                continue
            tasks[attempt.trial, attempt.fold].add(attempt.task_id)
            if attempt.started is not None:
                trial.starts[attempt.key] = attempt.started
            if attempt.is_final or (attempt.error or "").startswith(_GIVEN_UP.format(MAX_RESUBMISSIONS + 1)):
                trial.results.setdefault(attempt.fold, attempt)
            if attempt.state is JobState.NOT_RUN:
                self._not_run.add(attempt.key[:3])
        for (number, fold), ids in tasks.items():
            # Every task but the last one lost the fold or did not run it.
            self.open[number].lost[fold] = sum((task, number, fold) not in self._not_run for task in ids) - 1

    @property
    def attempts(self) -> Collection[Attempt]:
        """The attempts of open trials and of trials that were stopped early."""
        return self._known.values()

    def forget(self, task: TaskRecord) -> None:
        """Forgets the attempts of trials that were stopped early in a task that is over: no more reports come."""
        for key in [key for key in self._known if key[0] == task.id and key[1] in self._stopped]:
            del self._known[key]

    def missing(self, task: TaskRecord) -> list[int]:
        """Returns the numbers of the task's jobs that still owe a result."""
        return [n for n, job in enumerate(task.jobs, start=1) if any(self._is_expected(task, each) for each in job)]

    def _is_expected(self, task: TaskRecord, member: Member) -> bool:
        """Returns True if the task still owes a result of the member, and no later task has taken the member over."""
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
            attempts = self._attempts(task, report, now, changes)
            not_run = [attempt for attempt in attempts if self._take(attempt, changes)]
            self._resubmit(report, task, not_run, changes)
        halted = self._halt(task, reports)
        self._close(changes, [attempt.trial for attempt in changes.attempts] + halted, now)
        return changes

    def _halt(self, task: TaskRecord, reports: Sequence[JobReport]) -> list[int]:
        """Halts folds of stopping trials that have no live job any more. Returns the numbers of these trials."""
        alive: dict[tuple[int, int], bool] = defaultdict(bool)
        for report in reports:
            if report.number is not None and 1 <= report.number <= len(task.jobs):
                for trial, fold, _ in task.jobs[report.number - 1]:
                    alive[trial, fold] |= not report.state.is_over
        halted = [each for each, lives in alive.items() if not lives and each[0] in self.open]
        halted = [(n, fold) for n, fold in halted if self.open[n].stop and fold not in self.open[n].results]
        for number, fold in halted:
            self.open[number].halted.add(fold)
        return [number for number, _ in halted]

    def _take(self, attempt: Attempt, changes: Changes) -> bool:
        """Enters an attempt that is new. Returns True if the job reports that it did not run the member."""
        trial = self.open.get(attempt.trial)
        is_new = self._known.get(attempt.key) != attempt
        if attempt.trial in self._stopped:
            if is_new:
                self._take_late_cost(attempt, changes)
            return False
        if trial is None or attempt.fold in trial.results or attempt.key[:3] in self._not_run:
            if is_new:
                self._log_second_result(attempt, changes)
            return False
        if not is_new:
            return False
        self._enter(attempt, changes)
        if attempt.started is not None:
            before = trial.first_start
            trial.starts[attempt.key] = attempt.started  # the server's whole seconds, then the runner's exact time
            if (first := trial.first_start) is not None and first != before:
                changes.started.append((trial.number, first))
        if attempt.is_final:
            trial.results[attempt.fold] = attempt
        return attempt.state is JobState.NOT_RUN

    def _enter(self, attempt: Attempt, changes: Changes) -> None:
        known = self._known.get(attempt.key)
        self._known[attempt.key] = attempt
        changes.attempts.append(attempt)
        changes.spent += Spent.of([attempt]) - Spent.of([known] if known else [])

    def _take_late_cost(self, attempt: Attempt, changes: Changes) -> None:
        """Enters an attempt of a trial that was stopped early: its run time is charged, its result does not count."""
        self._enter(attempt, changes)
        if attempt.values:
            text = f"trial {attempt.trial} fold {attempt.fold}: a result came after it was stopped; it does not count"
            self._warn(attempt.task_id, attempt.panda_id, changes, text)

    def _note_start(self, report: RunReport, changes: Changes) -> None:
        """Notes a trial that a job trained from the start instead of from the level below, once."""
        trial = self.open.get(report.trial)
        if report.from_start and trial is not None and trial.trial.continues is not None and not trial.trial.from_start:
            trial.trial = replace(trial.trial, from_start=True)
            changes.from_start.append(trial.number)

    def _log_message(self, report: RunReport, changes: Changes) -> None:
        """Logs the runner's message on a good result, such as missing outputs; each message once."""
        if report.status == "ok" and report.message and report.message not in self._noted:
            self._noted.add(report.message)
            changes.events.append(f"trial {report.trial} fold {report.fold}: {report.message}")

    def _resubmit(self, report: JobReport, task: TaskRecord, not_run: list[Attempt], changes: Changes) -> None:
        """Resubmits the members that a job did not run, in jobs of the size that this job had time for."""
        if not not_run:
            return
        self._not_run.update(attempt.key[:3] for attempt in not_run)
        size = sum(each.status != "not run" for each in report.reports)
        members = [Member(attempt.trial, attempt.fold, self.open[attempt.trial].seed) for attempt in not_run]
        changes.again += [tuple(members[at : at + size]) for at in range(0, len(members), size)]
        changes.events.append(
            f"job {report.panda_id} ran {size} of its {len(report.reports)} points, then {not_run[0].error}; "
            "the others are submitted again"
        )

    def give_up(self, task: TaskRecord, reason: str, now: float) -> Changes:
        """Counts the folds without a result of an ended task as lost; each is resubmitted or fails.

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
        of_fold = [(key, attempt) for key, attempt in self._known.items() if key[:3] == (task.id, number, fold)]
        before = [attempt for _, attempt in sorted(of_fold)]
        last = next((attempt.error for attempt in reversed(before) if attempt.error), reason)
        if trial.lost[fold] <= MAX_RESUBMISSIONS:
            changes.events.append(f"trial {number} fold {fold} was lost ({last}); it is submitted again")
            return True
        newest = before[-1] if before else None
        trial.results[fold] = Attempt(
            task_id=task.id,
            trial=number,
            fold=fold,
            attempt=newest.attempt if newest else 1,
            state=JobState.FAILED,
            error=_GIVEN_UP.format(trial.lost[fold]) + last,
            seconds=newest.seconds if newest else None,
            joules=newest.joules if newest else None,
            ended=now,
        )
        changes.attempts.append(trial.results[fold])
        return False

    def orphans(self, tasks: Iterable[TaskRecord]) -> list[Member]:
        """Returns the folds without a result that none of the tasks holds.

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

    # --- from a report to attempts ---

    def _attempts(self, task: TaskRecord, report: JobReport, now: float, changes: Changes) -> Iterator[Attempt]:
        """Yields the attempt of each member of the reported job; none if the job is not one of the task's jobs."""
        number = report.reports[0].job if report.reports else report.number
        if number is None or not 1 <= number <= len(task.jobs):
            if report.state.is_over:
                text = f"it has the number {number}, which task {task.name} does not have; it is ignored"
                self._warn(task.id, report.panda_id, changes, text)
            return
        job = task.jobs[number - 1]
        places = [member[:2] for member in job]
        found: dict[tuple[int, int], RunReport] = {}
        for each in report.reports:
            identity = (each.uid, each.generation, each.job)
            if identity != (self._uid, task.generation, number) or (each.trial, each.fold) not in places:
                text = "it reports as another search, trial or fold; it is ignored"
                self._warn(task.id, report.panda_id, changes, text)
                return
            found.setdefault((each.trial, each.fold), each)
        for place, member in enumerate(job):
            base = self._without_result(task, report, places, place, now)
            if report.state is not JobState.FINISHED:
                yield base
            elif (trial_report := found.get(member[:2])) is not None:
                self._log_message(trial_report, changes)
                self._note_start(trial_report, changes)
                yield from self._with_result(task, report, base, trial_report)
            else:
                yield replace(
                    base, error="finished without a figure of merit: no word of the payload runner in its metadata"
                )

    def _without_result(
        self, task: TaskRecord, report: JobReport, places: list[tuple[int, int]], place: int, now: float
    ) -> Attempt:
        """Returns the attempt of a job's member at `place` from the server's own fields of a report."""
        trial, fold = places[place]
        attempt = self._attempt_number(task, report, places[place])
        running = places.index(report.running) if report.running in places else 0
        started, seconds = report.started if place == 0 else None, None
        if 0 < place <= running and not report.state.is_over:
            known = self._known.get((task.id, trial, fold, attempt))
            # No report has the start of a later member: the first look that sees it run is close enough.
            started = known.started if known and known.started is not None else now
        if report.state.is_over and report.started is not None and report.ended is not None:
            # Lost time is charged too, shared by all.
            seconds = max(0.0, report.ended - report.started) / len(places)
        return Attempt(
            task_id=task.id,
            trial=trial,
            fold=fold,
            attempt=attempt,
            state=report.state,
            panda_id=report.panda_id,
            node=report.node,
            started=started,
            ended=report.ended,
            error=report.error,
            seconds=seconds,
            progress=report.progress if place == running else (),
        )

    def _attempt_number(self, task: TaskRecord, report: JobReport, place: tuple[int, int]) -> int:
        """Returns the attempt number of a report. Released pilots always report 1: then the PandaID decides."""
        attempt = report.attempt
        while known := self._known.get((task.id, *place, attempt)):
            if known.panda_id in (None, report.panda_id):
                break
            attempt += 1
        return attempt

    def _with_result(self, task: TaskRecord, job: JobReport, base: Attempt, report: RunReport) -> Iterator[Attempt]:
        """Yields the attempt of a member with the runner's report, after a correction of an earlier attempt."""
        error = report.message if report.status != "ok" else None
        values = report.values if error is None else ()
        if self._objectives == 1:
            values = values[:1]
        elif error is None and len(values) != self._objectives:  # a payload packed for fewer objectives
            error = f"{len(values)} of {self._objectives} figures of merit came back from the payload runner"
            values = ()
        output = None
        if report.has_outputs and task.jedi_task_id is not None:
            output = job.output or output_name(task.name, task.jedi_task_id, report.job)
            output += f"/{report.folder}" if report.folder else ""
        before = self._known.get((*base.key[:3], report.ran_in or base.attempt))
        if before and before.attempt != base.attempt and before.seconds:
            yield replace(before, seconds=0.0)  # Its share there was an estimate; the exact time follows here.
        state = base.state
        if report.status == "not run":
            # A job that ran no member at all counts as lost: else it would be resubmitted forever.
            state = JobState.NOT_RUN if any(each.status != "not run" for each in job.reports) else JobState.FAILED
        yield replace(
            base,
            state=state,
            values=values,
            metrics=dict(report.metrics),
            metadata=dict(report.metadata) if report.metadata else None,
            error=error,
            log_tail=report.log_tail if error is not None else report.log_tail or None,
            output=output,
            node=report.node or base.node,
            seconds=report.seconds,
            joules=measured_joules(report.metrics),
            started=report.started or base.started,
            ended=report.ended or base.ended,
            progress=report.progress,
        )

    # --- events ---

    def _log_second_result(self, attempt: Attempt, changes: Changes) -> None:
        """Logs a second result of a fold, once. The store keeps the first."""
        trial = self.open.get(attempt.trial)
        first = trial.results.get(attempt.fold) if trial else None
        if first is None or not attempt.is_final or first.panda_id in (None, attempt.panda_id):
            return
        text = f"trial {attempt.trial} fold {attempt.fold}: a second result came late; the first counts"
        self._warn(attempt.task_id, attempt.panda_id, changes, text)

    def _warn(self, task_id: int, panda_id: int | None, changes: Changes, text: str) -> None:
        if (task_id, panda_id) not in self._warned:
            self._warned.add((task_id, panda_id))
            changes.events.append(f"job {panda_id}: {text}")

    # --- ends of trials ---

    def _close(self, changes: Changes, numbers: Iterable[int], now: float) -> None:
        """Ends each of these trials that has a result or a halt for every fold."""
        for number in dict.fromkeys(numbers):
            trial = self.open.get(number)
            if trial is not None and len(trial.results.keys() | trial.halted) == self._folds:
                changes.ends.append(end := self._end(trial, now))
                del self.open[number]
                if end.state is TrialState.STOPPED:
                    self._stopped.add(number)
                    continue
                for key in [key for key in self._known if key[1] == number]:
                    del self._known[key]
                self._not_run = {key for key in self._not_run if key[1] != number}

    def _end(self, ending: OpenTrial, now: float) -> Trial:
        """Returns a trial that is over: each of its folds has a result or is halted.

        Enough good folds give a result, even if the trial was told to stop early: the full result counts.
        """
        told = None
        if ending.trial.confirms is None:
            told = self.told = self.told + 1
        folds = tuple(Fold(number, (replace(one, progress=()),)) for number, one in sorted(ending.results.items()))
        trial = replace(ending.trial, state=TrialState.FINISHED, folds=folds, told=told, ended=from_epoch(now))
        if trial.good_folds >= self._needed:
            values, stds = means_and_stds([fold.values for fold in folds if fold.values])
            trial = replace(trial, values=values, stds=stds)
            reason = ""
            if trial.confirms is None:  # a confirmation run repeats a trial that was judged
                reason = why_infeasible(self._limits, measured_figures(self._limits, trial))
            return replace(trial, state=TrialState.INFEASIBLE, error=reason) if reason else trial
        if ending.halted:
            return replace(trial, state=TrialState.STOPPED)
        return replace(trial, state=TrialState.FAILED, error=self._reason(trial))

    def _reason(self, trial: Trial) -> str:
        """Returns the reason of a failed trial; folds with the same error are named together."""
        errors: dict[str, list[str]] = defaultdict(list)
        for fold in trial.folds:
            if not fold.values:
                errors[fold.result.error or "no reason given"].append(str(fold.number))
        if self._folds == 1:
            return next(iter(errors))
        parts = [f"fold{'s' * (len(n) > 1)} {', '.join(n)}: {error}" for error, n in errors.items()]
        return f"{trial.good_folds} of {self._folds} folds good, {self._needed} required: {'; '.join(parts)}"


@dataclass
class OpenTrial:
    """A trial that is not over.

    Attributes:
        trial: the trial; its `stop` is set once it was told to stop early.
        starts: start of each attempt that has started, in seconds since the epoch.
        results: the attempt that counts, by fold.
        lost: number of losses, by fold.
        halted: folds whose jobs ended without a result after the trial was told to stop.
    """

    trial: Trial
    starts: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    results: dict[int, Attempt] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    halted: set[int] = field(default_factory=set)

    @property
    def number(self) -> int:
        """Number of the trial."""
        return self.trial.number

    @property
    def seed(self) -> int:
        """Seed of the trial."""
        return self.trial.seed

    @property
    def first_start(self) -> float | None:
        """Start of its first job, in seconds since the epoch; None: none has started."""
        return min(self.starts.values(), default=None)

    @property
    def stop(self) -> EarlyStop | None:
        """The decision to stop it early."""
        return self.trial.stop

    def awaits(self, fold: int) -> bool:
        """Returns True if a result of the fold can still come."""
        return fold not in self.results and fold not in self.halted


@dataclass
class Changes:
    """The changes after one query to the server. The store commits them in one transaction.

    Attributes:
        attempts: new or changed attempts.
        ends: trials that are over now.
        again: jobs to submit again.
        started: (trial, seconds since the epoch) of trials whose start is new or known more exactly.
        from_start: trials that were trained from the start instead of from the level below, by number.
        spent: growth of time and energy of all jobs together.
        look: number of this query, if it brought intermediate values for the early-stopping rule.
        stops: trials that are told to stop early, by number.
    """

    attempts: list[Attempt] = field(default_factory=list)
    ends: list[Trial] = field(default_factory=list)
    started: list[tuple[int, float]] = field(default_factory=list)
    from_start: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    again: list[Members] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    look: int | None = None
    stops: dict[int, EarlyStop] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.attempts or self.ends or self.started or self.from_start or self.events or self.again)
