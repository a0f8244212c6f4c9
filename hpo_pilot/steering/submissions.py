"""Submits the tasks of one search, chooses their content, and decides when to look at them.

A task is submitted at most once. Its unique name is committed as an intent first. After a crash or an unanswered call
the server is asked for that name before the task is submitted again.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import re
import secrets
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import (
    ASKED_QUEUE,
    JobState,
    Member,
    Members,
    TaskOptions,
    TaskRef,
    TaskSpec,
    TaskState,
    TrialLevel,
    task_name,
)
from hpo_pilot.panda.rucio import is_did
from hpo_pilot.panda.task_parameters import ENCODED_LIMIT, WALLTIME_MARGIN, encode_points
from hpo_pilot.panda.workflow_manager import TaskNameTakenError, UnknownOutcomeError, WorkflowManager
from hpo_pilot.search import Budget, Point, Search, Trial, TrialState, point_key
from hpo_pilot.search.limits import MOST_JOBS_PER_TASK, MOST_RUNS_PER_TASK
from hpo_pilot.search.promotion import first_of_chain, trained
from hpo_pilot.store import NewTask, PointRequest, SearchRecord, SteeringStore, StoreAwayError, TaskRecord, TaskStage

#: Longest pause between two calls of the loop body of a search, in seconds.
LOOK_SECONDS = 5.0

#: Least time between two routine looks at tasks, in seconds. A look is one query of the task's jobs.
_LOOK_SPACING = 0.1

#: A look that takes longer than `_LONG_LOOK` seconds is followed by a pause of `_LOOK_PAUSE` times its length: such
#: looks then take at most a tenth of the time.
_LONG_LOOK = 0.03
_LOOK_PAUSE = 9

#: Seconds from the beginning of a slow look to the next one, at most: without and with early stopping. A result is then
#: seen within a minute, and a killed job that the server starts again is killed before it runs for long.
_SLOW_LOOKS = 45.0
_SLOW_LOOKS_STOPPING = 12.0

#: In a task that ended like this every job still reaches its own end. In other ended tasks some jobs never do.
_COMPLETE = frozenset({TaskState.DONE, TaskState.FINISHED, TaskState.FAILED})

#: The payload has ended; its metadata will follow.
_NEARLY_OVER = frozenset({JobState.HOLDING, JobState.TRANSFERRING})

#: An exhausted task starts no more jobs, but the jobs that a pilot has go on.
_WITH_A_PILOT = _NEARLY_OVER | {JobState.SENT, JobState.STARTING, JobState.RUNNING}

log = logging.getLogger(__name__)


class Submissions:
    """The open tasks of a search."""

    def __init__(self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager) -> None:
        """Loads the open tasks from the store. Each is due for a look."""
        self._record = record
        self._search = record.search
        self._slow_looks = _SLOW_LOOKS if record.search.early_stopping.method == "none" else _SLOW_LOOKS_STOPPING
        self._store = store
        self._manager = manager
        self.open: dict[int, TaskRecord] = {task.id: task for task in store.open_tasks(record.id)}
        """The open tasks by their number in the store."""
        self._revisions = store.revisions(record.id)
        # These may have reached the server before a crash: their names are looked up before they are submitted.
        self._doubtful = {task.id for task in self.open.values() if task.stage is TaskStage.INTENT}
        self._due = set(self.open)  # tasks that may have changed since the last look
        # By task, on the monotonic clock: the last look, the earliest next one, and the last look without an answer;
        # and how many seconds the last look took.
        self._looked: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._unanswered: dict[int, float] = {}
        self._took: dict[int, float] = {}
        # JEDI ids with reported changes that belong to none of our tasks: perhaps to one that is being submitted.
        self._unclaimed: set[int] = set()
        self._walltimes = Walltimes(record.search)

    # --- when to look at a task ---

    def mark(self, changed: set[int] | None) -> None:
        """Marks tasks as due that may have changed; `changed`: JEDI ids, or None for all."""
        now = time.monotonic()
        # Routine looks bring the states and values of running jobs, and replace a change report that got lost.
        took = sum(self._took.values())
        spread = max(_LOOK_SPACING * len(self.open), took + self._pause(took))
        overdue = now - max(self._manager.policy.look_seconds, spread)
        for task in self.open.values():
            reported = changed is None or task.jedi_task_id in changed
            if reported or self._looked.get(task.id, now) < overdue:
                self._due.add(task.id)
        if changed:
            known = {task.jedi_task_id for task in self.open.values()}
            self._unclaimed = ((self._unclaimed if self.unsent else set()) | changed) - known

    def to_look_at(self) -> list[TaskRecord]:
        """Returns the submitted tasks that are due now, oldest first; tasks `without_answer` come last."""
        self._due &= self.open.keys()
        now = time.monotonic()
        due = [number for number in self._submitted_due() if self._not_before.get(number, 0.0) <= now]
        return [
            self.open[number] for number in sorted(due, key=lambda number: (self._unanswered.get(number, 0.0), number))
        ]

    def _submitted_due(self) -> list[int]:
        return [n for n in self._due if n in self.open and self.open[n].jedi_task_id is not None]

    def without_answer(self, task: TaskRecord) -> None:
        """Records that the server did not answer for the task: next time it comes last."""
        self._unanswered[task.id] = time.monotonic()

    def looked_at(self, task: TaskRecord, seconds: float) -> None:
        """Records a look at a task and the seconds that it took.

        A look at a task of many jobs takes long, and each job that ends makes one due: such looks are spread.
        """
        now = self._looked[task.id] = time.monotonic()
        self._not_before[task.id] = now + self._pause(seconds) if seconds > _LONG_LOOK else 0.0
        self._took[task.id] = seconds
        self._due.discard(task.id)
        self._unanswered.pop(task.id, None)
        if task.id not in self.open:
            del self._looked[task.id], self._not_before[task.id], self._took[task.id]

    def _pause(self, seconds: float) -> float:
        """Returns the pause after looks that took `seconds`: long enough that looks take at most half of the time."""
        return min(_LOOK_PAUSE * seconds, max(self._slow_looks - seconds, seconds))

    def next_look(self) -> float:
        """Returns the seconds until the next task is due, at most `LOOK_SECONDS`."""
        now = time.monotonic()
        waits = [self._not_before.get(number, 0.0) - now for number in self._submitted_due()]
        return max(0.0, min([LOOK_SECONDS, *waits]))

    def end_of(self, ref: TaskRef, state: TaskState, alive: Collection[JobState]) -> str:
        """Returns why a task ended without all its jobs. Empty while some of its jobs may still end on their own.

        Args:
            ref: the task.
            state: its state, which is over.
            alive: the states of its jobs that are not over.

        Raises:
            GiveUpError: the server cannot use the task's parameters. It would refuse the next task too.
            TryAgainError: the server does not answer.
        """
        awaited = _WITH_A_PILOT if state is TaskState.EXHAUSTED else _NEARLY_OVER
        if (state in _COMPLETE and alive) or not awaited.isdisjoint(alive):
            return ""
        why = "" if state is TaskState.DONE else self._manager.why_ended(ref)
        if state is TaskState.BROKEN:
            raise GiveUpError(
                f"the PanDA server cannot use the parameters of task {ref.jedi_task_id} ({ref.name}): "
                f"{why or 'it does not say why'}. See `site` and `panda` in the search file; "
                "`hpo-pilot submit --dry-run` shows what is sent"
            )
        return f"the task ended as {state.value}" + (f": {why}" if why else "")

    def note_waiting(self, task: TaskRecord, ref: TaskRef) -> None:
        """Records the reason why the server keeps the task waiting, if it has changed."""
        why, known = self._manager.why_waits(ref), self.open.get(task.id)
        if known is None or known.waits == why:
            return
        self._store.task_waits(task.id, why)
        self.open[task.id] = replace(known, waits=why)
        if why:
            log.warning("search %s: task %d waits: %s", self._record.name, ref.jedi_task_id, why)

    def look_again(self, trials: Collection[int]) -> None:
        """Marks the tasks of these trials as due."""
        for task in self.open.values() if trials else ():
            if any(member.trial in trials for job in task.jobs for member in job):
                self._due.add(task.id)

    def ended(self, task: TaskRecord) -> None:
        """Forgets a task that owes nothing more."""
        self.open.pop(task.id, None)

    # --- submit ---

    @property
    def unsent(self) -> list[TaskRecord]:
        """Tasks that are registered and not submitted yet."""
        return [task for task in self.open.values() if task.stage is TaskStage.INTENT]

    def add(self, task: TaskRecord) -> None:
        """Adds a task that this process has just registered: it cannot be at the server yet."""
        self.open[task.id] = task

    def send(self, task: TaskRecord, trials: Mapping[int, Trial]) -> None:
        """Submits a registered task; `trials`: all trials of the search by number.

        Raises:
            TryAgainError: it was not submitted now; call again. If its name was taken, the task has a new name.
            GiveUpError: the server refuses it for good.
        """
        try:
            spec = self.spec(task.name, task.generation, task.jobs, trials)
            if not task.revision:  # lost jobs ask for all their minutes, also after a restart
                spec = replace(spec, walltime=self._walltimes.of(spec.points, trials))
            ref = self._manager.submit(spec, maybe_submitted=task.id in self._doubtful)
        except UnknownOutcomeError:
            self._doubtful.add(task.id)
            raise
        except TaskNameTakenError:
            name = self.name(task.generation, task.revision, secrets.token_hex(4))
            self._store.rename_task(task.id, name)
            self.open[task.id] = replace(task, name=name)
            self._doubtful.discard(task.id)
            raise
        self._store.task_submitted(task.id, ref.jedi_task_id)
        self._doubtful.discard(task.id)
        self.open[task.id] = replace(task, stage=TaskStage.SUBMITTED, jedi_task_id=ref.jedi_task_id)
        self._looked[task.id] = time.monotonic()
        if ref.jedi_task_id in self._unclaimed:
            self._due.add(task.id)
        self._unclaimed.clear()

    def ran(self, trial: Trial, trials: Mapping[int, Trial]) -> None:
        """Takes a trial that has ended, with its folds; `trials`: by number, with the one that it goes on from."""
        self._walltimes.ran(trial, trials)

    def resubmission(self, generation: int, jobs: Iterable[Members]) -> NewTask | None:
        """Returns a task for lost folds or folds not run: the next revision of their generation. None if no jobs."""
        jobs = tuple(jobs)
        if not jobs:
            return None
        self._walltimes.lost()
        revision = self._revisions[generation] = self._revisions.get(generation, 0) + 1
        return NewTask(self.name(generation, revision), generation, revision, jobs)

    def kill_all(self) -> None:
        """Asks the server to kill every open task.

        Raises:
            TryAgainError: a task cannot be killed now. The tasks before it are killed.
        """
        for task in self.open.values():
            ref = TaskRef(task.name, task.jedi_task_id) if task.jedi_task_id is not None else None
            if ref is None and task.id in self._doubtful:
                ref = self._manager.find(task.name)  # It may have reached the server although no answer came.
            if ref is not None:
                self._manager.kill(ref)

    def collect_last(self, look: Callable[[TaskRecord, TaskRef], object]) -> None:
        """Looks at the killed tasks once more: jobs that ended or began before the kill are charged to the budget.

        Does not wait for a server that does not answer.
        """
        for task in list(self.open.values()):
            try:
                if task.jedi_task_id is not None:
                    look(task, TaskRef(task.name, task.jedi_task_id))
            except StoreAwayError:
                raise
            except TryAgainError as error:
                log.warning("search %s: the last results are not known: %s", self._record.name, error)

    # --- the contents of a task ---

    def name(self, generation: int, revision: int, uid: str | None = None) -> str:
        """Returns a unique task name; `uid`: 8 hexadecimal digits instead of the search's own."""
        return task_name(
            self._manager.owner,
            self._search.name,
            uid or self._record.uid,
            generation,
            revision,
            group=official_group(self._search),
        )

    @property
    def trials_per_task(self) -> int:
        """The largest number of trials in one task."""
        return trials_per_task(self._search, self._manager.policy.jobs_per_task)

    def jobs(self, trials: Sequence[Trial]) -> tuple[Members, ...]:
        """Returns the members of each job for new trials."""
        return task_jobs(self._search, [(trial.number, trial.seed) for trial in trials])

    def fitting(self, generation: int, trials: list[Trial], known: dict[int, Trial]) -> list[Trial]:
        """Returns the first trials that fit into one task's parameters and its server's limit; at least one.

        Args:
            generation: number of their generation.
            trials: the new trials.
            known: all other trials of the search by number.
        """
        trials = trials[: self.trials_per_task]
        while len(trials) > 1:
            numbered = ChainMap({trial.number: trial for trial in trials}, known)
            spec = self.spec("", generation, self.jobs(trials), numbered)
            if len(encode_points(spec)) <= ENCODED_LIMIT:
                break
            trials = trials[: len(trials) // 2]
        return trials

    def spec(self, name: str, generation: int, jobs: tuple[Members, ...], trials: Mapping[int, Trial]) -> TaskSpec:
        """Returns a task as the workflow manager submits it."""
        sandbox = Path(self._record.sandbox or "")
        return task_spec(self._search, self._record.uid, sandbox, name, generation, jobs, trials)


def trial_seed(search_seed: int, number: int) -> int:
    """Returns the seed of a trial's payload: the same for all its folds, different for every trial."""
    digest = hashlib.sha256(f"{search_seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def task_jobs(search: Search, trials: Sequence[tuple[int, int]]) -> tuple[Members, ...]:
    """Returns the members of each job: one fold of up to `resources.trials_per_job` trials.

    The jobs of a trial's folds are neighbours. The jobs have about equal numbers of trials, because a generation waits
    for its longest job.

    Args:
        search: the search.
        trials: number and seed of each trial.
    """
    count = -(-len(trials) // search.resources.trials_per_job)
    groups = [trials[len(trials) * i // count : len(trials) * (i + 1) // count] for i in range(count)]
    return tuple(
        tuple(Member(number, fold, seed) for number, seed in group)
        for group in groups
        for fold in range(search.folds.k)
    )


def trials_per_task(search: Search, polite: int | None) -> int:
    """Returns the largest number of trials in one task, at least one. Larger generations become several tasks.

    Args:
        search: the search.
        polite: the server's limit of jobs per task, used if `panda.jobs_per_task` is auto; None: no limit.
    """
    most, per_job = search.panda.jobs_per_task, search.resources.trials_per_job
    if search.payload.is_none:
        polite = _FEW  # a look at such a task is short, so that results are seen soon and new points follow
    limit = min(MOST_JOBS_PER_TASK, (polite or MOST_JOBS_PER_TASK) if most == "auto" else most)
    return max(1, min(limit // search.folds.k * per_job, MOST_RUNS_PER_TASK // search.folds.k))


def task_spec(
    search: Search,
    uid: str,
    sandbox: Path,
    name: str,
    generation: int,
    jobs: tuple[Members, ...],
    trials: Mapping[int, Trial],
) -> TaskSpec:
    """Returns a generation, or a part of one, as the workflow manager submits it.

    Args:
        search: the search.
        uid: its random identity.
        sandbox: its packed payload.
        name: the task's name.
        generation: number of the generation.
        jobs: members of job 1, 2, ….
        trials: trials by number; may have more than the jobs, and must have those that they go on from.
    """
    members = {trial: trials[trial] for job in jobs for trial, _, _ in job}
    return TaskSpec(
        name=name,
        search=search.name,
        uid=uid,
        generation=generation,
        folds=search.folds.k,
        points={number: search.payload_point(trial.point, trial.level) for number, trial in members.items()},
        jobs=jobs,
        sandbox=sandbox,
        needs=search.job_needs,
        container=search.payload.container,
        has_outputs=bool(search.payload.kept_files),
        queue=f"{ASKED_QUEUE}{uid}" if search.payload.is_none else search.site.queue,
        options=TaskOptions(
            label=search.panda.label,
            vo=search.panda.vo,
            working_group=search.panda.working_group,
            priority=search.panda.priority,
            attempts=search.panda.attempts,
            architecture=search.site.architecture,
            exclude=search.site.exclude,
            official=search.panda.official,
            profile=search.site.named,
        ),
        datasets=tuple(name for name in search.payload.inputs if is_did(name)),
        wants_values=search.early_stopping.is_on,
        levels=_levels(search, members, trials),
    )


def _levels(search: Search, members: Mapping[int, Trial], trials: Mapping[int, Trial]) -> dict[int, TrialLevel]:
    """Returns the levels of a task's trials; the checkpoint of a point that may be promoted is kept.

    So is that of the highest level: a user may add a higher one.
    """
    found: dict[int, TrialLevel] = {}
    if search.levels is None:
        return found
    for number, trial in members.items():
        chain = first_of_chain(trials, trial)
        found[number] = TrialLevel(trial.level or 0, None if chain == number else chain, trial.confirms is None)
    return found


def official_group(search: Search) -> str | None:
    """Returns the working group that owns the outputs; None: the user owns them."""
    if not search.panda.official or search.panda.working_group is None:
        return None
    return re.split(r"[.:]", search.panda.working_group)[0]


class Refill:
    """Decides when the free slots of a search are filled."""

    def __init__(self, budget: Budget, trials_per_job: int = 1) -> None:
        """Starts with all slots free; `trials_per_job`: a job is filled before it is submitted."""
        self._budget = budget
        # The trials of the smallest job when all slots are filled: the end of any one job allows the next.
        self._least = budget.parallel // math.ceil(budget.parallel / trials_per_job)
        self._filling = False

    def is_due(self, count: int, left: int, polite: float) -> bool:
        """Returns whether to fill free slots now. Once a fill starts, it goes on until no slot is free.

        Args:
            count: free slots, including those for points that wait at the server.
            left: trials left in the budget, which may be fewer than a batch.
            polite: batch size as a share of `budget.parallel`, used if `budget.refill` is auto.
        """
        share = polite if self._budget.refill == "auto" else self._budget.refill
        wanted = math.ceil(share * self._budget.parallel - 1e-9)  # 0.07 * 100 is a little more than 7
        batch = min(max(wanted, self._least), left)
        self._filling = count > 0 and (self._filling or count >= batch)
        return self._filling


#: Share of slot time that may be lost before points are kept waiting at the server.
TOLERATED = 0.02

#: Trials in a task for clients.
_FEW = 50

#: Share of `budget.parallel` that waits for clients beside that, so that few of them wait for a hand-over, and share of
#: new points that are submitted together, which saves looks at tasks.
_FOR_CLIENTS, _BATCH = 0.1, 0.04

#: Weight of the newest measurement in the running means.
_WEIGHT = 0.2


#: Least number of results of a level before its walltimes are shorter. Twice `budget.parallel` are needed, too, because
#: short trainings end first. A job asks for this multiple of the longest run time, and for these seconds at least.
_TIMED, _SPARE, _SHORTEST = 5, 2.0, 300.0


class Walltimes:
    """Chooses the walltimes of jobs in a search with levels, from the run times of earlier jobs.

    `resources.minutes` is enough for the longest training. Jobs of lower levels take less: with a shorter walltime they
    fit into queues of short jobs, and into the gaps of an allocation. The walltime is `resources.minutes` divided by a
    power of two, so that jobs are of few kinds. A lost job may have reached a walltime that was too short. So after a
    loss, all jobs ask for `resources.minutes`. Only results since this process loaded the search count.
    """

    def __init__(self, search: Search) -> None:
        """Starts without run times."""
        self._is_on = search.levels is not None
        self._most = 60.0 * search.resources.minutes
        self._least = max(_TIMED, 2 * search.budget.parallel)
        self._ended: dict[float, tuple[int, float]] = {}  # number of results and longest seconds, by the trained part

    def ran(self, trial: Trial, trials: Mapping[int, Trial]) -> None:
        """Takes a trial that has ended; see `Submissions.ran`."""
        results = [fold.result for fold in trial.folds]
        if self._is_on and trial.values and all(one.seconds and one.attempt == 1 for one in results):
            part = trained(trials, trial)
            count, longest = self._ended.get(part, (0, 0.0))
            self._ended[part] = count + 1, max([longest, *(one.seconds or 0.0 for one in results)])

    def lost(self) -> None:
        """Takes the loss of a job."""
        self._is_on = False

    def of(self, numbers: Iterable[int], trials: Mapping[int, Trial]) -> int | None:
        """Returns the walltime of a task of these trials in seconds; None: that of `resources.minutes`."""
        if not self._is_on:
            return None
        needed = max((self._needed(trials[number], trials) for number in numbers), default=self._most)
        halvings = math.floor(math.log2(self._most / needed))
        return int(self._most / 2**halvings) + WALLTIME_MARGIN if halvings > 0 else None

    def _needed(self, trial: Trial, trials: Mapping[int, Trial]) -> float:
        part = trained(trials, trial)
        count, longest = self._ended.get(part, (0, 0.0))
        if count < self._least:
            return self._most
        from_the_start = (trial.level or part) / part  # as it is trained if its checkpoint is lost
        return max(_SHORTEST, _SPARE * from_the_start * longest)


class Lookahead:
    """Measures hand-over and run times, and derives how many points should wait at the server.

    A freed slot is idle during its hand-over: the result is collected, the optimizer is asked, the point is submitted.
    The lost share of slot time is hand-over / (hand-over + run time). If that share is too large, about
    parallel x hand-over / run time points should wait at any moment. Else none should wait, because a point that is
    asked for later is based on more results.
    """

    def __init__(self, parallel: int, queued: int | str, trials_per_job: int = 1, *, for_clients: bool = False) -> None:
        """Starts without measurements.

        Args:
            parallel: trials that run at once.
            queued: `budget.queued` of the search file: a fixed number, or `auto`.
            trials_per_job: trials that a job runs between two hand-overs.
            for_clients: whether the points wait for clients, not for pilots.
        """
        self._parallel = parallel
        self._for_clients = for_clients
        self._per_job = trials_per_job
        self._queued = queued
        self._hand_over: float | None = None
        self._run_time: float | None = None

    def handed_over(self, seconds: float) -> None:
        """Takes the seconds of a hand-over: from the collection of a result to the next submission."""
        self._hand_over = _mean(self._hand_over, seconds)

    def ran(self, seconds: float) -> None:
        """Takes the run time of a trial in seconds."""
        self._run_time = _mean(self._run_time, seconds * self._per_job)

    @property
    def batch(self) -> float:
        """Share of `parallel` that is submitted together, if some points wait for clients; else 0."""
        return _BATCH if self._for_clients and self._queued == "auto" else 0.0

    @property
    def waiting(self) -> int:
        """Number of points to submit beyond `parallel`.

        With `queued: auto` it is 0 for one trial at a time: such a search is strictly sequential and reproducible.
        """
        if isinstance(self._queued, int):
            return self._queued
        if self._parallel == 1:
            return 0
        least = math.ceil(self._parallel * _FOR_CLIENTS) if self._for_clients else 0
        if self._hand_over is None or self._run_time is None:
            return least
        share = self._hand_over / max(self._run_time, 1e-3)
        if share < TOLERATED:
            return least
        waiting = math.ceil(self._parallel * share / self._per_job) * self._per_job
        return min(self._parallel, least + waiting)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)


class PointRequests:
    """The waiting points that users asked for, in their order. A new request makes the service reload the search."""

    def __init__(self, search_id: int, store: SteeringStore) -> None:
        """Loads the waiting requests."""
        self._search_id = search_id
        self._store = store
        self._waiting = store.requested_points(search_id)

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, count: int, fits: Callable[[PointRequest], bool]) -> list[PointRequest]:
        """Returns the next requests that fit, at most `count`; they stay waiting until `sent`.

        A request whose point has become a trial meanwhile, proposed by the optimizer, is fulfilled by that trial.
        """
        if not self._waiting:
            return []
        new = [request.point for request in self._waiting if request.retries is None]
        existing = {
            point_key(trial.point): trial.number
            for trial in self._store.trials_at(self._search_id, new)
            if trial.counts and trial.state is not TrialState.FAILED
        }
        for request in list(self._waiting):
            if request.retries is None and (number := existing.get(point_key(request.point))) is not None:
                self._store.fulfil(self._search_id, request.id, number)
                self._waiting.remove(request)
        return list(itertools.islice(filter(fits, self._waiting), count))

    def number(self, fits: Callable[[PointRequest], bool]) -> int:
        """Returns the number of requests for which `fits` is true."""
        return sum(map(fits, self._waiting))

    def sent(self, ids: Collection[int]) -> None:
        """Removes the requests with these ids: they have become trials."""
        self._waiting = [request for request in self._waiting if request.id not in ids]


def new_trials(
    search: Search,
    generation: int,
    first: int,
    points: Sequence[Point],
    *,
    confirms: Sequence[Trial] | None = None,
    retries: Sequence[Trial | None] | None = None,
    continues: Sequence[tuple[Trial, float] | None] | None = None,
) -> list[Trial]:
    """Returns trials for these points, to be registered.

    Args:
        search: the search.
        generation: number of their generation.
        first: number of the first trial.
        points: the points.
        confirms: for confirmation runs, the confirmed trial for each point.
        retries: for points that users asked for, the failed trial for each point; None: it is a new point.
        continues: for points that go on, the trial that each goes on from, and its level; None: it is a new point.
    """
    lowest = None if search.levels is None else search.levels.values[0]
    found = []
    for index, point in enumerate(points):
        trial = Trial(first + index, generation, point, seed=trial_seed(search.seed, first + index), level=lowest)
        if continues and (going := continues[index]) is not None:
            before, level = going
            trial = replace(trial, seed=before.seed, level=level, continues=before.number)
        elif confirms:
            trial = replace(trial, level=confirms[index].level, confirms=confirms[index].number)
        elif retries and (failed := retries[index]) is not None:
            trial = replace(trial, retries=failed.number)
            if failed.continues is not None:
                trial = replace(trial, seed=failed.seed, level=failed.level, continues=failed.continues)
        found.append(trial)
    return found
