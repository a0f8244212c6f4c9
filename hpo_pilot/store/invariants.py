"""Checks the invariants of a store, and repairs what is safe to repair.

The manual's page on invariants has the list, with what guarantees each. All checks here may run while a service works:
each search is read in one snapshot, and every commit keeps every invariant. A search at a time is in memory: what its
progress is computed from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Row, and_, case, delete, exists, func, not_, or_, select, text, update
from typing_extensions import TypedDict

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.search.search import Search
from hpo_pilot.search.trials import ENDED_TRIALS, TrialState
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import database_errors, reading, writing
from hpo_pilot.store.lease import lease_holder_in
from hpo_pilot.store.progress import computed_progress, progress_in, write_progress
from hpo_pilot.store.records import SearchState, TaskStage, stored_search
from hpo_pilot.store.store import Store

#: Seconds in which a live service submits a registered task, if the server answers.
LIMBO_SECONDS = 600.0

#: Tasks of a fold before it counts as failed: `hpo_pilot.steering.ledger.MAX_RESUBMISSIONS` and the first.
TASKS_OF_FOLD = 3

#: Sums and means of the same numbers in another order may differ by this share.
_ROUNDING = 1e-6

_REPORT = "no repair is safe: keep a copy (`hpo-pilot db backup`), and report it with the log of the service"

_RESTORE = "restore the newest backup: `hpo-pilot db restore`"

Repair = Callable[[Connection], object]


class BreachDocument(TypedDict):
    """A breach of an invariant as JSON; `repairable`: ``--repair`` repairs it; search, trial and fold may be null."""

    invariant: str
    what: str
    remedy: str
    repairable: bool
    search: str | None
    trial: int | None
    fold: int | None


@dataclass(frozen=True)
class Breach:
    """A breach of an invariant.

    Attributes:
        invariant: its name in the manual's list.
        what: the breach.
        remedy: what the user can do.
        search: name of the search; None: the whole database.
        trial: number of the trial; None: no single one.
        fold: number of the fold; None: no single one.
        repair: a safe repair, in a writing transaction; None: there is none.
    """

    invariant: str
    what: str
    remedy: str = _REPORT
    search: str | None = None
    trial: int | None = None
    fold: int | None = None
    repair: Repair | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        places = (self.search, self.trial and f"trial {self.trial}", self.fold is not None and f"fold {self.fold}")
        return f"{self.invariant}: {' '.join(place for place in places if place)}: {self.what}".replace(": : ", ": ")

    def to_dict(self) -> BreachDocument:
        """Returns it as JSON values."""
        return {
            "invariant": self.invariant,
            "what": self.what,
            "remedy": self.remedy,
            "repairable": self.repair is not None,
            "search": self.search,
            "trial": self.trial,
            "fold": self.fold,
        }


def check(store: Store) -> list[Breach]:
    """Returns the breaches of all invariants of the store alone; see `steering.invariants` for those with a server.

    Raises:
        StoreAwayError: the store cannot be read now.
    """
    try:
        with reading(store.engine) as connection:
            found = list(_file(connection))
            numbers = connection.scalars(select(t.searches.c.id).order_by(t.searches.c.id)).all()
    except InputError as error:
        return [Breach("file", str(error), _RESTORE)]
    for number in numbers:
        with _snapshot(store.engine) as connection:
            row = connection.execute(select(t.searches).where(t.searches.c.id == number)).first()
            if row is not None:
                found += [breach for part in _CHECKS for breach in part(connection, row, stored_search(row.definition))]
    return found


def repair(store: Store, breaches: Iterable[Breach]) -> None:
    """Makes the safe repairs, each in a transaction of its own; a service may work meanwhile."""
    for breach in breaches:
        if breach.repair is not None:
            with writing(store.engine) as connection:
                breach.repair(connection)


@contextmanager
def _snapshot(engine: Engine) -> Iterator[Connection]:
    """Opens a transaction in which all statements see the same state."""
    with database_errors(engine), engine.connect() as connection:
        if engine.dialect.name != "sqlite":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


def _file(connection: Connection) -> Iterator[Breach]:
    """Checks the pages and the foreign keys of a SQLite file; PostgreSQL checks its own."""
    if connection.dialect.name != "sqlite":
        return
    for (said,) in connection.execute(text("PRAGMA quick_check(10)")):
        if said != "ok":
            yield Breach("file", f"the store's file is damaged: {said}", _RESTORE)
    for table, rowid, parent, _ in connection.execute(text("PRAGMA foreign_key_check")):
        yield Breach("rows", f"row {rowid} of {table} refers to a row of {parent} that does not exist", _RESTORE)


_FINISHED = t.jobs.c.state == JobState.FINISHED.value
_OPEN_TRIAL = t.trials.c.state.not_in(ENDED_TRIALS)
_OPEN_TASK = t.tasks.c.state != TaskStage.ENDED.value
_OF_JOB = and_(t.trials.c.search_id == t.jobs.c.search_id, t.trials.c.number == t.jobs.c.trial)
#: A trial that was stopped keeps the run time of late results, which do not count.
_COUNTS = t.trials.c.state != TrialState.STOPPED.value


def _one_value(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """A fold has at most one result, and a trial's value is the mean of its folds' values."""
    j, c = t.jobs.c, t.trials.c
    of_search = select(j.trial, j.fold, func.count().label("results")).join(t.trials, _OF_JOB)
    twice = of_search.where(j.search_id == row.id, _FINISHED, _COUNTS).group_by(j.trial, j.fold)
    for trial, fold, results in connection.execute(twice.having(func.count() > 1)):
        yield Breach("one-value", f"{results} results count", search=row.name, trial=trial, fold=fold)
    mean, good = func.avg(j.value), func.count(j.value)
    differs = func.abs(mean - c.value) > _ROUNDING * func.abs(c.value)
    values = select(c.number, c.state, c.value, mean, good).join(t.jobs, and_(_OF_JOB, _FINISHED), isouter=True)
    wrong = or_(good < search.folds.needed, and_(differs, func.abs(c.value) < 1e300))
    with_value = values.where(c.search_id == row.id, c.value.is_not(None), _COUNTS)
    for number, state, value, of_folds, folds in connection.execute(
        with_value.group_by(c.number, c.state, c.value).having(or_(wrong, c.state.not_in(_WITH_VALUE)))
    ):
        what = f"it is {state} with the value {value!r}; its {folds} good folds have the mean {of_folds!r}"
        yield Breach("one-value", what, search=row.name, trial=number)


_WITH_VALUE = (TrialState.FINISHED.value, TrialState.INFEASIBLE.value)


def _numbers(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """Trials, and results in the order in which the optimizer learns them, are numbered from 1 without gaps."""
    c = t.trials.c
    for name, column in (("trials", c.number), ("results", c.told)):
        query = select(func.count(column), func.coalesce(func.max(column), 0)).where(c.search_id == row.id)
        count, last = connection.execute(query).one()
        if count != last:
            yield Breach("rows", f"it has {count} {name}, and the last one has the number {last}", search=row.name)


def _budget(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """No more trials, and no more levels, than the largest budget that the search had."""
    c, counts = t.trials.c, and_(t.trials.c.confirms.is_(None), not_(t.ended_with_search(t.trials)))
    most = select(func.max(t.generations.c.budget)).where(t.generations.c.search_id == row.id)
    allowed = max(search.budget.trials, connection.scalar(most) or 0)
    trials = select(func.count()).where(c.search_id == row.id, counts, c.continues.is_(None))
    if (tried := connection.scalar(trials) or 0) > allowed:
        yield Breach("budget", f"{tried} trials count, and its budget has {allowed}", search=row.name)
    if (limit := search.budget.fidelity) is not None:
        levels = (
            select(func.sum(t.expected_levels)).select_from(t.trials_and_before).where(c.search_id == row.id, counts)
        )
        if (trained := connection.scalar(levels) or 0.0) > limit * (1 + _ROUNDING):
            yield Breach("budget", f"levels of {trained:g} in all, and its budget has {limit:g}", search=row.name)


def _tasks(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """A submitted task has an id of the server, and no two have the same.

    An ended one may have the id of another: a server that has lost its database begins again with the first.
    """
    c = t.tasks.c
    of_search = select(c.jedi_task_id, func.count(), func.min(c.name)).where(c.search_id == row.id)
    submitted = c.state == TaskStage.SUBMITTED.value
    for number, count, name in connection.execute(of_search.where(submitted).group_by(c.jedi_task_id)):
        if number is None:
            yield Breach("known-tasks", f"task {name} is submitted, and has no number at the server", search=row.name)
        elif count > 1:
            yield Breach("known-tasks", f"{count} open tasks have the number {number} at the server", search=row.name)


def _limbo(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """Each fold of an open trial has a result or an open task; an ended search has no open trial or task."""
    c, j, k = t.trials.c, t.jobs.c, t.tasks.c
    resume = f"`hpo-pilot resume {row.name}` continues it; `hpo-pilot stop {row.name}` ends it again"
    open_trials, open_tasks = and_(c.search_id == row.id, _OPEN_TRIAL), and_(k.search_id == row.id, _OPEN_TASK)
    if SearchState(row.state).is_over:
        for table, condition in ((t.trials, open_trials), (t.tasks, open_tasks)):
            if count := connection.scalar(select(func.count()).select_from(table).where(condition)):
                what = f"it is {row.state}, and {count} of its {table.name} are open"
                yield Breach("limbo", what, resume, row.name)
        return
    ran = j.state != JobState.NOT_RUN.value
    tasks = func.count(func.distinct(case((ran, j.task_id))))
    folds = (
        select(j.trial, j.fold, func.max(case((_FINISHED, 1), else_=0)).label("has_result"))
        .add_columns(func.max(case((or_(_FINISHED, and_(_OPEN_TASK, ran)), 1), else_=0)).label("is_held"))
        .add_columns(case((tasks >= TASKS_OF_FOLD, 1), else_=0).label("is_lost"))
        .join(t.trials, _OF_JOB)
        .join(t.tasks, k.id == j.task_id)
        .where(j.search_id == row.id, open_trials)
        .group_by(j.trial, j.fold)
        .subquery()
    ).c
    known = func.coalesce(func.sum(case((folds.is_held + folds.is_lost > 0, 1), else_=0)), 0)
    results, held = func.coalesce(func.sum(folds.has_result), 0), func.coalesce(func.sum(folds.is_held), 0)
    per_trial = select(c.number, known.label("known"), results.label("results")).where(open_trials)
    # Folds of a trial that is being stopped may have no job any more.
    stuck = or_(results == search.folds.k, case((c.stop_look.is_(None), known < search.folds.k), else_=held == 0))
    again = "--repair makes the service load the search again, which submits its missing folds"
    per_trial = per_trial.join(folds.trial.table, folds.trial == c.number, isouter=True).group_by(c.number, c.stop_look)
    for number, found, finished in connection.execute(per_trial.having(stuck)):
        what = f"it is open, {finished} of its {search.folds.k} folds have a result, and {found} a result or a task"
        yield Breach("limbo", what, again, row.name, number, repair=partial(_load_again, row.id))
    holder = lease_holder_in(connection)
    if holder is not None and holder.steers(row.id, row.server):
        late = and_(open_tasks, k.state == TaskStage.INTENT.value, k.created < time.time() - LIMBO_SECONDS)
        for name in connection.scalars(select(k.name).where(late)):
            what = f"task {name} was registered {LIMBO_SECONDS / 60:g} minutes ago or more, and is not submitted"
            yield Breach("limbo", what, f"see `hpo-pilot status {row.name}`: is its server there?", row.name)


def _load_again(number: int, connection: Connection) -> None:
    """Makes the service load a search again."""
    this = t.searches.c.id == number
    connection.execute(update(t.searches).where(this).values(version=t.searches.c.version + 1))


def _progress(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """The row of progress, if it is up to date, is the one that all trials give."""
    stored = progress_in(connection, row.id)
    if stored is not None and not stored.agrees(computed_progress(connection, row.id, search)):
        what = "its row of progress does not agree with its trials"
        yield Breach("progress", what, "--repair computes it again", row.name, repair=partial(_recompute, row.id))


def _recompute(number: int, connection: Connection) -> None:
    """Lets the next reader compute the row, and the service load the search again, which has the row in memory."""
    write_progress(connection, number, None)
    _load_again(number, connection)


def _rows(connection: Connection, row: Row[Any], search: Search) -> Iterator[Breach]:
    """Each row that names a trial or a generation of its search names one that exists."""
    for table in (t.jobs, t.intermediate_values, t.notes):
        mine = table.c.search_id == row.id
        there = exists().where(t.trials.c.search_id == table.c.search_id, t.trials.c.number == table.c.trial)
        lost = and_(mine, table.c.trial > 0, not_(there))
        if count := connection.scalar(select(func.count()).select_from(table).where(lost)):
            what = f"{count} rows of {table.name} belong to no trial"
            if table is t.jobs:  # their run time counts against the budget
                yield Breach("rows", what, search=row.name)
            else:
                removal = partial(_remove, delete(table).where(lost))
                yield Breach("rows", what, "--repair removes them", row.name, repair=removal)
    c, g = t.trials.c, t.generations.c
    there = exists().where(g.search_id == c.search_id, g.number == c.generation)
    for number in connection.scalars(select(c.number).where(c.search_id == row.id, not_(there)).limit(10)):
        yield Breach("rows", "its generation does not exist", search=row.name, trial=number)


def _remove(statement: Any, connection: Connection) -> None:
    connection.execute(statement)


_CHECKS = (_one_value, _numbers, _budget, _tasks, _limbo, _progress, _rows)
