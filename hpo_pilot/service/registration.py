"""Registering a search, and what its owner may do with it afterwards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hpo_pilot.config import load_search, payload_folder
from hpo_pilot.errors import InputError
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.search import Budget, Search, Trial, TrialState
from hpo_pilot.service.embedded import nickname
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, SearchState, Store

#: The states in which a search waits for its owner.
_MAY_GO_ON = (SearchState.PAUSED, SearchState.STOPPED, SearchState.FAILED)


def pack_payload(search: Search, search_file: Path, workdir: WorkDir) -> Path:
    """Packs the search's payload with the runner.

    Raises:
        InputError: the payload's files cannot be read.
    """
    folder = payload_folder(search, search_file)
    if folder is not None and not folder.is_dir():
        raise InputError(f"payload.files: {folder} is not a folder; the path is relative to {search_file}")
    return build_sandbox(folder, payload_document(search), workdir.sandboxes, without=search_file)


def payload_document(search: Search) -> dict[str, Any]:
    """What the runner is told of the payload: `hpo_pilot_payload.json` in the sandbox."""
    payload, needs = search.payload, search.resources
    return {
        "command": payload.command,
        "metric": search.objective.metric,
        "inputs": list(payload.inputs),
        "outputs": list(payload.outputs),
        "checkpoint": list(payload.checkpoint),
        "minutes": needs.minutes,
        "nodes": needs.nodes,
        "gpus_per_node": needs.gpus_per_node,
        "cores": needs.cores,
        "memory_mb": needs.memory_mb,
        "container": payload.container,
    }


def register(store: Store, workdir: WorkDir, search_file: Path, *, go_on: bool) -> SearchRecord:
    """Registers the search of a file, or finds the one that the store has.

    Args:
        store: the store.
        workdir: where the packed payload goes.
        search_file: the search file.
        go_on: whether a search that is there already goes on (`run`) or is an error (`submit`).

    Raises:
        InputError: the file is wrong, or differs from the registered search in more than a larger budget.
    """
    search = load_search(search_file)
    sandbox = pack_payload(search, search_file, workdir)
    found = store.find_search(search.name)
    if found is None:
        return store.create_search(search, source=str(search_file.absolute()), sandbox=str(sandbox), owner=nickname())
    if not go_on:
        raise InputError(
            f"the store already has a search {search.name!r} ({found.state.value}); `hpo-pilot run {search_file}` "
            "goes on with it, `hpo-pilot extend` gives it more budget, another name in the file starts a new one"
        )
    _check_same(found, search, sandbox, search_file)
    if found.filed.budget != search.budget:
        return store.redefine(found.id, lambda now: _refiled(now, search, search_file), nickname(), filed=search)
    store.reopen(found.id, nickname(), "resumed", only_from=_MAY_GO_ON)
    return store.search(found.id)


def _check_same(found: SearchRecord, search: Search, sandbox: Path, search_file: Path) -> None:
    """Makes sure that the file says what it said when the search began, its budget aside."""
    old, new = found.filed.to_dict(), search.to_dict()
    changed = sorted(key for key in new if key != "budget" and new[key] != old.get(key))
    if changed:
        raise InputError(
            f"{search_file}: {', '.join(changed)} changed since search {search.name!r} began; only its budget may "
            "grow. Undo the change, or give the search another name"
        )
    if found.sandbox != str(sandbox):
        raise InputError(
            f"{search_file}: the payload's files changed since search {search.name!r} began. "
            f"`hpo-pilot resume {search.name} --new-payload` goes on with the new files; "
            "another name in the file starts a new search"
        )


def _refiled(record: SearchRecord, search: Search, search_file: Path) -> tuple[Search, str]:
    """The search with the budget that its file now has, which may only have grown; what commands added stays."""
    before, after = record.filed.budget, search.budget
    largest: dict[str, Any] = {}
    for name in ("trials", "hours", "gpu_hours"):
        old, new, now = (_limit(budget, name) for budget in (before, after, record.search.budget))
        if new < old:
            raise InputError(
                f"{search_file}: budget.{name} shrank from {old:g} to {new:g} since search {search.name!r} began; "
                "a budget may only grow. Undo the change, or give the search another name"
            )
        largest[name] = None if max(new, now) == math.inf else max(new, now)
    largest["trials"] = int(largest["trials"])
    changed = search.model_copy(update={"budget": after.model_copy(update=largest)})
    return changed, f"budget changed: {_difference(record.search.budget, changed.budget)}"


def _limit(budget: Budget, name: str) -> float:
    value = getattr(budget, name)
    return math.inf if value is None else float(value)


def _difference(old: Budget, new: Budget) -> str:
    before, after = old.model_dump(), new.model_dump()
    return ", ".join(f"{key} {before[key]} -> {after[key]}" for key in after if after[key] != before[key]) or "nothing"


def pause(store: Store, record: SearchRecord) -> None:
    """No new trials from now on.

    Raises:
        InputError: the search is not running.
    """
    running = (SearchState.RUNNING, SearchState.SUBMITTED)
    if not store.set_state(record.id, SearchState.PAUSED, nickname(), only_from=running):
        raise InputError(f"search {record.name!r} is {store.search(record.id).state.value}, so it cannot be paused")


def resume(store: Store, record: SearchRecord, workdir: WorkDir, *, new_payload: bool = False) -> None:
    """Lets a paused, stopped or failed search go on.

    Args:
        store: the store.
        record: the search.
        workdir: where the packed payload goes.
        new_payload: pack the payload's files anew, from the folder that the search file named; a running search goes
            on with them from its next trial.

    Raises:
        InputError: the search is running or stopping, or done with its budget spent.
    """
    sandbox, what = None, "resumed"
    states: tuple[SearchState, ...] = _MAY_GO_ON
    if new_payload:
        sandbox, what = str(pack_payload(record.search, Path(record.source), workdir)), "resumed with new payload files"
        states = (*_MAY_GO_ON, SearchState.RUNNING, SearchState.SUBMITTED)
    if store.reopen(record.id, nickname(), what, only_from=states, sandbox=sandbox):
        return
    state = store.search(record.id).state
    if state is SearchState.DONE:
        raise InputError(f"search {record.name!r} is done; `hpo-pilot extend {record.name} --trials +N` gives it more")
    raise InputError(f"search {record.name!r} is {state.value} already")


def stop(store: Store, record: SearchRecord) -> None:
    """Kills the search's jobs and ends it.

    Raises:
        InputError: it is over already.
    """
    alive = (SearchState.RUNNING, SearchState.SUBMITTED, SearchState.PAUSED)
    if not store.set_state(record.id, SearchState.STOPPING, nickname(), only_from=alive):
        raise InputError(f"search {record.name!r} is {store.search(record.id).state.value} already")


def extend(store: Store, record: SearchRecord, changes: dict[str, float]) -> Search:
    """Adds to the search's budget, and lets it go on where it was over.

    Args:
        store: the store.
        record: the search.
        changes: what to add, by the names of `Budget`: trials, hours, gpu_hours, failures.

    Returns:
        The search with its new budget.

    Raises:
        InputError: an amount does not extend the budget, or the budget has no such limit.
    """
    for name, amount in changes.items():
        if not (math.isfinite(amount) and amount > 0):
            raise InputError(f"{name}: {amount:+g} does not extend the budget; a budget may only grow")

    def extended(now: SearchRecord) -> tuple[Search, str]:
        values = now.search.budget.model_dump()
        for name, amount in changes.items():
            if values[name] is None:
                raise InputError(f"search {now.name!r} has no limit on {name}: there is nothing to extend")
            values[name] += amount
        search = now.search.model_copy(update={"budget": Budget.model_validate(values)})
        return search, f"extended: {_difference(now.search.budget, search.budget)}"

    return store.redefine(record.id, extended, nickname()).search


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
