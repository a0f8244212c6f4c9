"""Steers one search: ask, submit, collect, tell, until the budget is spent.

`SearchSteering.advance` is the loop body. The service calls it whenever something may have changed.

The store holds all lasting state. The objects here are rebuilt from it. Each step is committed before the next one
depends on it: a kill at any instant repeats at most a query to the server, never a submission or a result.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import JobState, TaskRef, TaskState
from hpo_pilot.panda.workflow_manager import UnknownTaskError, WorkflowManager
from hpo_pilot.search import Generation, Point, Trial, TrialState, point_key
from hpo_pilot.search.progress import ProgressTracker, SearchProgress
from hpo_pilot.search.promotion import first_of_chain, trained
from hpo_pilot.search.trials import Spent
from hpo_pilot.steering import metrics
from hpo_pilot.steering.budget import Allowance, Spending, final_state, overspent
from hpo_pilot.steering.early_stopping import TrialStopper
from hpo_pilot.steering.ledger import Changes, Ledger, OpenTrial
from hpo_pilot.steering.promotions import ROUNDING, Continuation, Promotions
from hpo_pilot.steering.proposer import Proposer, StoredResults, first_of
from hpo_pilot.steering.recommendation import confirmation_runs, modelled_trials
from hpo_pilot.steering.results import KeptOutputs
from hpo_pilot.steering.submissions import LOOK_SECONDS, Lookahead, PointRequests, Refill, Submissions, new_trials
from hpo_pilot.store import NewTask, PointRequest, SearchRecord, SearchState, SteeringStore, StoreAwayError, TaskRecord
from hpo_pilot.store.progress import stored_progress
from hpo_pilot.store.queries import levels_trained, spent
from hpo_pilot.store.steering_store import NumberedTrials

#: The largest number of points in one ask. A wider search asks several times in a row.
_ASK_LIMIT = 500

log = logging.getLogger(__name__)


class SearchSteering:
    """Steers one search. Only one thread at a time may use it."""

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
            store: the store, as the process with the lease of the search may write it.
            manager: submits tasks to PanDA and collects their results.
            executor: runs the optimizer.
            wake: called from another thread when the optimizer has an answer for `advance`.
        """
        self.record = record
        self.state = record.state
        self._search = search = record.search
        self._store = store
        self._manager = manager
        self._trials = NumberedTrials(store, record.id)
        levels_of = search.levels
        self._stopper = TrialStopper(record, store, manager, self._trials)
        self._spent = Spending(record, store)
        self._promotions: Promotions | None = None
        if levels_of is not None:
            self._promotions = Promotions(search, levels_of, self._spent, self._trials)
        told = store.last_told(record.id)
        self._progress = self._replayed(told)
        progress = self._progress.progress
        self._made = progress.trials  # number of the last trial
        self._next = Generation(progress.generations + 1, 0, (), ())  # its trials follow when there are points

        # The next points.
        starts = [search.space.canonical(point) for point in search.start]
        tried = {point_key(trial.point) for trial in store.trials_at(record.id, starts) if trial.counts}
        self._starts = [point for point in starts if point_key(point) not in tried]
        self._requests = PointRequests(record.id, store)
        stored = StoredResults(store, record, told)
        self._proposer = Proposer(search, executor, wake, store.earlier_results(record.id), stored)

        # Submitted tasks and their results.
        self._tasks = Submissions(record, store, manager)
        self._ledger = Ledger(record.uid, search, told)
        for trial in self._trials.values():
            if not trial.state.is_over:
                self._ledger.add(OpenTrial(trial))
        self._ledger.restore(store.open_attempts(record.id))
        self._outputs = KeptOutputs(record, store, manager, self._trials)

        # Limits on further submissions.
        self._spent.trials = progress.counted
        if levels_of is not None:
            out = (one.trial for one in self._ledger.open.values() if one.trial.trains_point)
            self._spent.levels = levels_trained(store.engine, record.id) + sum(
                trained(self._trials, one) for one in out
            )
        self._allowance = Allowance(search, self._spent, self._ledger)
        budget, per_job, asked = search.budget, search.resources.trials_per_job, search.payload.is_none
        self._lookahead = Lookahead(budget.parallel, budget.queued, per_job, for_clients=asked)
        self._refill_rule = Refill(search.budget, search.resources.trials_per_job)
        self._slot_freed: float | None = None  # when the oldest free slot became free, on the monotonic clock

        # Pauses and the end.
        self._retry_pause = 0.0
        self._not_before = 0.0
        self._recovered = False
        self._ending: tuple[SearchState, str] | None = None
        self._collects_at_end = True

    def _replayed(self, last: int) -> ProgressTracker:
        """Passes the trials of the store to promotion, early stopping and budget, and computes the progress.

        It corrects the row of the store if that says something else. With one objective, and neither levels nor early
        stopping, the row and the last results have all that is needed, and the others are not read.

        Args:
            last: number of results.
        """
        number, engine, chains = self.record.id, self._store.engine, dict[int, int]()
        stored = stored_progress(engine, number)
        alone = self._promotions is None and not self._stopper.is_on and len(self._search.objectives) == 1
        if alone and stored is not None and self._may_go_on_from(stored, last):
            places = range(max(1, last + 1 - self._search.budget.failures), last + 1)
            for result in itertools.chain.from_iterable(self._store.results(number, places, points=False)):
                self._spent.told(result)
            named = {stored.best, stored.last_failure, *(trial.confirms for trial in self._trials.values())}
            self._trials.fetch({each for each in named if each is not None})
            tracker = ProgressTracker.resumed(self._search, stored, self._trials)
            self._trials.drop_over()
            return tracker

        def trials() -> Iterator[Trial]:
            for trial in self._store.trials_without_result(number, folds=self._stopper.is_on):
                if trial.told is None:
                    self._stopper.told(trial)
                    yield trial
            for trial in itertools.chain.from_iterable(
                self._store.results(number, range(1, last + 1), points=False, folds=self._stopper.is_on)
            ):
                if self._promotions is not None:
                    self._promotions.tell(trial, first_of(chains, trial))
                self._stopper.told(trial)
                self._spent.told(trial)
                yield trial

        confirmed = self._trials.fetch({one.confirms for one in self._trials.values() if one.confirms is not None})
        tracker = ProgressTracker(
            self._search,
            trials(),
            spent=spent(engine, number),
            generations=self._store.last_generation(number),
            confirmed=confirmed,
        )
        self._stopper.note_judged()
        if self._promotions is not None:
            for trial in self._store.went_on(number):
                self._promotions.go_on(trial)
        if stored is None or not stored.agrees(tracker.progress):
            text = None if stored is None else "its row of progress did not agree with its trials and was corrected"
            if text is not None:
                log.warning("search %s: %s", self.record.name, text)
            self._store.correct_progress(self.record.id, tracker.progress, text)
        return tracker

    def _may_go_on_from(self, stored: SearchProgress, last: int) -> bool:
        """Returns whether a row of progress agrees with what is quickly read; `last`: number of results."""
        return (stored.told, stored.counts) == (last, self._store.counts(self.record.id)) and math.isclose(
            stored.job_seconds, self._spent.job_seconds, rel_tol=1e-6
        )

    # --- the loop body ---

    def advance(self, changed: set[int] | None, state: SearchState) -> float:
        """Collects results, submits tasks and asks for points, as far as that is possible now.

        Args:
            changed: JEDI task ids that the server reports as changed. None: every task may have changed.
            state: the state of the search in the store. Users change it there.

        Returns:
            Seconds until the next call, if nothing happens before.

        Raises:
            StoreAwayError: a change could not be committed. The caller must load the search again.
        """
        self._tasks.mark(changed)
        waits = self._not_before - time.monotonic()
        if waits > 0 and state is self.state:
            return waits
        self.state = state
        try:
            return self._step()
        except StoreAwayError:
            raise  # The state in memory may now be ahead of the store.
        except TryAgainError as error:
            return self._retry_later(error)
        except GiveUpError as error:
            pause = LOOK_SECONDS if self._ending else 0.0
            self._ending = (SearchState.FAILED, str(error))
            return pause

    def _step(self) -> float:
        """Runs the loop body once. Returns the seconds until the next call, if nothing happens before."""
        if self.state is SearchState.STOPPING:
            self._ending = (SearchState.STOPPED, "stopped on request")
        if self._ending:
            self._stop(*self._ending)
            return LOOK_SECONDS
        if self.state is SearchState.SUBMITTED:
            self._set_state(SearchState.RUNNING, only_from=(SearchState.SUBMITTED,))
        self._recover()
        unanswered = self._collect_due()
        for task in self._tasks.unsent:
            self._send(task)
        if self.state is SearchState.RUNNING:
            if (points := self._proposer.take()) is not None:
                self._proposed([] if self._spent.time_is_up(self.record.clock) else points[: self._allowance.trials])
            self._refill()
            self._end_if_done()
        else:
            self._slot_freed = None  # A paused search does not refill its slots.
        if self._allowance.is_used_up:
            self._ending = overspent(self._progress.progress, str(self._allowance), len(self._ledger.open))
            return 0.0
        if unanswered is not None:
            raise unanswered
        self._retry_pause = 0.0
        return min(self._tasks.next_look(), self._allowance.seconds_left())

    def _retry_later(self, error: TryAgainError) -> float:
        """Starts a pause, twice as long as the one before. Returns its length in seconds."""
        first, longest = self._manager.policy.retry_seconds
        pause = max(first, self._retry_pause)
        self._retry_pause = min(pause * 2, longest)
        self._not_before = time.monotonic() + pause
        self._slot_freed = None  # An outage of the server must not count as hand-over time.
        log.warning("search %s: %s; trying again in %.2f s", self.record.name, error, pause)
        return pause

    def _recover(self) -> None:
        """Ends trials that have all their folds and resubmits folds that no task holds; once after loading."""
        if self._recovered:
            return
        self._recovered = True
        orphans = self._ledger.orphans(self._tasks.open.values())
        changes = self._ledger.settle(time.time())
        changes.again += [(orphan,) for orphan in orphans]
        self._commit(changes, min((self._trials[number].generation for number, _, _ in orphans), default=0))

    # --- collect ---

    def _collect_due(self) -> TryAgainError | None:
        """Collects from each task that may have changed, until the server does not answer for one of them.

        Returns:
            The error of that task, or of keeping the sandbox. The caller raises it after all other work, because the
            task itself may be the reason. Next time the task comes last, so that it does not delay the others.
        """
        due, unanswered = self._tasks.to_look_at(), None
        try:
            if due:
                self._manager.keep(Path(self.record.sandbox or ""))
        except TryAgainError as error:
            unanswered = error  # only jobs that start later need the file
        for task in due:
            begun = time.monotonic()
            try:
                self._collect(task)
            except StoreAwayError:
                raise
            except TryAgainError as error:
                self._tasks.without_answer(task)
                return error
            self._tasks.looked_at(task, time.monotonic() - begun)
        return unanswered

    def _collect(self, task: TaskRecord) -> None:
        """Collects the results of a task's jobs. If the task is over, its folds without a result are lost."""
        assert task.jedi_task_id is not None
        ref = TaskRef(task.name, task.jedi_task_id)
        over = ""
        try:
            alive, known = self._look(task, ref), self._manager.policy.status_comes_along
            if self._ledger.missing(task) and (known or not alive):
                state = self._manager.status([ref]).get(ref.jedi_task_id)
                if state is None:
                    raise UnknownTaskError("the server no longer knows the task")
                if state.is_over:
                    if not known:
                        alive = self._look(task, ref)  # The last job may have ended between the two calls.
                    over = self._tasks.end_of(ref, state, alive)
                if over and state is TaskState.EXHAUSTED:
                    self._manager.kill(ref)  # Its waiting jobs would run a second time beside the resubmitted ones.
        except UnknownTaskError as error:
            over = str(error)
        if task.id not in self._tasks.open:
            return
        missing = self._ledger.missing(task)
        changes = self._ledger.give_up(task, over, time.time()) if missing and over else Changes()
        if not (missing or over):
            self._stopper.kill_rest(task, ref)
        self._commit(changes, task.generation, None if missing and not over else task)

    def _look(self, task: TaskRecord, ref: TaskRef) -> set[JobState]:
        """Looks at a task: commits the reports of its jobs. Returns the states of the jobs that are not over."""
        missing = self._ledger.missing(task)
        if not missing:
            return set()
        reports = self._manager.results(ref, missing, values=self._stopper.is_on)
        changes = self._ledger.absorb(task, reports, time.time())
        # In one transaction with its last results, except if jobs of stopped trials may have to be killed before.
        stopped = any(end.state is TrialState.STOPPED for end in changes.ends) or self._stopper.has_stopped(task)
        is_over = not (stopped or self._ledger.missing(task))
        # Commit before the next call to the server: if that call fails, these results are not lost.
        self._commit(changes, task.generation, task if is_over else None)
        if is_over:
            return set()
        self._tasks.note_waiting(task, ref)
        self._stopper.kill(task, reports, self._ledger.open)
        return {report.state for report in reports if not report.state.is_over}

    def _commit(self, changes: Changes, generation: int, ended: TaskRecord | None = None) -> None:
        """Commits the changes in one transaction, with the resubmission that they need; then submits that.

        Args:
            changes: the changes.
            generation: of the folds to submit again.
            ended: a task that owes nothing more.
        """
        self._stopper.judge(changes, self._ledger.open)
        if not changes and ended is None:
            return
        resubmitted = self._store.record(
            self.record.id,
            changes.attempts,
            changes.ends,
            ended_tasks=[] if ended is None else [ended.id],
            started=changes.started,
            from_start=changes.from_start,
            events=changes.events,
            look=changes.look,
            stops=changes.stops,
            resubmit=None if self._ending else self._tasks.resubmission(generation, changes.again),
            progress=self._progress_with(changes),
        )
        if ended is not None:
            self._tasks.ended(ended)
            self._ledger.forget(ended)
        if resubmitted is not None:
            self._tasks.add(resubmitted)
        self._learn(changes)
        if resubmitted is not None:
            self._send(resubmitted)

    def _progress_with(self, changes: Changes) -> SearchProgress:
        ends = [end.without_folds for end in changes.ends]  # they may stay in memory
        return self._progress.change((number for number, _ in changes.started), ends, changes.spent)

    def _learn(self, changes: Changes) -> None:
        """Applies committed changes to the objects in memory."""
        self._spent.job_seconds += changes.spent.seconds
        self._spent.ran(changes.attempts)
        again = [before for number in changes.from_start if (before := self._trials[number].continues) is not None]
        self._trials.fetch([*again, *(end.continues for end in changes.ends if end.continues is not None)])
        self._spent.levels += sum(self._trials[before].level or 0 for before in again)  # it was not charged before
        for end in changes.ends:
            self._trials[end.number] = end.without_folds
            if seconds := [fold.result.seconds for fold in end.folds if fold.result.seconds is not None]:
                self._lookahead.ran(max(seconds))
                self._tasks.ran(end, self._trials)
            if end.told is not None:
                metrics.RESULTS.inc()
                self._tell(end, end.fold_seconds)
                since = time.time() - end.ended.timestamp() if end.ended and self._search.payload.is_none else 0.0
                freed = time.monotonic() - max(0.0, since)
                self._slot_freed = min(freed, self._slot_freed or freed)
        self._stopper.decided(changes, self._ledger.open)
        self._tasks.look_again(changes.stops)
        if changes.ends:
            self._outputs.keep_best((end.number for end in changes.ends), self._trials)
            self._trials.drop_over()

    def _tell(self, trial: Trial, seconds: float | None) -> None:
        """Passes a result to optimizer, promotion and budget, in the order of results; `seconds`: of a fold."""
        chain = first_of_chain(self._trials, trial)
        self._proposer.tell(trial, chain, seconds)
        if self._promotions is not None:
            self._promotions.tell(trial, chain)
        self._spent.told(trial)

    # --- ask and submit ---

    def _refill(self) -> None:
        """Fills free slots: promotions first, then requested points, start points of the file, and the optimizer's."""
        self._spent.check_failures()
        if self._proposer.busy or self._tasks.unsent:
            return
        promoted = self._promoted()
        count = max(self._wanted(), len(promoted))
        left = max(min(self._left(), self._allowance.trials), len(promoted))
        polite = max(self._manager.policy.refill, self._lookahead.batch)
        is_due = self._refill_rule.is_due(count, left, polite)  # `count` is not above it
        if count <= 0 or (self._ledger.open and not is_due):  # with nothing open, no more slots become free
            return
        if promoted:
            self._go_on(promoted)
            if (count := self._wanted()) <= 0:
                return
        count = min(count, self._tasks.trials_per_task)
        new = max(0, min(count, self._trials_left))
        out = {number: one.trial for number, one in sorted(self._ledger.open.items()) if one.trial.confirms is None}
        pending = tuple(out)
        requests = self._requests.next(new, self._fitting())
        starts = self._starts[:new]
        asked = None if requests or starts else count
        told, budget = self._ledger.told, self._search.budget.trials
        self._next = Generation(self._next.number, told, pending, (), asked, budget)
        if requests:
            self._register([request.point for request in requests], requests=requests)
        elif starts:
            self._register(starts)
        elif (continues := self._by_optimizer) or not self._proposer.exhausted:
            # Else it knows the points that go on by their results of lower levels.
            points = [trial.point for trial in out.values() if trial.continues is None or continues]
            self._proposer.start(count, points, continuations=continues, new=new > 0 and not self._proposer.exhausted)

    def _proposed(self, points: list[Point]) -> None:
        """Submits what the optimizer proposed: new points and, if it was asked for them, points that go on."""
        if self._promotions is None or not self._proposer.chose_continuations:
            self._register(points)
            return
        known = self._store.trials_at(self.record.id, points) if points else []
        chosen = self._promotions.affordable(points, known, self._trials_left)
        if not chosen and not self._proposer.has_untold:
            self._promotions.give_up()
        self._register([point for point, _ in chosen], continues=[each for _, each in chosen])

    @property
    def _by_optimizer(self) -> bool:
        return self._promotions is not None and self._promotions.by_optimizer

    def _wanted(self) -> int:
        """Returns the number of points that may be submitted now, besides promotions by the rule."""
        return min(self._room(), self._left())

    def _left(self) -> int:
        """Returns the number of points that one ask may bring, and the budget allows; the rest as of `_wanted`."""
        requested, levels, left = self._requests.number(self._fitting()), self._search.levels, self._spent.levels_left
        most = min(self._trials_left, _ASK_LIMIT)
        if not requested:
            if self._promotions is not None and self._promotions.by_optimizer:
                most, left = _ASK_LIMIT, self._promotions.levels_left  # points that were counted may go on
            elif self._proposer.exhausted:
                return 0
        return most if levels is None else math.floor(min(left / levels.low + ROUNDING, most))

    @property
    def _trials_left(self) -> int:
        """Number of trials that the budget still allows, and of requested ones that it does not count."""
        if self._promotions is None:
            return self._spent.trials_left
        fits, trials = self._fitting(), self._trials
        later = self._requests.number(lambda one: _continues(one, trials) and fits(one))
        return self._spent.trials_left + later

    def _fitting(self) -> Callable[[PointRequest], bool]:
        """Returns a function of requests, in their order: whether `budget.fidelity` allows one after those before."""
        left = self._spent.levels_left * (1 + ROUNDING)

        def fits(request: PointRequest) -> bool:
            nonlocal left
            if left == math.inf:
                return True
            failed, levels = request.retries, self._search.levels
            cost = trained(self._trials, self._trials[failed]) if failed else levels.low if levels else 0
            if cost > left:
                return False
            left -= cost
            return True

        return fits

    def _room(self) -> int:
        """Returns the number of trials that may be submitted now, new points or promotions."""
        if self._spent.time_is_up(self.record.clock):
            return 0
        room = self._search.budget.parallel + self._lookahead.waiting - len(self._ledger.open)
        return min(room, self._allowance.trials, _ASK_LIMIT)

    def _promoted(self, *, last: bool = False) -> list[Continuation]:
        """Returns the trials that should go on now without being proposed; `last`: as of `Promotions.due`."""
        room = min(self._room(), self._tasks.trials_per_task)
        return [] if self._promotions is None else self._promotions.due(room, last=last)

    def waiting_points(self) -> set[int]:
        """Returns the points whose checkpoints are kept when the search is done, by the numbers of their first trials.

        These points go on first if more budget or a higher level is added. So do those whose next level did not come to
        its end.
        """
        waiting = [] if self._promotions is None else list(self._promotions.waiting())
        waiting += [number for number in self._ledger.open if self._trials[number].continues is not None]
        self._trials.fetch(waiting)
        return {first_of_chain(self._trials, self._trials[number]) for number in waiting}

    def _go_on(self, promoted: list[Continuation]) -> None:
        """Submits trials that go on from others to their next levels."""
        self._next = Generation(self._next.number, self._ledger.told, tuple(sorted(self._ledger.open)), ())
        self._register([trial.point for trial, _ in promoted], continues=promoted)

    def _send(self, task: TaskRecord) -> None:
        """Submits a registered task to PanDA."""
        self._tasks.send(task, self._trials)
        if self._slot_freed is not None:
            self._lookahead.handed_over(time.monotonic() - self._slot_freed)
            self._slot_freed = None

    def _register(
        self,
        points: list[Point],
        confirms: list[Trial] | None = None,
        requests: list[PointRequest] | None = None,
        continues: Sequence[Continuation | None] | None = None,
    ) -> None:
        """Commits a new generation and submits it as one task.

        Args:
            points: the points. Only the first of them become trials if one task cannot carry all.
            confirms: for confirmation runs, the confirmed trial for each point.
            requests: for points that users asked for, the request for each point.
            continues: for points that go on, the trial that each goes on from, and its level; None: it is a new point.
        """
        if not points:
            return
        number, first = self._next.number, self._made + 1
        failed = [request.retries for request in requests or ()]
        retries = [None if one is None else self._trials[one] for one in failed] if requests else None
        trials = new_trials(
            self._search, number, first, points, confirms=confirms, retries=retries, continues=continues
        )
        trials = self._tasks.fitting(number, trials, self._trials)
        fulfilled = {request.id: trial.number for request, trial in zip(requests or (), trials, strict=False)}
        name = self._tasks.name(number, 0)
        task = self._store.add_generation(
            self.record.id,
            history=self._next.history,
            pending=self._next.pending,
            asked=self._next.asked,
            budget=self._next.budget,
            trials=trials,
            task=NewTask(name, number, 0, self._tasks.jobs(trials)),
            fulfilled=fulfilled,
            progress=self._progress.add(trials, confirms or ()),
        )
        self._next = replace(self._next, number=number + 1)
        self._made += len(trials)
        for trial in trials:
            self._trials[trial.number] = trial
            self._ledger.add(OpenTrial(trial))
            self._spent.trials += trial.counts
            self._spent.levels += trained(self._trials, trial) if trial.trains_point else 0
            if self._promotions is not None and trial.continues is not None:
                self._promotions.go_on(trial.continues)
        registered = {point_key(trial.point) for trial in trials}
        self._starts = [point for point in self._starts if point_key(point) not in registered]
        self._requests.sent(fulfilled)
        metrics.GENERATIONS.inc()
        self._tasks.add(task)
        self._send(task)

    # --- end ---

    def _end_if_done(self) -> None:
        """Ends the search when nothing is open and nothing more may be submitted; confirmation runs come first."""
        if self._ledger.open or self._tasks.open or self._proposer.busy or self._wanted() > 0 or self._promoted():
            return
        if promoted := self._promoted(last=True):
            self._go_on(promoted)
            return
        if self._confirm():
            return
        progress, told = self._progress.progress, self._ledger.told
        exhausted, waiting = self._proposer.exhausted, len(self._requests)
        state, message = final_state(self._search, progress, told, exhausted=exhausted, waiting=waiting)
        self._set_state(state, message, only_from=(SearchState.RUNNING,) if state is SearchState.DONE else ())

    def _confirm(self) -> bool:
        """Submits the confirmation runs that are still due, with fresh seeds. Returns whether there are any."""
        if not self._search.confirm.top:
            return False
        earlier, lasting = self._store.earlier_results(self.record.id), self._outputs.lasting(self._trials)
        trials = modelled_trials(self._store, self.record, self._progress.progress, lasting or ())
        due = confirmation_runs(self._search, trials, earlier, lasting)
        again = due[: self._allowance.trials]
        self._next = Generation(self._next.number, self._ledger.told, (), ())
        self._register([trial.point for trial in again], again)
        return bool(again)

    def _stop(self, state: SearchState, message: str) -> None:
        """Kills all open tasks and ends the search.

        Raises:
            TryAgainError: the server does not answer. The search is not over yet, because its jobs still cost.
        """
        self._store.check_lease(self.record.id)
        self._tasks.kill_all()
        if self._collects_at_end:
            self._collects_at_end = False
            self._tasks.collect_last(self._look)
        killed = self._allowance.killed()
        progress = self._progress.stop_rest(Spent.of(killed))
        self._store.record(
            self.record.id, killed, ended_tasks=list(self._tasks.open), stop_rest=message, progress=progress
        )
        self._set_state(state, message)

    def abandon(self, message: str) -> None:
        """Makes the next `advance` end the search as failed, after an internal error."""
        self._ending = (SearchState.FAILED, message)
        self._collects_at_end = False

    def _set_state(self, state: SearchState, message: str = "", only_from: tuple[SearchState, ...] = ()) -> None:
        """Commits the state of the search, unless a user changed the search meanwhile; the service then reloads it."""
        version = self.record.version
        self._store.set_state(self.record.id, state, "service", message, only_from=only_from, version=version)
        now = self._store.search(self.record.id)
        self.state = now.state
        if now.version == version:
            self.record = now


def _continues(request: PointRequest, trials: Mapping[int, Trial]) -> bool:
    """Returns whether a request is for a promotion that failed: it takes no trial of the budget."""
    return request.retries is not None and trials[request.retries].continues is not None
