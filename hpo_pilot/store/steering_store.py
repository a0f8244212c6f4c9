"""The part of the store that only the process with the lease of a search writes: generations, tasks, results."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Select, Update, and_, bindparam, func, insert, not_, or_, select, update
from typing_extensions import override

from hpo_pilot.databases import DURABLE, among
from hpo_pilot.jobs import OVER_JOBS, Attempt, JobState
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.trials import ENDED_TRIALS, EarlyStop, Trial, TrialState
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import read_rows, read_values, reading, writing
from hpo_pilot.store.lease import LeaseLostError
from hpo_pilot.store.progress import write_progress
from hpo_pilot.store.records import (
    NewTask,
    TaskRecord,
    TaskStage,
    attempt_record,
    attempt_row,
    stop_row,
    task_record,
    trial_end_row,
)
from hpo_pilot.store.store import Store
from hpo_pilot.store.trial_queries import trials_numbered

#: The holder of a search. The lock makes others who take the search wait for the end of the transaction.
_HOLDER = select(t.searches.c.holder).where(t.searches.c.id == bindparam("number")).with_for_update(key_share=True)
_HOLDER_OF_TASK = (
    select(t.searches.c.holder)
    .join(t.tasks, t.tasks.c.search_id == t.searches.c.id)
    .where(t.tasks.c.id == bindparam("number"))
    .with_for_update(key_share=True, of=t.searches)
)


class SteeringStore(Store):
    """The store with the methods of the steering loop."""

    #: Results that were lost in a power cut are collected again. Tasks are there before the server has them: else it
    #: would run the trials of a task that nobody knows.
    durable = False

    #: Name of the process that steers (`Lease.holder`): it may write its own searches only. None: no check.
    holder: str | None = None

    def held_by(self, holder: str) -> Self:
        """Returns this store for the steering loop of a process with a lease."""
        held = copy(self)
        held.holder = holder
        return held

    def check_lease(self, search_id: int) -> None:
        """Checks that this process still steers a search; for calls to the server that change much.

        Raises:
            LeaseLostError: another process steers it, or none.
        """
        with self._writing(search_id):
            pass

    @contextmanager
    @override
    def _writing(
        self, search_id: int, of: Select[str | None] = _HOLDER, *, durable: bool = False
    ) -> Iterator[Connection]:
        with writing(self.engine, **{DURABLE: durable}) as connection:
            if self.holder is not None and connection.scalar(of, {"number": search_id}) != self.holder:
                raise LeaseLostError("another service steers this search now; this one leaves it")
            yield connection

    def _writing_task(self, task_id: int, *, durable: bool = False) -> AbstractContextManager[Connection]:
        """Opens a writing transaction for the search of a task."""
        return self._writing(task_id, _HOLDER_OF_TASK, durable=durable)

    def note_sandboxes(self, folder: Path) -> None:
        """Corrects the paths of payload archives after their work folder was moved; `folder`: where they are now."""
        with writing(self.engine) as connection:
            for path in connection.execute(select(t.searches.c.sandbox).distinct()).scalars().all():
                here = folder / Path(path or "").name
                if path and not Path(path).exists() and here.is_file():
                    of_path = t.searches.c.sandbox == path
                    connection.execute(update(t.searches).where(of_path).values(sandbox=str(here)))

    def add_generation(
        self,
        search_id: int,
        *,
        history: int,
        pending: Sequence[int],
        asked: int | None = None,
        budget: int | None = None,
        trials: Sequence[Trial],
        task: NewTask,
        fulfilled: Mapping[int, int] | None = None,
        progress: SearchProgress | None = None,
    ) -> TaskRecord:
        """Registers a generation, its trials and the intent to submit them as `task`, before anything is submitted.

        Args:
            search_id: the search.
            history: see `Generation`, also for `asked` and `budget`.
            pending: the numbers of the open trials.
            asked: number of points asked of the optimizer; None: it was not asked.
            budget: trials of the search's budget.
            trials: the trials of the generation.
            task: its first task.
            fulfilled: numbers of the trials that fulfil point requests, by the request's id.
            progress: the progress of the search with these trials; None: readers compute it from the trials.
        """
        cut = {"history": history, "pending": list(pending), "asked": asked, "budget": budget}
        now = time.time()
        with self._writing(search_id, durable=True) as connection:
            connection.execute(
                insert(t.generations).values(search_id=search_id, number=task.generation, created=now, **cut)
            )
            connection.execute(
                insert(t.trials),
                [
                    {
                        "search_id": search_id,
                        "number": trial.number,
                        "generation": task.generation,
                        "point": trial.point,
                        "state": TrialState.PENDING,
                        "seed": trial.seed,
                        "confirms": trial.confirms,
                        "retries": trial.retries,
                        "level": trial.level,
                        "continues": trial.continues,
                        "submitted": now,
                    }
                    for trial in trials
                ],
            )
            for request, number in (fulfilled or {}).items():
                self._fulfil(connection, request, number)
            write_progress(connection, search_id, progress)
            return self._add_task(connection, search_id, task, now)

    def fulfil(self, search_id: int, request: int, number: int) -> None:
        """Records that an existing trial fulfils a point request."""
        with self._writing(search_id) as connection:
            self._fulfil(connection, request, number)

    @staticmethod
    def _fulfil(connection: Connection, request: int, number: int) -> None:
        connection.execute(update(t.wishes).where(t.wishes.c.id == request).values(trial=number))

    @staticmethod
    def _add_task(connection: Connection, search_id: int, task: NewTask, now: float) -> TaskRecord:
        key = connection.execute(
            insert(t.tasks).values(
                search_id=search_id,
                generation=task.generation,
                revision=task.revision,
                name=task.name,
                state=TaskStage.INTENT,
                jobs=[[list(member) for member in job] for job in task.jobs],
                created=now,
            )
        ).inserted_primary_key
        assert key is not None
        connection.execute(
            insert(t.jobs),
            [
                {
                    "search_id": search_id,
                    "task_id": key[0],
                    "trial": trial,
                    "fold": fold,
                    "attempt": 1,
                    "state": JobState.DEFINED,
                }
                for job in task.jobs
                for trial, fold, _seed in job
            ],
        )
        return task_record(connection.execute(select(t.tasks).where(t.tasks.c.id == key[0])).one())

    def task_submitted(self, task_id: int, jedi_task_id: int) -> None:
        """Records the id of a submitted task."""
        values = {"state": TaskStage.SUBMITTED, "jedi_task_id": jedi_task_id, "submitted": time.time()}
        with self._writing_task(task_id) as connection:
            connection.execute(update(t.tasks).where(t.tasks.c.id == task_id).values(**values))

    def task_waits(self, task_id: int, why: str) -> None:
        """Records why the server keeps the task waiting; empty: it does not wait, or the reason is unknown."""
        with self._writing_task(task_id) as connection:
            connection.execute(update(t.tasks).where(t.tasks.c.id == task_id).values(waits=why or None))

    def rename_task(self, task_id: int, name: str) -> None:
        """Changes the name of a task that is not submitted yet, because another task has that name."""
        with self._writing_task(task_id, durable=True) as connection:
            connection.execute(
                update(t.tasks).where(t.tasks.c.id == task_id, t.tasks.c.state == TaskStage.INTENT).values(name=name)
            )

    def open_tasks(self, search_id: int) -> list[TaskRecord]:
        """Returns the open tasks, oldest first."""
        is_open = (t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED)
        return [
            task_record(row) for row in read_rows(self.engine, select(t.tasks).where(*is_open).order_by(t.tasks.c.id))
        ]

    def revisions(self, search_id: int) -> dict[int, int]:
        """Returns the highest revision so far, by generation."""
        columns = (t.tasks.c.generation, t.tasks.c.revision)
        query = select(*columns).where(t.tasks.c.search_id == search_id).order_by(t.tasks.c.revision)
        return {row.generation: row.revision for row in read_rows(self.engine, query)}

    def open_attempts(self, search_id: int) -> list[Attempt]:
        """Returns the attempts of open trials, oldest task first.

        It includes jobs of trials that were stopped early while their task is open.
        """
        query = (
            select(t.jobs)
            .join(t.trials, and_(t.trials.c.search_id == t.jobs.c.search_id, t.trials.c.number == t.jobs.c.trial))
            .join(t.tasks, t.tasks.c.id == t.jobs.c.task_id)
            .where(
                t.jobs.c.search_id == search_id,
                or_(
                    t.trials.c.state.not_in(ENDED_TRIALS),
                    and_(t.trials.c.state == TrialState.STOPPED, t.tasks.c.state != TaskStage.ENDED),
                ),
            )
            .order_by(t.jobs.c.id)
        )
        return [attempt_record(row) for row in read_rows(self.engine, query)]

    def record(
        self,
        search_id: int,
        attempts: Iterable[Attempt] = (),
        ends: Iterable[Trial] = (),
        *,
        ended_tasks: Iterable[int] = (),
        started: Iterable[tuple[int, float]] = (),
        from_start: Iterable[int] = (),
        events: Iterable[str] = (),
        resubmit: NewTask | None = None,
        stop_rest: str | None = None,
        look: int | None = None,
        stops: Mapping[int, EarlyStop] | None = None,
        progress: SearchProgress | None = None,
    ) -> TaskRecord | None:
        """Records all results of one look at the server in one transaction.

        Args:
            search_id: the search.
            attempts: new or changed attempts of jobs.
            ends: trials that are over with these.
            ended_tasks: ids of tasks that are over. Their attempts whose end was not seen are closed.
            started: (trial, seconds since the epoch) of trials whose start is new or known more exactly.
            from_start: trials that were trained from the start instead of from the level below.
            events: texts for the log.
            resubmit: the task that submits lost folds again.
            stop_rest: ends all open trials as stopped, for this reason.
            look: the number of this look, for new intermediate values.
            stops: trials to be stopped early, with the reasons.
            progress: the progress of the search with these changes; None: readers compute it from the trials.

        Returns:
            The task of `resubmit`.
        """
        attempts, started, ends = list(attempts), list(started), list(ends)
        with self._writing(search_id, durable=resubmit is not None) as connection:
            _record_attempts(connection, search_id, attempts, look)
            if progress is not None or attempts or started or ends or stop_rest is not None:
                write_progress(connection, search_id, progress)
            for number, when in started:
                connection.execute(
                    update(t.trials)
                    .where(t.trials.c.search_id == search_id, t.trials.c.number == number)
                    .values(state=TrialState.RUNNING, started=when)
                )
            for number in from_start:
                _change_trial(connection, search_id, number, {"from_start": True})
            for end in ends:
                _change_trial(connection, search_id, end.number, trial_end_row(end))
            for number, stop in (stops or {}).items():
                _change_trial(connection, search_id, number, stop_row(stop))
            for task_id in ended_tasks:
                connection.execute(
                    update(t.tasks).where(t.tasks.c.id == task_id).values(state=TaskStage.ENDED, ended=time.time())
                )
                _close_attempts(connection, task_id)
            if stop_rest is not None:
                connection.execute(
                    update(t.trials)
                    .where(t.trials.c.search_id == search_id, t.trials.c.state.not_in(ENDED_TRIALS))
                    .values(state=TrialState.STOPPED, error=stop_rest, ended=time.time())
                )
            for what in events:
                self._event(connection, search_id, "service", what)
            return self._add_task(connection, search_id, resubmit, time.time()) if resubmit else None

    def correct_progress(self, search_id: int, progress: SearchProgress, event: str | None) -> None:
        """Writes the progress of a search; `event`: a text for the log."""
        with self._writing(search_id) as connection:
            write_progress(connection, search_id, progress)
            if event is not None:
                self._event(connection, search_id, "service", event)

    def last_told(self, search_id: int) -> int:
        """Returns the number of results, without confirmation runs."""
        (last,) = read_values(self.engine, select(func.max(t.trials.c.told)).where(t.trials.c.search_id == search_id))
        return last or 0

    def counts(self, search_id: int) -> dict[TrialState, int]:
        """Returns the number of trials in each state that occurs."""
        c = t.trials.c
        query = select(c.state, func.count()).where(c.search_id == search_id).group_by(c.state)
        return {TrialState(state): count for state, count in read_rows(self.engine, query)}

    def stopped_early(self, search_id: int) -> list[int]:
        """Returns the numbers of the trials that a rule stopped early."""
        c = t.trials.c
        stopped = select(c.number).where(c.search_id == search_id, c.state == TrialState.STOPPED, c.told.is_not(None))
        return read_values(self.engine, stopped)

    def last_generation(self, search_id: int) -> int:
        """Returns the number of the last generation; 0: there is none."""
        c = t.generations.c
        (last,) = read_values(self.engine, select(func.max(c.number)).where(c.search_id == search_id))
        return last or 0

    def went_on(self, search_id: int) -> list[int]:
        """Returns the numbers of the trials that others go on from, without those stopped together with the search."""
        c = t.trials.c
        query = select(c.continues).where(c.search_id == search_id, c.continues.is_not(None))
        return read_values(self.engine, query.where(not_(t.ended_with_search(t.trials))))

    def values_by_look(self, search_id: int) -> list[list[tuple[int, int, int, float]]]:
        """Returns the intermediate values of all trials except confirmation runs, look by look.

        Returns:
            For each look (trial, fold, step, value as reported); look 0 has the values without a look.
        """
        table = t.intermediate_values
        confirming = select(t.trials.c.number).where(
            t.trials.c.search_id == search_id, t.trials.c.confirms.is_not(None)
        )
        query = select(func.coalesce(table.c.look, 0), table.c.trial, table.c.fold, table.c.step, table.c.value)
        query = query.where(table.c.search_id == search_id, table.c.trial.not_in(confirming))
        looks: list[list[tuple[int, int, int, float]]] = [[]]
        with reading(self.engine) as connection:
            for look, trial, fold, step, value in connection.execute(query):
                while len(looks) <= look:
                    looks.append([])
                looks[look].append((trial, fold, step, value))
        return looks

    def unwanted_archives(self, search_id: int, trials: Sequence[int]) -> list[str]:
        """Returns the files with outputs of these trials only."""
        of_these = select(t.jobs.c.task_id).where(
            t.jobs.c.search_id == search_id, among(t.jobs.c.trial, trials), t.jobs.c.output.is_not(None)
        )
        # Trials that share a file were in one job, and so in one task.
        around = select(t.jobs.c.trial, t.jobs.c.output).where(
            t.jobs.c.task_id.in_(of_these), t.jobs.c.output.is_not(None)
        )
        archives: set[str] = set()
        wanted: set[str] = set()
        for trial, output in read_rows(self.engine, around):
            (archives if trial in trials else wanted).add(output.partition("/")[0])
        return sorted(archives - wanted)

    def discard_outputs(self, search_id: int, trials: Sequence[int]) -> None:
        """Records that the server no longer has the outputs of these trials."""
        with self._writing(search_id) as connection:
            connection.execute(
                update(t.jobs).where(t.jobs.c.search_id == search_id, among(t.jobs.c.trial, trials)).values(output=None)
            )


@cache
def _trial_change(columns: tuple[str, ...]) -> Update:
    """Returns the statement that changes these columns of a trial; to make it takes as long as to execute it."""
    this = (t.trials.c.search_id == bindparam("of_search"), t.trials.c.number == bindparam("of_number"))
    return update(t.trials).where(*this).values({name: bindparam(name) for name in columns})


def _change_trial(connection: Connection, search_id: int, number: int, values: Mapping[str, Any]) -> None:
    connection.execute(_trial_change(tuple(values)), {**values, "of_search": search_id, "of_number": number})


_KEY = (t.jobs.c.task_id, t.jobs.c.trial, t.jobs.c.fold, t.jobs.c.attempt)
_CHANGING = [
    column.name for column in t.jobs.c if column.name not in {"id", "search_id", *(column.name for column in _KEY)}
]
_CHANGE_JOB = (
    update(t.jobs)
    .where(*(column == bindparam(f"the_{column.name}") for column in _KEY))
    .values({name: bindparam(name) for name in _CHANGING})
)


def _record_attempts(connection: Connection, search_id: int, attempts: Sequence[Attempt], look: int | None) -> None:
    """Records attempts in few statements: other writers wait for the lock meanwhile."""
    if not attempts:
        return
    tasks, trials = {attempt.task_id for attempt in attempts}, {attempt.trial for attempt in attempts}
    these = and_(among(t.jobs.c.task_id, tasks), among(t.jobs.c.trial, trials))
    known = {tuple(row) for row in connection.execute(select(*_KEY).where(these))}
    last = {attempt.key: attempt_row(attempt) for attempt in attempts}  # of two for one attempt the last one counts
    changed = [
        {f"the_{column.name}": part for column, part in zip(_KEY, key, strict=True)}
        | {name: row[name] for name in _CHANGING}
        for key, row in last.items()
        if key in known
    ]
    if changed:
        connection.execute(_CHANGE_JOB, changed)
    if new := [row | {"search_id": search_id} for key, row in last.items() if key not in known]:
        connection.execute(insert(t.jobs), new)
    for attempt in attempts:
        if attempt.progress:
            _record_progress(connection, search_id, attempt, look)


def _close_attempts(connection: Connection, task_id: int) -> None:
    """Closes the attempts of an ended task whose end nobody saw, e.g. because the server was lost."""
    closed = {
        "state": JobState.CLOSED,
        "ended": func.coalesce(t.jobs.c.ended, time.time()),
        "error": func.coalesce(t.jobs.c.error, "its task ended, and the end of this attempt is not known"),
    }
    connection.execute(
        update(t.jobs).where(t.jobs.c.task_id == task_id, t.jobs.c.state.not_in(OVER_JOBS)).values(closed)
    )


def _record_progress(connection: Connection, search_id: int, attempt: Attempt, look: int | None) -> None:
    table = t.intermediate_values
    place = (table.c.search_id == search_id) & (table.c.trial == attempt.trial) & (table.c.fold == attempt.fold)
    known = set(connection.execute(select(table.c.step).where(place)).scalars())
    rows = {step: value for step, value in attempt.progress if step not in known}
    if rows:
        where = {"search_id": search_id, "trial": attempt.trial, "fold": attempt.fold, "look": look}
        connection.execute(insert(table), [{**where, "step": step, "value": value} for step, value in rows.items()])


class NumberedTrials(dict[int, Trial]):
    """The trials of a search by number, without folds.

    It has the open trials, those stopped with the search, and confirmation runs. Others are read from the store when
    they are asked for: a large search has many, and they are seldom needed again.
    """

    def __init__(self, store: SteeringStore, search_id: int) -> None:
        """Reads the trials that have no place in the order of results, and confirmation runs."""
        super().__init__((trial.number, trial) for trial in store.trials_without_result(search_id))
        self._engine, self._search_id = store.engine, search_id

    @override
    def __contains__(self, number: object) -> bool:
        return super().__contains__(number) or bool(isinstance(number, int) and self.fetch([number]))

    def __missing__(self, number: int) -> Trial:
        if not (found := self.fetch([number])):
            raise KeyError(number)
        return found[0]

    def fetch(self, numbers: Collection[int]) -> list[Trial]:
        """Returns the trials with these numbers; reads the missing ones in one query."""
        missing = [number for number in numbers if not super(NumberedTrials, self).__contains__(number)]
        if missing:
            self.update((trial.number, trial) for trial in trials_numbered(self._engine, self._search_id, missing))
        return [dict.__getitem__(self, number) for number in numbers if dict.__contains__(self, number)]

    def drop_over(self) -> None:
        """Forgets the trials with a place in the order of results, except confirmation runs; the store has them."""
        for number in [each.number for each in self.values() if each.told is not None and each.confirms is None]:
            del self[number]
