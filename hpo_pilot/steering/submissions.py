"""Submits the tasks of one search: intent, submission, resubmission; when and how many; and a rehearsal."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import JobNeeds, JobState, Member, Members, TaskOptions, TaskRef, TaskSpec, TaskState, task_name
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.panda.manager import scouts
from hpo_pilot.panda.rucio import is_did
from hpo_pilot.panda.server import environment_vo
from hpo_pilot.panda.task_parameters import ENCODED_LIMIT, encode_points, task_parameters
from hpo_pilot.panda.workflow_manager import NameTakenError, UnknownOutcomeError, WorkflowManager
from hpo_pilot.search import Budget, Point, Search, Trial, TrialState, point_key
from hpo_pilot.search.earlier_results import EarlierResults
from hpo_pilot.search.limits import MOST_JOBS_PER_TASK, MOST_RUNS_PER_TASK
from hpo_pilot.search.sections import costs
from hpo_pilot.steering.registration import earlier_results, pack_search
from hpo_pilot.steering.target import chosen_server
from hpo_pilot.steering.workdir import WorkDir, nickname
from hpo_pilot.store import (
    EMBEDDED,
    NewTask,
    NewTrial,
    PointRequest,
    SearchRecord,
    SteeringStore,
    Store,
    StoreAwayError,
    TaskRecord,
    TaskStage,
)

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


class Refill:
    """Decides for one search whether its free slots are filled now."""

    def __init__(self, budget: Budget, trials_per_job: int = 1) -> None:
        """Starts with all slots free; jobs that run several trials are filled before they go out."""
        self._budget = budget
        # What the smaller jobs hold where all slots are filled: one that ends is followed by another at once.
        self._least = budget.parallel // math.ceil(budget.parallel / trials_per_job)
        self._filling = False

    def is_due(self, count: int, left: int, polite: float) -> bool:
        """Whether so many free slots are to be filled now; once they are, all of them are, task by task.

        Args:
            count: the free slots, those of points kept waiting among them.
            left: how many trials the budget has left, which may be less than a batch.
            polite: the share of `budget.parallel` that is a batch where the search says auto.
        """
        share = polite if self._budget.refill == "auto" else self._budget.refill
        wanted = math.ceil(share * self._budget.parallel - 1e-9)  # 0.07 * 100 is a little more than 7
        batch = min(max(wanted, self._least), left)
        self._filling = count > 0 and (self._filling or count >= batch)
        return self._filling


# How many points to keep waiting at the server, so that a slot that frees finds work at once.
#
# A freed slot stays idle while its successor is handed over: the result collected, the optimizer asked, the point
# submitted. The share of slot time that is lost is hand-over / (hand-over + run time). Where that share is felt,
# about
# parallel x hand-over / run time points must wait at any moment; where it is not, none should, for a point that is
# asked
# for later knows more.

#: The share of slot time that may be lost before points are kept waiting.
TOLERATED = 0.02

#: The weight of the newest measurement in the running means.
_WEIGHT = 0.2


class Lookahead:
    """Measures hand-over and run times, and says how many points should wait."""

    def __init__(self, parallel: int, queued: int | str, trials_per_job: int = 1) -> None:
        """Starts without measurements.

        Args:
            parallel: trials that run at once.
            queued: the search file's `budget.queued`; a number is taken as it is, `auto` is worked out.
            trials_per_job: that run one after another between two hand-overs.
        """
        self._parallel = parallel
        self._per_job = trials_per_job
        self._queued = queued
        self._hand_over: float | None = None
        self._run_time: float | None = None

    def handed_over(self, seconds: float) -> None:
        """A slot's hand-over took this long: from collecting a result to the next submission."""
        self._hand_over = _mean(self._hand_over, seconds)

    def ran(self, seconds: float) -> None:
        """A trial ran so long."""
        self._run_time = _mean(self._run_time, seconds * self._per_job)

    @property
    def waiting(self) -> int:
        """How many points beyond `parallel` should be out.

        None for one trial at a time: such a search is asked for to be strictly sequential, and is then reproducible.
        """
        if isinstance(self._queued, int):
            return self._queued
        if self._parallel == 1 or self._hand_over is None or self._run_time is None:
            return 0
        share = self._hand_over / max(self._run_time, 1e-3)
        if share < TOLERATED:
            return 0
        waiting = math.ceil(self._parallel * share / self._per_job) * self._per_job
        return min(self._parallel, waiting)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)


class PointRequests:
    """What waits, the next one first. A search is loaded anew whenever a user asks for something."""

    def __init__(self, search_id: int, store: SteeringStore) -> None:
        """Loads it."""
        self._store = store
        self._waiting = store.wishes(search_id)

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, count: int, trials: Mapping[int, Trial]) -> list[PointRequest]:
        """The first of them, at most so many; they wait on until `sent`.

        A point that the optimizer came upon while its user asked for it is one of `trials` now, and not tried twice.
        """
        if not self._waiting:
            return []
        there = {
            point_key(trial.point): trial.number
            for trial in trials.values()
            if trial.counts and trial.state is not TrialState.FAILED
        }
        for wish in list(self._waiting):
            if wish.retries is None and (number := there.get(point_key(wish.point))) is not None:
                self._store.fulfil(wish.id, number)
                self._waiting.remove(wish)
        return self._waiting[:count]

    def sent(self, wishes: Iterable[int | None]) -> None:
        """These have become trials: the ids of wishes; None for trials that come of none."""
        gone = set(wishes)
        self._waiting = [wish for wish in self._waiting if wish.id not in gone]


def new_trials(
    seed: int,
    first: int,
    points: Sequence[Point],
    confirms: Sequence[int] | None = None,
    wishes: Sequence[PointRequest] | None = None,
) -> list[NewTrial]:
    """Trials of these points, to be registered.

    Args:
        seed: the search's.
        first: the number of the first of them.
        points: the points.
        confirms: of confirmation runs, what each confirms.
        wishes: of points that users asked for, the wishes.
    """
    trials = []
    for index, point in enumerate(points):
        number, wish = first + index, wishes[index] if wishes else None
        trials.append(
            NewTrial(
                number,
                point,
                trial_seed(seed, number),
                confirms[index] if confirms else None,
                wish.retries if wish else None,
                wish.id if wish else None,
            )
        )
    return trials


#: A real search gets a random identity when it is registered, and its server's address when it runs.
_UID = "00000000"
_SERVER = "http://127.0.0.1:25080"


def first_task(
    search_file: Path, server: str | None = None, store: Callable[[], Store | None] = lambda: None
) -> dict[str, Any]:
    """The task parameters of the first generation, with an example of a uid and of an embedded server's address.

    Args:
        search_file: the search file.
        server: the PanDA server: a URL, or `embedded`; None: the one that PANDA_URL_SSL names, else the embedded one.
        store: opens the store in which earlier searches are found, where the search starts from any.

    Raises:
        InputError: the search file or its payload is wrong, or an earlier search is not there.
    """
    target = chosen_server(server)
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_search(search_file, WorkDir(Path(folder)))
    opened = store() if packed.search.warm_start else None
    earlier = earlier_results(opened, packed.search, packed.results)
    return first_task_of(packed.search, packed.sandbox, target, earlier=earlier)


def first_task_of(
    search: Search, sandbox: Path, server: str = EMBEDDED, *, earlier: Sequence[EarlierResults] = ()
) -> dict[str, Any]:
    """The same of a search whose payload is packed; the archive itself is not looked at."""
    ours = server == EMBEDDED
    # panda-client finds out the nickname when there is a login: nothing is asked for here.
    owner = nickname() if ours else os.environ.get("PANDA_NICKNAME") or nickname()
    vo = "hpo_pilot" if ours else environment_vo()
    most = trials_per_task(search, None if ours else scouts(vo))
    count = min(search.budget.parallel, search.budget.trials, most)
    points = [search.space.canonical(point) for point in search.start[:count]]
    if not points:
        choice = search.optimizer
        optimizer = create_optimizer(
            choice.name,
            search.space,
            seed=search.seed,
            settings=choice.settings,
            trials=search.budget.trials,
            objectives=len(search.objectives),
        )
        optimizer.tell(
            (known.point, known.figures and costs(search.objectives, known.figures)) for known in search.known
        )
        for one in earlier:
            optimizer.tell_earlier(one.source, one.results)
        points = optimizer.ask(count, [])
    numbered = dict(enumerate(points, start=1))
    jobs = task_jobs(search, [(number, trial_seed(search.seed, number)) for number in numbered])
    name = task_name(owner, search.name, _UID, 1, 0, group=official_group(search))
    task = task_spec(search, _UID, sandbox, name, 1, jobs, numbered)
    url = _SERVER if ours else server
    return task_parameters(task, owner=owner, vo=vo, server=url, sandbox=sandbox.name, ours=ours)
