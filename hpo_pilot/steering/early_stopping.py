"""Stops hopeless trials early: a rule decides, and PanDA kills the jobs.

The decision is committed together with the intermediate values that led to it, before any job is killed. After a
restart, jobs of trials with a decision are killed again until they are over. A trial has stopped when none of its jobs
runs any more. If its full result arrives first, the full result counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpo_pilot.jobs import Attempt, JobReport, TaskRef
from hpo_pilot.optimizers.early_stopping import COMPARED, Report, Stop, create_rule
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.steering.ledger import Changes, OpenTrial
from hpo_pilot.store import SearchRecord, SteeringStore, TaskRecord
from hpo_pilot.store.steering_store import NumberedTrials

#: A job that still runs this many seconds after a kill is killed again.
_KILLED_AGAIN = 60.0


class TrialStopper:
    """The early stopping of one search."""

    def __init__(
        self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager, trials: NumberedTrials
    ) -> None:
        """Makes the rule and replays the values of the store to it.

        Args:
            record: the search.
            store: the store.
            manager: kills jobs.
            trials: all trials by number. The caller keeps them equal to the store.

        `told` then takes the ended folds that the store has, and `note_judged` comes last.
        """
        search = record.search
        self._search = search
        self._manager = manager
        self._rule = create_rule(search.early_stopping, search.folds.k)
        self._trials = trials
        metrics = [objective.metric for objective in search.objectives]
        self._place = metrics.index(search.early_stopping.metric) if search.early_stopping.metric else 0
        self._objective = search.objectives[self._place]
        self._sign = self._objective.sign
        self._look = 0
        self._seen: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._killed: dict[int, float] = {}
        # Figures of merit of the last results, of several objectives.
        self._finished: deque[tuple[float, ...]] = deque(maxlen=COMPARED)
        # Trials that have stopped. Some servers retry their killed jobs.
        self._over = set(store.stopped_early(record.id))
        if self._rule is not None:
            looks = store.values_by_look(record.id)
            self._look = len(looks) - 1
            kept = self._over.union(number for number, trial in trials.items() if not trial.state.is_over)
            for look in looks:
                self._rule.look([self._report(*value) for value in look], ())
                for number, fold, step, _ in look:
                    if number in kept:
                        self._seen[number, fold].add(step)

    def told(self, trial: Trial) -> None:
        """Takes the ended folds of a trial; results in their order."""
        if self._rule is not None and trial.confirms is None:
            ended = {(trial.number, each.number): each.values for each in trial.folds if each.values}
            self._rule.look([], (), self._costs(ended))
            self._keep_figures(trial)

    def note_judged(self) -> None:
        """Lets the rule note where the running trials were judged before; its decisions are in the store."""
        if self._rule is not None:
            for number, trial in self._trials.items():
                if not trial.state.is_over:
                    self._rule.judge(number)

    def _keep_figures(self, trial: Trial) -> None:
        if trial.values and trial.confirms is None and len(self._search.objectives) > 1:
            self._finished.append(trial.values)

    @property
    def is_on(self) -> bool:
        """Whether the search has an early-stopping rule."""
        return self._rule is not None

    def _report(self, trial: int, fold: int, step: int, value: float) -> Report:
        return Report(trial, fold, step, self._sign * value if math.isfinite(value) else math.inf)

    def _costs(self, ended: Mapping[tuple[int, int], Sequence[float]]) -> dict[tuple[int, int], float]:
        """Returns the deciding figure of merit of each fold as a cost; lower is better."""
        return {fold: self._sign * figures[self._place] for fold, figures in ended.items()}

    # --- decide ---

    def judge(self, changes: Changes, trials: Mapping[int, OpenTrial]) -> None:
        """Passes new intermediate values to the rule and enters its decisions into `changes`.

        Args:
            changes: the changes after one query to the server.
            trials: the open trials.
        """
        if self._rule is None:
            return
        self._trials.fetch({attempt.trial for attempt in changes.attempts})
        reports = [report for attempt in changes.attempts for report in self._new(attempt)]
        if reports:
            self._look += 1
            changes.look = self._look
        judged = [n for n, each in trials.items() if each.stop is None and each.trial.confirms is None]
        good = (each for each in changes.attempts if each.values and self._trials[each.trial].confirms is None)
        ended = {(each.trial, each.fold): each.values for each in good}
        self._decide(changes, self._rule.look(reports, judged, self._costs(ended)))
        self._complete(changes)

    def _decide(self, changes: Changes, stops: Mapping[int, Stop]) -> None:
        """Enters the stops that the rule decided."""
        method, metric = self._search.early_stopping.method, self._objective.metric
        for number, stop in stops.items():
            value = self._sign * stop.value if math.isfinite(stop.value) else None
            what = "is not a finite number: " if value is None else f"{value:.6g} is "
            reason = f"{metric} {what}{stop.reason} ({method})"
            changes.stops[number] = EarlyStop(self._look, reason, stop.step, value)
            changes.events.append(f"trial {number} is told to stop: {reason}")

    def _new(self, attempt: Attempt) -> list[Report]:
        """Returns the values of an attempt that the store does not have yet. Confirmation runs are never judged."""
        if self._trials[attempt.trial].confirms is not None:
            return []
        seen = self._seen[attempt.trial, attempt.fold]
        new = {step: value for step, value in attempt.progress if step not in seen}
        seen |= new.keys()
        return [self._report(attempt.trial, attempt.fold, step, value) for step, value in new.items()]

    def _complete(self, changes: Changes) -> None:
        """Adds the last step and value to trials that have stopped, and an event for trials that finished instead."""
        for index, end in enumerate(changes.ends):
            stop = self._trials[end.number].stop
            if end.state is TrialState.STOPPED and stop is not None:
                changes.ends[index] = self._stopped(end, stop)
            elif stop is not None and end.good_folds < self._search.folds.k and end.values:
                whole = f"{end.good_folds} of {self._search.folds.k} folds"
                text = f"trial {end.number} was told to stop; {whole} had ended before, which is enough: it is finished"
                changes.events.append(text)
            elif stop is not None:
                changes.events.append(f"trial {end.number} was told to stop and ended before: its full result counts")

    def _stopped(self, end: Trial, stop: EarlyStop) -> Trial:
        assert self._rule is not None
        decided = (stop.step, math.inf if stop.value is None else self._sign * stop.value)
        step, value = self._rule.curves.last(end.number, self._rule.folds_needed) or decided
        if math.isfinite(value):
            stop = replace(stop, step=step, value=self._sign * value, projected=self._projected(end.number))
        else:
            stop = replace(stop, step=step, value=None)  # A diverged trial has no estimate.
        return replace(end, stop=stop, error=f"stopped early: {stop.reason}")

    def _projected(self, number: int) -> tuple[float, ...] | None:
        """Returns the estimated final result of a stopped trial.

        The deciding objective is projected from the learning curve. The others get the median of the last 1,000
        finished trials. None if there is no estimate.
        """
        assert self._rule is not None
        value = self._rule.curves.projected(number)
        finished, several = self._finished, len(self._search.objectives)
        if value is None or (several > 1 and not finished):
            return None
        usual = [statistics.median(figures[i] for figures in finished) for i in range(several)] if finished else [0.0]
        usual[self._place] = self._sign * value
        return tuple(usual)

    # --- carry out ---

    def decided(self, changes: Changes, trials: Mapping[int, OpenTrial]) -> None:
        """Applies the decisions that were just committed."""
        for number, stop in changes.stops.items():
            trials[number].trial = self._trials[number] = replace(self._trials[number], stop=stop)
        for end in changes.ends:
            if end.state is TrialState.STOPPED:
                self._over.add(end.number)
            else:
                self._keep_figures(end)
                for fold in range(self._search.folds.k):
                    self._seen.pop((end.number, fold), None)

    def kill(self, task: TaskRecord, reports: Iterable[JobReport], trials: Mapping[int, OpenTrial]) -> None:
        """Kills the jobs of a task that run only trials that were told to stop.

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

    def kill_rest(self, task: TaskRecord, ref: TaskRef) -> None:
        """Kills a task with stopped trials that owes nothing more, if the server retries killed jobs.

        Raises:
            TryAgainError: the server does not answer.
        """
        if self._manager.policy.revives and self.has_stopped(task):
            self._manager.kill(ref)

    def has_stopped(self, task: TaskRecord) -> bool:
        """Returns whether a trial of the task was stopped early."""
        return any(number in self._over for job in task.jobs for number, _, _ in job)
