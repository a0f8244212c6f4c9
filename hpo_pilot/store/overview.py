"""What a page on many searches asks the store, again and again: little for each, and only of those that changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine, Row, case, func, null, select

from hpo_pilot.search import Trial, TrialState
from hpo_pilot.store import tables as t
from hpo_pilot.store.engine import reading
from hpo_pilot.store.records import JobOutcome, SearchRecord, SearchState
from hpo_pilot.store.rows import job_outcome, search_record, trial_record

#: SQLite takes 32,766 variables in a statement, other databases fewer.
_AT_ONCE = 500


class SearchHead(NamedTuple):
    """What tells whether a search is another than it was, without its definition.

    Attributes:
        id: its number.
        name: its name.
        state: its state.
        version: grows when its definition, payload or failures that count change.
        ended: when it ended, in seconds since the epoch: it changes where a search went on and ended again.
        message: why it is in its state.
    """

    id: int
    name: str
    state: SearchState
    version: int
    ended: float | None
    message: str
    server: str | None


class Pulse(NamedTuple):
    """Counts of a search's trials of which one at least is another when anything about its trials is."""

    trials: int
    running: int
    over: int
    told: int


def search_heads(engine: Engine) -> list[SearchHead]:
    """All searches, newest first."""
    s = t.searches.c
    query = select(s.id, s.name, s.state, s.version, s.ended, s.message, s.server).order_by(s.id.desc())
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    return [SearchHead(r.id, r.name, SearchState(r.state), r.version, r.ended, r.message, r.server) for r in rows]


def records_of(engine: Engine, numbers: Collection[int]) -> list[SearchRecord]:
    """The searches of these numbers."""
    found: list[SearchRecord] = []
    with reading(engine) as connection:
        for some in _in_groups(numbers):
            rows = connection.execute(select(t.searches).where(t.searches.c.id.in_(some)))
            found += [search_record(row) for row in rows]
    return found


def pulses(engine: Engine, numbers: Collection[int]) -> dict[int, Pulse]:
    """The pulse of each of these searches."""
    c = t.trials.c
    over = [state.value for state in TrialState if state.is_over]
    columns = (
        c.search_id,
        func.count().label("trials"),
        func.sum(case((c.state == TrialState.RUNNING.value, 1), else_=0)).label("running"),
        func.sum(case((c.state.in_(over), 1), else_=0)).label("over"),
        func.max(c.told).label("told"),
    )
    found = dict.fromkeys(numbers, Pulse(0, 0, 0, 0))
    with reading(engine) as connection:
        for some in _in_groups(numbers):
            query = select(*columns).where(c.search_id.in_(some)).group_by(c.search_id)
            for row in connection.execute(query):
                found[row.search_id] = Pulse(row.trials, int(row.running), int(row.over), row.told or 0)
    return found


def trials_changed(engine: Engine, search_id: int, after: int, open_trials: Collection[int]) -> list[Trial]:
    """Trials without their folds: those with numbers above `after`, and those that were open. The others stay as are.

    Args:
        engine: of the store.
        search_id: the search.
        after: the largest number that is known; 0: none is.
        open_trials: the numbers of known trials that were not over.
    """
    c = t.trials.c
    of_search = select(t.trials).where(c.search_id == search_id)
    with reading(engine) as connection:
        rows: list[Row[Any]] = list(connection.execute(of_search.where(c.number > after)))
        for some in _in_groups(open_trials):
            rows += connection.execute(of_search.where(c.number.in_(some)))
    return [trial_record(row, {}) for row in rows]


def trials_with_folds(engine: Engine, search_id: int, numbers: Collection[int] | None = None) -> list[Trial]:
    """Trials with their folds, by number; without logs and the payload's own metadata, which may be large.

    Args:
        engine: of the store.
        search_id: the search.
        numbers: of the trials; None: all.
    """
    c, j = t.trials.c, t.jobs.c
    left_out = {"log_tail", "metadata"}
    light = [null().label(column.name) if column.name in left_out else column for column in t.jobs.columns]
    of_search = select(t.trials).where(c.search_id == search_id)
    of_jobs = select(*light).where(j.search_id == search_id).order_by(j.fold, j.task_id, j.attempt)
    groups: Sequence[list[int] | None] = [None] if numbers is None else _in_groups(numbers)
    rows: list[Row[Any]] = []
    attempts: dict[int, dict[int, list[Row[Any]]]] = defaultdict(lambda: defaultdict(list))
    with reading(engine) as connection:
        for some in groups:
            trials, jobs = (of_search, of_jobs)
            if some is not None:
                trials, jobs = of_search.where(c.number.in_(some)), of_jobs.where(j.trial.in_(some))
            rows += connection.execute(trials)
            for job in connection.execute(jobs):
                attempts[job.trial][job.fold].append(job)
    return [trial_record(row, attempts.get(row.number, {})) for row in sorted(rows, key=lambda row: row.number)]


def attempts_of(engine: Engine, search_id: int, trial: int) -> list[tuple[int, JobOutcome]]:
    """All attempts of a trial's folds, by fold, oldest first, each with its number within the fold, from 1."""
    j = t.jobs.c
    query = select(t.jobs).where(j.search_id == search_id, j.trial == trial).order_by(j.fold, j.task_id, j.attempt)
    with reading(engine) as connection:
        outcomes = [job_outcome(row) for row in connection.execute(query)]
    counted: Counter[int] = Counter()
    found = []
    for outcome in outcomes:
        counted[outcome.fold] += 1
        found.append((counted[outcome.fold], outcome))
    return found


def failed_folds_logs(engine: Engine, search_id: int, trials: Collection[int]) -> dict[int, str]:
    """The end of a log of each of these trials that has one."""
    j = t.jobs.c
    found: dict[int, str] = {}
    with reading(engine) as connection:
        for some in _in_groups(trials):
            query = select(j.trial, j.log_tail).where(
                j.search_id == search_id, j.trial.in_(some), j.log_tail.is_not(None)
            )
            for trial, log in connection.execute(query.order_by(j.trial, j.fold, j.attempt)):
                found.setdefault(trial, log)
    return found


def trials_with_errors(engine: Engine, search_id: int) -> list[int]:
    """The numbers of the trials of which a fold, in any attempt, or the whole has an error."""
    c, j = t.trials.c, t.jobs.c
    failed = select(c.number).where(c.search_id == search_id, c.state == TrialState.FAILED.value)
    with_error = select(j.trial).where(j.search_id == search_id, j.error.is_not(None))
    with reading(engine) as connection:
        return sorted({int(number) for number in connection.execute(failed.union(with_error)).scalars()})


def values_reported(engine: Engine, search_id: int) -> int:
    """How many intermediate values a search's trials have reported."""
    table = t.intermediate_values
    query = select(func.count()).select_from(table).where(table.c.search_id == search_id)
    with reading(engine) as connection:
        return int(connection.execute(query).scalar_one())


def job_ids(engine: Engine, search_id: int, limit: int) -> list[int]:
    """PanDA's ids of a search's newest jobs, newest first."""
    j = t.jobs.c
    query = select(j.panda_id).where(j.search_id == search_id, j.panda_id.is_not(None)).distinct()
    with reading(engine) as connection:
        return [int(row) for row in connection.execute(query.order_by(j.panda_id.desc()).limit(limit)).scalars()]


def _in_groups(numbers: Collection[int]) -> list[list[int]]:
    """The numbers in order, so many at once as a statement takes."""
    ordered = sorted(numbers)
    return [ordered[start : start + _AT_ONCE] for start in range(0, len(ordered), _AT_ONCE)]
