"""Registers the searches of a file, with the earlier results they learn from, and changes them afterwards."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpo_pilot.advice import command
from hpo_pilot.errors import InputError, Problem, TryAgainError
from hpo_pilot.files import result_path
from hpo_pilot.panda.sandbox import build_sandbox, same_payload
from hpo_pilot.search import Budget, Search, Trial, TrialState
from hpo_pilot.search.earlier_results import (
    EarlierResults,
    EarlierSearch,
    earlier_search,
    fit_earlier_results,
    read_results,
)
from hpo_pilot.search.limits import MOST_HOURS, MOST_MACHINE_HOURS, MOST_TRIALS
from hpo_pilot.search.payload import absolute_inputs
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.steering.operations import with_budget
from hpo_pilot.steering.search_file import Examination, in_order, load_search, payload_folder
from hpo_pilot.steering.status import is_steered
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir
from hpo_pilot.store import EMBEDDED, NameTakenError, SearchRecord, SearchState, Store
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.transformation.job import keep_environment

#: The limits that may be extended, with the most that each holds; and those that count things.
_EXTENDABLE = {
    "trials": MOST_TRIALS,
    "hours": MOST_HOURS,
    "gpu_hours": MOST_MACHINE_HOURS,
    "core_hours": MOST_MACHINE_HOURS,
    "failures": MOST_TRIALS,
}
_WHOLE = ("trials", "failures")

#: The states in which a search waits for its owner.
_MAY_GO_ON: tuple[SearchState, ...] = (SearchState.PAUSED, SearchState.STOPPED, SearchState.FAILED)


#: Those in which it needs its payload, and a new one is taken.
_NOT_OVER: tuple[SearchState, ...] = (*_MAY_GO_ON, SearchState.RUNNING, SearchState.SUBMITTED)


class ChangedMeanwhileError(TryAgainError):
    """The search is not as whoever wants to change it saw it."""


@dataclass(frozen=True)
class PackedSearch:
    """A search as it is registered: read from its file, its payload packed.

    Attributes:
        file: the file's name in messages.
        source: where the file is, on its user's machine.
        sandbox: the packed payload.
        family: the name of the file's search, where this is the search of one of its segments.
        results: where the result files are that `warm_start` names, by how it names them.
        environments: where the environment of this process, the search's own, is kept for its jobs on this machine;
            None: the search comes from elsewhere.
    """

    search: Search
    file: str
    source: str
    sandbox: Path
    family: str | None = None
    results: Mapping[str, Path] = field(default_factory=dict)
    environments: Path | None = None


def pack_search(search_file: Path, workdir: WorkDir) -> PackedSearch:
    """Reads a search file and packs its payload; of a file with segments, that of the first of them.

    Args:
        search_file: the search file.
        workdir: where the packed payload goes.

    Raises:
        InputError: the file is wrong, or the payload's files cannot be read.
    """
    return pack_searches(search_file, workdir)[0]


def pack_searches(search_file: Path, workdir: WorkDir) -> list[PackedSearch]:
    """The same for every segment of a file; for a file without segments its one search.

    Raises:
        InputError: the file is wrong, or the payload's files cannot be read.
    """
    whole = load_search(search_file)
    results = result_files(whole, search_file.parent)
    source = str(search_file.absolute())
    family = packed_family(
        whole, str(search_file), source, lambda search: pack_payload(search, search_file, workdir), results
    )
    return [replace(packed, environments=workdir.environments) for packed in family]


def packed_family(
    whole: Search, file: str, source: str, pack: Callable[[Search], Path], results: Mapping[str, Path]
) -> list[PackedSearch]:
    """The searches of a file's segments, packed; of a file without segments its one search.

    Args:
        whole: what the file says.
        file: its name in messages.
        source: where it is.
        pack: packs the payload of one search.
        results: where the result files are that `warm_start` names, by how it names them.
    """
    if not whole.segments:
        return [PackedSearch(whole, file, source, pack(whole), results=results)]
    family = whole.by_segment().values()
    return [PackedSearch(search, file, source, pack(search), whole.name, results) for search in family]


def pack_payload(search: Search, search_file: Path, workdir: WorkDir) -> Path:
    """Packs the search's payload with the runner.

    Raises:
        InputError: the payload's files cannot be read.
    """
    folder = payload_folder(search, search_file)
    if folder is not None and not folder.is_dir():
        raise InputError(f"payload.files: {folder} is not a folder; the path is relative to {search_file}")
    document = payload_document(search, search_file.parent)
    return build_sandbox(folder, document, workdir.sandboxes, without=search_file)


def payload_document(search: Search, base: Path | None) -> dict[str, Any]:
    """What the runner is told of the payload: `hpo_pilot_payload.json` in the sandbox.

    Args:
        search: the search.
        base: the folder of its file, to which paths are relative; None: it is on another machine.

    Raises:
        InputError: an input is a path that only its user's machine could understand.
    """
    payload, needs, early = search.payload, search.resources, search.early_stopping
    more: dict[str, Any] = {} if payload.python is None else {"python": payload.python}
    if early.is_on:
        jobs = search.budget.parallel * search.folds.k
        more |= {"progress_metric": early.metric, "report_seconds": early.seconds_between_reports(jobs)}
    return more | {
        "command": payload.command,
        "metric": search.objective.metric,
        "objectives": [objective.metric for objective in search.objectives],
        "mode": "min" if search.objective.goal == "minimize" else "max",
        "hyperparameters": list(payload.point.payload_point(dict.fromkeys(search.space.names))),
        "inputs": absolute_inputs(payload.inputs, base),
        "outputs": list(payload.kept_files),
        "checkpoint": list(payload.checkpoint),
        "minutes": needs.minutes,
        "nodes": needs.nodes,
        "gpus_per_node": needs.gpus_per_node,
        "ranks_per_node": needs.ranks,
        "cores": needs.cores,
        "memory_mb": needs.memory_mb,
        "container": payload.container,
        "file_names": payload.file_names.model_dump(),
        "segment": search.segment,
        "trials_per_job": needs.trials_per_job,
    }


def register_packed(
    store: Store,
    packed: PackedSearch,
    *,
    go_on: bool,
    who: str,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> SearchRecord:
    """Registers a search, or finds the one that the store has.

    Args:
        store: the store.
        packed: the search.
        go_on: whether a search that is there already goes on (`run`) or is an error (`submit`).
        who: registers it, and owns it then.
        uid: the search's random identity, where the caller chose one: a search of that name and identity is its own,
            registered before, and no error. None: a fresh one.
        check: called with a search that is to go on; raises where `who` may not do that.

    Raises:
        InputError: it differs from the registered search in more than a larger budget, or an earlier search that it
            is to start from is not there or has nothing to teach.
    """
    search = packed.search
    found = store.find_search(search.name)
    if found is None:
        earlier = earlier_results(store, search, packed.results)
        family, sandbox, own = packed.family, str(packed.sandbox), uid or secrets.token_hex(4)
        if packed.environments is not None:
            note_environment(packed.environments, own)  # before a service can take the search up
        try:
            return store.create_search(
                search, source=packed.source, sandbox=sandbox, owner=who, family=family, uid=own, earlier=earlier
            )
        except NameTakenError:
            found = store.search(search.name)  # by a call at the same time, perhaps this one's repetition
    if uid is not None and found.uid == uid and found.owner == who:
        return found
    check_registered(found, packed, go_on=go_on, check=check)
    if packed.environments is not None:
        note_environment(packed.environments, found.uid)
    if found.filed.budget != search.budget:
        store.redefine(found.id, lambda now: _refiled(now, search, packed.file), who, filed=search)
    else:
        store.reopen(found.id, who, "resumed", only_from=_MAY_GO_ON)
    if found.sandbox != str(packed.sandbox):
        what = "goes on with the payload runner of another version of hpo-pilot"
        store.reopen(found.id, who, what, only_from=_NOT_OVER, sandbox=str(packed.sandbox))
    return store.search(found.id)


def note_environment(folder: Path, uid: str) -> None:
    """Keeps the environment of this process for the local jobs of the search of that uid.

    Raises:
        TryAgainError: it cannot be written.
    """
    try:
        keep_environment(str(folder), uid, os.environ)
    except OSError as error:
        raise TryAgainError(f"cannot keep the environment in {folder}: {error.strerror or error}") from error


def check_registered(
    found: SearchRecord,
    packed: PackedSearch,
    *,
    go_on: bool,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> None:
    """Makes sure that a search can go on which the store has already.

    Args:
        found: the search as the store has it.
        packed: the search as its file says it.
        go_on: as for `register_packed`.
        check: as for `register_packed`.

    Raises:
        InputError: it may not go on, or it differs from the registered one in more than a larger budget.
    """
    if not go_on:
        name = found.name
        raise InputError(
            f"the store already has a search {name!r} ({found.state.value}); {command('run', packed.file)} "
            f"goes on with it, `hpo-pilot extend {name} --trials +N` gives it more budget, another name in the file "
            "starts a new one"
        )
    check(found)
    check_same(found, packed.search, packed.sandbox, packed.file)
    _refiled(found, packed.search, packed.file)


def check_same(found: SearchRecord, search: Search, sandbox: Path, search_file: str) -> None:
    """Makes sure that the file says what it said when the search began, its budget aside.

    Another version of hpo-pilot may have begun it: with another payload runner, and with LOCAL for a queue that the
    file does not name.

    Raises:
        InputError: it says something else, or the payload's files have changed.
    """
    old, new = found.filed.to_dict(), search.to_dict()
    if found.server in (None, EMBEDDED):
        for definition in (old, new):
            definition["site"]["queue"] = definition["site"]["queue"] or DEFAULT_QUEUE
    changed = sorted(key for key in new if key != "budget" and new[key] != old.get(key))
    if changed:
        raise InputError(
            f"{search_file}: {', '.join(changed)} changed since search {search.name!r} began; only its budget may "
            "grow. Undo the change, or give the search another name"
        )
    if found.sandbox == str(sandbox):
        return
    try:
        trouble = "" if same_payload(Path(found.sandbox or ""), sandbox) else "the payload's files changed"
    except InputError as error:
        trouble = str(error)
    if trouble:
        raise InputError(
            f"{search_file}: {trouble} since search {search.name!r} began. "
            f"`hpo-pilot resume {search.name} --new-payload` goes on with the new files; "
            "another name in the file starts a new search"
        )


def _refiled(record: SearchRecord, search: Search, search_file: str) -> tuple[Search, str]:
    """The search with the budget that its file now has, which may only have grown; what commands added stays."""
    before, after = record.filed.budget, search.budget
    largest: dict[str, Any] = {}
    for name in ("trials", "hours", "gpu_hours", "core_hours"):
        old, new, now = (_limit(budget, name) for budget in (before, after, record.search.budget))
        if new < old:
            raise InputError(
                f"{search_file}: budget.{name} shrank from {old:g} to {new:g} since search {search.name!r} began; "
                "a budget may only grow. Undo the change, or give the search another name"
            )
        largest[name] = None if max(new, now) == math.inf else max(new, now)
    largest["trials"] = int(largest["trials"])
    if after.failures == before.failures:
        largest["failures"] = record.search.budget.failures
    if after.parallel == before.parallel:
        largest["parallel"] = record.search.budget.parallel
    changed = search.model_copy(update={"budget": after.model_copy(update=largest)})
    return changed, f"budget changed: {_difference(record.search.budget, changed.budget)}"


def _limit(budget: Budget, name: str) -> float:
    value = getattr(budget, name)
    return math.inf if value is None else float(value)


def _difference(old: Budget, new: Budget) -> str:
    before, after = old.model_dump(), new.model_dump()
    return ", ".join(f"{key} {before[key]} -> {after[key]}" for key in after if after[key] != before[key]) or "nothing"


def pause(store: Store, record: SearchRecord, who: str) -> None:
    """No new trials from now on; `who` says so.

    Raises:
        InputError: the search is not running.
    """
    running = (SearchState.RUNNING, SearchState.SUBMITTED)
    if not store.set_state(record.id, SearchState.PAUSED, who, only_from=running):
        raise InputError(f"search {record.name!r} is {store.search(record.id).state.value}, so it cannot be paused")


def resume(store: Store, record: SearchRecord, who: str, *, sandbox: Path | None = None) -> None:
    """Lets a paused, stopped or failed search go on.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        sandbox: a new packed payload, as `pack_payload` makes it; a running search goes on with it from its next
            trial. None: as it was.

    Raises:
        InputError: the search is running or stopping, or done with its budget spent.
    """
    what, states = "resumed", _MAY_GO_ON
    if sandbox is not None:
        what, states = "resumed with new payload files", _NOT_OVER
    archive = None if sandbox is None else str(sandbox)
    if store.reopen(record.id, who, what, only_from=states, sandbox=archive):
        return
    state = store.search(record.id).state
    if state is SearchState.DONE:
        raise InputError(f"search {record.name!r} is done; `hpo-pilot extend {record.name} --trials +N` gives it more")
    raise InputError(f"search {record.name!r} is {state.value} already")


def stop(store: Store, record: SearchRecord, who: str) -> None:
    """Kills the search's jobs and ends it; `who` says so.

    A search without jobs that nothing steers is ended at once. One with jobs is `stopping` until something steers it.

    Raises:
        InputError: it is over already, or is being stopped.
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
    """Adds to the search's budget, and lets it go on where it was over.

    Args:
        store: the store.
        record: the search.
        who: for the log.
        changes: what to add, by the names of `Budget`: trials, hours, gpu_hours, core_hours, failures.
        seen: the budget that `who` wants to add to, as far as it is changed: where it has been added to already, as by
            a call whose answer was lost, nothing is done. None: to whatever it is.

    Returns:
        The search with its new budget.

    Raises:
        InputError: an amount does not extend the budget, or the budget has no such limit.
        ChangedMeanwhileError: the budget is no longer what was seen.
    """
    for name, amount in changes.items():
        if name not in _EXTENDABLE:
            raise InputError(f"{name}: there is no such limit; there is {', '.join(_EXTENDABLE)}")
        if amount > _EXTENDABLE[name]:
            raise InputError(
                f"{name}: so large an amount does not extend the budget: {_EXTENDABLE[name]:,} is the most"
            )
        if not amount > 0:  # NaN is not
            raise InputError(f"{name}: {_shown(amount)} does not extend the budget; a budget may only grow")
        if name in _WHOLE and amount != int(amount):
            raise InputError(f"{name}: {amount:+g} is no whole number")

    def extended(now: SearchRecord) -> tuple[Search, str]:
        values = now.search.budget.model_dump()
        if seen is not None and any(values[name] != seen.get(name) for name in changes):
            raise ChangedMeanwhileError(
                f"the budget of search {now.name!r} has changed meanwhile: look at it, then extend it"
            )
        for name, amount in changes.items():
            if values[name] is None:
                raise InputError(f"search {now.name!r} has no limit on {name}: there is nothing to extend")
            values[name] += int(amount) if name in _WHOLE else amount
        search = with_budget(now.search, **{name: values[name] for name in changes})
        return search, f"extended: {_difference(now.search.budget, search.budget)}"

    if seen is not None:
        now = store.search(record.id)
        budget = now.search.budget.model_dump()
        if all((before := seen.get(name)) is not None and budget[name] == before + changes[name] for name in changes):
            return now
    return store.redefine(record.id, extended, who)


def _shown(amount: float) -> str:
    return f"{amount:+g}" if abs(amount) < MOST_MACHINE_HOURS else "as much less"


def trial_of(store: Store, record: SearchRecord, number: int) -> Trial:
    """The trial of that number.

    Raises:
        InputError: there is none.
    """
    trials = store.trials(record.id)
    for trial in trials:
        if trial.number == number:
            return trial
    finished = sum(1 for trial in trials if trial.state is TrialState.FINISHED)
    raise InputError(
        f"search {record.name!r} has no trial {number}; it has {len(trials)}, of which {finished} finished"
    )


def check_family(
    store: Store,
    family: Sequence[PackedSearch],
    *,
    go_on: bool,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> list[SearchRecord | None]:
    """Makes sure that the searches of one file can be registered, and changes nothing.

    Args:
        store: the store.
        family: the packed searches.
        go_on: whether a search that is there already goes on (`run`) or is an error (`submit`).
        uid: as for `register_packed`; those of segments are derived from it.
        check: as for `register_packed`.

    Returns:
        Each as the store has it already; None: it is new.

    Raises:
        InputError: one of them differs from a registered search, or there is one of that name.
    """
    known: list[SearchRecord | None] = []
    for packed, identity in zip(family, _uids(family, uid), strict=True):
        name = packed.family or packed.search.name
        taken = store.find_search(name) is not None if packed.family else bool(store.family(name))
        if taken:
            raise InputError(f"{packed.file}: {name!r} cannot be a search and a family of segments: rename one of them")
        found = store.find_search(packed.search.name)
        known.append(found)
        if found is None:
            earlier_results(store, packed.search, packed.results)  # raises where there are none
            continue
        if identity is not None and found.uid == identity:
            continue
        if found.family != packed.family:
            there = f"a segment of {found.family!r}" if found.family else "no segment of any search"
            raise InputError(f"the store already has a search {found.name!r}, which is {there}: rename this one")
        check_registered(found, packed, go_on=go_on, check=check)
    return known


def register_family(
    store: Store,
    family: Sequence[PackedSearch],
    *,
    go_on: bool,
    who: str,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> list[SearchRecord]:
    """Registers the searches of one file, or finds those that the store has; none of them where one cannot be.

    Args:
        store: the store.
        family: as for `check_family`.
        go_on: as for `check_family`.
        who: as for `register_packed`.
        uid: as for `check_family`.
        check: as for `register_packed`.

    Raises:
        InputError: one of them differs from a registered search, or there is one of that name.
    """
    check_family(store, family, go_on=go_on, uid=uid, check=check)
    return [
        register_packed(store, packed, go_on=go_on, who=who, uid=identity, check=check)
        for packed, identity in zip(family, _uids(family, uid), strict=True)
    ]


def _uids(family: Sequence[PackedSearch], uid: str | None) -> list[str | None]:
    return [uid if uid is None or packed.family is None else _uid_of(uid, packed.search.name) for packed in family]


def _uid_of(uid: str, name: str) -> str:
    return hashlib.sha256(f"{uid}/{name}".encode()).hexdigest()[:8]


def result_files(search: Search, base: Path) -> dict[str, Path]:
    """The result files that a search names, by how it names them; `base` is the folder of its file."""
    return {source: result_path(source, base) for source in search.warm_start if is_result_file(source)}


def earlier_results(store: Store | None, search: Search, files: Mapping[str, Path]) -> list[EarlierResults]:
    """What a search has from the earlier ones that it names; a copy, which no later change of theirs touches.

    Args:
        store: where searches are found by their names; None: there is none.
        search: the new search, of one segment where its file has several.
        files: where the result files are that it names.

    Raises:
        InputError: an earlier search is not there, or has nothing to teach.
    """
    return [_results(store, search, source, files) for source in search.warm_start]


def _results(store: Store | None, search: Search, source: str, files: Mapping[str, Path]) -> EarlierResults:
    try:
        if is_result_file(source):
            if source not in files:
                raise InputError(f"the file {source} was not sent along")
            earlier = read_results(files[source], source, search.space, search.objectives)
        else:
            earlier = _of_store(store, search, source)
        return fit_earlier_results(earlier, search.space, search.objectives)
    except InputError as error:
        raise InputError(f"warm_start: {error}") from error


def _of_store(store: Store | None, search: Search, name: str) -> EarlierSearch:
    """The results of a search of the store; of a family those of the same segment."""
    if store is None:
        raise InputError(f"there is no store with a search {name!r} (yet)")
    record = None
    if family := store.family(name):
        record = next((one for one in family if one.search.segment == search.segment), None)
        if record is None:
            members = ", ".join(one.name for one in family)
            raise InputError(f"{name!r} is a family of {len(family)} searches: name one of {members}")
    record = record or store.search(name)
    return earlier_search(name, record.search.objectives, store.trials(record.id))


def examine_earlier_searches(store: Store | None, found: Examination, base: Path | None) -> Examination:
    """What was found in a search file, with what is to say of the earlier searches that it names.

    Args:
        store: where searches are found by their names; None: there is none, which is worth a note.
        found: what was found in the file; one with problems stays as it is.
        base: the folder of the file; None: it is elsewhere, and so are the result files.
    """
    search = found.search
    if search is None:
        return found
    problems: dict[tuple[str, str], Problem] = {}
    notes: dict[tuple[str, str], Problem] = {}
    for source, place in found.earlier:
        if is_result_file(source) and base is None:
            continue
        if store is None and not is_result_file(source):
            message = "whether there is such a search was not looked at, for there is no store yet"
            notes[place.path, message] = replace(place, message=message)
            continue
        for one in list(search.by_segment().values()) or [search]:
            try:
                results = _results(store, one, source, {} if base is None else result_files(one, base))
            except InputError as error:
                message = str(error).removeprefix("warm_start: ")
                problems[place.path, message] = replace(place, message=message)
            else:
                for message in results.notes:
                    notes[place.path, message] = replace(place, message=message)
    return replace(
        found,
        search=None if problems else search,
        problems=in_order([*found.problems, *problems.values()]),
        notes=in_order([*found.notes, *notes.values()]),
    )
