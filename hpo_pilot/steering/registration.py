"""Registers the searches of a search file: packs payloads, compares with the store, loads earlier results.

`pack_searches` reads a file and packs its payload. `register_family` registers its searches or finds them in the
store. `first_task` returns the task of the first generation, without a server.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpo_pilot.advice import command
from hpo_pilot.errors import InputError, Problem, TryAgainError
from hpo_pilot.files import PRIVATE, result_path, write_whole
from hpo_pilot.jobs import task_name
from hpo_pilot.panda.manager import scouts
from hpo_pilot.panda.sandbox import build_sandbox, same_payload
from hpo_pilot.panda.server import environment_vo
from hpo_pilot.panda.task_parameters import task_parameters
from hpo_pilot.search import Budget, Search
from hpo_pilot.search.command import placeholders
from hpo_pilot.search.earlier_results import (
    EarlierResults,
    EarlierSearch,
    earlier_search,
    fit_earlier_results,
    read_results,
)
from hpo_pilot.search.payload import absolute_inputs
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.steering.changes import RESUMABLE, TAKES_PAYLOAD, budget_difference
from hpo_pilot.steering.embedded import chosen_server
from hpo_pilot.steering.recommendation import optimizer_of
from hpo_pilot.steering.search_file import Examination, in_order, load_search, payload_folder
from hpo_pilot.steering.submissions import new_trials, official_group, task_jobs, task_spec, trials_per_task
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir, nickname
from hpo_pilot.store import EMBEDDED, NameTakenError, SearchRecord, Store
from hpo_pilot.store.progress import progress_of
from hpo_pilot.transformation.job import without_secrets


@dataclass(frozen=True)
class PackedSearch:
    """A search that is ready for registration: read from its file, with its payload packed.

    Attributes:
        file: name of the search file in messages.
        source: path of the search file on its user's machine.
        sandbox: the packed payload.
        family: name of the search in the file, if this is the search of one of its segments.
        results: paths of the result files of `warm_start`, by their names there.
        environments: folder that keeps the environment of this process for jobs on this machine; None: the search
            comes from another machine.
    """

    search: Search
    file: str
    source: str
    sandbox: Path
    family: str | None = None
    results: Mapping[str, Path] = field(default_factory=dict)
    environments: Path | None = None


def pack_searches(search_file: Path, workdir: WorkDir) -> list[PackedSearch]:
    """Reads a search file and packs its payload.

    Args:
        search_file: the search file.
        workdir: keeps the packed payload.

    Returns:
        One search per segment of the file; without segments a single search.

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
    """Packs each segment of a search; a search without segments is packed as it is.

    Args:
        whole: the search of the file.
        file: name of the file in messages.
        source: path of the file.
        pack: packs the payload of one search.
        results: paths of the result files of `warm_start`, by their names there.
    """
    if not whole.segments:
        return [PackedSearch(whole, file, source, pack(whole), results=results)]
    family = whole.by_segment().values()
    return [PackedSearch(search, file, source, pack(search), whole.name, results) for search in family]


def pack_payload(search: Search, search_file: Path, workdir: WorkDir) -> Path:
    """Packs the payload of a search together with the runner. Returns the path of the archive.

    Raises:
        InputError: the payload's files cannot be read.
    """
    folder = payload_folder(search, search_file)
    if folder is not None and not folder.is_dir():
        raise InputError(f"payload.files: {folder} is not a folder; the path is relative to {search_file}")
    document = payload_document(search, search_file.parent)
    return build_sandbox(folder, document, workdir.sandboxes, without=search_file)


def payload_document(search: Search, base: Path | None) -> dict[str, Any]:
    """Returns the payload's description for the runner: `hpo_pilot_payload.json` in the sandbox.

    Args:
        search: the search.
        base: folder of the search file, to which paths are relative; None: it is on another machine.

    Raises:
        InputError: an input is a relative path, and the search file is on another machine.
    """
    payload, needs, early = search.payload, search.resources, search.early_stopping
    keys = list(search.payload_point(dict.fromkeys(search.space.names)))
    named: dict[str, Any] = {"python": payload.python, "function": payload.function}
    named |= payload.model_dump(include={"result", "progress"}, exclude_none=True)
    named["placeholders"] = placeholders(payload.command, keys)
    more = {name: value for name, value in named.items() if value is not None}
    if early.is_on:
        jobs = search.budget.parallel * search.folds.k
        more |= {"progress_metric": early.metric, "report_seconds": early.seconds_between_reports(jobs)}
    if "memory_mb" in search.limit_texts:
        more |= {"measured": ["memory_mb"]}
    return more | {
        "command": payload.command,
        "metric": search.objective.metric,
        "objectives": [objective.metric for objective in search.objectives],
        "mode": "min" if search.objective.goal == "minimize" else "max",
        "hyperparameters": keys,
        "inputs": absolute_inputs(payload.inputs, base),
        "outputs": list(payload.kept_files),
        "checkpoint": list(payload.checkpoint),
        "minutes": needs.minutes,
        "nodes": needs.nodes,
        "gpus_per_node": needs.whole_gpus,
        **({"gpu_share": needs.gpu_share} if needs.gpu_share > 1 else {}),
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
    """Registers a search, or resumes the search of that name in the store.

    Args:
        store: the store.
        packed: the search.
        go_on: whether a registered search is resumed (`run`) or is an error (`submit`).
        who: the user. A new search is theirs.
        uid: the identity of the search, if the caller chose one. A registered search of this name, identity and owner
            is then the result of an earlier call and no error. None: a new random identity.
        check: called before a registered search is resumed; raises if `who` may not do that.

    Raises:
        InputError: the search differs from the registered one in more than a larger budget, or an earlier search of
            `warm_start` does not exist or has no usable results.
    """
    search = packed.search
    found = store.find_search(search.name)
    if found is None:
        earlier = earlier_results(store, search, packed.results)
        family, sandbox, own = packed.family, str(packed.sandbox), uid or secrets.token_hex(4)
        if packed.environments is not None:
            note_environment(packed.environments, own)  # before a service can start the search
        try:
            return store.create_search(
                search, source=packed.source, sandbox=sandbox, owner=who, family=family, uid=own, earlier=earlier
            )
        except NameTakenError:
            found = store.search(search.name)  # Another call, perhaps a repetition of this one, was faster.
    if uid is not None and found.uid == uid and found.owner == who:
        return found
    check_registered(store, found, packed, go_on=go_on, check=check)
    if packed.environments is not None:
        note_environment(packed.environments, found.uid)
    corrected = found.filed.payload.result != search.payload.result
    if corrected or found.filed.budget != search.budget:
        new = str(packed.sandbox) if corrected else None
        store.redefine(found.id, lambda now: _refiled(now, search, packed.file), who, filed=search, sandbox=new)
    store.reopen(found.id, who, "resumed", only_from=RESUMABLE)
    if not corrected and found.sandbox != str(packed.sandbox):
        what = "goes on with the payload runner of another version of hpo-pilot"
        store.reopen(found.id, who, what, only_from=TAKES_PAYLOAD, sandbox=str(packed.sandbox))
    return store.search(found.id)


def note_environment(folder: Path, uid: str) -> None:
    """Writes the environment of this process to `folder`, for the local jobs of the search with that uid.

    Raises:
        TryAgainError: it cannot be written.
    """
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        write_whole(folder / f"{uid}.json", json.dumps(without_secrets(os.environ)), 0o600)
    except OSError as error:
        raise TryAgainError(f"cannot keep the environment in {folder}: {error.strerror or error}") from error


def check_registered(
    store: Store,
    found: SearchRecord,
    packed: PackedSearch,
    *,
    go_on: bool,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> None:
    """Checks that a registered search can be resumed.

    Args:
        store: the store.
        found: the registered search.
        packed: the search as its file has it now.
        go_on: as for `register_packed`.
        check: as for `register_packed`.

    Raises:
        InputError: the search may not be resumed, or differs from the registered one in more than `check_same` allows.
    """
    if not go_on:
        name = found.name
        raise InputError(
            f"the store already has a search {name!r} ({found.state.value}); {command('run', packed.file)} "
            f"continues it, `hpo-pilot extend {name} --trials +N` gives it more budget, another name in the file "
            "starts a new one"
        )
    check(found)
    check_same(store, found, packed.search, packed.sandbox, packed.file)
    _refiled(found, packed.search, packed.file)


def check_same(store: Store, found: SearchRecord, search: Search, sandbox: Path, search_file: str) -> None:
    """Checks that the file still defines the registered search, apart from its budget.

    `payload.result` may be corrected after the search has ended without any result: nothing depends on it then.

    Another version of hpo-pilot may have registered it, with another payload runner, and with LOCAL as the queue if
    the file names none.

    Raises:
        InputError: the definition or the payload's files have changed.
    """
    old, new = found.filed.to_dict(), search.to_dict()
    if found.server in (None, EMBEDDED):
        for definition in (old, new):
            definition["site"]["queue"] = definition["site"]["queue"] or DEFAULT_QUEUE
    changed = sorted(key for key in old | new if key != "budget" and new.get(key) != old.get(key))
    if changed == ["payload"] and old["payload"] | {"result": None} == new["payload"] | {"result": None}:
        progress = progress_of(store.engine, found.id)
        if progress.trials > progress.failed + progress.stopped - progress.stopped_early:
            raise _too_late(search, search_file, "trials of it are open or have a result")
    elif changed:
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
            f"`hpo-pilot resume {search.name} --new-payload` continues with the new files; "
            "another name in the file starts a new search"
        )


def _refiled(record: SearchRecord, search: Search, search_file: str) -> tuple[Search, str]:
    """Returns the search with the larger budget of its file and the change in words; extensions by commands stay.

    Raises:
        InputError: a limit in the file has become smaller, or `payload.result` changed while the search runs.
    """
    corrected = search.payload.result != record.search.payload.result
    if corrected and not record.state.is_over:
        raise _too_late(search, search_file, f"it is {record.state.value}; stop it first")
    before, after = record.filed.budget, search.budget
    largest: dict[str, Any] = {}
    for name in ("trials", "hours", "gpu_hours", "core_hours", "fidelity"):
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
    budget = after.model_copy(update=largest)
    changed = search.model_copy(update={"budget": budget, "fidelity": record.search.fidelity})
    what = f"budget changed: {budget_difference(record.search.budget, changed.budget)}"
    if corrected:
        what = "payload.result corrected" + (f", {what}" if budget != record.search.budget else "")
    return changed, what


def _too_late(search: Search, search_file: str, why: str) -> InputError:
    return InputError(
        f"{search_file}: payload.result changed since search {search.name!r} began, and {why}. "
        "Undo the change, or give the search another name"
    )


def _limit(budget: Budget, name: str) -> float:
    value = getattr(budget, name)
    return math.inf if value is None else float(value)


def check_family(
    store: Store,
    family: Sequence[PackedSearch],
    *,
    go_on: bool,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> list[SearchRecord | None]:
    """Checks that the searches of one file can be registered. Changes nothing.

    Args:
        store: the store.
        family: the packed searches.
        go_on: whether a registered search is resumed (`run`) or is an error (`submit`).
        uid: as for `register_packed`. The identities of segments are derived from it.
        check: as for `register_packed`.

    Returns:
        For each search its record in the store; None for a new search.

    Raises:
        InputError: a search differs from the registered one, or its name is taken.
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
        check_registered(store, found, packed, go_on=go_on, check=check)
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
    """Registers the searches of one file, or resumes those in the store. All are checked before any is registered.

    Args:
        store: the store.
        family: as for `check_family`.
        go_on: as for `check_family`.
        who: as for `register_packed`.
        uid: as for `check_family`.
        check: as for `register_packed`.

    Raises:
        InputError: a search differs from the registered one, or its name is taken.
    """
    check_family(store, family, go_on=go_on, uid=uid, check=check)
    return [
        register_packed(store, packed, go_on=go_on, who=who, uid=identity, check=check)
        for packed, identity in zip(family, _uids(family, uid), strict=True)
    ]


def _uids(family: Sequence[PackedSearch], uid: str | None) -> list[str | None]:
    """Returns the identity of each search; those of segments are derived from `uid`."""
    if uid is None:
        return [None] * len(family)
    derived = (hashlib.sha256(f"{uid}/{packed.search.name}".encode()).hexdigest()[:8] for packed in family)
    return [uid if packed.family is None else own for packed, own in zip(family, derived, strict=True)]


def result_files(search: Search, base: Path) -> dict[str, Path]:
    """Returns the paths of the result files in `warm_start`, by their names; `base`: folder of the search file."""
    return {source: result_path(source, base) for source in search.warm_start if is_result_file(source)}


def earlier_results(store: Store | None, search: Search, files: Mapping[str, Path]) -> list[EarlierResults]:
    """Returns the results of the earlier searches in `warm_start`: copies that later changes do not touch.

    Args:
        store: the store of the earlier searches; None: there is none.
        search: the new search; of a file with segments the search of one segment.
        files: paths of the result files of `warm_start`, by their names there.

    Raises:
        InputError: an earlier search does not exist or has no usable results.
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
    """Returns the results of a search in the store; of a family, the results of the same segment."""
    if store is None:
        raise InputError(f"there is no store with a search {name!r} (yet)")
    record = None
    if family := store.family(name):
        record = next((one for one in family if one.search.segment == search.segment), None)
        if record is None:
            members = ", ".join(one.name for one in family)
            raise InputError(f"{name!r} is a family of {len(family)} searches: name one of {members}")
    record = record or store.search(name)
    trials = store.trials(record.id, without=("log_tail", "metrics", "metadata"))
    return earlier_search(name, record.search.objectives, trials)


def examine_earlier_searches(store: Store | None, found: Examination, base: Path | None) -> Examination:
    """Adds problems and notes about the earlier searches in `warm_start` to the examination of a search file.

    Args:
        store: the store of the earlier searches; None: there is none, which becomes a note.
        found: the examination of the file. If the file has problems, it is returned unchanged.
        base: folder of the file; None: the file and its result files are on another machine.
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
            message = "not checked whether this search exists, because there is no store yet"
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


# --- the dry run ---

#: Examples: a real search gets a random identity when it is registered, and its server's address when it runs.
_UID = "00000000"
_SERVER = "http://127.0.0.1:25080"


def first_task(
    search_file: Path, server: str | None = None, store: Callable[[], Store | None] = lambda: None
) -> dict[str, Any]:
    """Returns the task parameters of the first generation, with an example of an identity and of a server address.

    Args:
        search_file: the search file.
        server: URL of the PanDA server, or `embedded`; None: the server of PANDA_URL_SSL, else the embedded one.
        store: opens the store with the earlier searches; called only if the file has a `warm_start`.

    Raises:
        InputError: the search file or its payload is wrong, or an earlier search does not exist.
    """
    target = chosen_server(server)
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_searches(search_file, WorkDir(Path(folder)))[0]
    opened = store() if packed.search.warm_start else None
    earlier = earlier_results(opened, packed.search, packed.results)
    return first_task_of(packed.search, packed.sandbox, target, earlier=earlier)


def first_task_of(
    search: Search, sandbox: Path, server: str = EMBEDDED, *, earlier: Sequence[EarlierResults] = ()
) -> dict[str, Any]:
    """Returns the task parameters of the first generation of a packed search. Does not read the archive."""
    ours = server == EMBEDDED
    # panda-client finds out the nickname when there is a login: nothing is asked for here.
    owner = nickname() if ours else os.environ.get("PANDA_NICKNAME") or nickname()
    vo = "hpo_pilot" if ours else environment_vo()
    most = trials_per_task(search, None if ours else scouts(vo))
    count = min(search.budget.parallel, search.budget.trials, most)
    points = [search.space.canonical(point) for point in search.start[:count]]
    if not points:
        points = optimizer_of(search, earlier).ask(count, [])
    trials = {trial.number: trial for trial in new_trials(search, 1, 1, points)}
    jobs = task_jobs(search, [(trial.number, trial.seed) for trial in trials.values()])
    name = task_name(owner, search.name, _UID, 1, 0, group=official_group(search))
    task = task_spec(search, _UID, sandbox, name, 1, jobs, trials)
    url = _SERVER if ours else server
    return task_parameters(task, owner=owner, vo=vo, server=url, sandbox=sandbox.name, ours=ours)
