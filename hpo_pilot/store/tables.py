"""The tables of the store. Times are seconds since the epoch (UTC), as floats; documents are JSON.

A change here needs a migration in `databases/store/`; a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import Column as C

from hpo_pilot.search.trials import TrialState

if TYPE_CHECKING:
    from hpo_pilot.search.fidelity import Levels

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

searches = sa.Table(
    "searches",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("name", sa.String(60), nullable=False, unique=True),
    C("uid", sa.String(8), nullable=False),  # random; part of each task name, which makes it unique
    C("owner", sa.String(60), nullable=False),
    C("server", sa.Text, nullable=True),  # URL of the PanDA server of its tasks, or "embedded"; null: none yet
    C("family", sa.String(60), nullable=True),  # the search file with segments that it belongs to; null: none
    C("state", sa.String(20), nullable=False),
    C("message", sa.Text, nullable=False, default=""),
    C("definition", sa.JSON, nullable=False),  # Search.to_dict(), with a budget extended by commands
    C("filed", sa.JSON, nullable=False),  # Search.to_dict() as the search file last had it
    C("version", sa.Integer, nullable=False, default=1),  # grows when definition, payload or `forgiven` change
    C("source", sa.Text, nullable=False),  # path of the search file, for messages and the report
    C("forgiven", sa.Integer, nullable=False, default=0),  # failures up to this result no longer count in a row
    C("sandbox", sa.Text, nullable=True),  # the payload's archive, in the work folder
    C("created", sa.Float, nullable=False),
    C("started", sa.Float, nullable=True),
    C("clock", sa.Float, nullable=True),  # start of budget.hours: the start plus the time while it was ended
    C("ended", sa.Float, nullable=True),
    C("holder", sa.String(32), nullable=True),  # the process in `leases` that steers it, the last one if it is over
    C("held_since", sa.Float, nullable=True),
)

generations = sa.Table(
    "generations",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("search_id", sa.ForeignKey("searches.id"), nullable=False),
    C("number", sa.Integer, nullable=False),
    C("history", sa.Integer, nullable=False),  # number of results told to the optimizer
    C("pending", sa.JSON, nullable=False),  # numbers of the open trials
    C("asked", sa.Integer, nullable=True),  # number of points asked of the optimizer; null: not asked
    C("budget", sa.Integer, nullable=True),  # budget.trials at that time
    C("created", sa.Float, nullable=False),
    sa.UniqueConstraint("search_id", "number"),
)

tasks = sa.Table(
    "tasks",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("search_id", sa.ForeignKey("searches.id"), nullable=False),
    C("generation", sa.Integer, nullable=False),
    C("revision", sa.Integer, nullable=False),  # 0: first submission; k: lost folds submitted again as .r<k>
    C("name", sa.String(132), nullable=False, unique=True),
    C("state", sa.String(20), nullable=False),  # TaskStage
    C("jedi_task_id", sa.BigInteger, nullable=True),
    C("jobs", sa.JSON, nullable=False),  # [[[trial, fold, seed], …], …]: job number n runs those of entry n - 1
    C("created", sa.Float, nullable=False),
    C("submitted", sa.Float, nullable=True),
    C("ended", sa.Float, nullable=True),
    C("waits", sa.Text, nullable=True),  # the server's reason; null: it does not wait, or the reason is unknown
    sa.Index(None, "search_id", "state"),
)

_GOES_ON = sa.text("continues IS NOT NULL")

trials = sa.Table(
    "trials",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("search_id", sa.ForeignKey("searches.id"), nullable=False),
    C("number", sa.Integer, nullable=False),
    C("generation", sa.Integer, nullable=False),
    C("point", sa.JSON, nullable=False),
    C("state", sa.String(20), nullable=False),
    C("seed", sa.Integer, nullable=False),
    C("confirms", sa.Integer, nullable=True),
    C("retries", sa.Integer, nullable=True),  # the failed trial with this point, for a user's request
    C("told", sa.Integer, nullable=True),
    C("value", sa.Float, nullable=True),
    C("std", sa.Float, nullable=True),
    C("figures", sa.JSON(none_as_null=True), nullable=True),  # of several objectives: one for each; value is the first
    C("spreads", sa.JSON(none_as_null=True), nullable=True),  # of several objectives: as std, one for each
    C("error", sa.Text, nullable=True),
    # For a trial that was told to stop early, even if it finished: the look at its values that decided, and the reason;
    C("stop_look", sa.Integer, nullable=True),
    C("stop_reason", sa.Text, nullable=True),
    # where it was judged or, once it has stopped, what it came to;
    C("stop_step", sa.BigInteger, nullable=True),
    C("stop_value", sa.Float, nullable=True),
    C("projected", sa.JSON(none_as_null=True), nullable=True),  # [what it would probably have come to, …], by objective
    C("submitted", sa.Float, nullable=True),
    C("started", sa.Float, nullable=True),
    C("ended", sa.Float, nullable=True),
    C("level", sa.Float, nullable=True),  # the level that it is trained to; null: the search has no levels
    C("continues", sa.Integer, nullable=True),  # the trial of the level below that it goes on from
    C("from_start", sa.Boolean, nullable=False, server_default=sa.false()),  # but without its checkpoint
    sa.UniqueConstraint("search_id", "number"),
    sa.UniqueConstraint("search_id", "told"),
    sa.Index(None, "search_id", "state"),
    sa.Index(None, "search_id", "ended"),
    sa.Index(None, "search_id", "continues", sqlite_where=_GOES_ON, postgresql_where=_GOES_ON),
)


def ended_with_search(of: sa.FromClause) -> sa.ColumnElement[bool]:
    """Returns whether trials, those of an alias of `trials` too, were stopped together with their search."""
    return sa.and_(of.c.state == TrialState.STOPPED.value, of.c.told.is_(None))


_before = trials.alias()
#: Trials, each with the trial that it goes on from, if there is one.
trials_and_before = trials.outerjoin(
    _before, sa.and_(_before.c.search_id == trials.c.search_id, _before.c.number == trials.c.continues)
)
#: The levels that a trial of `trials_and_before` is expected to train itself, as 18 from 9 to 27 epochs,
expected_levels = trials.c.level - sa.func.coalesce(_before.c.level, 0.0)
#: and those that it trains, as 27 without the checkpoint of 9.
own_levels = sa.case((trials.c.from_start, trials.c.level), else_=expected_levels)

_later = trials.alias()
#: Number of the last trial that goes on from a trial and was not stopped together with the search; null: there is none.
_promoted = (
    sa.select(sa.func.max(_later.c.number + 0))  # of the number itself SQLite reads the whole search in its order
    .where(
        _later.c.search_id == trials.c.search_id,
        _later.c.continues == trials.c.number,
        sa.not_(ended_with_search(_later)),
    )
    .scalar_subquery()
)

#: The rows of `trials` that `hpo_pilot.store.records.trial_record` reads.
trial_rows = sa.select(trials, sa.case((trials.c.level.is_not(None), _promoted)).label("promoted"))


def shown_state(levels: Levels | None) -> sa.ColumnElement[str]:
    """Returns the state of trials as users see it, as `Trial.shown_state`."""
    c = trials.c
    if levels is None:
        return c.state
    below = sa.and_(c.state == TrialState.FINISHED.value, c.confirms.is_(None), c.level < levels.high)
    return sa.case((sa.and_(below, _promoted.is_(None)), "paused"), else_=c.state)


#: One row a search: its `hpo_pilot.search.progress.SearchProgress`, which has the meaning of the columns.
progress = sa.Table(
    "progress",
    metadata,
    C("search_id", sa.ForeignKey("searches.id"), primary_key=True),
    C("version", sa.Integer, nullable=False),  # of the computation; 0: the row is out of date
    *(
        C(name, sa.Integer, nullable=False)
        for name in (
            *("pending", "running", "finished", "failed", "stopped", "stopped_early"),
            *("confirmations", "confirmations_over", "good", "with_std", "with_spread"),
            *("told", "generations", "failures_in_a_row", "ties", "confirmed_runs", "continuations"),
        )
    ),
    C("infeasible", sa.Integer, nullable=False, server_default="0"),
    *(
        C(name, sa.Integer, nullable=True)
        for name in ("last_failure", "best", "best_told", "confirmed", "confirmed_told")
    ),
    *(C(name, sa.Float, nullable=False) for name in ("job_seconds", "metered_seconds", "joules")),
    *(
        C(name, sa.Float, nullable=True)
        for name in ("first_value", "best_value", "best_std", "confirmed_value", "hypervolume")
    ),
    C("front", sa.JSON, nullable=False),  # [trial, …]
    C("reference", sa.JSON, nullable=False),  # [value, …]
    C("course", sa.JSON, nullable=False),  # [[told, value], …]
)

#: Points requested by users: they become trials before the optimizer's points, in the order of their ids.
wishes = sa.Table(
    "wishes",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("search_id", sa.ForeignKey("searches.id"), nullable=False),
    C("point", sa.JSON, nullable=False),
    C("retries", sa.Integer, nullable=True),  # the failed trial with this point
    C("who", sa.String(60), nullable=False),
    C("key", sa.String(64), nullable=True),  # key of the call: the same call again adds nothing
    C("created", sa.Float, nullable=False),
    C("trial", sa.Integer, nullable=True),  # its trial; null: it waits
    sa.Index(None, "search_id", "trial"),
)

#: One row for each member of each attempt of each job.
jobs = sa.Table(
    "jobs",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("search_id", sa.ForeignKey("searches.id"), nullable=False),
    C("task_id", sa.ForeignKey("tasks.id"), nullable=False),
    C("trial", sa.Integer, nullable=False),
    C("fold", sa.Integer, nullable=False),
    C("attempt", sa.Integer, nullable=False),
    C("state", sa.String(20), nullable=False),  # jobs.JobState, of the member
    C("panda_id", sa.BigInteger, nullable=True),
    C("value", sa.Float, nullable=True),
    C("figures", sa.JSON(none_as_null=True), nullable=True),  # of several objectives: one for each; value is the first
    C("metrics", sa.JSON, nullable=True),
    C("metadata", sa.JSON, nullable=True),  # the payload's own
    C("error", sa.Text, nullable=True),
    C("log_tail", sa.Text, nullable=True),
    C("output", sa.Text, nullable=True),  # file[/folder in it] of the kept outputs; null: none, or discarded
    C("node", sa.String(128), nullable=True),
    C("seconds", sa.Float, nullable=True),
    C("joules", sa.Float, nullable=True),  # its energy, if measured
    C("started", sa.Float, nullable=True),
    C("ended", sa.Float, nullable=True),
    sa.UniqueConstraint("task_id", "trial", "fold", "attempt"),
    sa.Index(None, "search_id", "trial"),
)

_good_folds = (
    sa.select(sa.func.count(jobs.c.fold.distinct()))
    .where(jobs.c.search_id == trials.c.search_id, jobs.c.trial == trials.c.number, jobs.c.value.is_not(None))
    .scalar_subquery()
)

#: The number of good folds of trials with a standard deviation.
good_folds = sa.case((trials.c.std.is_not(None), _good_folds)).label("good")

#: As `trial_rows`, with the numbers of good folds instead of promotions.
counted_rows = sa.select(trials, sa.null().label("promoted"), good_folds)

#: As `trial_rows`, without points and promotions.
pointless_rows = sa.select(
    *(sa.null().label("point") if c is trials.c.point else c for c in trials.c),
    sa.null().label("promoted"),
)

intermediate_values = sa.Table(
    "intermediate_values",
    metadata,
    C("search_id", sa.ForeignKey("searches.id"), primary_key=True),
    C("trial", sa.Integer, primary_key=True),
    C("fold", sa.Integer, primary_key=True),
    C("step", sa.BigInteger, primary_key=True, autoincrement=False),
    C("value", sa.Float, nullable=False),  # infinity: not a finite number
    C("look", sa.Integer, nullable=True),  # number of the look at the server, for early stopping
)

#: Results of earlier searches (`warm_start`), read at the registration of the search.
earlier_results = sa.Table(
    "earlier_results",
    metadata,
    C("search_id", sa.ForeignKey("searches.id"), primary_key=True),
    C("number", sa.Integer, primary_key=True, autoincrement=False),  # from 0, in the order of the search file
    C("source", sa.Text, nullable=False),
    C(
        "results", sa.JSON, nullable=False
    ),  # [[point, [value, …] or null, [standard error, …] or null], …]; lower is better
    C("notes", sa.JSON, nullable=False),  # results that did not fit, for the user
)

#: Notes and tags of users.
notes = sa.Table(
    "notes",
    metadata,
    C("search_id", sa.ForeignKey("searches.id"), primary_key=True),
    C("trial", sa.Integer, primary_key=True, autoincrement=False),  # 0: the search itself
    C("note", sa.Text, nullable=False),
    C("tags", sa.JSON, nullable=False),
    C("changed", sa.Float, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("search_id", sa.ForeignKey("searches.id"), nullable=True),
    C("time", sa.Float, nullable=False),
    C("who", sa.String(60), nullable=False),
    C("what", sa.Text, nullable=False),
    sa.Index(None, "search_id", "time"),
)

#: One row for each process that steers searches.
leases = sa.Table(
    "leases",
    metadata,
    C("id", sa.Integer, primary_key=True),
    C("holder", sa.String(32), nullable=False, unique=True),  # random
    C("mode", sa.String(20), nullable=False),
    C("server", sa.Text, nullable=True),  # the PanDA server of its tasks, as in searches; null: not known
    C("host", sa.String(255), nullable=False),
    C("pid", sa.Integer, nullable=False),
    C("pid_started", sa.Float, nullable=False),
    C("expires", sa.Float, nullable=False),
    C("inode", sa.BigInteger, nullable=True),  # of the database file, in which a copy differs; null: PostgreSQL
)
