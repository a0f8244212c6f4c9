"""The tables of the server's database. Times are seconds since the epoch (UTC), as floats.

A job's parameters and files are not stored: they follow from its task's parameters and its number
(`task_parameters`), so that a job costs a few hundred bytes whatever its task carries.

A change here needs a migration in `databases/server/`; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, ColumnElement, Float, Index, Integer, MetaData, String, Table, Text, text
from sqlalchemy import Column as C

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)

# Ids never come back: a pilot may still hold one from before. AUTOINCREMENT wants SQLite's own INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")

tasks = Table(
    "tasks",
    metadata,
    C("task_id", _Id, primary_key=True, autoincrement=True),
    C("name", Text, nullable=False),
    C("user_name", String(128), nullable=False),
    C("vo", String(64), nullable=False),
    C("label", String(32), nullable=False),  # prodSourceLabel
    C("status", String(16), nullable=False),  # jobs.TaskState
    C("old_status", String(16), nullable=True),  # what a paused task returns to
    C("error_dialog", Text, nullable=True),
    C("parent_id", _Id, nullable=True),
    C("priority", Integer, nullable=False),
    C("queue", String(128), nullable=False),  # empty: any queue that `included` and `excluded` allow
    C("included", Text, nullable=True),  # ",A,B,"
    C("excluded", Text, nullable=True),
    C("campaign", String(256), nullable=True),  # between whom shares are fair; see `needs`
    C("needs", Text, nullable=True),  # of one job, JSON; null: an older program's task, its parameters say
    C("sandbox", Text, nullable=True),  # the archive that must be in the cache
    C("params", Text, nullable=False),  # JSON, as submitted
    C("revision", Integer, nullable=False, default=0),  # counts changes of `params`
    C("n_jobs", Integer, nullable=False),  # numbers, not attempts
    C("n_finished", Integer, nullable=False, default=0),
    C("n_failed", Integer, nullable=False, default=0),  # numbers that are given up
    C("attempt_nr", Integer, nullable=False, default=1, server_default="1"),  # grows with every retry of the task
    C("created", Float, nullable=False),
    C("modified", Float, nullable=False),
    C("state_changed", Float, nullable=False),
    C("started", Float, nullable=True),
    C("ended", Float, nullable=True),
    C("change", _Id, nullable=False),  # the cursor of the last change to the task or to one of its jobs
    C("outcome", _Id, nullable=False, default=0),  # the cursor of the last end of an attempt, or of the task
    Index(None, "user_name", "name"),
    Index(None, "user_name", "modified"),
    # With the user in front: SQLite would else look through all of a user's tasks for those that changed.
    Index(None, "user_name", "change"),
    Index(None, "user_name", "outcome"),
    Index(None, "change"),
    Index(None, "ended"),
    # The partial indices name their condition as it must stand in the query, literally, for the database to use them.
    Index(
        "ix_tasks_pending",
        "sandbox",
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    ),
    sqlite_autoincrement=True,
)

#: A job that waits for a pilot.
WAITS = text("jobs.status = 'activated'")
#: A job that a pilot has, hence owes heartbeats.
AT_PILOT = text("jobs.status IN ('sent', 'starting', 'running', 'transferring', 'holding')")
_WAITS_INDEX = text("status = 'activated'")
_AT_PILOT_INDEX = text("status IN ('sent', 'starting', 'running', 'transferring', 'holding')")

jobs = Table(
    "jobs",
    metadata,
    C("panda_id", _Id, primary_key=True, autoincrement=True),
    C("task_id", _Id, nullable=False),
    C("number", Integer, nullable=False),  # from 1: which part of the task; all its attempts share it
    C("attempt_nr", Integer, nullable=False),
    C("max_attempt", Integer, nullable=False),
    C("status", String(16), nullable=False),  # jobs.JobState
    C("sub_status", String(80), nullable=True),
    C("command", String(32), nullable=True),  # for the pilot: tobekilled
    C("debug", Boolean, nullable=False, default=False),
    # What brokerage looks at, copied from the task so that it needs one index and no join.
    C("queue", String(128), nullable=False),
    C("label", String(32), nullable=False),
    C("priority", Integer, nullable=False),
    C("core_count", Integer, nullable=False),
    C("ram_mb", Integer, nullable=False),
    C("max_walltime", Integer, nullable=False),  # seconds; 0: unknown
    # Where it is.
    C("site", String(128), nullable=True),
    C("computing_element", String(128), nullable=True),
    C("node", String(128), nullable=True),
    C("harvester_id", String(128), nullable=True),
    C("worker_id", String(128), nullable=True),
    C("scheduler_id", String(128), nullable=True),
    C("holder", String(400), nullable=True),  # name of the token with which it was taken; null: of an older program
    C("holder_node", String(128), nullable=True),  # the only node that reports on it; null: any
    C("holder_key", String(64), nullable=True),  # SHA-256 of its pilot's own key; null: that has none
    C("pilot_id", String(200), nullable=True),
    C("batch_id", String(80), nullable=True),
    C("created", Float, nullable=False),
    C("modified", Float, nullable=False),
    C("state_changed", Float, nullable=False),
    C("started", Float, nullable=True),
    C("ended", Float, nullable=True),
    C("heartbeat", Float, nullable=True),  # silence counts from here: the last report, later by `patience`
    C("patience", Float, nullable=False, server_default="0"),  # seconds more than our own pilots get
    # What the pilot said.
    C("job_metrics", String(500), nullable=True),
    C("trans_exit_code", Integer, nullable=True),
    C("pilot_error_code", Integer, nullable=True),
    C("pilot_error_diag", String(500), nullable=True),
    C("exe_error_code", Integer, nullable=True),
    C("exe_error_diag", String(500), nullable=True),
    C("report", Text, nullable=True),  # JSON: the many numbers that only descriptions show
    # What the server found.
    C("dispatcher_error_code", Integer, nullable=True),
    C("dispatcher_error_diag", String(250), nullable=True),
    C("buffer_error_code", Integer, nullable=True),
    C("buffer_error_diag", String(300), nullable=True),
    Index(None, "task_id", "number"),
    Index("ix_jobs_waiting", "task_id", "panda_id", sqlite_where=_WAITS_INDEX, postgresql_where=_WAITS_INDEX),
    Index("ix_jobs_heartbeat", "heartbeat", sqlite_where=_AT_PILOT_INDEX, postgresql_where=_AT_PILOT_INDEX),
    Index(
        "ix_jobs_worker",
        "harvester_id",
        "worker_id",
        sqlite_where=_AT_PILOT_INDEX,
        postgresql_where=_AT_PILOT_INDEX,
    ),
    sqlite_autoincrement=True,
)

job_documents = Table(
    "job_documents",
    metadata,
    C("panda_id", _Id, primary_key=True, autoincrement=False),
    C("meta_data", Text, nullable=True),  # the payload's job report, JSON text
    C("output_report", Text, nullable=True),
    C("pilot_log", Text, nullable=True),
    C("stdout", Text, nullable=True),
)

cache_files = Table(
    "cache_files",
    metadata,
    C("name", String(255), primary_key=True),  # as it was sent, perhaps with folders; in the cache it has none
    C("user_name", String(128), nullable=False),  # empty: found in the folder, nobody's
    C("size", BigInteger, nullable=False),
    C("checksum", String(64), nullable=True),  # the CRC in a gzip file's footer, as the client computes it
    C("created", Float, nullable=False),
    C("touched", Float, nullable=False),
    Index(None, "user_name", "size", "checksum"),
)


def cached_as(file_name: str) -> ColumnElement[bool]:
    """The row of the file that lies under this name in the cache, whatever name it was sent by."""
    sent = cache_files.c.name
    return (sent == file_name) | sent.endswith(f"/{file_name}", autoescape=True)


workers = Table(
    "workers",
    metadata,
    C("harvester_id", String(128), primary_key=True),
    C("worker_id", String(128), primary_key=True),
    C("status", String(16), nullable=False),
    C("node_id", String(128), nullable=True),
    C("started", Float, nullable=True),
    C("ended", Float, nullable=True),
)

point_losses = Table(
    "point_losses",
    metadata,
    C("task_id", _Id, primary_key=True, autoincrement=False),
    C("number", Integer, primary_key=True, autoincrement=False),  # the point's; see `points`
    C("loss", Float, nullable=False),
    C("modified", Float, nullable=False),
)
