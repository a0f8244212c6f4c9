"""Small questions about a search that are asked often, each answered by the database without reading its trials."""

from __future__ import annotations

import sys
from pathlib import Path

from sqlalchemy import Engine, and_, case, func, or_, select, text

from hpo_pilot.jobs import JobState
from hpo_pilot.search import Search, TrialState
from hpo_pilot.search.cost import Spent
from hpo_pilot.search.extent import Extent, extent
from hpo_pilot.store import tables as t
from hpo_pilot.store.engine import reading
from hpo_pilot.store.records import TaskStage


def extent_in(engine: Engine, search_id: int, search: Search, *, is_over: bool) -> Extent:
    """The counters of a search, as `hpo_pilot.search.extent.extent_of` has them, without reading its trials.

    Args:
        engine: of the store.
        search_id: the search's number.
        search: the search.
        is_over: whether it has ended.
    """
    trials = t.trials.c
    ended = (TrialState.FINISHED.value, TrialState.FAILED.value)
    stopped_early = and_(trials.state == TrialState.STOPPED.value, trials.told.is_not(None))
    query = (
        select(
            func.count(),
            func.sum(case((trials.state == TrialState.FAILED.value, 1), else_=0)),
            func.sum(case((trials.confirms.is_not(None), 1), else_=0)),
        )
        .select_from(t.trials)
        .where(trials.search_id == search_id, or_(trials.state.in_(ended), stopped_early))
    )
    with reading(engine) as connection:
        over, failed, confirmations = (int(number or 0) for number in connection.execute(query).one())
    return extent(search, is_over=is_over, over=over, failed=failed, confirmations=confirmations)


def reported_a_number(engine: Engine, search_id: int) -> bool:
    """Whether any trial of a search reported a number while it ran."""
    values = t.intermediate_values.c
    query = select(values.trial).where(values.search_id == search_id, values.value <= sys.float_info.max).limit(1)
    with reading(engine) as connection:
        return connection.execute(query).first() is not None


def last_reporting(engine: Engine, search_id: int) -> int:
    """The number of the last trial of a search that reported a value while it ran; 0 where none has."""
    values = t.intermediate_values.c
    with reading(engine) as connection:
        last = connection.execute(select(func.max(values.trial)).where(values.search_id == search_id)).scalar()
    return int(last or 0)


def generations_made(engine: Engine) -> dict[int, int]:
    """How many generations each search has."""
    generations = t.generations.c
    query = select(generations.search_id, func.max(generations.number)).group_by(generations.search_id)
    with reading(engine) as connection:
        return {int(search_id): int(number) for search_id, number in connection.execute(query)}


def size_of(engine: Engine) -> int:
    """Bytes of the store, its journal included."""
    if engine.dialect.name != "sqlite":
        with reading(engine) as connection:
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar() or 0)
    path = Path(engine.url.database or "")
    return sum(part.stat().st_size for part in (path, path.with_name(f"{path.name}-wal")) if part.exists())


def spent(engine: Engine, search_id: int) -> Spent:
    """What all attempts of a search's jobs took that are over."""
    jobs = t.jobs.c
    metered = case((jobs.joules.is_not(None), jobs.seconds))
    query = select(func.sum(jobs.seconds), func.sum(metered), func.sum(jobs.joules)).where(jobs.search_id == search_id)
    with reading(engine) as connection:
        return Spent(*(float(value or 0.0) for value in connection.execute(query).one()))


def measured_runs(engine: Engine, search_id: int) -> tuple[int, float]:
    """(how many folds of a search came to their end, seconds that they ran together)."""
    jobs = t.jobs.c
    query = select(func.count(), func.sum(jobs.seconds)).where(
        jobs.search_id == search_id, jobs.state == JobState.FINISHED.value, jobs.seconds > 0
    )
    with reading(engine) as connection:
        count, seconds = connection.execute(query).one()
    return int(count), float(seconds or 0.0)


def first_figure(engine: Engine, search_id: int) -> float | None:
    """The first figure of merit of a search in the order of results; None where there is none."""
    trials = t.trials.c
    query = (
        select(trials.value)
        .where(trials.search_id == search_id, trials.told.is_not(None), trials.state == TrialState.FINISHED.value)
        .order_by(trials.told)
        .limit(1)
    )
    with reading(engine) as connection:
        value: float | None = connection.execute(query).scalar()
    return value


def waiting_tasks(engine: Engine, search_id: int) -> list[tuple[int, str]]:
    """JEDI's number of each task that the server keeps waiting, and why, in the order of submission."""
    columns = t.tasks.c.jedi_task_id, t.tasks.c.waits
    query = select(*columns).where(t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED)
    with reading(engine) as connection:
        rows = connection.execute(query.where(t.tasks.c.waits.is_not(None)).order_by(t.tasks.c.id))
        return [(int(number), str(why)) for number, why in rows]


def open_tasks(engine: Engine, search_id: int) -> list[int]:
    """JEDI's numbers of the tasks from which something is still expected."""
    number = t.tasks.c.jedi_task_id
    query = select(number).where(t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED)
    with reading(engine) as connection:
        return [int(found) for found in connection.scalars(query.where(number.is_not(None)))]
