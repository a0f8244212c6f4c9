"""The tables of the store. Times are seconds since the epoch (UTC), as floats; documents are JSON.

A change here needs a migration in `databases/store/`; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy import Column as C

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

searches = Table(
    "searches",
    metadata,
    C("id", Integer, primary_key=True),
    C("name", String(60), nullable=False, unique=True),
    C("uid", String(8), nullable=False),  # random; part of each task name, which makes it unique
    C("owner", String(60), nullable=False),
    C("server", Text, nullable=True),  # URL of the PanDA server of its tasks, or "embedded"; null: none yet
    C("family", String(60), nullable=True),  # the search file with segments that it belongs to; null: none
    C("state", String(20), nullable=False),
    C("message", Text, nullable=False, default=""),
    C("definition", JSON, nullable=False),  # Search.to_dict(), with a budget extended by commands
    C("filed", JSON, nullable=False),  # Search.to_dict() as the search file last had it
    C("version", Integer, nullable=False, default=1),  # grows when definition, payload or `forgiven` change
    C("source", Text, nullable=False),  # path of the search file, for messages and the report
    C("forgiven", Integer, nullable=False, default=0),  # failures up to this result no longer count in a row
    C("sandbox", Text, nullable=True),  # the payload's archive, in the work folder
    C("created", Float, nullable=False),
    C("started", Float, nullable=True),
    C("clock", Float, nullable=True),  # start of budget.hours: the start plus the time while it was ended
    C("ended", Float, nullable=True),
)

generations = Table(
    "generations",
    metadata,
    C("id", Integer, primary_key=True),
    C("search_id", ForeignKey("searches.id"), nullable=False),
    C("number", Integer, nullable=False),
    C("history", Integer, nullable=False),  # number of results told to the optimizer
    C("pending", JSON, nullable=False),  # numbers of the open trials
    C("asked", Integer, nullable=True),  # number of points asked of the optimizer; null: not asked
    C("budget", Integer, nullable=True),  # budget.trials at that time
    C("created", Float, nullable=False),
    UniqueConstraint("search_id", "number"),
)

tasks = Table(
    "tasks",
    metadata,
    C("id", Integer, primary_key=True),
    C("search_id", ForeignKey("searches.id"), nullable=False),
    C("generation", Integer, nullable=False),
    C("revision", Integer, nullable=False),  # 0: first submission; k: lost folds submitted again as .r<k>
    C("name", String(132), nullable=False, unique=True),
    C("state", String(20), nullable=False),  # TaskStage
    C("jedi_task_id", BigInteger, nullable=True),
    C("jobs", JSON, nullable=False),  # [[[trial, fold, seed], …], …]: job number n runs those of entry n - 1
    C("created", Float, nullable=False),
    C("submitted", Float, nullable=True),
    C("ended", Float, nullable=True),
    C("waits", Text, nullable=True),  # the server's reason; null: it does not wait, or the reason is unknown
    Index(None, "search_id", "state"),
)

trials = Table(
    "trials",
    metadata,
    C("id", Integer, primary_key=True),
    C("search_id", ForeignKey("searches.id"), nullable=False),
    C("number", Integer, nullable=False),
    C("generation", Integer, nullable=False),
    C("point", JSON, nullable=False),
    C("state", String(20), nullable=False),
    C("seed", Integer, nullable=False),
    C("confirms", Integer, nullable=True),
    C("retries", Integer, nullable=True),  # the failed trial with this point, for a user's request
    C("told", Integer, nullable=True),
    C("value", Float, nullable=True),
    C("std", Float, nullable=True),
    C("figures", JSON(none_as_null=True), nullable=True),  # of several objectives: one for each; value is the first
    C("spreads", JSON(none_as_null=True), nullable=True),  # of several objectives: as std, one for each
    C("error", Text, nullable=True),
    # For a trial that was told to stop early, even if it finished: the look at its values that decided, and the reason;
    C("stop_look", Integer, nullable=True),
    C("stop_reason", Text, nullable=True),
    # where it was judged or, once it has stopped, what it came to;
    C("stop_step", BigInteger, nullable=True),
    C("stop_value", Float, nullable=True),
    C("projected", JSON(none_as_null=True), nullable=True),  # [what it would probably have come to, …], by objective
    C("submitted", Float, nullable=True),
    C("started", Float, nullable=True),
    C("ended", Float, nullable=True),
    UniqueConstraint("search_id", "number"),
    UniqueConstraint("search_id", "told"),
    Index(None, "search_id", "state"),
    Index(None, "search_id", "ended"),
)

#: One row a search: its `hpo_pilot.search.progress.SearchProgress`, which has the meaning of the columns.
progress = Table(
    "progress",
    metadata,
    C("search_id", ForeignKey("searches.id"), primary_key=True),
    C("version", Integer, nullable=False),  # of the computation; 0: the row is out of date
    *(
        C(name, Integer, nullable=False)
        for name in (
            *("pending", "running", "finished", "failed", "stopped", "stopped_early"),
            *("confirmations", "confirmations_over", "good", "with_std", "with_spread"),
            *("told", "generations", "failures_in_a_row", "ties", "confirmed_runs"),
        )
    ),
    *(C(name, Integer, nullable=True) for name in ("last_failure", "best", "best_told", "confirmed", "confirmed_told")),
    *(C(name, Float, nullable=False) for name in ("job_seconds", "metered_seconds", "joules")),
    *(
        C(name, Float, nullable=True)
        for name in ("first_value", "best_value", "best_std", "confirmed_value", "hypervolume")
    ),
    C("front", JSON, nullable=False),  # [trial, …]
    C("reference", JSON, nullable=False),  # [value, …]
    C("course", JSON, nullable=False),  # [[told, value], …]
)

#: Points requested by users: they become trials before the optimizer's points, in the order of their ids.
wishes = Table(
    "wishes",
    metadata,
    C("id", Integer, primary_key=True),
    C("search_id", ForeignKey("searches.id"), nullable=False),
    C("point", JSON, nullable=False),
    C("retries", Integer, nullable=True),  # the failed trial with this point
    C("who", String(60), nullable=False),
    C("key", String(64), nullable=True),  # key of the call: the same call again adds nothing
    C("created", Float, nullable=False),
    C("trial", Integer, nullable=True),  # its trial; null: it waits
    Index(None, "search_id", "trial"),
)

#: One row for each member of each attempt of each job.
jobs = Table(
    "jobs",
    metadata,
    C("id", Integer, primary_key=True),
    C("search_id", ForeignKey("searches.id"), nullable=False),
    C("task_id", ForeignKey("tasks.id"), nullable=False),
    C("trial", Integer, nullable=False),
    C("fold", Integer, nullable=False),
    C("attempt", Integer, nullable=False),
    C("state", String(20), nullable=False),  # jobs.JobState, of the member
    C("panda_id", BigInteger, nullable=True),
    C("value", Float, nullable=True),
    C("figures", JSON(none_as_null=True), nullable=True),  # of several objectives: one for each; value is the first
    C("metrics", JSON, nullable=True),
    C("metadata", JSON, nullable=True),  # the payload's own
    C("error", Text, nullable=True),
    C("log_tail", Text, nullable=True),
    C("output", Text, nullable=True),  # file[/folder in it] of the kept outputs; null: none, or discarded
    C("node", String(128), nullable=True),
    C("seconds", Float, nullable=True),
    C("joules", Float, nullable=True),  # its energy, if measured
    C("started", Float, nullable=True),
    C("ended", Float, nullable=True),
    UniqueConstraint("task_id", "trial", "fold", "attempt"),
    Index(None, "search_id", "trial"),
)

intermediate_values = Table(
    "intermediate_values",
    metadata,
    C("search_id", ForeignKey("searches.id"), primary_key=True),
    C("trial", Integer, primary_key=True),
    C("fold", Integer, primary_key=True),
    C("step", BigInteger, primary_key=True, autoincrement=False),
    C("value", Float, nullable=False),  # infinity: not a finite number
    C("look", Integer, nullable=True),  # number of the look at the server, for early stopping
)

#: Results of earlier searches (`warm_start`), read at the registration of the search.
earlier_results = Table(
    "earlier_results",
    metadata,
    C("search_id", ForeignKey("searches.id"), primary_key=True),
    C("number", Integer, primary_key=True, autoincrement=False),  # from 0, in the order of the search file
    C("source", Text, nullable=False),
    C(
        "results", JSON, nullable=False
    ),  # [[point, [value, …] or null, [standard error, …] or null], …]; lower is better
    C("notes", JSON, nullable=False),  # results that did not fit, for the user
)

#: Notes and tags of users.
notes = Table(
    "notes",
    metadata,
    C("search_id", ForeignKey("searches.id"), primary_key=True),
    C("trial", Integer, primary_key=True, autoincrement=False),  # 0: the search itself
    C("note", Text, nullable=False),
    C("tags", JSON, nullable=False),
    C("changed", Float, nullable=False),
)

events = Table(
    "events",
    metadata,
    C("id", Integer, primary_key=True),
    C("search_id", ForeignKey("searches.id"), nullable=True),
    C("time", Float, nullable=False),
    C("who", String(60), nullable=False),
    C("what", Text, nullable=False),
    Index(None, "search_id", "time"),
)

leases = Table(
    "leases",
    metadata,
    C("name", String(60), primary_key=True),
    C("holder", String(32), nullable=False),  # random, one per process
    C("mode", String(20), nullable=False),
    C("server", Text, nullable=True),  # the PanDA server of its tasks, as in searches; null: not known
    C("host", String(255), nullable=False),
    C("pid", Integer, nullable=False),
    C("pid_started", Float, nullable=False),
    C("expires", Float, nullable=False),
)
