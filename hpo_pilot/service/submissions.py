"""The tasks of one search that are out, and how they get there: intent, submission, resubmission."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import (
    JobNeeds,
    JobState,
    Member,
    Members,
    TaskOptions,
    TaskRef,
    TaskSpec,
    TaskState,
    task_name,
)
from hpo_pilot.panda.rucio import is_did
from hpo_pilot.panda.task_parameters import ENCODED_LIMIT, encode_points
from hpo_pilot.panda.workflow_manager import NameTakenError, UnknownOutcomeError, WorkflowManager
from hpo_pilot.search import Point, Search
from hpo_pilot.search.limits import MOST_JOBS_PER_TASK, MOST_RUNS_PER_TASK
from hpo_pilot.store import NewTask, NewTrial, SearchRecord, SteeringStore, StoreAwayError, TaskRecord, TaskStage

#: The steering of a search is called at least this often, in seconds.
LOOK_SECONDS = 5.0

#: With many open tasks the looks that nothing asks for are spread: to at most one in so many seconds, and, where looks
#: take long, to a tenth of the time in all.
_LOOK_SPACING = 0.1

#: A look that takes longer than this, in seconds, is followed by a pause of so many times its length.
_FELT = 0.03
_LOOK_PAUSE = 9

#: After these ends of a task each of its jobs comes to its own; after the others some never will.
_COMPLETE = frozenset({TaskState.DONE, TaskState.FINISHED, TaskState.FAILED})

#: The payload has ended, and its word is about to come.
_NEARLY_OVER = frozenset({JobState.HOLDING, JobState.TRANSFERRING})

#: A task that is exhausted starts no more jobs; those that run go on.
_WITH_A_PILOT = _NEARLY_OVER | {JobState.SENT, JobState.STARTING, JobState.RUNNING}

log = logging.getLogger(__name__)


class Submissions:
    """The open tasks, at most once each at the server."""

    def __init__(self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager) -> None:
        """Loads the open tasks from the store; each is looked at once."""
        self._record = record
        self._search = record.search
        self._store = store
        self._manager = manager
        self.open: dict[int, TaskRecord] = {task.id: task for task in store.open_tasks(record.id)}
        """By our own number."""
        self._revisions = store.revisions(record.id)
        # After a crash nobody knows whether these reached the server: their names are looked up first.
        self._doubtful = {task.id for task in self.open.values() if task.stage is TaskStage.INTENT}
        self._looked: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._took: dict[int, float] = {}
        self._dirty = set(self.open)
        self._untold: dict[int, float] = {}
        # Changes that the server reported of tasks whose number we had not been told yet.
        self._unclaimed: set[int] = set()

    # --- which to look at ---

    def mark(self, changed: set[int] | None) -> None:
        """Notes which tasks may have changed: JEDI ids, or None for all."""
        now = time.monotonic()
        # For the states of running jobs and their intermediate values, and should a report of the server's get lost.
        spread = max(_LOOK_SPACING * len(self.open), (_LOOK_PAUSE + 1) * sum(self._took.values()))
        overdue = now - max(self._manager.manners.look_seconds, spread)
        for task in self.open.values():
            told = changed is None or task.jedi_task_id in changed
            if told or self._looked.get(task.id, now) < overdue:
                self._dirty.add(task.id)
        if changed:
            known = {task.jedi_task_id for task in self.open.values()}
            self._unclaimed = (self._unclaimed | changed) - known

    def to_look_at(self) -> list[TaskRecord]:
        """The submitted tasks that may have changed and are due: oldest first, last those `not_told_of`."""
        self._dirty &= self.open.keys()
        now = time.monotonic()
        due = [number for number in self._submitted_dirty() if self._not_before.get(number, 0.0) <= now]
        return [self.open[number] for number in sorted(due, key=lambda number: (self._untold.get(number, 0.0), number))]

    def _submitted_dirty(self) -> list[int]:
        return [n for n in self._dirty if n in self.open and self.open[n].jedi_task_id is not None]

    def not_told_of(self, task: TaskRecord) -> None:
        """The server did not tell of the task, for now."""
        self._untold[task.id] = time.monotonic()

    def looked_at(self, task: TaskRecord, seconds: float) -> None:
        """The task has been looked at, which took `seconds`.

        A look at a wide task takes long, and each of its jobs that ends asks for one: looks that are felt are spread.
        """
        now = self._looked[task.id] = time.monotonic()
        self._not_before[task.id] = now + _LOOK_PAUSE * seconds if seconds > _FELT else 0.0
        self._took[task.id] = seconds
        self._dirty.discard(task.id)
        self._untold.pop(task.id, None)
        if task.id not in self.open:
            del self._looked[task.id], self._not_before[task.id], self._took[task.id]

    def next_look(self) -> float:
        """Seconds until a task that may have changed is due; at most `LOOK_SECONDS`."""
        now = time.monotonic()
        waits = [self._not_before.get(number, 0.0) - now for number in self._submitted_dirty()]
        return max(0.0, min([LOOK_SECONDS, *waits]))

    def end_of(self, ref: TaskRef, state: TaskState, alive: Collection[JobState]) -> str:
        """Why a task that is over has not done all its jobs; empty while that may still change.

        Args:
            ref: the task.
            state: how it ended.
            alive: the states of jobs of its that are still on their way.

        Raises:
            GiveUpError: the server finds no sense in it, and would find none in the next one.
            TryAgainError: the server does not answer.
        """
        awaited = _WITH_A_PILOT if state is TaskState.EXHAUSTED else _NEARLY_OVER
        if (state in _COMPLETE and alive) or not awaited.isdisjoint(alive):
            return ""
        why = "" if state is TaskState.DONE else self._manager.why_ended(ref)
        if state is TaskState.BROKEN:
            raise GiveUpError(
                f"the PanDA server finds no sense in task {ref.jedi_task_id} ({ref.name}): "
                f"{why or 'it does not say why'}. See `site` and `panda` in the search file; "
                "`hpo-pilot submit --dry-run` shows what is sent"
            )
        return f"the task ended as {state.value}" + (f": {why}" if why else "")

    def note_waiting(self, task: TaskRecord, ref: TaskRef) -> None:
        """Records why the server keeps the task waiting, where that has changed."""
        why, known = self._manager.why_waits(ref), self.open.get(task.id)
        if known is None or known.waits == why:
            return
        self._store.task_waits(task.id, why)
        self.open[task.id] = replace(known, waits=why)
        if why:
            log.warning("search %s: task %d waits: %s", self._record.name, ref.jedi_task_id, why)

    def look_again(self, trials: Collection[int]) -> None:
        """Something happened to these trials: their tasks are to be looked at."""
        for task in self.open.values() if trials else ():
            if any(member.trial in trials for job in task.jobs for member in job):
                self._dirty.add(task.id)

    def ended(self, task: TaskRecord) -> None:
        """Nothing more is expected from the task."""
        self.open.pop(task.id, None)

    # --- submit ---

    @property
    def unsent(self) -> list[TaskRecord]:
        """Tasks that are registered and not yet at the server."""
        return [task for task in self.open.values() if task.stage is TaskStage.INTENT]

    def add(self, task: TaskRecord) -> None:
        """A task was registered just now, by this process: it cannot be at the server yet."""
        self.open[task.id] = task

    def send(self, task: TaskRecord, points: Mapping[int, Point]) -> None:
        """Submits a registered task.

        Raises:
            TryAgainError: not now; call again, for the task has another name where its own was taken.
            GiveUpError: the server refuses it for good.
        """
        try:
            spec = self.spec(task.name, task.generation, task.jobs, points)
            ref = self._manager.submit(spec, maybe_submitted=task.id in self._doubtful)
        except UnknownOutcomeError:
            self._doubtful.add(task.id)
            raise
        except NameTakenError:
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
            self._dirty.add(task.id)
        self._unclaimed.clear()

    def resubmission(self, generation: int, jobs: Iterable[Members]) -> NewTask | None:
        """The next revision of a generation, for what was lost or not run; None for no jobs."""
        jobs = tuple(jobs)
        if not jobs:
            return None
        revision = self._revisions[generation] = self._revisions.get(generation, 0) + 1
        return NewTask(self.name(generation, revision), generation, revision, jobs)

    def kill_all(self) -> None:
        """Asks the server to kill every open task.

        Raises:
            TryAgainError: one cannot be killed now; those before it are.
        """
        for task in self.open.values():
            ref = TaskRef(task.name, task.jedi_task_id) if task.jedi_task_id is not None else None
            if ref is None and task.id in self._doubtful:
                ref = self._manager.find(task.name)  # it may have reached the server before we were told its number
            if ref is not None:
                self._manager.kill(ref)

    def look_back(self, look: Callable[[TaskRecord, TaskRef], object]) -> None:
        """Looks once more at what was killed: what had ended before is paid for, and so is what had begun.

        What the server does not tell at once is not waited for.
        """
        for task in list(self.open.values()):
            try:
                if task.jedi_task_id is not None:
                    look(task, TaskRef(task.name, task.jedi_task_id))
            except StoreAwayError:
                raise
            except TryAgainError as error:
                log.warning("search %s: what ended last is not known: %s", self._record.name, error)

    # --- what a task is made of ---

    def name(self, generation: int, revision: int, uid: str | None = None) -> str:
        """The task's name, unique for ever; `uid`: 8 hexadecimal digits in the place of the search's own."""
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
        """How many trials a task may have."""
        return trials_per_task(self._search, self._manager.manners.jobs_per_task)

    def jobs(self, trials: Sequence[NewTrial]) -> tuple[Members, ...]:
        """What the jobs of new trials run."""
        return task_jobs(self._search, [(trial.number, trial.seed) for trial in trials])

    def fitting(self, generation: int, trials: list[NewTrial]) -> list[NewTrial]:
        """As many of the first trials as one task's parameters can carry, and its server likes to; at least one."""
        trials = trials[: self.trials_per_task]
        points = {trial.number: trial.point for trial in trials}
        while len(trials) > 1:
            numbers = {trial.number for trial in trials}
            spec = self.spec("", generation, self.jobs(trials), {n: points[n] for n in numbers})
            if len(encode_points(spec)) <= ENCODED_LIMIT:
                break
            trials = trials[: len(trials) // 2]
        return trials

    def spec(self, name: str, generation: int, jobs: tuple[Members, ...], points: Mapping[int, Point]) -> TaskSpec:
        """What the workflow manager submits."""
        sandbox = Path(self._record.sandbox or "")
        return task_spec(self._search, self._record.uid, sandbox, name, generation, jobs, points)


def trial_seed(search_seed: int, number: int) -> int:
    """The seed that trial `number` gives its payload: the same for all its folds, different for every trial."""
    digest = hashlib.sha256(f"{search_seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def task_jobs(search: Search, trials: Sequence[tuple[int, int]]) -> tuple[Members, ...]:
    """What the jobs of a generation run: each one fold of up to `resources.trials_per_job` trials.

    The folds of a trial stay side by side; the trials are shared out evenly, for the longest job is what is waited for.

    Args:
        search: the search.
        trials: number and seed of each.
    """
    count = -(-len(trials) // search.resources.trials_per_job)
    groups = [trials[len(trials) * i // count : len(trials) * (i + 1) // count] for i in range(count)]
    return tuple(
        tuple(Member(number, fold, seed) for number, seed in group)
        for group in groups
        for fold in range(search.folds.k)
    )


def trials_per_task(search: Search, polite: int | None) -> int:
    """How many trials make no more jobs than one task may have, at least one.

    Larger generations are several tasks, each of which is made, submitted and looked at by itself.

    Args:
        search: the search.
        polite: how many jobs a task has at most where the search says auto; None: any number.
    """
    most, per_job = search.panda.jobs_per_task, search.resources.trials_per_job
    limit = min(MOST_JOBS_PER_TASK, (polite or MOST_JOBS_PER_TASK) if most == "auto" else most)
    return max(1, min(limit // search.folds.k * per_job, MOST_RUNS_PER_TASK // search.folds.k))


def task_spec(
    search: Search,
    uid: str,
    sandbox: Path,
    name: str,
    generation: int,
    jobs: tuple[Members, ...],
    points: Mapping[int, Point],
) -> TaskSpec:
    """A generation of `search`, or part of one, as the workflow manager takes it.

    Args:
        search: the search.
        uid: its random identity.
        sandbox: its packed payload.
        name: the task's name.
        generation: the generation's number.
        jobs: what job number 1, 2, … runs.
        points: the points of these trials, and perhaps of others.
    """
    needs = search.resources
    return TaskSpec(
        name=name,
        search=search.name,
        uid=uid,
        generation=generation,
        folds=search.folds.k,
        points={trial: search.payload.point.payload_point(points[trial]) for job in jobs for trial, _, _ in job},
        jobs=jobs,
        sandbox=sandbox,
        needs=JobNeeds(needs.nodes, needs.gpus_per_node, needs.cores, needs.memory_mb, needs.minutes, needs.ranks),
        container=search.payload.container,
        has_outputs=bool(search.payload.kept_files),
        queue=search.site.queue,
        options=TaskOptions(
            label=search.panda.label,
            vo=search.panda.vo,
            working_group=search.panda.working_group,
            priority=search.panda.priority,
            attempts=search.panda.attempts,
            architecture=search.site.architecture,
            exclude=search.site.exclude,
            official=search.panda.official,
        ),
        datasets=tuple(name for name in search.payload.inputs if is_did(name)),
        wants_values=search.early_stopping.is_on,
    )


def official_group(search: Search) -> str | None:
    """The working group whose the outputs are; None: they are the user's."""
    if not search.panda.official or search.panda.working_group is None:
        return None
    return re.split(r"[.:]", search.panda.working_group)[0]
