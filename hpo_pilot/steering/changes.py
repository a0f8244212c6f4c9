"""The operations of users on a registered search: pause, resume, stop, extend, retry, add_point and others.

Each operation changes the store only. The steering process sees the change within a second and acts on it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from pydantic import ValidationError

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report.formatting import count
from hpo_pilot.search import Budget, Point, Search, Trial, TrialState, point_key
from hpo_pilot.search.fidelity import Levels
from hpo_pilot.search.limits import MOST_FIDELITY, MOST_HOURS, MOST_MACHINE_HOURS, MOST_PARALLEL, MOST_TRIALS
from hpo_pilot.search.mistakes import Mistake, mistakes_of
from hpo_pilot.search.promotion import trained
from hpo_pilot.search.search import width_mistakes
from hpo_pilot.search.trials import seconds_allowed
from hpo_pilot.steering.budget import extend_command
from hpo_pilot.steering.status import is_steered
from hpo_pilot.store import NewPointRequest, PointRequest, SearchRecord, SearchState, Store
from hpo_pilot.store.annotations import AnnotationChange
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.queries import spent
from hpo_pilot.store.store import KnownTrials
from hpo_pilot.store.trial_queries import level_counts

#: The log names at most this many trials, and counts the others.
_NAMED = 10


#: The limits that users may extend, with the maximum of each; and the limits that are whole numbers.
_EXTENDABLE = {
    "trials": MOST_TRIALS,
    "hours": MOST_HOURS,
    "gpu_hours": MOST_MACHINE_HOURS,
    "core_hours": MOST_MACHINE_HOURS,
    "fidelity": MOST_FIDELITY,
    "failures": MOST_TRIALS,
}
_WHOLE = ("trials", "failures")

#: States in which a search can be resumed.
RESUMABLE: tuple[SearchState, ...] = (SearchState.PAUSED, SearchState.STOPPED, SearchState.FAILED)

#: States in which a search takes a new payload.
TAKES_PAYLOAD: tuple[SearchState, ...] = (*RESUMABLE, SearchState.RUNNING, SearchState.SUBMITTED)


class ChangedMeanwhileError(TryAgainError):
    """The search has changed since the user saw it: show it again, then repeat the change."""


def pause(store: Store, record: SearchRecord, who: str) -> None:
    """Pauses a search: no new trials start, open trials go on; `who`: for the log.

    Raises:
        InputError: the search is not running.
    """
    running = (SearchState.RUNNING, SearchState.SUBMITTED)
    if not store.set_state(record.id, SearchState.PAUSED, who, only_from=running):
        raise InputError(f"search {record.name!r} is {store.search(record.id).state.value}, so it cannot be paused")


def resume(store: Store, record: SearchRecord, who: str, *, sandbox: Path | None = None) -> None:
    """Resumes a paused, stopped or failed search.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        sandbox: a new packed payload of `pack_payload`. A running search uses it from its next trial on. None: the
            payload stays.

    Raises:
        InputError: the search is running or stopping, or done with its budget spent.
    """
    what, states = "resumed", RESUMABLE
    if sandbox is not None:
        what, states = "resumed with new payload files", TAKES_PAYLOAD
    archive = None if sandbox is None else str(sandbox)
    if store.reopen(record.id, who, what, only_from=states, sandbox=archive):
        return
    state = store.search(record.id).state
    if state is SearchState.DONE:
        raise InputError(f"search {record.name!r} is done; `hpo-pilot extend {record.name} --trials +N` gives it more")
    raise InputError(f"search {record.name!r} is {state.value} already")


def stop(store: Store, record: SearchRecord, who: str) -> None:
    """Ends a search and kills its jobs; `who`: for the log.

    A search without jobs that nothing steers ends at once. A search with jobs is `stopping` until a service or a run
    has killed them.

    Raises:
        InputError: the search is over already, or is being stopped.
    """
    if store.stop_idle(record.id, who, "stopped on request"):
        return
    alive = (SearchState.RUNNING, SearchState.SUBMITTED, SearchState.PAUSED)
    if store.set_state(record.id, SearchState.STOPPING, who, only_from=alive):
        return
    now = store.search(record.id)
    if is_steered(now, lease_holder(store.engine)) is not False:
        raise InputError(f"search {record.name!r} is {now.state.value} already")


def extend(
    store: Store,
    record: SearchRecord,
    who: str,
    changes: Mapping[str, float],
    *,
    seen: Mapping[str, float | None] | None = None,
) -> SearchRecord:
    """Extends the budget of a search and resumes it if it was over.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        changes: amounts to add, by the names of `Budget`: trials, hours, gpu_hours, core_hours, fidelity, failures; and
            `high`, the new highest level itself.
        seen: the values of these limits that the user saw. If the budget already has the sums, nothing is done: the
            call is a repetition whose first answer was lost. None: add to the present values.

    Returns:
        The search with its new budget.

    Raises:
        InputError: an amount does not extend the budget, or the budget has no such limit.
        ChangedMeanwhileError: the budget differs from `seen`.
    """
    added = {name: amount for name, amount in changes.items() if name != "high"}
    for name, amount in added.items():
        if name not in _EXTENDABLE:
            raise InputError(f"{name}: there is no such limit; there is {', '.join([*_EXTENDABLE, 'high'])}")
        if amount > _EXTENDABLE[name]:
            raise InputError(f"{name}: this amount does not extend the budget: the maximum is {_EXTENDABLE[name]:,}")
        if not amount > 0:  # NaN is not
            raise InputError(f"{name}: this amount does not extend the budget; a budget may only grow")
        if name in _WHOLE and amount != int(amount):
            raise InputError(f"{name}: {amount:+g} is not a whole number")

    def extended(now: SearchRecord) -> tuple[Search, str]:
        values = now.search.budget.model_dump()
        if seen is not None and any(values[name] != seen.get(name) for name in added):
            raise ChangedMeanwhileError(
                f"the budget of search {now.name!r} has changed meanwhile: look at it, then extend it"
            )
        for name, amount in added.items():
            if values[name] is None:
                raise InputError(f"search {now.name!r} has no limit on {name}: there is nothing to extend")
            values[name] += int(amount) if name in _WHOLE else amount
        search = with_budget(now.search, **{name: values[name] for name in added})
        what = [budget_difference(now.search.budget, search.budget)] if added else []
        if (high := changes.get("high")) is not None:
            search, words = _with_high(search, high)
            what.append(words)
        return search, f"extended: {', '.join(what)}"

    if seen is not None:
        now = store.search(record.id)
        budget = now.search.budget.model_dump()
        reached = "high" not in changes or (now.search.levels is not None and now.search.levels.high == changes["high"])
        sums = ((before := seen.get(name)) is not None and budget[name] == before + added[name] for name in added)
        if reached and all(sums):
            return now
    return store.redefine(record.id, extended, who)


def _with_high(search: Search, high: float) -> tuple[Search, str]:
    """Returns a search with a higher last level of its trainings, and the change in words.

    Raises:
        InputError: it is not higher, or the search has no levels.
    """
    if (levels := search.levels) is None:
        raise InputError(f"search {search.name!r} has no levels (fidelity): there is no highest one")
    if not levels.high < high <= MOST_FIDELITY:
        raise InputError(f"high: the levels of search {search.name!r} end at {levels.high:g}; they can only go higher")
    whole = high == int(high) and isinstance(levels.high, int)
    raised = Levels(low=levels.low, high=int(high) if whole else high, eta=levels.eta)
    fidelity = dict.fromkeys(search.fidelity, raised)
    return search.model_copy(update={"fidelity": fidelity}), f"high {levels.high:g} -> {high:g}"


def retry(
    store: Store, record: SearchRecord, who: str, trials: Sequence[int] | None = None, *, key: str | None = None
) -> int:
    """Requests failed trials again and resumes the search if it was over.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        trials: numbers of failed trials; None: all failed trials that were not tried again yet.
        key: identity of this call. A repetition with the same key adds nothing.

    Returns:
        The number of requested points.

    Raises:
        InputError: there is no such trial, or one of them cannot be tried again.
    """

    def asking(
        now: SearchRecord, known: KnownTrials, waiting: list[PointRequest]
    ) -> tuple[Search, list[NewPointRequest], str]:
        _check_room(store, now)
        again = _failed(now, known, waiting) if trials is None else _named(now, known, waiting, trials)
        _check_levels(store, now, known, again)
        search, growth = _grown(now, sum(trial.continues is None for trial in again))
        which = ", ".join(str(trial.number) for trial in again[:_NAMED])
        which += f" and {len(again) - _NAMED} others" if len(again) > _NAMED else ""
        what = f"asked for failed trial{'s' * (len(again) > 1)} {which} again: {growth}"
        return search, [NewPointRequest(trial.point, trial.number) for trial in again], what

    return store.request_points(record.id, asking, who, key=key)


def add_point(store: Store, record: SearchRecord, who: str, point: Mapping[str, Any], *, key: str | None = None) -> int:
    """Requests a point and resumes the search if it was over.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        point: the active parameters by name.
        key: identity of this call. A repetition with the same key adds nothing.

    Returns:
        1.

    Raises:
        InputError: the point is not in the search space, or the search has it already.
    """

    def asking(
        now: SearchRecord, known: KnownTrials, waiting: list[PointRequest]
    ) -> tuple[Search, list[NewPointRequest], str]:
        wanted = now.search.space.canonical(point)
        _check_room(store, now)
        _check_new(now, wanted, known, waiting)
        search, growth = _grown(now, 1)
        return search, [NewPointRequest(wanted)], f"asked for the point {json.dumps(wanted)}: {growth}"

    return store.request_points(record.id, asking, who, key=key)


def set_parallel(store: Store, record: SearchRecord, who: str, parallel: int) -> SearchRecord:
    """Changes the number of parallel trials. A search that is over stays over.

    Raises:
        InputError: the number is less than one or too large.
    """
    if not 1 <= parallel <= MOST_PARALLEL:
        raise InputError(f"parallel: the number of trials at once must be from 1 to {MOST_PARALLEL}")

    def changed(now: SearchRecord) -> tuple[Search, str]:
        before = now.search.budget.parallel
        return with_budget(now.search, parallel=parallel), f"budget changed: parallel {before} -> {parallel}"

    if record.search.budget.parallel == parallel:
        return record
    return store.redefine(record.id, changed, who, goes_on=False)


def annotate(
    store: Store, record: SearchRecord, who: str, *, trial: int = 0, **written: Unpack[AnnotationChange]
) -> None:
    """Writes a note and tags on a search, or on one of its trials.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        trial: number of the trial; 0: the search itself.
        written: the new values.

    Raises:
        InputError: there is no such trial; a value is too long or has characters that cannot be shown.
    """
    if trial:
        found = store.trials(record.id, after=trial - 1, limit=1, folds=False) if 0 < trial < 2**31 else []
        if not found or found[0].number != trial:
            raise InputError(
                f"search {record.name!r} has no trial {trial}; it has {progress_of(store.engine, record.id).trials}"
            )
    store.annotate(record.id, trial, who, **written)


# --- the choice of points ---


def _failed(record: SearchRecord, known: KnownTrials, waiting: list[PointRequest]) -> list[Trial]:
    """Returns the failed trials that were not tried again yet; of several with the same point the last one."""
    every = [trial for trial in known.failed() if trial.confirms is None]
    related = known.at(trial.point for trial in every)
    again = {trial.retries for trial in related if not trial.ended_with_search}
    again |= {request.retries for request in waiting}
    taken = _taken(related, waiting)
    failed = [trial for trial in every if trial.number not in again]
    by_point = {key: trial for trial in failed if (key := _key(trial)) not in taken}
    if by_point:
        return sorted(by_point.values(), key=lambda trial: trial.number)
    reason = "all of its failed trials were tried again" if every else "none of its trials failed"
    raise InputError(f"search {record.name!r} has nothing to try again: {reason}")


def _named(
    record: SearchRecord, known: KnownTrials, waiting: list[PointRequest], numbers: Collection[int]
) -> list[Trial]:
    by_number = {trial.number: trial for trial in known.numbered(numbers)}
    taken = _taken(known.at(trial.point for trial in by_number.values()), waiting)
    found: dict[str, Trial] = {}
    for number in dict.fromkeys(numbers):
        trial = by_number.get(number)
        if trial is None:
            raise InputError(f"search {record.name!r} has no trial {number}; it has {len(known)}")
        if trial.confirms is not None:
            raise InputError(f"trial {number} is a confirmation run of trial {trial.confirms} and cannot be retried")
        if trial.state is not TrialState.FAILED:
            raise InputError(f"trial {number} is {trial.state.value}: only failed trials are tried again")
        key = _key(trial)
        if key in taken:
            raise InputError(f"trial {number} is not tried again: {taken[key]}")
        if key in found:
            raise InputError(f"trials {found[key].number} and {number} have the same point: name one of them")
        found[key] = trial
    if not found:
        raise InputError("no trial is named: name failed trials, or leave the list out for all failed trials")
    return list(found.values())


def _key(trial: Trial) -> str:
    """Returns the key of a trial's point, with its level if it goes on from another trial."""
    return point_key(trial.point) + (f" at {trial.level}" if trial.continues is not None else "")


def _taken(known: list[Trial], waiting: list[PointRequest]) -> dict[str, str]:
    """Returns the keys of points that are open, have a result or wait, each with its place in words.

    Args:
        known: all trials at some points.
        waiting: the requested points; of others than these, requests for later levels are left out.
    """
    numbered = {trial.number: trial for trial in known}
    taken = {}
    for one in waiting:
        if one.retries is not None and one.retries not in numbered:
            continue
        key = point_key(one.point) if one.retries is None else _key(numbered[one.retries])
        taken[key] = f"its point waits to go out; {one.who} asked for it"
    for trial in known:
        if trial.trains_point and trial.state is not TrialState.FAILED:
            taken[_key(trial)] = f"trial {trial.number} has its point and is {trial.state.value}"
    return taken


def _check_new(record: SearchRecord, point: Point, known: KnownTrials, waiting: list[PointRequest]) -> None:
    """Checks that the point is new to the search.

    Raises:
        InputError: the search has it already.
    """
    key, related = point_key(point), known.at([point])
    if (where := _taken(related, waiting).get(key)) is not None:
        raise InputError(f"search {record.name!r} has this point already: {where}")
    for trial in related:
        if trial.state is TrialState.FAILED and trial.confirms is None:
            raise InputError(
                f"search {record.name!r} has tried this point: trial {trial.number} failed; "
                f"`hpo-pilot retry {record.name} --trial {trial.number}` tries it again"
            )


# --- the budget ---


def _check_room(store: Store, record: SearchRecord) -> None:
    """Checks that one more trial would start.

    Raises:
        InputError: the search is being stopped, or its hours, GPU-hours or levels are spent.
    """
    name, budget = record.name, record.search.budget
    if record.state is SearchState.STOPPING:
        raise InputError(f"search {name!r} is stopping; once it has stopped, the same command continues it")
    if budget.hours is not None and record.clock is not None:
        until = record.ended.timestamp() if record.ended else time.time()
        if until - record.clock.timestamp() >= budget.hours * 3600:
            raise InputError(
                f"search {name!r} has spent its {budget.hours:g} hours: `hpo-pilot extend {name} --hours +H` first"
            )
    if spent(store.engine, record.id).seconds >= seconds_allowed(budget, record.search.resources):
        raise InputError(
            f"search {name!r} has spent its GPU-hours or core-hours: "
            f"{extend_command(name, budget, 'gpu_hours', 'core_hours')} first"
        )
    if (levels := record.search.levels) is not None and _levels_left(store, record) < levels.low:
        what = f"of the {budget.fidelity:g} {record.search.level_name} of its budget too few are left"
        raise InputError(f"search {name!r}: {what}: {extend_command(name, budget, 'fidelity')} first")


def _levels_left(store: Store, record: SearchRecord) -> float:
    levels, fidelity = record.search.levels, record.search.budget.fidelity
    if levels is None or fidelity is None:
        return math.inf
    return fidelity - sum(level.trained for level in level_counts(store.engine, record.id, levels))


def _check_levels(store: Store, record: SearchRecord, known: KnownTrials, again: list[Trial]) -> None:
    """Checks that `budget.fidelity` allows to train these trials again.

    Raises:
        InputError: it does not.
    """
    before = {trial.number: trial for trial in known.numbered([trial.continues or 0 for trial in again])}
    needed = sum(trained(before, trial) for trial in again)
    if needed > (left := _levels_left(store, record)) * (1 + 1e-9):
        name, what = record.name, record.search.level_name
        raise InputError(
            f"search {name!r}: to train {count(len(again), 'trial')} again takes {needed:g} {what}, and its budget has "
            f"{left:g} left: {extend_command(name, record.search.budget, 'fidelity')} first, or name fewer trials"
        )


def _grown(record: SearchRecord, count: int) -> tuple[Search, str]:
    """Returns the search with `count` more trials in its budget, and the change in words."""
    before = record.search.budget.trials
    search = with_budget(record.search, trials=before + count)
    return search, f"budget trials {before} -> {before + count}"


def with_budget(search: Search, **changes: float) -> Search:
    """Returns the search with changed limits of its budget.

    Raises:
        InputError: a value is beyond its maximum, or makes too many parallel jobs.
    """
    values = search.budget.model_dump() | changes
    wrong: list[Mistake] = []
    try:
        budget = Budget.model_validate(values)
    except ValidationError as error:  # Values that an earlier version allowed stay, if they are not changed here.
        found = mistakes_of(error, values, Budget)
        wrong = [mistake.under("budget") for mistake in found if mistake.path[0] in changes]
        budget = search.budget.model_copy(update=changes)
    if "parallel" in changes and not wrong:
        wrong = list(width_mistakes(budget, search.resources, search.folds))
    if wrong:
        raise InputError("; ".join(map(str, wrong)))
    return search.model_copy(update={"budget": budget})


def budget_difference(old: Budget, new: Budget) -> str:
    """Returns the changed limits of a budget in words, such as `trials 20 -> 40`."""
    before, after = old.model_dump(), new.model_dump()
    return ", ".join(f"{key} {before[key]} -> {after[key]}" for key in after if after[key] != before[key]) or "nothing"
