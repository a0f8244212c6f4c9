"""The server's database: tables, upgrade of older ones, one writing and one reading thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import Column as C
from sqlalchemy.exc import DBAPIError

from hpo_pilot.databases import WRITES, among, make_tables, sqlite_engine
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import try_lock
from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.brokerage import WaitingTasks
from hpo_pilot.server.file_store import Folder, plain_name

# Tables. Times are seconds since the epoch (UTC), as floats.
#
# A job's parameters and files are not stored. They follow from the task's parameters and the job's number
# (`task_parameters`), so a job costs a few hundred bytes however large its task is.
#
# A change here needs a migration in `databases/server/`; a test compares the two.

metadata = sa.MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"})

# Ids are never used again: a pilot may still hold an old one. SQLite's integers have 64 bits.
_Id = sa.Integer

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
    # The database uses a partial index only if the query contains the index's condition literally.
    sa.Index("ix_tasks_pending", "sandbox", sqlite_where=sa.text("status = 'pending'")),
    sqlite_autoincrement=True,
)

#: The columns of a task without its parameters, which may be large.
TASK_COLUMNS = tuple(column for column in tasks.c if column.name != "params")

#: States in which a pilot has a job.
AT_PILOT_STATES = (*(JobState.SENT, JobState.STARTING, JobState.RUNNING), *(JobState.TRANSFERRING, JobState.HOLDING))
#: States of tasks that are over, as the database has them.
OVER = [state.value for state in TaskState if state.is_over]
#: A job that waits for a pilot.
WAITS = sa.text("jobs.status = 'activated'")
#: A job that a pilot has; the pilot must send heartbeats for it.
AT_PILOT = sa.text("jobs.status IN ('sent', 'starting', 'running', 'transferring', 'holding')")
_WAITS_INDEX = sa.text("status = 'activated'")
_AT_PILOT_INDEX = sa.text("status IN ('sent', 'starting', 'running', 'transferring', 'holding')")

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
    sa.Index("ix_jobs_waiting", "task_id", "panda_id", sqlite_where=_WAITS_INDEX),
    sa.Index("ix_jobs_heartbeat", "heartbeat", sqlite_where=_AT_PILOT_INDEX),
    sa.Index("ix_jobs_worker", "harvester_id", "worker_id", sqlite_where=_AT_PILOT_INDEX),
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


# Access. One thread writes and one reads, so that no caller ever finds the database locked; it is SQLite in WAL mode.
# A write is one short transaction. Its effects on others (jobs that wait, changed tasks) are announced after the
# commit.

#: A row with any columns.
AnyRow: TypeAlias = "sa.Row[*tuple[Any, ...]]"

_Result = TypeVar("_Result")

_LOCK_WAIT = 10.0  # seconds: how long an ending server may take to let go


@dataclass
class Transaction:
    """A transaction, and the changes that are announced after its commit.

    Attributes:
        connection: executes the statements.
        now: seconds since the epoch; the same time for everything that the transaction writes.
        next_change: returns a new cursor, higher than all before.
        waiting: the waiting jobs; only for the writing thread.
        activated: number of jobs that started to wait, by queue (empty: any queue) and task.
        moved: tasks with a change in a column that brokerage reads.
        users: users whose tasks changed.
        cache: the tasks that `known_tasks` has read; kept as long as the database is open.
    """

    connection: sa.Connection
    now: float
    next_change: Callable[[], int]
    cache: dict[Any, Any]
    waiting: WaitingTasks
    activated: Counter[tuple[str, int]] = field(default_factory=Counter)
    moved: set[int] = field(default_factory=set)
    users: set[str] = field(default_factory=set)

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


def set_columns(tx: Transaction, key: sa.Column[Any], value: int, columns: Mapping[str, Any]) -> int:
    """Writes `columns` of the row whose `key` column has `value`.

    The statement is made once for each set of columns: making one costs more than running it.

    Returns:
        1; 0: there is no such row.
    """
    parameters = {f"new_{name}": content for name, content in columns.items()} | {"the_key": value}
    return tx.connection.execute(_update(key, tuple(columns)), parameters).rowcount


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

    def __init__(self, file: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Opens or makes the database.

        Raises:
            InputError: the file cannot be written, is no database, or a newer program wrote it.
            TryAgainError: another server uses it.
        """
        self._path = file.absolute()
        self._clock = clock
        self._cache: dict[Any, Any] = {}
        self.waiting = WaitingTasks()
        self._engine = sqlite_engine(sa.URL.create("sqlite", database=str(self._path)))
        self._lock = lock_server(self._path)
        try:
            self._writing = self._engine.connect().execution_options(**{WRITES: True})
            self._make_tables()
            self._reading = self._engine.connect()
            with self._reading.begin():
                #: The newest cursor.
                self.change = self._reading.scalar(sa.select(sa.func.max(tasks.c.change))) or 0
        except BaseException as error:
            self._engine.dispose()
            self._lock.close()
            if not isinstance(error, DBAPIError):
                raise
            raise InputError(
                f"the database {self._path} cannot be used: {error.orig}; check that its folder is writable, that the "
                "disk is not full, and that the file is a SQLite database"
            ) from error
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="database-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="database-reader")
        #: Called in the event loop after every commit that changed something for others.
        self.announce: Callable[[Transaction], None] = lambda transaction: None

    async def write(self, work: Callable[[Transaction], _Result]) -> _Result:
        """Runs `work` in the writing thread, in one transaction; its exception rolls back."""
        result, transaction = await asyncio.get_running_loop().run_in_executor(self._writer, self._write, work)
        if transaction.activated or transaction.users:
            self.announce(transaction)
        return result

    async def read(self, work: Callable[[Transaction], _Result]) -> _Result:
        """Runs `work` in the reading thread, on one consistent view."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, work)

    def _write(self, work: Callable[[Transaction], _Result]) -> tuple[_Result, Transaction]:
        with self.writing() as transaction:
            return work(transaction), transaction

    def _read(self, work: Callable[[Transaction], _Result]) -> _Result:
        with self.reading() as transaction:
            return work(transaction)

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Opens a writing transaction in this thread. No other thread may use the database meanwhile."""
        transaction = Transaction(self._writing, self._clock(), self._new_change, self._cache, self.waiting)
        try:
            with self._writing.begin():
                yield transaction
        except BaseException:
            # Both may have data that was rolled back, and the ids of these tasks are used again.
            self.waiting = WaitingTasks()
            self._cache.clear()
            raise
        self.waiting.note(transaction.activated, transaction.moved)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Opens a reading transaction in this thread. No other thread may use the database meanwhile."""
        with self._reading.begin():
            yield Transaction(self._reading, self._clock(), self._new_change, self._cache, self.waiting)

    def _new_change(self) -> int:
        self.change += 1
        return self.change

    def close(self) -> None:
        """Ends both threads and releases the lock."""
        self._writer.shutdown()
        self._reader.shutdown()
        self._writing.close()
        self._reading.close()
        self._engine.dispose()
        self._lock.close()

    def _make_tables(self) -> None:
        with self._writing.begin():
            make_tables(self._writing, "server", metadata, f"database {self._path}")


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
