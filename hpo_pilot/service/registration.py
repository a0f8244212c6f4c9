"""Registering a search, and what its owner may do with it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpo_pilot.config import load_search, payload_folder
from hpo_pilot.errors import InputError
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.search import Budget, Search, Trial, TrialState
from hpo_pilot.service.embedded import nickname
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, SearchState, Store


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
    if found.search.budget != search.budget:
        store.redefine(
            found.id, search, nickname(), f"budget changed: {_difference(found.search.budget, search.budget)}"
        )
    elif found.state is SearchState.DONE:
        return found
    if found.state.is_over or found.state is SearchState.PAUSED:
        store.reopen(found.id, nickname(), "resumed")
    return store.search(found.id)


def _check_same(found: SearchRecord, search: Search, sandbox: Path, search_file: Path) -> None:
    old, new = found.search.to_dict(), search.to_dict()
    changed = sorted(key for key in new if key != "budget" and new[key] != old.get(key))
    what = ""
    if changed:
        what = f"{', '.join(changed)} changed"
    elif search.budget.trials < found.search.budget.trials:
        what = f"budget.trials shrank from {found.search.budget.trials} to {search.budget.trials}"
    elif found.sandbox != str(sandbox):
        raise InputError(
            f"{search_file}: the payload's files changed since search {search.name!r} began. "
            f"`hpo-pilot resume {search.name} --new-payload` goes on with the new files; "
            "another name in the file starts a new search"
        )
    if what:
        raise InputError(
            f"{search_file}: {what} since search {search.name!r} began; only its budget may grow. "
            "Undo the change, or give the search another name"
        )


def _difference(old: Budget, new: Budget) -> str:
    before, after = old.model_dump(), new.model_dump()
    return ", ".join(f"{key} {before[key]} -> {after[key]}" for key in after if after[key] != before[key])


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
        new_payload: pack the payload's files anew, from the folder that the search file named.

    Raises:
        InputError: the search is running, or done with its budget spent.
    """
    if record.state is SearchState.DONE:
        raise InputError(
            f"search {record.name!r} is done; `hpo-pilot extend {record.name} --trials +N` gives it more budget"
        )
    if not (record.state.is_over or record.state is SearchState.PAUSED) and not new_payload:
        raise InputError(f"search {record.name!r} is {record.state.value} already")
    sandbox = str(pack_payload(record.search, Path(record.source), workdir)) if new_payload else None
    store.reopen(
        record.id, nickname(), "resumed with the payload's new files" if new_payload else "resumed", sandbox=sandbox
    )


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
        changes: what to add, by the names of `Budget`: trials, hours, gpu_hours, failures.

    Returns:
        The search with its new budget.

    Raises:
        InputError: nothing is added.
    """
    budget = record.search.budget
    values = budget.model_dump()
    for name, amount in changes.items():
        if amount <= 0:
            raise InputError(f"{name}: {amount:+g} does not extend the budget; a budget may only grow")
        values[name] = (values[name] or 0) + amount
    search = record.search.model_copy(update={"budget": Budget.model_validate(values)})
    what = f"extended: {_difference(budget, search.budget)}"
    store.redefine(record.id, search, nickname(), what)
    if record.state.is_over:
        store.reopen(record.id, nickname(), "resumed")
    return search


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
