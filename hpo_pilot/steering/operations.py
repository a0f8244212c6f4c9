"""What a search's user asks for beside what its optimizer proposes: points, failed trials again, more at once."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hpo_pilot.errors import InputError
from hpo_pilot.search import Budget, Point, Search, Trial, TrialState, point_key
from hpo_pilot.search.limits import MOST_PARALLEL
from hpo_pilot.search.mistakes import Mistake, mistakes_of
from hpo_pilot.search.trials import seconds_allowed, width_mistakes
from hpo_pilot.steering.budget import extend_command
from hpo_pilot.store import NewPointRequest, PointRequest, SearchRecord, SearchState, Store

#: So many trials are named in the log, others are counted.
_NAMED = 10


def retry(
    store: Store, record: SearchRecord, who: str, trials: Sequence[int] | None = None, *, key: str | None = None
) -> int:
    """Has the points of failed trials tried again, and lets the search go on where it was over.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        trials: their numbers; None: all that failed and were not tried again yet.
        key: of this call; the same call again adds nothing.

    Returns:
        How many points go out again.

    Raises:
        InputError: there is none, or one of them cannot.
    """

    def asking(
        now: SearchRecord, known: list[Trial], waiting: list[PointRequest]
    ) -> tuple[Search, list[NewPointRequest], str]:
        _check_room(store, now)
        again = _failed(now, known, waiting) if trials is None else _named(now, known, waiting, trials)
        search, growth = _grown(now, len(again))
        which = ", ".join(str(trial.number) for trial in again[:_NAMED])
        which += f" and {len(again) - _NAMED} others" if len(again) > _NAMED else ""
        what = f"asked for failed trial{'s' * (len(again) > 1)} {which} again: {growth}"
        return search, [NewPointRequest(trial.point, trial.number) for trial in again], what

    return store.ask_for(record.id, asking, who, key=key)


def add_point(store: Store, record: SearchRecord, who: str, point: Mapping[str, Any], *, key: str | None = None) -> int:
    """Has a point tried, and lets the search go on where it was over.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        point: the active parameters by name.
        key: of this call; the same call again adds nothing.

    Returns:
        1.

    Raises:
        InputError: it is not in the space, or the search has it already.
    """

    def asking(
        now: SearchRecord, known: list[Trial], waiting: list[PointRequest]
    ) -> tuple[Search, list[NewPointRequest], str]:
        wanted = now.search.space.canonical(point)
        _check_room(store, now)
        _check_new(now, wanted, known, waiting)
        search, growth = _grown(now, 1)
        return search, [NewPointRequest(wanted)], f"asked for the point {json.dumps(wanted)}: {growth}"

    return store.ask_for(record.id, asking, who, key=key)


def set_parallel(store: Store, record: SearchRecord, who: str, parallel: int) -> SearchRecord:
    """Changes how many trials are out at once; a search that is over stays so.

    Raises:
        InputError: less than one, or more than makes sense.
    """
    if not 1 <= parallel <= MOST_PARALLEL:
        shown = str(parallel) if abs(parallel) < 10**15 else "so many"
        raise InputError(f"parallel: {shown} trials at once cannot be; use 1 to {MOST_PARALLEL}")

    def changed(now: SearchRecord) -> tuple[Search, str]:
        before = now.search.budget.parallel
        return with_budget(now.search, parallel=parallel), f"budget changed: parallel {before} -> {parallel}"

    if record.search.budget.parallel == parallel:
        return record
    return store.redefine(record.id, changed, who, goes_on=False)


# --- which ---


def _failed(record: SearchRecord, known: list[Trial], waiting: list[PointRequest]) -> list[Trial]:
    """The failed trials that were not tried again yet; of several with one point the last."""
    again = {trial.retries for trial in known if trial.counts} | {wish.retries for wish in waiting}
    taken = _taken(known, waiting)
    failed = [trial for trial in known if _has_failed(trial) and trial.number not in again]
    by_point = {key: trial for trial in failed if (key := point_key(trial.point)) not in taken}
    if by_point:
        return sorted(by_point.values(), key=lambda trial: trial.number)
    some = any(map(_has_failed, known))
    reason = "all of its failed trials were tried again" if some else "none of its trials failed"
    raise InputError(f"search {record.name!r} has nothing to try again: {reason}")


def _named(
    record: SearchRecord, known: list[Trial], waiting: list[PointRequest], numbers: Collection[int]
) -> list[Trial]:
    by_number = {trial.number: trial for trial in known}
    taken = _taken(known, waiting)
    found: dict[str, Trial] = {}
    for number in dict.fromkeys(numbers):
        trial = by_number.get(number)
        if trial is None:
            raise InputError(f"search {record.name!r} has no trial {number}; it has {len(known)}")
        if trial.confirms is not None:
            raise InputError(f"trial {number} is a confirmation run of trial {trial.confirms}, no trial of its own")
        if trial.state is not TrialState.FAILED:
            raise InputError(f"trial {number} is {trial.state.value}: only failed trials are tried again")
        key = point_key(trial.point)
        if key in taken:
            raise InputError(f"trial {number} is not tried again: {taken[key]}")
        if key in found:
            raise InputError(f"trials {found[key].number} and {number} have the same point: name one of them")
        found[key] = trial
    if not found:
        raise InputError("which trials? Name failed ones, or none for all that failed")
    return list(found.values())


def _has_failed(trial: Trial) -> bool:
    return trial.state is TrialState.FAILED and trial.confirms is None


def _taken(known: list[Trial], waiting: list[PointRequest]) -> dict[str, str]:
    """The points that are out, have a result or wait to go out, each with where, in words."""
    taken = {point_key(wish.point): f"its point waits to go out; {wish.who} asked for it" for wish in waiting}
    for trial in known:
        if trial.counts and trial.state is not TrialState.FAILED:
            taken[point_key(trial.point)] = f"trial {trial.number} has its point and is {trial.state.value}"
    return taken


def _check_new(record: SearchRecord, point: Point, known: list[Trial], waiting: list[PointRequest]) -> None:
    """Makes sure that the search does not have the point already.

    Raises:
        InputError: it has.
    """
    key = point_key(point)
    if (where := _taken(known, waiting).get(key)) is not None:
        raise InputError(f"search {record.name!r} has this point already: {where}")
    for trial in known:
        if _has_failed(trial) and point_key(trial.point) == key:
            raise InputError(
                f"search {record.name!r} has tried this point: trial {trial.number} failed; "
                f"`hpo-pilot retry {record.name} --trial {trial.number}` tries it again"
            )


# --- the budget ---


def _check_room(store: Store, record: SearchRecord) -> None:
    """Makes sure that a trial more would go out.

    Raises:
        InputError: the search is being stopped, or its time or its GPU-hours are spent.
    """
    name, budget = record.name, record.search.budget
    if record.state is SearchState.STOPPING:
        raise InputError(f"search {name!r} is stopping; once it has stopped, the same command lets it go on")
    if budget.hours is not None and record.clock is not None:
        until = record.ended.timestamp() if record.ended else time.time()
        if until - record.clock.timestamp() >= budget.hours * 3600:
            raise InputError(
                f"search {name!r} has spent its {budget.hours:g} hours: `hpo-pilot extend {name} --hours +H` first"
            )
    if store.job_seconds(record.id) >= seconds_allowed(budget, record.search.resources):
        raise InputError(
            f"search {name!r} has spent its GPU-hours or core-hours: "
            f"{extend_command(name, budget, 'gpu_hours', 'core_hours')} first"
        )


def _grown(record: SearchRecord, count: int) -> tuple[Search, str]:
    """The search with a budget of so many trials more, and that in words."""
    before = record.search.budget.trials
    search = with_budget(record.search, trials=before + count)
    return search, f"budget trials {before} -> {before + count}"


def with_budget(search: Search, **changes: float) -> Search:
    """The search with these parts of its budget changed.

    Raises:
        InputError: one of them is beyond its maximum, or makes more jobs at once than there may be.
    """
    values = search.budget.model_dump() | changes
    wrong: list[Mistake] = []
    try:
        budget = Budget.model_validate(values)
    except ValidationError as error:  # what an earlier version allowed, and is not changed here, stays
        found = mistakes_of(error, values, Budget)
        wrong = [misfit.under("budget") for misfit in found if misfit.path[0] in changes]
        budget = search.budget.model_copy(update=changes)
    if "parallel" in changes and not wrong:
        wrong = width_mistakes(budget, search.resources, search.folds)
    if wrong:
        raise InputError("; ".join(map(str, wrong)))
    return search.model_copy(update={"budget": budget})
