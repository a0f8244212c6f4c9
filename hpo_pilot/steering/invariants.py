"""Checks the invariants of the embedded server's database, and those that it shares with the store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, case, func, select

from hpo_pilot.databases import among, sqlite_engine, tables_are_current
from hpo_pilot.errors import InputError
from hpo_pilot.jobs import OVER_JOBS, OVER_TASKS, JobState
from hpo_pilot.server.database import AT_PILOT, engine_of, in_slices, jobs, tasks
from hpo_pilot.store import EMBEDDED, Store, TaskStage
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import database_errors, read_rows, url_without_password
from hpo_pilot.store.invariants import Breach, check
from hpo_pilot.store.lease import lease_holder

#: Seconds of silence after which a job at a pilot is lost, with some time for the server to find it.
_SILENCE = 600.0

_NAME = re.compile(r"\.([0-9a-f]{8})\.g\d+(?:\.r\d+)?/$")  # the end of `hpo_pilot.jobs.task_name`


def check_all(store: Store, database: str | Path) -> list[Breach]:
    """Returns the breaches of all invariants; checks the embedded server's database too, if it exists.

    A service may work meanwhile: the server is read before the store where it must not know more, else after it.

    Raises:
        InputError: a file is not a database, or of another version.
        StoreAwayError: the store cannot be read now.
    """
    if "://" in str(database):
        engine = engine_of(str(database))
    elif (path := Path(database).absolute()).exists():
        engine = sqlite_engine(sa.URL.create("sqlite", database=f"file:{path}", query={"mode": "ro", "uri": "true"}))
    else:
        return check(store)
    where = url_without_password(engine.url)
    try:
        with database_errors(engine), engine.connect() as connection:
            if not tables_are_current(connection, "server", f"database {where}"):
                raise InputError(f"the database {where} is of an older version: `hpo-pilot serve` upgrades it")
        with database_errors(engine), engine.connect() as connection, connection.begin():
            found = [*_file(connection), *_unknown(connection, store), *_jobs(connection, store)]
        found += check(store)
        missing = open_at_embedded(store.engine)
        with database_errors(engine), engine.connect() as connection, connection.begin():
            return [*found, *_missing(connection, missing), *_uncollected(connection, store)]
    finally:
        engine.dispose()


def _file(connection: Connection) -> Iterator[Breach]:
    if connection.dialect.name != "sqlite":
        return
    for (said,) in connection.execute(sa.text("PRAGMA quick_check(10)")):
        if said != "ok":
            remedy = "stop the service and remove the file: running jobs are submitted again; or restore a backup"
            yield Breach("file", f"the embedded server's file is damaged: {said}", remedy)


def unknown_tasks(connection: Connection, store: Store) -> Iterator[tuple[int, str, str]]:
    """Yields number, name and search of tasks of the store's searches that are not over, and that it does not know."""
    running = connection.execute(select(tasks.c.task_id, tasks.c.name).where(tasks.c.status.not_in(OVER_TASKS))).all()
    searches = {row.uid: row.name for row in read_rows(store.engine, select(t.searches.c.uid, t.searches.c.name))}
    for number, name in running:
        uid = _NAME.search(name)
        known = select(t.tasks.c.id).where(t.tasks.c.name == name)
        if uid is not None and uid[1] in searches and not read_rows(store.engine, known):
            yield number, name, searches[uid[1]]


def _unknown(connection: Connection, store: Store) -> Iterator[Breach]:
    """The store knows each task of its searches that is not over: else nobody collects its results."""
    for number, name, search in unknown_tasks(connection, store):
        what = f"task {number} ({name}) runs at the server, and the store does not have it"
        yield Breach("known-tasks", what, "kill it with pbook, or restore a backup", search)


def open_at_embedded(engine: Engine) -> list[tuple[int, str]]:
    """Returns number at the server and search of all open tasks of the embedded server."""
    query = select(t.tasks.c.jedi_task_id, t.searches.c.name).join(t.searches, t.searches.c.id == t.tasks.c.search_id)
    mine = (t.tasks.c.state == TaskStage.SUBMITTED.value, t.searches.c.server == EMBEDDED)
    return [(number, name) for number, name in read_rows(engine, query.where(*mine))]


def _missing(connection: Connection, open_tasks: list[tuple[int, str]]) -> Iterator[Breach]:
    """The server has each open task that it was given."""
    for some in in_slices(open_tasks):
        there = set(connection.scalars(select(tasks.c.task_id).where(among(tasks.c.task_id, [n for n, _ in some]))))
        for number, search in some:
            if number not in there:
                what = f"the server does not have its task {number}"
                yield Breach("known-tasks", what, "`hpo-pilot serve` submits its jobs again", search)


def _jobs(connection: Connection, store: Store) -> Iterator[Breach]:
    """A job has one live attempt at most, a task counts its finished jobs, and nothing is in limbo."""
    c, alive = jobs.c, jobs.c.status.not_in(OVER_JOBS)
    twice = select(c.task_id, c.number).where(alive).group_by(c.task_id, c.number).having(func.count() > 1)
    for task, number in connection.execute(twice):
        yield Breach("one-attempt", f"job {number} of task {task} has several live attempts")
    finished = func.sum(case((c.status == JobState.FINISHED.value, 1), else_=0))
    repeated = func.count(sa.distinct(case((c.status == JobState.FINISHED.value, c.number))))
    counts = select(tasks.c.task_id, tasks.c.n_finished, finished).join(jobs, c.task_id == tasks.c.task_id)
    wrong = sa.or_(finished != tasks.c.n_finished, finished != repeated)
    for task, counted, there in connection.execute(counts.group_by(tasks.c.task_id).having(wrong)):
        yield Breach("one-attempt", f"task {task} counts {counted} finished jobs, and {there} attempts finished")
    over = select(c.panda_id).join(tasks, tasks.c.task_id == c.task_id).where(alive, tasks.c.status.in_(OVER_TASKS))
    for job in connection.scalars(over):
        yield Breach("limbo", f"job {job} is not over, and its task is", "stop and start the service")
    if (holder := lease_holder(store.engine)) is not None and holder.server in (None, EMBEDDED):
        silent = select(c.panda_id).where(AT_PILOT, c.heartbeat < time.time() - _SILENCE)
        for job in connection.scalars(silent):
            what = f"the pilot of job {job} is silent for {_SILENCE / 60:g} minutes or more"
            yield Breach("limbo", what, "see the log of the server: does it run?")


def _uncollected(connection: Connection, store: Store) -> Iterator[Breach]:
    """A fold without result has no finished job in a task that is ended: nobody would look there again."""
    has_result = sa.exists().where(
        *(t.jobs.c.search_id == _other.c.search_id, t.jobs.c.trial == _other.c.trial, t.jobs.c.fold == _other.c.fold),
        t.jobs.c.state == JobState.FINISHED.value,
    )
    query = (
        select(t.searches.c.name, t.tasks.c.jedi_task_id, t.tasks.c.jobs, _other.c.trial, _other.c.fold)
        .join(t.tasks, t.tasks.c.id == _other.c.task_id)
        .join(t.searches, t.searches.c.id == _other.c.search_id)
        .join(t.trials, sa.and_(t.trials.c.search_id == _other.c.search_id, t.trials.c.number == _other.c.trial))
        .where(t.tasks.c.state == TaskStage.ENDED.value, t.searches.c.server == EMBEDDED, ~has_result)
        .where(t.tasks.c.jedi_task_id.is_not(None), t.trials.c.state != "stopped")
        .where(_other.c.state.in_([JobState.CLOSED.value, JobState.FAILED.value, JobState.CANCELLED.value]))
    )
    for search, task, members, trial, fold in read_rows(store.engine, query):
        numbers = [n for n, job in enumerate(members, start=1) if [trial, fold] in [member[:2] for member in job]]
        ended = select(jobs.c.panda_id).where(jobs.c.task_id == task, jobs.c.number.in_(numbers))
        for job in connection.scalars(ended.where(jobs.c.status == JobState.FINISHED.value)):
            yield Breach(
                "collected-once",
                f"job {job} finished, and its result is not here",
                search=search,
                trial=trial,
                fold=fold,
            )


_other = t.jobs.alias()
