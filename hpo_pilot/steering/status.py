"""The status of a search for users: its expected end, what its optimizer does, whether it is steered, and problems."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo_pilot.advice import command
from hpo_pilot.errors import HpoPilotError
from hpo_pilot.search.estimate import Estimate, estimate, window
from hpo_pilot.search.mistakes import listing
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.values import Point, point_key
from hpo_pilot.store import EMBEDDED, SearchRecord, SearchState, Store
from hpo_pilot.store.lease import Holder
from hpo_pilot.store.queries import (
    last_spans,
    levels_trained,
    open_tasks,
    reported_a_number,
    running_spans,
    waiting_tasks,
)

if TYPE_CHECKING:
    from hpo_pilot.search.search import Search

log = logging.getLogger(__name__)

#: Ten years in seconds: no end is predicted beyond that.
_FURTHEST = 3650 * 86400.0

#: The points of more trials than this are not compared for speed; they are almost certainly distinct.
_COMPARED = 1000


def expected_end(
    store: Store, record: SearchRecord, progress: SearchProgress, now: float, *, steered: bool = True
) -> Estimate | None:
    """Returns the estimated end of a search.

    Args:
        store: its store.
        record: the search.
        progress: its progress.
        now: the present time, in seconds since the epoch.
        steered: whether something steers it; else its end is unknown.

    Returns:
        The estimate; None: it is unknown, or the search does not run.
    """
    if record.state is not SearchState.RUNNING or not steered or not progress.over:
        return None
    expected = estimate(
        record.search,
        last_spans(store.engine, record.id, window(record.search)),
        over=progress.over - progress.confirmations_over,
        confirmed=progress.confirmations_over,
        out=running_spans(store.engine, record.id, now),
        job_seconds=progress.job_seconds,
        clock=None if record.clock is None else record.clock.timestamp(),
        now=now,
        trained=0.0 if record.search.levels is None else levels_trained(store.engine, record.id),
    )
    return expected if expected is not None and expected.seconds < _FURTHEST else None


def optimizer_words(
    search: Search,
    state: SearchState,
    progress: SearchProgress,
    tried: Callable[[int], Sequence[Point]],
    *,
    steered: bool = True,
) -> str:
    """Describes in words the present work of the optimizer.

    Args:
        search: the search.
        state: its state.
        progress: its progress.
        tried: returns at most this number of points of trials that count against the budget.
        steered: whether something steers it.
    """
    if not (steered or state.is_over):
        return "nothing steers the search: proposes no points"
    out = progress.pending + progress.running - (progress.confirmations - progress.confirmations_over)
    if state.is_over:
        return "at its end: proposes no more points"
    if state in (SearchState.PAUSED, SearchState.STOPPING):
        waits = f"; {out} trial{'s' * (out != 1)} still out" if out else ""
        return ("paused: proposes no points" if state is SearchState.PAUSED else "stopping") + waits
    if progress.confirmations:
        ended, all_of_them = progress.confirmations_over, progress.confirmations
        return f"confirming: {ended} of {all_of_them} fresh runs of the best points are over"
    if state is SearchState.SUBMITTED:
        return "waiting for a service to take the search up"
    if progress.counted >= search.budget.trials:
        return f"all trials are submitted: the last {out} {'are' if out != 1 else 'is'} not over"
    known = progress.counted
    if progress.counted <= _COMPARED:
        distinct = {point_key(point) for point in tried(_COMPARED)}
        starts = {point_key(search.space.canonical(point)) for point in search.start}
        if untried := starts - distinct:
            return f"trying the start points of its file: {len(starts) - len(untried)} of {len(starts)} are submitted"
        known = len(distinct)
    from hpo_pilot.optimizers.phase import Knowledge, optimizer_phase  # noqa: PLC0415 - lists load no pydantic

    # The known results of the file count as results of this search.
    knowledge = Knowledge(
        known=known + len(search.known),
        told=progress.told + len(search.known),
        good=progress.good + sum(result.figures is not None for result in search.known),
        earlier=bool(search.warm_start),
    )
    return optimizer_phase(
        search.optimizer.name,
        search.optimizer.settings,
        knowledge,
        dimensions=len(search.space.dimensions),
        trials=search.budget.trials,
        objectives=len(search.objectives),
    )


def is_steered(record: SearchRecord, holder: Holder | None) -> bool | None:
    """Returns whether the holder of the store's lease steers a search; None for a search that is over."""
    if record.state.is_over:
        return None
    return holder is not None and holder.steers(record.id, record.server)


def why_not(record: SearchRecord, holder: Holder | None) -> str:
    """Returns why nothing steers a search, in a sentence; empty if something does or the search is over."""
    if is_steered(record, holder) is not False:
        return ""
    if holder is None:
        reason = "nothing steers it now"
    elif holder.steers(record.id, None):
        reason = (
            f"nothing steers it now: `hpo-pilot {holder.mode}`, which has this store, takes tasks to "
            f"{server_phrase(str(holder.server))}, and its tasks are at {server_phrase(str(record.server))}"
        )
    else:
        reason = f"nothing steers it now: `hpo-pilot {holder.mode}`, which has this store, steers other searches only"
    return f"{reason}; no trial starts and no result is collected"


def steering_commands(record: SearchRecord) -> str:
    """Returns the commands that would steer a search, in a sentence."""
    words = ["serve"]
    if record.server not in (None, EMBEDDED) or (record.server == EMBEDDED and os.environ.get("PANDA_URL_SSL")):
        words += ["--server", str(record.server)]
    serve = f"{command(*words)} steers it and every other search of its store"
    if not Path(record.source).is_file():  # submitted on another machine, or the file was moved
        return serve
    return f"{command('run', record.source)} continues it; {serve}"


def server_phrase(server: str) -> str:
    """Returns the name of a PanDA server for a sentence."""
    return "the embedded PanDA server" if server == EMBEDDED else f"the PanDA server {server}"


# --- notes on problems ---

#: A note names at most this many tasks.
_SHOWN = 5


def early_stopping_notes(store: Store, record: SearchRecord, progress: SearchProgress) -> list[str]:
    """Returns a note if early stopping is on, trials have finished, and none reported an intermediate value."""
    early = record.search.early_stopping
    if not early.is_on or not progress.finished or reported_a_number(store.engine, record.id):
        return []
    metric, file = early.metric or record.search.objective.metric, record.search.payload.file_names.progress
    return [f"no trial reported a number {metric!r} in {file}: nothing could be stopped early"]


def waiting_task_notes(store: Store, record: SearchRecord) -> list[str]:
    """Returns the PanDA server's reasons for tasks that have no jobs yet, in its own words."""
    if record.state.is_over:
        return []
    numbers: dict[str, list[int]] = {}
    for number, why in waiting_tasks(store.engine, record.id):
        numbers.setdefault(why, []).append(number)
    return [f"{_tasks(waiting)} at the PanDA server: {why}" for why, waiting in numbers.items()]


def _tasks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"task {numbers[0]} waits"
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} tasks ({shown}) wait"


#: Number of trials whose folds must agree exactly: a coarse figure, such as an accuracy, may repeat by chance.
_EQUAL_FOLDS = 3


def fold_notes(record: SearchRecord, progress: SearchProgress) -> list[str]:
    """Returns a note if all folds of every finished trial gave the same value."""
    finished = progress.with_std
    if record.search.folds.k == 1 or finished < _EQUAL_FOLDS or progress.with_spread:
        return []
    return [
        f"in each of {finished} finished trials all folds gave exactly the same value: the training probably ignores "
        "HPO_PILOT_FOLD; `hpo-pilot manual folds` shows how to use it"
    ]


def search_notes(store: Store, record: SearchRecord, progress: SearchProgress, workdir: Path) -> list[str]:
    """Returns all notes on a search: earlier results, folds, early stopping, waiting tasks and waiting jobs.

    Args:
        store: its store.
        record: the search.
        progress: its progress.
        workdir: work folder of the embedded server that may have its jobs.
    """
    earlier = [str(one) for one in store.earlier_results(record.id)] if record.search.warm_start else []
    waiting: list[str] = []
    asked = record.search.payload.is_none  # no pilot is expected
    if record.server == EMBEDDED and not (record.state.is_over or asked):
        waiting = waiting_job_notes(workdir, open_tasks(store.engine, record.id))
    known = earlier + fold_notes(record, progress) + early_stopping_notes(store, record, progress)
    return known + waiting_task_notes(store, record) + waiting


#: A pilot that asked for jobs within this many seconds counts as present.
_LATELY = 600.0

#: A job that waits less than this many seconds gets no note.
_PATIENCE = 30.0

#: Number of tasks in one request.
_TASKS = 200

#: Timeout of the request in seconds. It is short because the user asked for the search, not for the notes.
_SECONDS = 3.0

#: The needs of a job that a pilot must offer, each with its words.
_SIZES: Sequence[tuple[str, Callable[[Any], str]]] = (
    ("nodes", lambda value: f"{value} nodes at once"),
    ("gpus", lambda value: f"{value} GPU{'' if value == 1 else 's'} on a node"),
    ("cores", lambda value: f"{value} core{'' if value == 1 else 's'} on a node"),
    ("memory_mb", lambda value: f"{value} MB of memory on a node"),
    ("minutes", lambda value: f"{value:g} minutes for a job"),
)


def waiting_job_notes(workdir: Path, task_ids: Sequence[int]) -> list[str]:
    """Returns notes on jobs that wait without a fitting pilot.

    Args:
        workdir: work folder of the embedded server.
        task_ids: the open tasks of the search.

    Returns:
        The notes. Empty if no server runs there or every waiting job can be expected to start.
    """
    if not task_ids:
        return []
    try:
        demand = _demand(workdir, task_ids)
        return [] if demand is None else why_they_wait(demand)
    except (HpoPilotError, OSError, ValueError, LookupError, TypeError) as error:
        log.debug("it is not known why jobs wait: %s", error)  # The search itself can still be shown.
        return []


def _demand(workdir: Path, task_ids: Sequence[int]) -> Mapping[str, Any] | None:
    from hpo_pilot.panda.server import read_address  # noqa: PLC0415 - it brings an HTTP client

    server = read_address(workdir)
    if server is None:
        return None
    with server.session() as session:
        answer = session.get(
            f"{server.url}/api/v1/hpo_pilot/demand",
            params={"task_ids": list(task_ids[:_TASKS])},
            headers=server.headers(),
            timeout=_SECONDS,
            allow_redirects=False,
        )
    answer.raise_for_status()
    data: Mapping[str, Any] = answer.json()["data"]
    return data


def why_they_wait(demand: Mapping[str, Any]) -> list[str]:
    """Returns notes on why jobs wait, from the server's answer to hpo_pilot/demand."""
    waiting = [shape for shape in demand["waiting"] if shape["since"] >= _PATIENCE]
    if not waiting:
        return []
    jobs = sum(shape["jobs"] for shape in waiting)
    known = min(_LATELY, demand["known_for"])
    offers = [offer for offer in demand["offers"] if offer["is_busy"] or offer["asked"] < _LATELY]
    if not demand["going"] and not offers:
        if known < _PATIENCE:
            return []  # The server has just started, and pilots may not have found it yet.
        return [
            f"{_jobs(jobs)}, and no pilot has asked for jobs for {_time(known)}: `hpo-pilot pilots list` shows "
            "allocations; `hpo-pilot serve --slots N`, `hpo-pilot pilot` or `hpo-pilot pilots submit` starts pilots"
        ]
    if not offers:
        return []  # The pilots that have jobs asked for them before the server started.
    able = [offer for offer in offers if not offer.get("why")]
    if not able:
        return [f"{_jobs(jobs)}, and no pilot can start them: {'; '.join(sorted({one['why'] for one in offers}))}"]
    return [note for shape in waiting if (note := _lacking(shape, able))]


def _lacking(shape: Mapping[str, Any], offers: Sequence[Mapping[str, Any]]) -> str:
    """Returns a note on the needs of these jobs that no pilot meets; empty if one pilot meets all of them."""
    if queues := shape.get("queues"):  # older servers do not say
        there = sorted({offer["queue"] for offer in offers})
        offers = [offer for offer in offers if offer["queue"] in queues]
        if not offers:
            return (
                f"{_jobs(shape['jobs'])} in queue {listing(queues, 'or')}, which no pilot serves: those that asked "
                f"lately serve {listing(there)}; `hpo-pilot pilot --queue {queues[0]}` starts one"
            )
    if site := shape.get("site"):
        offers = [offer for offer in offers if (offer.get("site") or site) == site]
        if not offers:
            remedy = f"`hpo-pilot pilots submit --site {site}` submits some"
            return (
                f"{_jobs(shape['jobs'])} for the site profile {site}, and no pilot with it has asked lately: {remedy}"
            )
    if any(all(_reaches(offer, shape, name) for name, _ in _SIZES) for offer in offers):
        return ""
    lacking = [text(shape[name]) for name, text in _SIZES if not any(_reaches(one, shape, name) for one in offers)]
    if lacking:
        return f"{_jobs(shape['jobs'])}, and no pilot that asked lately has {' or '.join(lacking)}"
    wanted = [text(shape[name]) for name, text in _SIZES if shape[name] > (name == "nodes")]
    return f"{_jobs(shape['jobs'])}, and no pilot that asked lately has all of this: {', '.join(wanted)}"


def _reaches(offer: Mapping[str, Any], shape: Mapping[str, Any], name: str) -> bool:
    """Returns True if a pilot offers enough of one need. The pilot may leave out cores, memory and time."""
    if name in ("nodes", "gpus"):
        return bool(offer[name] >= shape[name])
    if name == "minutes" and shape.get("checkpoints"):
        return True  # it may run across several allocations
    return not offer[name] or bool(offer[name] >= shape[name])


def _jobs(count: int) -> str:
    return "1 job waits" if count == 1 else f"{count} jobs wait"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
