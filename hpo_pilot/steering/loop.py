"""Steers one search: ask, submit, collect, tell, until the budget is spent."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import cached_property
from pathlib import Path

from hpo_pilot.errors import ExhaustedError, GiveUpError, TryAgainError
from hpo_pilot.jobs import JobState, TaskRef, TaskState
from hpo_pilot.optimizers import Optimizer, create_optimizer
from hpo_pilot.panda.workflow_manager import UnknownTaskError, WorkflowManager
from hpo_pilot.report.summary import top_trials
from hpo_pilot.search import KnownResult, Point, Search, Trial, TrialState, point_key
from hpo_pilot.search.earlier_results import EarlierResults
from hpo_pilot.search.sections import costs
from hpo_pilot.steering import metrics
from hpo_pilot.steering.budget import Allowance, Spending, overspent, search_verdict
from hpo_pilot.steering.early_stopping import TrialStopper
from hpo_pilot.steering.ledger import Changes, Ledger, OpenTrial
from hpo_pilot.steering.metrics import time_ask
from hpo_pilot.steering.results import KeptOutputs
from hpo_pilot.steering.submissions import LOOK_SECONDS, Lookahead, PointRequests, Refill, Submissions, new_trials
from hpo_pilot.store import (
    Cut,
    NewTask,
    PointRequest,
    SearchRecord,
    SearchState,
    SteeringStore,
    StoreAwayError,
    TaskRecord,
)

# The steering of one search: ask, submit, collect, tell, until the budget is spent.
#
# All lasting state is in the store; what is held here is rebuilt from it. Each step is committed before the next one
# depends on it, so that a kill at any instant repeats at most a look at the server, never a submission or a result.

#: Points asked for at once; a wider search asks several times in a row.
_ASK_LIMIT = 500

log = logging.getLogger(__name__)


class SearchSteering:
    """Drives one search. Used by one thread."""

    def __init__(
        self,
        record: SearchRecord,
        store: SteeringStore,
        manager: WorkflowManager,
        executor: Executor,
        wake: Callable[[], None],
    ) -> None:
        """Loads the search from the store.

        Args:
            record: the search.
            store: the store, whose steering lease this process holds.
            manager: takes tasks to PanDA.
            executor: where the optimizer works.
            wake: called from another thread when `advance` has something to do.
        """
        self.record = record
        self.state = record.state
        self._search = search = record.search
        self._store = store
        self._manager = manager
        self._proposer = Proposer(search, executor, wake, store.earlier_results(record.id))
        self._proposer.know(search.known)
        self._wishes = PointRequests(record.id, store)
        self._tasks = Submissions(record, store, manager)
        self._lookahead = Lookahead(search.budget.parallel, search.budget.queued, search.resources.trials_per_job)
        self._refills = Refill(search.budget, search.resources.trials_per_job)
        self._retry_pause = 0.0
        self._not_before = 0.0
        self._slot_freed: float | None = None
        self._cut = Cut(0, [])
        self._ending: tuple[SearchState, str] | None = None
        self._looks_back = True
        self._healed = False
        self._trials = {trial.number: trial for trial in store.trials(record.id)}
        self._halting = TrialStopper(record, store, manager, self._trials)
        counted = [trial for trial in self._trials.values() if trial.counts]
        self._spent = Spending.of(record, store, len(counted))
        tried = {point_key(trial.point) for trial in counted}
        starts = [search.space.canonical(point) for point in search.start]
        self._starts = [point for point in starts if point_key(point) not in tried]
        self._generation = max((trial.generation for trial in self._trials.values()), default=0)
        self._outputs = KeptOutputs(record, store, manager, self._trials.values())
        history = sorted((t for t in self._trials.values() if t.told is not None), key=lambda t: t.told or 0)
        self._ledger = Ledger.of(search, record.uid, told=len(history))
        self._allowance = Allowance(search, self._spent, self._ledger)
        for trial in history:
            self._tell(trial, sum(1 for fold in trial.folds if fold.value is not None))
        for trial in self._trials.values():
            if not trial.state.is_over:
                self._ledger.add(OpenTrial(trial.number, trial.point, trial.seed, trial.confirms, stop=trial.stop))
        self._ledger.restore(store.open_outcomes(record.id))

    # --- one look at everything ---

    def advance(self, changed: set[int] | None, state: SearchState) -> float:
        """Does whatever can be done now.

        Args:
            changed: JEDI task ids that the server reports as changed; None: any may have.
            state: the search's state in the store, for users change it there.

        Returns:
            Seconds after which it should be called again even if nothing happens.

        Raises:
            StoreAwayError: something could not be recorded; this object is of no use any more.
        """
        self._tasks.mark(changed)
        waits = self._not_before - time.monotonic()
        if waits > 0 and state is self.state:
            return waits
        self.state = state
        try:
            if state is SearchState.STOPPING:
                self._ending = (SearchState.STOPPED, "stopped on request")
            if self._ending:
                self._stop(*self._ending)
                return LOOK_SECONDS
            if state is SearchState.SUBMITTED:
                self._set_state(SearchState.RUNNING, only_from=(SearchState.SUBMITTED,))
            self._heal()
            trouble = self._collect_due()
            for task in self._tasks.unsent:
                self._send(task)
            if self.state is SearchState.RUNNING:
                points = self._proposer.take()
                self._register([] if self._spent.time_is_up(self.record.clock) else points[: self._allowance.trials])
                self._refill()
                self._end_if_done()
            else:
                self._slot_freed = None  # a paused search hands nothing over
            if self._allowance.is_used_up:
                self._ending = overspent(self._search, self._trials, str(self._allowance), len(self._ledger.open))
                return 0.0
            if trouble is not None:
                raise trouble
            self._retry_pause = 0.0
        except StoreAwayError:
            raise  # the picture in memory may be ahead of the store now: whoever holds this object makes a new one
        except TryAgainError as error:
            first, longest = self._manager.manners.retry_seconds
            pause = max(first, self._retry_pause)
            self._retry_pause = min(pause * 2, longest)
            self._not_before = time.monotonic() + pause
            self._slot_freed = None  # what the server took says nothing of the next hand-over
            log.warning("search %s: %s; trying again in %.2f s", self.record.name, error, pause)
            return pause
        except GiveUpError as error:
            pause = LOOK_SECONDS if self._ending else 0.0
            self._ending = (SearchState.FAILED, str(error))
            return pause
        return min(self._tasks.next_look(), self._allowance.seconds_left())

    def _heal(self) -> None:
        """Once, after loading: ends trials that should be over, and sends out folds that no task holds any more."""
        if self._healed:
            return
        orphans = self._ledger.orphans(self._tasks.open.values())
        changes = self._ledger.settle(time.time())
        self._halting.judge(changes, self._ledger.open)
        resubmission = self._tasks.resubmission(
            min((self._trials[n].generation for n, _, _ in orphans), default=0), [(orphan,) for orphan in orphans]
        )
        if changes or resubmission:
            task = self._store.record(
                self.record.id, changes.outcomes, changes.ends, events=changes.events, resubmit=resubmission
            )
            if task is not None:
                self._tasks.add(task)
            self._learn(changes)
        self._healed = True

    # --- submit ---

    def _send(self, task: TaskRecord) -> None:
        self._tasks.send(task, {number: self._trials[number].point for job in task.jobs for number, _, _ in job})
        if self._slot_freed is not None:
            self._lookahead.handed_over(time.monotonic() - self._slot_freed)
            self._slot_freed = None

    def _register(
        self, points: list[Point], confirms: list[int] | None = None, wishes: list[PointRequest] | None = None
    ) -> None:
        """Commits a new generation of the first points, as many as one task can carry; then submits it."""
        if not points:
            return
        self._generation += 1
        trials = new_trials(self._search.seed, len(self._trials) + 1, points, confirms, wishes)
        trials = self._tasks.fitting(self._generation, trials)
        name = self._tasks.name(self._generation, 0)
        task = self._store.add_generation(
            self.record.id,
            **self._cut._asdict(),
            trials=trials,
            task=NewTask(name, self._generation, 0, self._tasks.jobs(trials)),
        )
        for new in trials:
            self._trials[new.number] = Trial(
                new.number, self._generation, new.point, seed=new.seed, confirms=new.confirms, retries=new.retries
            )
            self._ledger.add(OpenTrial(new.number, new.point, new.seed, new.confirms))
        self._spent.trials += 0 if confirms else len(trials)
        registered = {point_key(new.point) for new in trials}
        self._starts = [point for point in self._starts if point_key(point) not in registered]
        self._wishes.sent(new.wish for new in trials)
        metrics.GENERATIONS.inc()
        self._tasks.add(task)
        self._send(task)

    # --- collect ---

    def _collect_due(self) -> TryAgainError | None:
        """Looks at the tasks that may have changed, until the server does not tell of one.

        Returns:
            Why it does not: to be raised when all else is done, for that task alone may be the reason. It comes last
            the next time, and so holds up no other.
        """
        due = self._tasks.to_look_at()
        if due:
            self._manager.keep(Path(self.record.sandbox or ""))
        for task in due:
            begun = time.monotonic()
            try:
                self._collect(task)
            except StoreAwayError:
                raise
            except TryAgainError as error:
                self._tasks.not_told_of(task)
                return error
            self._tasks.looked_at(task, time.monotonic() - begun)
        return None

    def _collect(self, task: TaskRecord) -> None:
        """Takes what the server knows of a task's jobs; a task that is over with folds unheard of has lost them."""
        assert task.jedi_task_id is not None
        ref = TaskRef(task.name, task.jedi_task_id)
        over = ""
        try:
            alive, known = self._look(task, ref), self._manager.manners.status_comes_along
            if self._ledger.missing(task) and (known or not alive):
                state = self._manager.status([ref]).get(ref.jedi_task_id)
                if state is None:
                    raise UnknownTaskError("the server no longer knows the task")
                if state.is_over:
                    if not known:
                        alive = self._look(task, ref)  # its last job may have ended between the two calls
                    over = self._tasks.end_of(ref, state, alive)
                if over and state is TaskState.EXHAUSTED:
                    self._manager.kill(ref)  # what waits in it would run beside what goes out again
        except UnknownTaskError as error:
            over = str(error)
        missing = self._ledger.missing(task)
        changes = self._ledger.give_up(task, over, time.time()) if missing and over else Changes()
        if not (missing or over):
            self._halting.see_off(task, ref)
        self._commit(task, changes, ended=not missing or bool(over))

    def _look(self, task: TaskRecord, ref: TaskRef) -> set[JobState]:
        """Records what the server says of the task's jobs; returns the states of those that are still on their way."""
        missing = self._ledger.missing(task)
        if not missing:
            return set()
        reports = self._manager.results(ref, missing, values=self._halting.is_on)
        # Committed before anything else is asked: a call that fails must not take with it what another one brought.
        self._commit(task, self._ledger.absorb(task, reports, time.time()), ended=False)
        self._tasks.note_waiting(task, ref)
        self._halting.kill(task, reports, self._ledger.open)
        return {report.state for report in reports if not report.state.is_over}

    def _commit(self, task: TaskRecord, changes: Changes, *, ended: bool) -> None:
        self._halting.judge(changes, self._ledger.open)
        if not (changes or ended):
            return
        resubmitted = self._store.record(
            self.record.id,
            changes.outcomes,
            changes.ends,
            ended_tasks=[task.id] if ended else [],
            started=changes.started,
            events=changes.events,
            look=changes.look,
            stops=changes.stops,
            resubmit=None if self._ending else self._tasks.resubmission(task.generation, changes.again),
        )
        if ended:
            self._tasks.ended(task)
        if resubmitted is not None:
            self._tasks.add(resubmitted)
        self._learn(changes)
        if resubmitted is not None:
            self._send(resubmitted)

    def _learn(self, changes: Changes) -> None:
        """Keeps the picture in memory level with what was just committed."""
        self._spent.job_seconds += changes.seconds
        self._spent.ran(changes.outcomes)
        for end in changes.ends:
            self._trials[end.number] = trial = end.applied_to(self._trials[end.number])
            if end.seconds is not None:
                self._lookahead.ran(end.seconds)
            if end.told is not None:
                metrics.RESULTS.inc()
                self._tell(trial, end.good_folds)
                self._slot_freed = self._slot_freed or time.monotonic()
        self._halting.decided(changes, self._ledger.open)
        self._tasks.look_again(changes.stops)
        if changes.ends:
            self._outputs.keep_best((end.number for end in changes.ends), self._trials)

    def _tell(self, trial: Trial, good_folds: int) -> None:
        self._proposer.tell(trial, good_folds)
        self._spent.told(trial)

    # --- ask ---

    def _refill(self) -> None:
        """Asks for new points where slots are free."""
        self._spent.check_failures()
        if self._proposer.busy or self._tasks.unsent:
            return
        count = self._wanted()
        left = min(self._spent.trials_left, self._allowance.trials)
        if not self._refills.is_due(count, left, self._manager.manners.refill):
            return
        count = min(count, self._tasks.trials_per_task)
        pending = sorted(number for number, trial in self._ledger.open.items() if trial.confirms is None)
        wishes = self._wishes.next(count, self._trials)
        asked = None if wishes or self._starts else count
        self._cut = Cut(self._ledger.told, pending, asked, self._search.budget.trials)
        if wishes:
            self._register([wish.point for wish in wishes], wishes=wishes)
        elif self._starts:
            self._register(self._starts[:count])
        elif not self._proposer.exhausted:
            self._proposer.start(count, [self._trials[number].point for number in pending])

    def _wanted(self) -> int:
        """How many new points may go out now."""
        if (self._proposer.exhausted and not self._wishes) or self._spent.time_is_up(self.record.clock):
            return 0
        room = self._search.budget.parallel + self._lookahead.waiting - len(self._ledger.open)
        return min(room, self._spent.trials_left, self._allowance.trials, _ASK_LIMIT)

    # --- end ---

    def _end_if_done(self) -> None:
        if self._ledger.open or self._tasks.open or self._proposer.busy or self._wanted() > 0 or self._confirm():
            return
        trials, told = list(self._trials.values()), self._ledger.told
        exhausted, waiting = self._proposer.exhausted, len(self._wishes)
        state, message = search_verdict(self._search, trials, told, exhausted=exhausted, waiting=waiting)
        self._set_state(state, message, only_from=(SearchState.RUNNING,) if state is SearchState.DONE else ())

    def _confirm(self) -> bool:
        """Sends the best points out again with fresh seeds; True where there is something to wait for."""
        again = confirmation_runs(self._search, self._trials.values())[: self._allowance.trials]
        self._cut = Cut(self._ledger.told, [])
        self._register([trial.point for trial in again], [trial.number for trial in again])
        return bool(again)

    def _stop(self, state: SearchState, message: str) -> None:
        """Kills what is out and ends the search; while the server cannot be reached it is not over, for jobs cost."""
        self._tasks.kill_all()
        if self._looks_back:
            self._looks_back = False
            self._tasks.look_back(self._look)
        killed = self._allowance.killed()
        self._store.record(self.record.id, killed, ended_tasks=list(self._tasks.open), stop_rest=message)
        self._set_state(state, message)

    def abandon(self, message: str) -> None:
        """Ends the search as failed, for a reason that is not its own, with the next `advance`."""
        self._ending = (SearchState.FAILED, message)
        self._looks_back = False

    def _set_state(self, state: SearchState, message: str = "", only_from: tuple[SearchState, ...] = ()) -> None:
        """Moves the search on, unless its owner has changed it meanwhile: then a new steering is made for it."""
        version = self.record.version
        self._store.set_state(self.record.id, state, "service", message, only_from=only_from, version=version)
        now = self._store.search(self.record.id)
        self.state = now.state
        if now.version == version:
            self.record = now


#: A point with its values and their standard errors, one for each objective; and whether it was stopped early, so that
#: the values are what it would probably have come to.
_Told = tuple[Point, tuple[float, ...] | None, tuple[float, ...] | None, bool]


class Proposer:
    """Owns the optimizer of one search. An ask never blocks the steering loop, and sees all that was told before."""

    def __init__(
        self,
        search: Search,
        executor: Executor,
        wake: Callable[[], None],
        earlier: Sequence[EarlierResults] = (),
    ) -> None:
        """Prepares; the optimizer is made when it is asked.

        Args:
            search: the search.
            executor: where the optimizer works.
            wake: called from another thread when an ask is done.
            earlier: what the search has from earlier ones; the optimizer hears of it before all else.
        """
        self._search = search
        self._objectives = search.objectives
        self._earlier = earlier
        self._executor = executor
        self._wake = wake
        self._untold: list[_Told] = []
        self._asking: Future[list[Point]] | None = None
        self.exhausted = False
        """True once the optimizer has said that no point is left."""

    def know(self, results: Iterable[KnownResult]) -> None:
        """Takes results of the same problem from before the search: told as if they were of this search, and first."""
        for known in results:
            self._untold.append((known.point, known.figures and costs(self._objectives, known.figures), None, False))

    def tell(self, trial: Trial, good_folds: int) -> None:
        """Takes a result; the optimizer hears of it with the next ask.

        Args:
            trial: a trial that is over, in the order of results.
            good_folds: how many folds its value is the mean of.
        """
        if trial.stopped_early and trial.stop is not None:
            guessed = trial.stop.projected
            # One that diverged would have failed. Of another there is no guess, with several objectives, where no
            # trial had finished by then: nothing is known of it.
            diverged = trial.stop.value is None
            self._untold.append((trial.point, guessed and costs(self._objectives, guessed), None, not diverged))
            return
        errors = None
        if trial.spreads is not None and good_folds >= 2:
            errors = tuple(spread / good_folds**0.5 for spread in trial.spreads)
        self._untold.append((trial.point, trial.figures and costs(self._objectives, trial.figures), errors, False))

    @cached_property
    def _optimizer(self) -> Optimizer:
        """Made where it works, for its libraries take a second to load; it has heard of the earlier searches."""
        search = self._search
        made = create_optimizer(
            search.optimizer.name,
            search.space,
            seed=search.seed,
            settings=search.optimizer.settings,
            trials=search.budget.trials,
            objectives=len(search.objectives),
        )
        for one in self._earlier:
            made.tell_earlier(one.source, one.results)
        return made

    @property
    def busy(self) -> bool:
        """True from `start` until `take` has given the points."""
        return self._asking is not None

    def start(self, count: int, pending: Sequence[Point]) -> None:
        """Asks for `count` points, given those that are out."""
        told, self._untold = self._untold, []
        self._asking = self._executor.submit(self._ask, told, count, list(pending))
        self._asking.add_done_callback(lambda _: self._wake())

    def take(self) -> list[Point]:
        """The points that were asked for, once; an empty list while they are not ready."""
        if self._asking is None or not self._asking.done():
            return []
        asking, self._asking = self._asking, None
        try:
            return asking.result()
        except ExhaustedError:
            self.exhausted = True
            return []

    def _ask(self, told: list[_Told], count: int, pending: list[Point]) -> list[Point]:
        """Runs in the executor: the only place that touches the optimizer."""
        with time_ask(self._search.optimizer.name):
            self._optimizer.tell(told)
            return self._optimizer.ask(count, pending)


def confirmation_runs(search: Search, trials: Collection[Trial]) -> list[Trial]:
    """The trials to run again, each as often as it still has to be; those that were stopped do not count."""
    searched = [trial for trial in trials if trial.confirms is None]
    done = Counter(trial.confirms for trial in trials if trial.state is not TrialState.STOPPED)
    return [
        trial
        for trial in top_trials(search, searched, search.confirm.top)
        for _ in range(search.confirm.repeats - done[trial.number])
    ]
