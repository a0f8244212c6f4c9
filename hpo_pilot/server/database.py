"""The server's database, SQLite or PostgreSQL: tables, upgrade of older ones, one writing and one reading thread."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa
from prometheus_client import Counter as PrometheusCounter
from sqlalchemy import Column as C
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from hpo_pilot.databases import DURABLE, WRITES, among, end_silent_sessions, make_tables, remote_engine, sqlite_engine
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import try_lock
from hpo_pilot.jobs import ASKED_QUEUE, JobState
from hpo_pilot.server.brokerage import WaitingTasks
from hpo_pilot.server.file_store import Folder, plain_name

log = logging.getLogger(__name__)

# Tables. Times are seconds since the epoch (UTC), as floats.
#
# A job's parameters and files are not stored. They follow from the task's parameters and the job's number
# (`task_parameters`), so a job costs a few hundred bytes however large its task is.
#
# A change here needs a migration in `databases/server/`; a test compares the two.

metadata = sa.MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"})

# Ids are never used again: a pilot may still hold an old one. AUTOINCREMENT needs SQLite's own INTEGER of 64 bits.
_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
#: The largest id.
LARGEST_ID = 2**63 - 1
#: The cursors of changes on PostgreSQL.
_changes = sa.Sequence("task_changes", data_type=sa.BigInteger, metadata=metadata)


def _partial(name: str, condition: str, *columns: str) -> sa.Index:
    """Returns an index of the rows with a condition; it is used only if the query contains the condition literally."""
    return sa.Index(name, *columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))


tasks = sa.Table(
    "tasks",
    metadata,
    C("task_id", _Id, primary_key=True, autoincrement=True),
    C("name", sa.Text, nullable=False),
    C("user_name", sa.String(128), nullable=False),
    C("vo", sa.String(64), nullable=False),
    C("label", sa.String(32), nullable=False),  # prodSourceLabel
    C("status", sa.String(16), nullable=False),  # jobs.TaskState
    C("old_status", sa.String(16), nullable=True),  # state before a pause
    C("error_dialog", sa.Text, nullable=True),
    C("parent_id", _Id, nullable=True),
    C("priority", sa.Integer, nullable=False),
    C("queue", sa.String(128), nullable=False),  # empty: any queue that `included` and `excluded` allow
    C("included", sa.Text, nullable=True),  # ",A,B,"; null: all queues
    C("excluded", sa.Text, nullable=True),
    C("campaign", sa.String(256), nullable=True),  # shares are counted by campaign; `brokerage.campaign_of`
    C("needs", sa.Text, nullable=True),  # of one job, JSON; null: the task is broken
    C("sandbox", sa.Text, nullable=True),  # archive that the jobs need; a task waits until it is in the cache
    C("params", sa.Text, nullable=False),  # JSON, as submitted
    C("revision", sa.Integer, nullable=False, default=0),  # number of changes of `params`
    C("n_jobs", sa.Integer, nullable=False),  # jobs, each counted once, not attempts
    C("n_finished", sa.Integer, nullable=False, default=0),
    C("n_failed", sa.Integer, nullable=False, default=0),  # jobs without success and without attempts left
    C("attempt_nr", sa.Integer, nullable=False, default=1, server_default="1"),  # 1, plus the retries of the task
    C("created", sa.Float, nullable=False),
    C("modified", sa.Float, nullable=False),
    C("state_changed", sa.Float, nullable=False),
    C("started", sa.Float, nullable=True),
    C("ended", sa.Float, nullable=True),
    C("change", _Id, nullable=False),  # cursor of the last change of the task or one of its jobs
    C("outcome", _Id, nullable=False, default=0),  # cursor of the last end of an attempt, or of the task
    sa.Index(None, "user_name", "name"),
    sa.Index(None, "user_name", "modified"),
    # The user comes first: else SQLite reads all tasks of a user to find the changed ones.
    sa.Index(None, "user_name", "change"),
    sa.Index(None, "user_name", "outcome"),
    sa.Index(None, "change"),
    sa.Index(None, "ended"),
    _partial("ix_tasks_pending", "status = 'pending'", "sandbox"),
    sqlite_autoincrement=True,
)

#: The columns of a task without its parameters, which may be large.
TASK_COLUMNS = tuple(column for column in tasks.c if column.name != "params")

#: States in which a pilot has a job.
AT_PILOT_STATES = (*(JobState.SENT, JobState.STARTING, JobState.RUNNING), *(JobState.TRANSFERRING, JobState.HOLDING))
#: A job that waits for a pilot.
WAITS = sa.text("jobs.status = 'activated'")
#: A job that a pilot has; the pilot must send heartbeats for it.
AT_PILOT = sa.text("jobs.status IN ('sent', 'starting', 'running', 'transferring', 'holding')")
_WAITS_INDEX = "status = 'activated'"
_AT_PILOT_INDEX = "status IN ('sent', 'starting', 'running', 'transferring', 'holding')"

jobs = sa.Table(
    "jobs",
    metadata,
    C("panda_id", _Id, primary_key=True, autoincrement=True),
    C("task_id", _Id, nullable=False),
    C("number", sa.Integer, nullable=False),  # number of the job in its task, from 1; the same for all attempts
    C("attempt_nr", sa.Integer, nullable=False),
    C("max_attempt", sa.Integer, nullable=False),
    C("status", sa.String(16), nullable=False),  # jobs.JobState
    C("sub_status", sa.String(80), nullable=True),
    C("command", sa.String(32), nullable=True),  # sent with the answer to the next heartbeat: tobekilled
    C("debug", sa.Boolean, nullable=False, default=False),
    # Copies of the task's values: brokerage then needs one index and no join.
    C("queue", sa.String(128), nullable=False),
    C("label", sa.String(32), nullable=False),
    C("priority", sa.Integer, nullable=False),
    C("core_count", sa.Integer, nullable=False),
    C("ram_mb", sa.Integer, nullable=False),
    C("max_walltime", sa.Integer, nullable=False),  # seconds; 0: unknown
    # The pilot that has or had the job.
    C("site", sa.String(128), nullable=True),
    C("computing_element", sa.String(128), nullable=True),
    C("node", sa.String(128), nullable=True),
    C("harvester_id", sa.String(128), nullable=True),
    C("worker_id", sa.String(128), nullable=True),
    C("scheduler_id", sa.String(128), nullable=True),
    C("holder", sa.String(400), nullable=True),  # name of the token that took the job; null in rows of older versions
    C("holder_node", sa.String(128), nullable=True),  # only node that may report; null: any
    C("holder_key", sa.String(64), nullable=True),  # SHA-256 of the pilot's key; null: it has none
    C("pilot_id", sa.String(200), nullable=True),
    C("batch_id", sa.String(80), nullable=True),
    C("created", sa.Float, nullable=False),
    C("modified", sa.Float, nullable=False),
    C("state_changed", sa.Float, nullable=False),
    C("started", sa.Float, nullable=True),
    C("ended", sa.Float, nullable=True),
    C("heartbeat", sa.Float, nullable=True),  # time of the last report, plus `patience`
    C("patience", sa.Float, nullable=False, server_default="0"),  # seconds added to the timeout; 0 for our pilots
    # Reported by the pilot.
    C("job_metrics", sa.String(500), nullable=True),
    C("trans_exit_code", sa.Integer, nullable=True),
    C("pilot_error_code", sa.Integer, nullable=True),
    C("pilot_error_diag", sa.String(500), nullable=True),
    C("exe_error_code", sa.Integer, nullable=True),
    C("exe_error_diag", sa.String(500), nullable=True),
    C("report", sa.Text, nullable=True),  # JSON: values that only descriptions show
    # Found by the server.
    C("dispatcher_error_code", sa.Integer, nullable=True),
    C("dispatcher_error_diag", sa.String(250), nullable=True),
    C("buffer_error_code", sa.Integer, nullable=True),
    C("buffer_error_diag", sa.String(300), nullable=True),
    sa.Index(None, "task_id", "number"),
    _partial("ix_jobs_waiting", _WAITS_INDEX, "task_id", "panda_id"),
    _partial("ix_jobs_heartbeat", _AT_PILOT_INDEX, "heartbeat"),
    _partial("ix_jobs_worker", _AT_PILOT_INDEX, "harvester_id", "worker_id"),
    sqlite_autoincrement=True,
)

job_documents = sa.Table(
    "job_documents",
    metadata,
    C("panda_id", _Id, primary_key=True, autoincrement=False),
    C("meta_data", sa.Text, nullable=True),  # the payload's job report, JSON text
    C("output_report", sa.Text, nullable=True),
    C("pilot_log", sa.Text, nullable=True),
    C("stdout", sa.Text, nullable=True),
)

cache_files = sa.Table(
    "cache_files",
    metadata,
    C("name", sa.String(255), primary_key=True),  # as sent, with folders; the file in the cache has none
    C("user_name", sa.String(128), nullable=False),  # empty: found in the folder, without an owner
    C("size", sa.BigInteger, nullable=False),
    C("checksum", sa.String(64), nullable=True),  # the CRC in a gzip file's footer, as the client computes it
    C("created", sa.Float, nullable=False),
    C("touched", sa.Float, nullable=False),
    sa.Index(None, "user_name", "size", "checksum"),
)


def last_attempts(task_ids: Sequence[int]) -> sa.Select[tuple[int]]:
    """Returns the query of the PandaIDs of each job's last attempt."""
    latest = sa.select(sa.func.max(jobs.c.panda_id)).where(among(jobs.c.task_id, task_ids))
    return latest.group_by(jobs.c.task_id, jobs.c.number)


def cached_as(file_name: str) -> sa.ColumnElement[bool]:
    """Returns the condition on the file with this name in the cache; its name at upload may differ."""
    sent = cache_files.c.name
    return (sent == file_name) | sent.endswith(f"/{file_name}", autoescape=True)


def remove_cached(tx: Transaction, cache: Folder, names: Iterable[str]) -> None:
    """Removes files of the cache, by the names at upload."""
    for some in in_slices(names):
        tx.connection.execute(sa.delete(cache_files).where(cache_files.c.name.in_(some)))
        for name in some:
            cache.remove(plain_name(name))


workers = sa.Table(
    "workers",
    metadata,
    C("harvester_id", sa.String(128), primary_key=True),
    C("worker_id", sa.String(128), primary_key=True),
    C("status", sa.String(16), nullable=False),
    C("node_id", sa.String(128), nullable=True),
    C("started", sa.Float, nullable=True),
    C("ended", sa.Float, nullable=True),
)

point_losses = sa.Table(
    "point_losses",
    metadata,
    C("task_id", _Id, primary_key=True, autoincrement=False),
    C("number", sa.Integer, primary_key=True, autoincrement=False),  # number of the point; see `points`
    C("loss", sa.Float, nullable=False),
    C("modified", sa.Float, nullable=False),
)


# Access. One thread writes and one reads, so that no caller ever finds the database locked; it is SQLite in WAL mode,
# or PostgreSQL. A write is one short transaction. Its effects on others (jobs that wait, changed tasks) are announced
# after the commit.
#
# On PostgreSQL several processes may write. A transaction holds an advisory lock to its end: alone, as on SQLite, or,
# with `rows`, beside others that lock the rows that they change. The latter are reports and acquisitions. Readers with
# a cursor must find changes in the order of their commits, so cursors are given under another lock, as the last thing
# before the commit. Each process looks several times a second for tasks that others have changed.

#: A row with any columns.
AnyRow: TypeAlias = "sa.Row[*tuple[Any, ...]]"

_Result = TypeVar("_Result")

_LOCK_WAIT = 10.0  # seconds: how long an ending server may take to let go

# PostgreSQL's advisory locks; any numbers, but always the same.
_SERVER_LOCK, _WRITE_LOCK, _CHANGE_LOCK = 0x68706F70, 0x68706F71, 0x68706F72
_ALONE = f"BEGIN; SELECT pg_advisory_xact_lock({_WRITE_LOCK})"
_WITH_OTHERS = f"BEGIN; SELECT pg_advisory_xact_lock_shared({_WRITE_LOCK})"
_NEXT = sa.select(_changes.next_value())
#: Gives changed tasks their cursors.
_NUMBER = sa.text("""
    WITH in_order AS MATERIALIZED (SELECT pg_advisory_xact_lock(:lock)), numbered AS MATERIALIZED (
        SELECT id, ended, nextval('task_changes') AS change
        FROM in_order, unnest(CAST(:ids AS bigint[]), CAST(:ended AS boolean[])) AS changed (id, ended)
    )
    UPDATE tasks SET modified = :now, change = numbered.change,
        outcome = CASE WHEN numbered.ended THEN numbered.change ELSE outcome END
    FROM numbered WHERE task_id = id
""")
_LOOK_SECONDS = 0.2  # between two looks for changes by other processes
_AWAY_SECONDS = 1.0  # the same, while the database does not answer
_COME_BACK = 4.0  # seconds after a start or crash of the database in which its former users have their lock again
#: Seconds between two looks at all waiting jobs: a process that was killed may have held some that others passed over.
_FULL_LOOK_SECONDS = 10.0


@dataclass
class Transaction:
    """A transaction, and the changes that are announced after its commit.

    Attributes:
        connection: executes the statements.
        now: seconds since the epoch; the same time for everything that the transaction writes.
        next_change: returns a new cursor, higher than all before.
        waiting: the waiting jobs; only for the writing thread.
        activated: number of jobs that started to wait, by queue (empty: any queue) and task.
        changed: tasks that get a new cursor at the end, and whether an attempt or the task has ended.
        revisions: `revision` of tasks that it has locked.
        moved: tasks with a change in a column that brokerage reads.
        users: users whose tasks changed.
        counts: metrics that are one higher after the commit.
        cache: the tasks that `known_tasks` has read; kept as long as the database is open.
    """

    connection: sa.Connection
    now: float
    next_change: Callable[[], int]
    cache: dict[Any, Any]
    waiting: WaitingTasks
    activated: Counter[tuple[str, int]] = field(default_factory=Counter)
    changed: dict[int, bool] = field(default_factory=dict)
    revisions: dict[int, int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    counts: list[PrometheusCounter] = field(default_factory=list)

    @property
    def activated_at(self) -> Counter[str]:
        """Returns the number of jobs that started to wait, by queue."""
        counts: Counter[str] = Counter()
        for (queue, _), count in self.activated.items():
            counts[queue] += count
        return counts


def moved_to(tx: Transaction, state: JobState) -> dict[str, Any]:
    """Returns the columns of a job that a change of its state writes."""
    return {"status": state.value, "modified": tx.now, "state_changed": tx.now}


def set_columns(tx: Transaction, key: sa.Column[Any], value: int, columns: Mapping[str, Any]) -> None:
    """Writes `columns` of the row whose `key` column has `value`.

    The statement is made once for each set of columns: making one costs more than running it.
    """
    tx.connection.execute(_update(key, tuple(columns)), _new(value, columns))


def set_columns_of(tx: Transaction, key: sa.Column[Any], changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Writes the columns of several rows, as `set_columns`, with a statement for each set of columns."""
    alike: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for value, columns in changes.items():
        alike[tuple(columns)].append(_new(value, columns))
    for names, parameters in alike.items():
        tx.connection.execute(_update(key, names), parameters)


def _new(value: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{name}": content for name, content in columns.items()} | {"the_key": value}


@lru_cache(maxsize=512)
def _update(key: sa.Column[Any], names: tuple[str, ...]) -> sa.Update:
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in names}
    return sa.update(key.table).where(key == sa.bindparam("the_key")).values(values)


def in_slices(values: Iterable[_Result], size: int = 500) -> Iterator[list[_Result]]:
    """Yields `values` in lists of at most `size`, because databases limit the parameters of a statement."""
    found = list(values)
    for start in range(0, len(found), size):
        yield found[start : start + size]


class Database:
    """Opens the database, keeps its two connections and their threads."""

    def __init__(self, place: Path | str, *, clock: Callable[[], float] = time.time, alone: bool = True) -> None:
        """Opens or makes the database.

        Args:
            place: SQLite file, or URL of a PostgreSQL database.
            clock: returns seconds since the epoch.
            alone: whether another server that uses it is an error; False for further processes of a server.

        Raises:
            InputError: the file cannot be written, is no database, or a newer program wrote it; or the URL is wrong.
            TryAgainError: another server uses it, or it does not answer.
        """
        self._clock = clock
        self._cache: dict[Any, Any] = {}
        self.waiting = WaitingTasks()
        self._engine = engine_of(place)
        #: Whether several processes may use it.
        self.is_postgresql = self._engine.dialect.name == "postgresql"
        self._name = self._engine.url.render_as_string() if self.is_postgresql else str(self._engine.url.database)
        self._lock = None if self.is_postgresql else lock_server(Path(self._name))
        self._alone = alone
        self._readers = self._engine
        if self.is_postgresql:
            # Settings of the engines, not of the connections: they hold after a reconnect too. The driver begins no
            # transaction, because `writing` begins it together with its lock: each message costs time on both sides.
            self._engine = engine_of(place, isolation_level="AUTOCOMMIT")
            event.listen(self._engine, "connect", self._lock_postgresql)
            self._readers = engine_of(place, isolation_level="REPEATABLE READ")
        try:
            self._writing = self._engine.connect().execution_options(**{WRITES: True})
            with self.writing() as tx:
                make_tables(tx.connection, "server", metadata, f"database {self._name}")
            self._reading = self._readers.connect()
            with self._reading.begin():
                #: The newest cursor that is known.
                self.change = self._reading.scalar(sa.select(sa.func.max(tasks.c.change))) or 0
        except BaseException as error:
            self._dispose()
            if not isinstance(error, DBAPIError):
                raise
            if self.is_postgresql:
                raise TryAgainError(f"the database {self._name} does not answer: {error.orig}") from error
            if "disk is full" in str(error.orig):
                raise TryAgainError(f"database {self._name}: {error.orig}: free some space and try again") from error
            raise InputError(
                f"the database {self._name} cannot be used: {error.orig}; check that its folder is writable and that "
                "the file is a SQLite database"
            ) from error
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="database-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="database-reader")
        self._full_look = 0.0
        #: The number of waiting jobs at the last look, and the newest one, by queue and task.
        self._known_waiting: dict[tuple[str, int], tuple[int, int]] = {}
        #: Called in the event loop after every commit that changed something for others.
        self.announce: Callable[[Transaction], None] = lambda transaction: None

    def _lock_postgresql(self, connection: Any, _record: Any) -> None:
        """Keeps another server from the database as long as this session of the writing connection lives."""
        deadline, cursor = time.monotonic() + _LOCK_WAIT, connection.cursor()
        attempt = f"pg_try_advisory_lock_shared({_SERVER_LOCK})"
        if self._alone:  # after a start or crash of the database, those that had used it come first
            # A crash ends all sessions, and resets the statistics; the start time stays.
            begun = "greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time())"
            ago = f"clock_timestamp() - {begun}"
            attempt = f"CASE WHEN {ago} > interval '{_COME_BACK} s' THEN pg_try_advisory_lock({_SERVER_LOCK}) END"
        while not cursor.execute(f"SELECT {attempt}").fetchone()[0]:
            connection.rollback()
            if time.monotonic() > deadline:
                connection.close()
                raise TryAgainError(f"another hpo-pilot server uses the database {self._name}; stop it first")
            time.sleep(0.1)
        if self._alone:  # from now on shared with further processes
            cursor.execute(f"SELECT pg_advisory_lock_shared({_SERVER_LOCK})")
            cursor.execute(f"SELECT pg_advisory_unlock({_SERVER_LOCK})")
            self._alone = False
        connection.commit()

    def _dispose(self) -> None:
        self._readers.dispose()
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()

    async def write(
        self, work: Callable[[Transaction], _Result], *, rows: bool = False, durable: bool = True
    ) -> _Result:
        """Runs `work` in the writing thread, in one transaction; its exception rolls back.

        Args:
            work: makes the changes.
            rows: whether it locks the rows that it changes, so that other processes may write at the same time.
            durable: whether it survives a power cut; on PostgreSQL all do. False for what pilots do again: each disk
                access takes milliseconds, in which nobody else writes.
        """
        run = asyncio.get_running_loop().run_in_executor
        result, transaction = await run(self._writer, self._write, work, rows, durable)
        if transaction.activated or transaction.users:
            self.announce(transaction)
        return result

    async def read(self, work: Callable[[Transaction], _Result]) -> _Result:
        """Runs `work` in the reading thread, on one consistent view."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, work)

    def _write(self, work: Callable[[Transaction], _Result], rows: bool, durable: bool) -> tuple[_Result, Transaction]:
        with self.writing(rows=rows, durable=durable) as transaction:
            return work(transaction), transaction

    def _read(self, work: Callable[[Transaction], _Result]) -> _Result:
        with self.reading() as transaction:
            return work(transaction)

    @contextmanager
    def writing(self, *, rows: bool = False, durable: bool = True) -> Iterator[Transaction]:
        """Opens a writing transaction in this thread, see `write`. No other thread may use the database meanwhile."""
        transaction = Transaction(self._writing, self._clock(), self._new_change, self._cache, self.waiting)
        try:
            with self._writing.execution_options(**{DURABLE: durable}).begin():
                if self.is_postgresql:
                    begin = _WITH_OTHERS if rows else _ALONE
                    self._writing.exec_driver_sql(begin, execution_options={"no_parameters": True})
                yield transaction
                self._number(transaction)
        except BaseException:
            # Both may have data that was rolled back, and the ids of these tasks are used again.
            self.waiting = WaitingTasks()
            self._cache.clear()
            raise
        self.waiting.note(transaction.activated, transaction.moved)
        for metric in transaction.counts:
            metric.inc()

    def _number(self, tx: Transaction) -> None:
        """Gives the changed tasks their cursors."""
        if tx.changed and self.is_postgresql:
            changed = {"ids": list(tx.changed), "ended": list(tx.changed.values())}
            self._writing.execute(_NUMBER, {"lock": _CHANGE_LOCK, "now": tx.now, **changed})
            return
        for task_id, outcome in tx.changed.items():
            change = self._new_change()
            columns = {"change": change, "outcome": change} if outcome else {"change": change}
            set_columns(tx, tasks.c.task_id, task_id, {"modified": tx.now} | columns)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Opens a reading transaction in this thread. No other thread may use the database meanwhile."""
        with self._reading.begin():
            yield Transaction(self._reading, self._clock(), self._new_change, self._cache, self.waiting)

    def _new_change(self) -> int:
        if self.is_postgresql:
            return int(self._writing.scalar(_NEXT) or 0)
        self.change += 1
        return self.change

    async def follow(self, changed: Callable[[], None]) -> None:
        """Announces changes by other processes until cancelled; does nothing on SQLite.

        Args:
            changed: called after each change.
        """
        trouble = ""
        while self.is_postgresql:
            await asyncio.sleep(_AWAY_SECONDS if trouble else _LOOK_SECONDS)
            try:
                if trouble:  # the writing connection has the server's lock
                    await self.write(lambda tx: None, rows=True)
                tx = await self.read(self._look)
            except (DBAPIError, TryAgainError) as error:
                if not trouble:
                    trouble = str(error.orig if isinstance(error, DBAPIError) else error)
                    log.error("looking for changes by other processes: %s", trouble)
                continue
            trouble = ""
            if tx.activated or tx.users:
                note = self.waiting.note
                await asyncio.get_running_loop().run_in_executor(self._writer, note, tx.activated, tx.moved)
                self.announce(tx)
                changed()

    def _look(self, tx: Transaction) -> Transaction:
        """Finds changed tasks, and the number of their jobs that began to wait after the last look."""
        found = tx.connection.execute(_CHANGED, {"after": self.change}).all()
        tx.users |= {row.user_name for row in found}
        tx.moved |= {row.task_id for row in found}
        now, query, known = time.monotonic(), _WAITING, self._known_waiting
        if is_full := now - self._full_look >= _FULL_LOOK_SECONDS:
            kept = {}
            end_silent_sessions(tx.connection)  # another process may have been halted while it wrote
        else:
            query = query.where(among(jobs.c.task_id, tx.moved))
            kept = {key: seen for key, seen in known.items() if key[1] not in tx.moved}
        for queue, task_id, count, newest in tx.connection.execute(query) if found or is_full else ():
            before, newest_before = known.get((queue, task_id), (0, 0))
            if queue.startswith(ASKED_QUEUE):
                before = 0  # a client that has told its result may have a job that waits already
            kept[queue, task_id] = count, newest
            # All are read again; as many pilots are woken as there are new jobs. Some have gone, so new ones may be
            # more than the difference, but not more than the difference of the numbers.
            tx.activated[queue, task_id] = max(count - before, min(count, newest - newest_before))
        # Only now: if a query fails, the next look finds the same.
        self._known_waiting = kept
        self.change = found[-1].change if found else self.change
        self._full_look = now if is_full else self._full_look
        return tx

    def close(self) -> None:
        """Ends both threads and releases the lock."""
        self._writer.shutdown()
        self._reader.shutdown()
        self._writing.close()
        self._reading.close()
        self._dispose()


_CHANGED = (
    sa.select(tasks.c.task_id, tasks.c.user_name, tasks.c.change)
    .where(tasks.c.change > sa.bindparam("after"))
    .order_by(tasks.c.change)
)
_WAITING = (
    sa.select(jobs.c.queue, jobs.c.task_id, sa.func.count(), sa.func.max(jobs.c.panda_id))
    .where(WAITS)
    .group_by(jobs.c.queue, jobs.c.task_id)
)


def engine_of(place: Path | str, **settings: Any) -> sa.Engine:
    """Returns the engine of a server's database.

    Args:
        place: SQLite file, or URL of a PostgreSQL database.
        settings: further arguments of `create_engine`, for PostgreSQL.

    Raises:
        InputError: the URL is wrong, or its driver is missing.
    """
    if "://" not in str(place):
        return sqlite_engine(sa.URL.create("sqlite", database=str(Path(place).absolute())))
    try:
        if (url := sa.make_url(str(place))).get_backend_name() == "postgresql":
            return remote_engine(url, **settings)
        trouble = f"{url.get_backend_name()} is not supported"
    except (ArgumentError, NoSuchModuleError, ValueError):  # ValueError: a port that is no number
        trouble = "it cannot be read"
    except ModuleNotFoundError as error:
        trouble = f"its driver {error.name} is not installed: pip install 'hpo-pilot[postgresql]'"
    raise InputError(
        f"the URL of the server's database: {trouble}; give a SQLite file, or postgresql+psycopg://USER@HOST/DATABASE"
    )


def has_server(connection: sa.Connection) -> bool:
    """Returns whether a server uses the database, which is in PostgreSQL."""
    return not connection.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(_SERVER_LOCK)))


def lock_server(database: Path) -> FileIO:
    """Keeps a second server from the database, by a lock on a file beside it.

    Returns:
        The file of the lock, which ends when it is closed, also by a crash.

    Raises:
        InputError: the folder cannot be written.
        TryAgainError: a server has the lock, and does not end within seconds.
    """
    path = database.with_name(database.name + ".lock")
    try:
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made here with its mode: SQLite would leave the database to the umask, its journals follow its mode.
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a writable folder") from error
    deadline = time.monotonic() + _LOCK_WAIT
    while not try_lock(lock.fileno()):
        if time.monotonic() > deadline:
            owner = lock.read(20).decode(errors="replace").strip() or "unknown"
            lock.close()
            raise TryAgainError(f"another hpo-pilot server (process {owner}) uses {database}; stop it first")
        time.sleep(0.1)
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n".encode())
    return lock
