"""Queries for pages and figures of trials: a table's page, a trial's neighbours and rank, samples, failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import JSON, ColumnElement, Engine, Float, and_, case, cast, func, not_, null, or_, select, type_coerce

from hpo_pilot.databases import among
from hpo_pilot.jobs import JobState
from hpo_pilot.search.ranking import FIRST_RESULTS, TimedResult, figure_of_merit, figures_of_merit, ranking
from hpo_pilot.search.trials import Trial, TrialState
from hpo_pilot.store import tables as t
from hpo_pilot.store.annotations import trial_annotations
from hpo_pilot.store.database import IN_PARTS, read_rows, read_values, reading
from hpo_pilot.store.queries import trials_with_folds
from hpo_pilot.store.records import trial_record

if TYPE_CHECKING:
    from hpo_pilot.search.fidelity import Levels
    from hpo_pilot.search.progress import SearchProgress
    from hpo_pilot.search.search import Search

_c, _j = t.trials.c, t.jobs.c


class TrialFilter(NamedTuple):
    """A filter of a table of trials; empty: no condition.

    Attributes:
        state: the state, as users see it; empty: any.
        text: a part of the note, a tag or the error, in any case (in SQLite, that of ASCII letters in errors).
        where: a condition of `hpo_pilot.store.trial_expressions`; None: none.
        levels: levels of the search.
    """

    state: str = ""
    text: str = ""
    where: ColumnElement[bool] | None = None
    levels: Levels | None = None


@dataclass(frozen=True)
class TrialOrder:
    """Sort order of a table of trials.

    Trials without a finite value come last in both orders. In ascending order numbers come before texts. Equal trials
    are in the order of their numbers.

    Attributes:
        key: the column: number, state, value, value2, …, seconds, generation, or `p.` and a parameter's name.
        descending: largest first.
    """

    key: str = "number"
    descending: bool = True


def count_trials(engine: Engine, search_id: int, wanted: TrialFilter) -> int:
    """Returns the number of trials that a filter selects."""
    query = select(func.count()).select_from(t.trials).where(_condition(engine, search_id, wanted))
    return int(read_values(engine, query)[0])


def page_of_trials(
    engine: Engine, search_id: int, wanted: TrialFilter, order: TrialOrder, start: int, limit: int
) -> list[Trial]:
    """Returns `limit` of the sorted trials that a filter selects, without folds, after the first `start` ones."""
    query = select(_c.number).where(_condition(engine, search_id, wanted))
    query = query.order_by(*_sort_columns(engine, order, wanted.levels)).offset(start).limit(limit)
    numbers = read_values(engine, query)
    found = {trial.number: trial for trial in trials_numbered(engine, search_id, numbers)}
    return [found[number] for number in numbers]


def trials_numbered(engine: Engine, search_id: int, numbers: Collection[int]) -> list[Trial]:
    """Returns the trials with these numbers, without folds, by number."""
    query = t.trial_rows.where(_c.search_id == search_id, among(_c.number, numbers)).order_by(_c.number)
    return [trial_record(row, {}) for row in read_rows(engine, query)]


def trials_told(engine: Engine, search_id: int, places: Collection[int]) -> list[Trial]:
    """Returns the trials at these places in the order of results, without folds, by place."""
    query = t.trial_rows.where(_c.search_id == search_id, among(_c.told, places)).order_by(_c.told)
    return [trial_record(row, {}) for row in read_rows(engine, query)]


def confirmation_runs(engine: Engine, search_id: int, confirmed: Collection[int] | None = None) -> list[Trial]:
    """Returns confirmation runs, without folds; `confirmed`: of these trials; None: all of the search."""
    query = t.trial_rows.where(_c.search_id == search_id, _c.confirms.is_not(None))
    if confirmed is not None:
        query = query.where(among(_c.confirms, confirmed))
    return [trial_record(row, {}) for row in read_rows(engine, query)]


def _is_finite(value: ColumnElement[Any]) -> ColumnElement[bool]:
    return value.between(-sys.float_info.max, sys.float_info.max)


def finite(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Returns a number, or null where it is not finite."""
    return case((_is_finite(value), value))


def _condition(engine: Engine, search_id: int, wanted: TrialFilter) -> ColumnElement[bool]:
    condition = _c.search_id == search_id
    if wanted.state:
        condition &= t.shown_state(wanted.levels) == wanted.state
    if wanted.text:
        annotations = trial_annotations(engine, search_id)
        written = [number for number, each in annotations.items() if each.contains(wanted.text)]
        condition &= or_(_c.error.icontains(wanted.text, autoescape=True), among(_c.number, written))
    if wanted.where is not None:
        condition &= wanted.where
    return condition


def _sort_columns(engine: Engine, order: TrialOrder, levels: Levels | None = None) -> list[ColumnElement[Any]]:
    key, columns = order.key, []
    if key == "number":
        return [_c.number.desc() if order.descending else _c.number]
    if key.startswith("p."):
        columns = _json_columns(engine, _c.point, key[2:])
    elif key.startswith("value") and key != "value":
        columns = _json_columns(engine, _c.figures, int(key[5:]) - 1)
    elif key in ("value", "seconds"):
        number = _c.value if key == "value" else _c.ended - _c.started
        columns = [finite(number)]
    elif key == "state":
        columns = [t.shown_state(levels)]
    elif key == "generation":
        columns = [_c.generation]
    missing = and_(*(column.is_(None) for column in columns))
    sorted_ = [column.desc() if order.descending else column for column in columns]
    return [case((missing, 1), else_=0), *sorted_, _c.number]


def _json_columns(engine: Engine, column: ColumnElement[Any], at: str | int) -> list[ColumnElement[Any]]:
    """Returns the columns by which to sort by one value of a JSON column; null where it has none."""
    if engine.dialect.name == "sqlite":  # it sorts numbers before texts
        value = _extracted(column, at)
        return [case((or_(func.typeof(value) == "text", _is_finite(value)), value))]
    kind = func.json_typeof(column[at])
    is_text = case((kind == "string", 1), (kind.in_(["number", "boolean"]), 0))
    number, words = json_value(engine, column, at)
    return [is_text, number, words.collate("C")]


def _extracted(column: ColumnElement[Any], at: str | int) -> ColumnElement[Any]:
    if '"' in str(at):
        return null()  # SQLite's paths cannot have this character
    path = f"$[{at}]" if isinstance(at, int) else f"$.{json.dumps(at)}"  # escaped as in the stored JSON
    return func.json_extract(column, path)


def json_parts(engine: Engine, column: ColumnElement[Any], names: Collection[str]) -> ColumnElement[Any]:
    """Returns an object with these values of a JSON column; null where it has none."""
    sqlite = engine.dialect.name == "sqlite"
    pairs = [part for name in names for part in (name, _extracted(column, name) if sqlite else column[name])]
    return type_coerce(func.json_object(*pairs) if sqlite else func.json_build_object(*pairs), JSON)


def json_value(
    engine: Engine, column: ColumnElement[Any], at: str | int
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Returns a value of a JSON column as a number and as a text; null where it is none."""
    if engine.dialect.name == "sqlite":
        value = _extracted(column, at)
        is_text = func.typeof(value) == "text"
        return case((and_(not_(is_text), _is_finite(value)), value)), case((is_text, value))
    element = column[at]
    kind, text = func.json_typeof(element), element.as_string()
    number = case((kind == "number", cast(text, Float)), (kind == "boolean", case((text == "true", 1.0), else_=0.0)))
    return number, case((kind == "string", text))


def neighbours(engine: Engine, search_id: int, number: int) -> tuple[int | None, int | None]:
    """Returns the numbers of the trials before and after this one; None: there is none."""
    of_search = _c.search_id == search_id
    before = select(func.max(_c.number)).where(of_search, _c.number < number).scalar_subquery()
    after = select(func.min(_c.number)).where(of_search, _c.number > number).scalar_subquery()
    return tuple(read_rows(engine, select(before, after))[0])


class LevelCount(NamedTuple):
    """The trials of one level, without confirmation runs and trials that were stopped together with their search.

    Attributes:
        level: the level.
        trials: number of trials.
        finished: trials that finished.
        paused: trials that finished below the highest level and were not promoted.
        trained: sum of the levels that their own jobs train, as 18 for a trial from 9 to 27 epochs; 27, if it trained
            from the start.
        job_seconds: run time of their jobs, in seconds.
    """

    level: float
    trials: int
    finished: int
    paused: int
    trained: float
    job_seconds: float


def level_counts(engine: Engine, search_id: int, levels: Levels) -> list[LevelCount]:
    """Returns the counts of each level that has trials, in ascending order."""
    counted = and_(
        _c.search_id == search_id, _c.confirms.is_(None), not_(t.ended_with_search(t.trials)), _c.level.is_not(None)
    )
    finished = func.sum(case((_c.state == TrialState.FINISHED.value, 1), else_=0))
    paused = func.sum(case((t.shown_state(levels) == "paused", 1), else_=0))
    columns = (_c.level, func.count(), finished, paused, func.sum(t.own_levels))
    trials = select(*columns).select_from(t.trials_and_before).where(counted).group_by(_c.level)
    seconds = select(_c.level, func.sum(_j.seconds)).where(counted, _j.search_id == search_id, _j.trial == _c.number)
    ran = dict(map(tuple, read_rows(engine, seconds.group_by(_c.level))))
    rows = sorted(map(tuple, read_rows(engine, trials)))
    return [LevelCount._make((*row, ran.get(row[0]) or 0.0)) for row in rows]


def rank_of(engine: Engine, search_id: int, search: Search, progress: SearchProgress, trial: Trial) -> tuple[int, int]:
    """Returns a trial's rank as `ranking` has it, from 1, and the number of ranked trials; rank 0: it has none.

    With several objectives every rank is 0, and the number is that of the Pareto front.
    """
    if len(search.objectives) > 1:
        return 0, len(progress.front)
    value = figure_of_merit(trial)
    if value is None or trial.confirms is not None:
        return 0, progress.good
    confirmed = confirmed_ranking(engine, search_id, search) if progress.confirmed is not None else []
    if trial.number in confirmed:
        return confirmed.index(trial.number) + 1, progress.good
    is_better = _c.value < value if search.objective.sign > 0 else _c.value > value
    is_before = or_(is_better, and_(_c.value == value, _c.number < trial.number))
    if trial.level is not None:
        is_before = or_(_c.level > trial.level, and_(_c.level == trial.level, is_before))
    better = select(func.count()).where(
        _c.search_id == search_id,
        _c.state == TrialState.FINISHED.value,
        _is_finite(_c.value),
        is_before,
        _c.confirms.is_(None),
        not_(among(_c.number, confirmed)),
    )
    return len(confirmed) + read_values(engine, better)[0] + 1, progress.good


def confirmed_ranking(engine: Engine, search_id: int, search: Search) -> list[int]:
    """Returns the numbers of the confirmed trials, best first."""
    runs = confirmation_runs(engine, search_id)
    confirmed = trials_numbered(engine, search_id, {run.confirms for run in runs if run.confirms is not None})
    return [one.trial.number for one in ranking(search, [*confirmed, *runs]) if one.confirmed]


def failed_trials(engine: Engine, search_id: int) -> list[Trial]:
    """Returns the trials that `hpo_pilot.report.summary.failure_groups` groups, by number.

    These are failed trials, without folds, and trials with a lost fold, with folds but without logs.
    """
    failed = _c.state == TrialState.FAILED.value
    other = t.jobs.alias()
    good = select(other.c.id).where(
        other.c.search_id == search_id, other.c.trial == _j.trial, other.c.fold == _j.fold, other.c.value.is_not(None)
    )
    lost = (
        select(_j.trial)
        .join(t.trials, and_(_c.search_id == _j.search_id, _c.number == _j.trial))
        .where(_j.search_id == search_id, _j.error.is_not(None), _j.value.is_(None))
        .where(or_(_c.state == TrialState.FINISHED.value, and_(failed, _c.error.is_(None))), not_(good.exists()))
    )
    with reading(engine) as connection:
        rows = connection.execute(t.trial_rows.where(_c.search_id == search_id, failed)).all()
        numbers = set(connection.execute(lost).scalars())
    found = [trial_record(row, {}) for row in rows if row.number not in numbers]
    return sorted([*found, *trials_with_folds(engine, search_id, numbers)], key=lambda trial: trial.number)


def repeated_attempts(engine: Engine, search_id: int) -> int:
    """Returns the number of attempts of folds that began after another attempt of the same fold."""
    begun = or_(_j.state != JobState.NOT_RUN.value, _j.seconds > 0)
    again = (
        select((func.count() - 1).label("again")).where(_j.search_id == search_id, begun).group_by(_j.trial, _j.fold)
    )
    with reading(engine) as connection:
        return int(connection.execute(select(func.sum(again.subquery().c.again))).scalar() or 0)


def failed_without_retry(engine: Engine, search_id: int) -> int:
    """Returns the number of failed trials whose points have not been tried again."""
    again = select(_c.retries).where(_c.search_id == search_id, _c.retries.is_not(None))
    query = select(func.count()).where(
        _c.search_id == search_id, _c.state == TrialState.FAILED.value, _c.number.not_in(again)
    )
    return int(read_values(engine, query)[0])


def best_numbers(engine: Engine, search_id: int, search: Search, limit: int) -> list[int]:
    """Returns the numbers of the trials with the best figures of merit for each objective, at most `limit` each."""
    found: list[int] = []
    good = and_(_c.search_id == search_id, _c.state == TrialState.FINISHED.value, _c.confirms.is_(None))
    for index, objective in enumerate(search.objectives, 1):
        order = TrialOrder("value" if index == 1 else f"value{index}", descending=objective.sign < 0)
        columns = _c.level.desc(), *_sort_columns(engine, order)
        found += read_values(engine, select(_c.number).where(good).order_by(*columns).limit(limit))
    return found


def sampled_trials(
    engine: Engine,
    search_id: int,
    progress: SearchProgress,
    numbers: Collection[int],
    limit: int,
    *,
    count: int | None = None,
    good_folds: bool = False,
) -> list[Trial]:
    """Returns a sample of a large search's trials without folds, by number.

    It has an even sample of all trials; open trials; confirmation runs and the trials that they confirm; the Pareto
    front; the first results, and all results that improved the best value.

    Args:
        engine: engine of the store.
        search_id: the search.
        progress: its progress.
        numbers: numbers of further trials.
        limit: size of the even sample.
        count: number of trials to sample from; None: all.
        good_folds: whether to read the numbers of good folds.
    """
    told = [*range(1, FIRST_RESULTS + 1), progress.told, *(place for place, _ in progress.course)]
    again = select(_c.confirms).where(_c.search_id == search_id, _c.confirms.is_not(None))
    every = sampling_step(progress.trials if count is None else count, limit)
    query = (t.trial_rows.add_columns(t.good_folds) if good_folds else t.trial_rows).where(
        _c.search_id == search_id,
        or_(
            _c.number % every == 0,
            _c.confirms.is_not(None),
            _c.number.in_(again),
            among(_c.number, {*numbers, *progress.front}),
            among(_c.told, told),
            _c.state.in_([TrialState.PENDING.value, TrialState.RUNNING.value]),
        ),
    )
    return [trial_record(row, {}) for row in read_rows(engine, query.order_by(_c.number))]


def sampling_step(count: int, limit: int) -> int:
    """Returns the step of an even sample: it has the trials whose numbers are multiples of it."""
    return max(1, -(-count // limit))


def results_of(engine: Engine, search_id: int, search: Search, told: Collection[int] | None) -> list[TimedResult]:
    """Returns the results of a search in their order, with the time and the cost up to each.

    Args:
        engine: engine of the store.
        search_id: the search.
        search: its definition.
        told: places of the wanted results; None: all.
    """
    seconds = select(func.sum(_j.seconds)).where(_j.search_id == _c.search_id, _j.trial == _c.number)
    query = t.trial_rows.add_columns(seconds.scalar_subquery().label("seconds")).where(
        _c.search_id == search_id, _c.told.is_not(None)
    )
    query = query.order_by(_c.told)
    begin = select(func.min(func.coalesce(_c.submitted, _c.started))).where(_c.search_id == search_id)
    wanted, found = None if told is None else set(told), []
    with reading(engine) as connection:
        begun = connection.execute(begin).scalar()
        passed = spent = 0.0
        for row in connection.execute(query, execution_options=IN_PARTS):
            spent += row.seconds or 0.0
            if begun is not None and row.ended is not None:
                passed = max(passed, row.ended - begun)
            if wanted is None or row.told in wanted:
                figures = figures_of_merit(search, trial_record(row[:-1], {}))
                found.append(TimedResult(row.told, row.number, figures, passed, spent))
    return found
