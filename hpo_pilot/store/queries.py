"""Queries for status and pages that do not load all trials."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    not_,
    or_,
    select,
    values,
)

from hpo_pilot.databases import among
from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.search.estimate import Span
from hpo_pilot.search.trials import Spent, Trial, TrialState
from hpo_pilot.search.values import Point
from hpo_pilot.store import tables as t
from hpo_pilot.store.annotations import Annotation, annotation_record
from hpo_pilot.store.database import read_rows, read_values, reading
from hpo_pilot.store.records import SearchRecord, SearchState, TaskStage, columns_without, search_record, trial_records


def reported_a_number(engine: Engine, search_id: int) -> bool:
    """Returns True if any trial of a search reported a finite intermediate value."""
    values = t.intermediate_values.c
    query = select(values.trial).where(values.search_id == search_id, values.value <= sys.float_info.max).limit(1)
    return bool(read_rows(engine, query))


def last_reporting(engine: Engine, search_id: int) -> int:
    """Returns the number of the last trial with an intermediate value; 0: there is none."""
    values = t.intermediate_values.c
    (last,) = read_values(engine, select(func.max(values.trial)).where(values.search_id == search_id))
    return int(last or 0)


def spent(engine: Engine, search_id: int) -> Spent:
    """Returns the time and energy of all ended attempts of a search's jobs; reads all of them."""
    with reading(engine) as connection:
        return spent_in(connection, search_id)


def spent_in(connection: Connection, search_id: int) -> Spent:
    """Returns the time and energy as `spent`, within the caller's transaction."""
    jobs = t.jobs.c
    metered = case((jobs.joules.is_not(None), jobs.seconds))
    query = select(func.sum(jobs.seconds), func.sum(metered), func.sum(jobs.joules)).where(jobs.search_id == search_id)
    return Spent(*(float(value or 0.0) for value in connection.execute(query).one()))


def measured_runs(engine: Engine, search_id: int) -> tuple[int, float]:
    """Returns (number of finished folds of a search, sum of their run times in seconds)."""
    jobs = t.jobs.c
    query = select(func.count(), func.sum(jobs.seconds)).where(
        jobs.search_id == search_id, jobs.state == JobState.FINISHED.value, jobs.seconds > 0
    )
    ((count, seconds),) = read_rows(engine, query)
    return int(count), float(seconds or 0.0)


def fold_seconds(engine: Engine, search_id: int, numbers: Collection[int]) -> dict[int, float]:
    """Returns `Trial.fold_seconds` of the trials with these numbers, where it is known."""
    jobs, measured = t.jobs.c, defaultdict(list)
    query = select(jobs.trial, jobs.seconds).where(
        jobs.search_id == search_id, jobs.state == JobState.FINISHED.value, jobs.attempt == 1, jobs.seconds > 0
    )
    for trial, seconds in read_rows(engine, query.where(among(jobs.trial, numbers))):
        measured[trial].append(seconds)
    return {trial: statistics.fmean(values) for trial, values in measured.items()}


def waiting_tasks(engine: Engine, search_id: int) -> list[tuple[int, str]]:
    """Returns jediTaskID and reason of each waiting task, in the order of submission."""
    columns = t.tasks.c.jedi_task_id, t.tasks.c.waits
    query = select(*columns).where(t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED)
    rows = read_rows(engine, query.where(t.tasks.c.waits.is_not(None)).order_by(t.tasks.c.id))
    return [(int(number), str(why)) for number, why in rows]


def open_job(engine: Engine, search_id: int, trial: Trial) -> tuple[str, int]:
    """Returns name of the task and number of the job that now run the first fold of an open trial.

    Raises:
        TryAgainError: no task does; it is submitted again, or has just ended.
    """
    query = select(t.tasks.c.name, t.tasks.c.jobs).where(
        t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED
    )
    # Lost folds may be submitted again with a task of another generation.
    for name, jobs in read_rows(engine, query.order_by(t.tasks.c.generation != trial.generation, t.tasks.c.id.desc())):
        for number, members in enumerate(jobs, 1):
            if members[0][:2] == [trial.number, 0]:
                return str(name), number
    raise TryAgainError(f"trial {trial.number} is at no server now: call again")


def open_tasks(engine: Engine, search_id: int) -> list[int]:
    """Returns the jediTaskIDs of the open tasks."""
    number = t.tasks.c.jedi_task_id
    query = select(number).where(t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED)
    return read_values(engine, query.where(number.is_not(None)))


#: Most failures to compare, and characters of each reason.
_FIRST, _REASON = 200, 600


class Failure(NamedTuple):
    """A failed trial; `ended` in seconds since the epoch."""

    trial: int
    error: str
    ended: float | None


def _spans(*begun_and_ended: ColumnElement[Any]) -> Select[Any]:
    """Returns a query of the values of spans of trials."""
    levels = func.coalesce(t.own_levels, 1.0)
    return select(*begun_and_ended, levels.label("levels")).select_from(t.trials_and_before)


def levels_trained(engine: Engine, search_id: int) -> float:
    """Returns the sum of levels that the trials that are over have trained, without confirmation runs."""
    trials = t.trials.c
    spans = _spans().where(trials.search_id == search_id, trials.told.is_not(None), trials.confirms.is_(None))
    ((total,),) = read_rows(engine, select(func.sum(spans.subquery().c.levels)))
    return float(total or 0.0)


def last_spans(engine: Engine, search_id: int, limit: int) -> list[Span]:
    """Returns start and end of the last trials that ended by themselves, in the order of their ends."""
    trials = t.trials.c
    by_itself = or_(
        trials.state.in_([TrialState.FINISHED.value, TrialState.INFEASIBLE.value, TrialState.FAILED.value]),
        and_(trials.state == TrialState.STOPPED.value, trials.told.is_not(None)),
    )
    begun = func.coalesce(trials.started, trials.submitted, trials.ended)
    query = _spans(begun, trials.ended).where(trials.search_id == search_id, by_itself, trials.ended.is_not(None))
    rows = read_rows(engine, query.order_by(trials.ended.desc(), trials.number.desc()).limit(limit))
    return [Span(*row) for row in reversed(rows)]


def to_notify(engine: Engine, since: float) -> list[tuple[SearchRecord, dict[str, float]]]:
    """Returns the searches with `notify` that run or have ended after `since`, in seconds since the epoch.

    Returns:
        The searches, each with the time of the last log entry by text; only entries about notifications, and the last
        one by a user, with an empty text.
    """
    s, e = t.searches.c, t.events.c
    live = or_(s.state == SearchState.RUNNING.value, s.ended > since)
    found = read_rows(engine, select(t.searches).where(live, cast(s.definition, Text).contains('"notify"')))
    text = case((e.who != "service", ""), else_=e.what).label("entry")
    query = select(e.search_id, text, func.max(e.time)).where(
        among(e.search_id, [row.id for row in found]), or_(e.who != "service", e.what.startswith("notification of "))
    )
    entries: dict[int, dict[str, float]] = defaultdict(dict)
    for number, what, when in read_rows(engine, query.group_by(e.search_id, "entry")):
        entries[number][what] = when
    return [(search_record(row), entries[row.id]) for row in found]


def running_spans(engine: Engine, search_id: int, now: float) -> list[Span]:
    """Returns the spans of the running trials up to `now`, in seconds since the epoch."""
    trials = t.trials.c
    query = _spans(trials.started, trials.ended).where(
        trials.search_id == search_id, trials.state == TrialState.RUNNING.value, trials.started.is_not(None)
    )
    return [Span(start, max(start, now), *more) for start, _, *more in read_rows(engine, query)]


def failure_of(engine: Engine, search_id: int, number: int) -> Failure:
    """Returns a failed trial."""
    trials = t.trials.c
    query = select(trials.number, trials.error, trials.ended).where(trials.search_id == search_id)
    (row,) = read_rows(engine, query.where(trials.number == number))
    return Failure(row.number, row.error or "", row.ended)


def points_tried(engine: Engine, search_id: int, limit: int) -> list[Point]:
    """Returns the points of a search's trials that count against its budget, at most `limit`."""
    trials = t.trials.c
    query = select(trials.point).where(
        trials.search_id == search_id,
        trials.confirms.is_(None),
        trials.continues.is_(None),
        not_(t.ended_with_search(t.trials)),
    )
    return read_values(engine, query.order_by(trials.number).limit(limit))


def first_failures(engine: Engine, search_id: int, forgiven: int) -> list[Failure]:
    """Returns the first failed trials in the order of results, at most 200, with the beginning of their reasons.

    Args:
        engine: engine of the store.
        search_id: the search.
        forgiven: leaves out results up to this one.
    """
    trials = t.trials.c
    query = (
        select(trials.number, func.substr(trials.error, 1, _REASON).label("error"), trials.ended)
        .where(trials.search_id == search_id, trials.state == TrialState.FAILED.value)
        .where(or_(trials.told.is_(None), trials.told > forgiven))
        .order_by(func.coalesce(trials.told, 2**31 - 1), trials.number)
        .limit(_FIRST)
    )
    return [Failure(row.number, row.error or "", row.ended) for row in read_rows(engine, query)]


class SearchHead(NamedTuple):
    """The fields of a search by which lists are filtered.

    Attributes:
        id: its number.
        name: its name.
        state: its state.
        owner: its owner.
        family: the search file with segments that it belongs to.
        annotation: its note and tags.
    """

    id: int
    name: str
    state: SearchState
    owner: str
    family: str | None
    annotation: Annotation


_ACTIVE, _OVER = "active", "over"

#: States by which a list of searches can be filtered.
FILTER_STATES = (_ACTIVE, _OVER, *(state.value for state in SearchState))


class SearchFilter(NamedTuple):
    """A filter of a list of searches; empty: no condition.

    Attributes:
        text: a part of the name, the note or a tag, in any case.
        owner: the owner.
        state: one of `FILTER_STATES`.
        family: the search file with segments.
        tag: a tag, in any case.
    """

    text: str = ""
    owner: str = ""
    state: str = ""
    family: str = ""
    tag: str = ""

    def matches(self, head: SearchHead) -> bool:
        """Returns whether a search is wanted."""
        state = _OVER if head.state.is_over else _ACTIVE
        return (
            (self.text.casefold() in head.name.casefold() or head.annotation.contains(self.text))
            and (not self.tag or head.annotation.has_tag(self.tag))
            and self.owner in ("", head.owner)
            and self.state in ("", state, head.state.value)
            and self.family in ("", head.family)
        )


def search_heads(engine: Engine) -> list[SearchHead]:
    """Returns all searches, newest first."""
    s, a = t.searches.c, t.notes.c
    query = select(s.id, s.name, s.state, s.owner, s.family, t.notes).order_by(s.id.desc())
    query = query.outerjoin(t.notes, and_(a.search_id == s.id, a.trial == 0))
    return [
        SearchHead(row.id, row.name, SearchState(row.state), row.owner, row.family, annotation_record(row))
        for row in read_rows(engine, query)
    ]


def filter_values(heads: Sequence[SearchHead]) -> dict[str, list[str]]:
    """Returns the values in a list of searches for fields of `SearchFilter` from which users may choose."""
    tags = {tag for head in heads for tag in head.annotation.tags}
    return {"owner": sorted({head.owner for head in heads}), "tag": sorted(tags, key=str.casefold)}


def records_of(engine: Engine, numbers: Collection[int]) -> list[SearchRecord]:
    """Returns the searches with these numbers, in their order."""
    query = select(t.searches).where(among(t.searches.c.id, numbers)).order_by(t.searches.c.id)
    with reading(engine) as connection:
        return [search_record(row) for row in connection.execute(query)]


def trials_with_folds(
    engine: Engine,
    search_id: int,
    numbers: Collection[int] | None = None,
    without: Collection[str] = ("log_tail", "metadata"),
) -> list[Trial]:
    """Returns trials with their folds, by number; without logs and payload metadata, which may be large.

    Args:
        engine: engine of the store.
        search_id: the search.
        numbers: the numbers of the trials; None: all.
        without: fields of `Attempt` that are not read.
    """
    c, j = t.trials.c, t.jobs.c
    trials = t.trial_rows.where(c.search_id == search_id).order_by(c.number)
    jobs = select(*columns_without(without)).where(j.search_id == search_id).order_by(j.fold, j.task_id, j.attempt)
    if numbers is not None:
        trials, jobs = trials.where(among(c.number, numbers)), jobs.where(among(j.trial, numbers))
    with reading(engine) as connection:
        return trial_records(connection.execute(trials).all(), connection.execute(jobs))


def best_trials(engine: Engine, numbers: Mapping[int, int]) -> dict[int, Trial]:
    """Returns one trial of each of these searches with its folds, without logs; `numbers`: of the trials, by search."""
    if not numbers:
        return {}
    c, j = t.trials.c, t.jobs.c
    # A join: with "(search_id, number) IN (VALUES …)" SQLite reads all rows.
    best = values(c.search_id, c.number, literal_binds=True).data(list(numbers.items())).cte("best")
    trials = t.trial_rows.join(best, and_(c.search_id == best.c.search_id, c.number == best.c.number))
    jobs = select(*columns_without(("log_tail",))).join(
        best, and_(j.search_id == best.c.search_id, j.trial == best.c.number)
    )
    with reading(engine) as connection:
        rows = connection.execute(trials).all()
        found = trial_records(rows, connection.execute(jobs.order_by(j.fold, j.task_id, j.attempt)))
    return {row.search_id: trial for row, trial in zip(rows, found, strict=True)}


def failed_folds_logs(engine: Engine, search_id: int, trials: Collection[int]) -> dict[int, str]:
    """Returns the log tail of a failed fold for each of these trials that has one."""
    j = t.jobs.c
    found: dict[int, str] = {}
    with reading(engine) as connection:
        query = select(j.trial, j.log_tail).where(
            j.search_id == search_id, among(j.trial, trials), j.log_tail.is_not(None), j.error.is_not(None)
        )
        for trial, log in connection.execute(query.order_by(j.trial, j.fold, j.attempt)):
            found.setdefault(trial, log)
    return found


def values_reported(engine: Engine, search_id: int) -> int:
    """Returns the number of intermediate values of a search."""
    table = t.intermediate_values
    return int(read_values(engine, select(func.count()).select_from(table).where(table.c.search_id == search_id))[0])
