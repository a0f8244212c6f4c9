"""What the outlook of a search is judged by: small questions, each answered without reading its trials."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Engine, and_, func, or_, select

from hpo_pilot.search import TrialState
from hpo_pilot.search.eta import Span
from hpo_pilot.store import tables as t
from hpo_pilot.store.engine import reading

#: Failures among which different reasons are looked for, and characters of a reason that are read.
_FIRST, _REASON = 200, 600


class Failure(NamedTuple):
    """A failed trial; `ended` in seconds since the epoch."""

    trial: int
    error: str
    ended: float | None


def last_spans(engine: Engine, search_id: int, limit: int) -> list[Span]:
    """From when to when the last trials were out that are over by themselves, in the order in which they ended."""
    trials = t.trials.c
    by_itself = or_(
        trials.state.in_([TrialState.FINISHED.value, TrialState.FAILED.value]),
        and_(trials.state == TrialState.STOPPED.value, trials.told.is_not(None)),
    )
    begun = func.coalesce(trials.started, trials.submitted, trials.ended)
    query = select(begun, trials.ended).where(trials.search_id == search_id, by_itself, trials.ended.is_not(None))
    with reading(engine) as connection:
        rows = connection.execute(query.order_by(trials.ended.desc(), trials.number.desc()).limit(limit)).all()
    return [Span(start, end) for start, end in reversed(rows)]


def running_since(engine: Engine, search_id: int) -> list[float]:
    """When the trials began that run, in seconds since the epoch."""
    trials = t.trials.c
    query = select(trials.started).where(
        trials.search_id == search_id, trials.state == TrialState.RUNNING.value, trials.started.is_not(None)
    )
    with reading(engine) as connection:
        return list(connection.execute(query).scalars())


def last_failure(engine: Engine, search_id: int) -> Failure | None:
    """The failed trial that ended last; None where none failed."""
    trials = t.trials.c
    query = (
        select(trials.number, trials.error, trials.ended)
        .where(trials.search_id == search_id, trials.state == TrialState.FAILED.value)
        .order_by(trials.ended.desc(), trials.number.desc())
        .limit(1)
    )
    with reading(engine) as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else Failure(row.number, row.error or "", row.ended)


def first_failures(engine: Engine, search_id: int, forgiven: int) -> list[Failure]:
    """The first failed trials of a search in the order of results, at most 200, with the beginning of their reasons.

    Args:
        engine: of the store.
        search_id: the search.
        forgiven: results up to this one are left out.
    """
    trials = t.trials.c
    query = (
        select(trials.number, func.substr(trials.error, 1, _REASON).label("error"), trials.ended)
        .where(trials.search_id == search_id, trials.state == TrialState.FAILED.value)
        .where(or_(trials.told.is_(None), trials.told > forgiven))
        .order_by(func.coalesce(trials.told, 2**31 - 1), trials.number)
        .limit(_FIRST)
    )
    with reading(engine) as connection:
        return [Failure(row.number, row.error or "", row.ended) for row in connection.execute(query)]


def course(engine: Engine, search_id: int, sign: int, points: int) -> list[float]:
    """The best value so far, as reported, after each of some results: the last one, and others evenly apart.

    Args:
        engine: of the store.
        search_id: a search with one objective.
        sign: +1 where smaller is better, -1 where larger is.
        points: at most so many.
    """
    trials = t.trials.c
    query = (
        select(trials.value)
        .where(trials.search_id == search_id, trials.told.is_not(None), trials.confirms.is_(None))
        .where(trials.state == TrialState.FINISHED.value, trials.value.is_not(None))
        .order_by(trials.told)
    )
    best: list[float] = []
    with reading(engine) as connection:
        for value in connection.execute(query).scalars():
            better = not best or sign * value < sign * best[-1]
            best.append(value if better else best[-1])
    count = min(points, len(best))
    return [best[-1 - (len(best) - 1) * (count - 1 - i) // max(1, count - 1)] for i in range(count)]
