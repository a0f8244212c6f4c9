"""Stops hopeless trials before their end: what a rule decides, PanDA's kill carries out.

The decision is committed together with the values that it comes from, before anything is killed; what was decided and
is not over yet is killed again after a restart, as often as it takes. A trial has stopped when none of its jobs runs
any more; where its full result was faster, that counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hpo_pilot.jobs import JobReport, TaskRef
from hpo_pilot.optimizers.early_stopping import Report, create_rule, projected
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.service.changes import Changes, OpenTrial
from hpo_pilot.store import JobOutcome, SearchRecord, SteeringStore, TaskRecord, TrialEnd

#: A job that goes on although it was killed is killed again after so many seconds.
_KILLED_AGAIN = 60.0


class Halting:
    """The early stopping of one search."""

    def __init__(
        self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager, trials: dict[int, Trial]
    ) -> None:
        """Makes a rule that knows what the store has.

        Args:
            record: the search.
            store: the store.
            manager: kills jobs.
            trials: all trials as the store knows them, kept so by the caller.
        """
        search = record.search
        self._search = search
        self._manager = manager
        self._rule = create_rule(search.early_stopping, search.folds.k)
        self._trials = trials
        metrics = [objective.metric for objective in search.objectives]
        self._place = metrics.index(search.early_stopping.metric) if search.early_stopping.metric else 0
        self._objective = search.objectives[self._place]
        self._look = 0
        self._seen: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._killed: dict[int, float] = {}
        # Stopped, but a server that revives jobs may try them again.
        self._over: set[int] = {number for number, trial in trials.items() if trial.stopped_early}
        if self._rule is not None:
            looks = store.values_by_look(record.id)
            self._look = len(looks) - 1
            for look in looks:
                self._rule.look([self._report(*value) for value in look], ())
                for number, fold, step, _ in look:
                    if number in self._over or not trials[number].state.is_over:
                        self._seen[number, fold].add(step)

    @property
    def is_on(self) -> bool:
        """Whether any trial is ever stopped."""
        return self._rule is not None

    def _report(self, trial: int, fold: int, step: int, value: float) -> Report:
        return Report(trial, fold, step, self._objective.sign * value if math.isfinite(value) else math.inf)

    # --- decide ---

    def judge(self, changes: Changes, trials: Mapping[int, OpenTrial]) -> None:
        """Lets the rule see the values of a look, and enters into `changes` what it decides.

        Args:
            changes: what the look brought.
            trials: those that are out.
        """
        if self._rule is None:
            return
        reports = [report for outcome in changes.outcomes for report in self._new(outcome)]
        if reports:
            self._decide(changes, reports, trials)
        self._complete(changes)

    def _decide(self, changes: Changes, reports: Iterable[Report], trials: Mapping[int, OpenTrial]) -> None:
        assert self._rule is not None
        self._look += 1
        changes.look = self._look
        judged = [number for number, trial in trials.items() if trial.stop is None and trial.confirms is None]
        method, metric, sign = self._search.early_stopping.method, self._objective.metric, self._objective.sign
        for number, stop in self._rule.look(reports, judged).items():
            value = sign * stop.value if math.isfinite(stop.value) else None
            what = "is no finite number: " if value is None else f"{value:.6g} is "
            reason = f"{metric} {what}{stop.reason} ({method})"
            changes.stops[number] = EarlyStop(self._look, reason, stop.step, value)
            changes.events.append(f"trial {number} is told to stop: {reason}")

    def _new(self, outcome: JobOutcome) -> list[Report]:
        """The values of an outcome that the store does not have yet; none of confirmation runs."""
        if self._trials[outcome.trial].confirms is not None:
            return []
        seen = self._seen[outcome.trial, outcome.fold]
        new = {step: value for step, value in outcome.progress if step not in seen}
        seen |= new.keys()
        return [self._report(outcome.trial, outcome.fold, step, value) for step, value in new.items()]

    def _complete(self, changes: Changes) -> None:
        """Says of trials that have stopped how far they came; and of those that finished all the same that they did."""
        for index, end in enumerate(changes.ends):
            told_to = self._trials[end.number].stop
            if end.state is TrialState.STOPPED and told_to is not None:
                changes.ends[index] = self._stopped(end, told_to)
            elif told_to is not None:
                changes.events.append(f"trial {end.number} was told to stop and ended before: its full result counts")

    def _stopped(self, end: TrialEnd, told_to: EarlyStop) -> TrialEnd:
        assert self._rule is not None
        sign = self._objective.sign
        curves = self._rule.curves
        at_the_end = math.inf if told_to.value is None else sign * told_to.value
        step, value = curves.last(end.number, self._rule.folds_needed) or (told_to.step, at_the_end)
        if math.isfinite(value):
            stop = replace(told_to, step=step, value=sign * value, projected=self._projected(end.number, value))
        else:
            stop = replace(told_to, step=step, value=None)  # it would have failed
        return replace(end, stop=stop, error=f"stopped early: {stop.reason}")

    def _projected(self, number: int, value: float) -> tuple[float, ...] | None:
        """What a trial would probably have come to; of the objectives that do not decide, what is usual."""
        assert self._rule is not None
        sign, several = self._objective.sign, len(self._search.objectives)
        finished = {n: t.figures for n, t in self._trials.items() if t.confirms is None and t.figures is not None}
        finals = {n: sign * figures[self._place] for n, figures in finished.items()}
        here, others = self._rule.curves.compared(number, finals) or (value, [])
        if not finished:
            return (sign * value,) if several == 1 else None  # by one of them alone the others cannot be guessed
        usual = [statistics.median(figures[i] for figures in finished.values()) for i in range(several)]
        usual[self._place] = sign * max(projected(here, others), min(finals.values()))
        return tuple(usual)

    # --- carry out ---

    def decided(self, changes: Changes, trials: Mapping[int, OpenTrial]) -> None:
        """Notes what was committed just now."""
        for number, stop in changes.stops.items():
            trials[number].stop = stop
            self._trials[number] = replace(self._trials[number], stop=stop)
        for end in changes.ends:
            if end.state is TrialState.STOPPED:
                self._over.add(end.number)
            else:
                for fold in range(self._search.folds.k):
                    self._seen.pop((end.number, fold), None)

    def kill(self, task: TaskRecord, reports: Iterable[JobReport], trials: Mapping[int, OpenTrial]) -> None:
        """Kills those of a task's jobs that run for trials that were told to stop.

        Raises:
            TryAgainError: the server does not answer.
        """
        if self._rule is None:
            return
        now = time.monotonic()
        hopeless = [
            report.panda_id
            for report in reports
            if not report.state.is_over
            and report.number is not None
            and 1 <= report.number <= len(task.jobs)
            and all(self._is_stopped(member.trial, trials) for member in task.jobs[report.number - 1])
            and now - self._killed.get(report.panda_id, -_KILLED_AGAIN) >= _KILLED_AGAIN
        ]
        if hopeless:
            self._manager.kill_jobs(hopeless)
            self._killed.update(dict.fromkeys(hopeless, now))

    def _is_stopped(self, number: int, trials: Mapping[int, OpenTrial]) -> bool:
        return number in self._over or (number in trials and trials[number].stop is not None)

    def see_off(self, task: TaskRecord, ref: TaskRef) -> None:
        """Makes sure that nothing of a task from which nothing more is expected goes on.

        Raises:
            TryAgainError: the server does not answer.
        """
        stopped = (number in self._over for job in task.jobs for number, _, _ in job)
        if self._manager.manners.revives and any(stopped):
            self._manager.kill(ref)
