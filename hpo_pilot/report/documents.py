"""Searches as JSON documents, as `--json`, the REST API and every `SearchClient` return them.

The keys are part of the interface: new ones may be added, and none is removed or changes its meaning. Times are ISO
8601 in UTC. pydantic makes the OpenAPI schemas from the TypedDicts of `typing_extensions`; the TypedDict of Python 3.11
lacks information that it needs.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NotRequired, cast

from typing_extensions import TypedDict

from hpo_pilot.report.formatting import estimate_basis
from hpo_pilot.report.trial_documents import (
    AnnotationDocument,
    CostDocument,
    TrialDocument,
    best_document,
    cost_document,
    time_text,
)

if TYPE_CHECKING:
    from hpo_pilot.search.estimate import Estimate
    from hpo_pilot.search.progress import SearchProgress
    from hpo_pilot.search.ranking import Standing
    from hpo_pilot.search.trials import Gain, Price
    from hpo_pilot.store import Event, PointRequest, SearchRecord
    from hpo_pilot.store.queries import Failure


class GainDocument(TypedDict):
    """The gain of a search: the improvement of its best figure of merit over its first one.

    `per_gpu_hour` and `per_core_hour` are null where its jobs used no GPUs or cores. With several objectives, `gain` is
    the hypervolume of the front, and `first` and `best` are null.
    """

    first: float | None
    best: float | None
    gain: float
    per_gpu_hour: float | None
    per_core_hour: float | None


class EtaDocument(TypedDict):
    """The estimated end of a running search: seconds from now, the time, and the basis of the estimate.

    `earliest` and `latest` are the limits of `seconds`; about four of five searches end between them.
    """

    seconds: float
    earliest: float
    latest: float
    end: str
    basis: str


class FailureDocument(TypedDict):
    """A failed trial and its error."""

    trial: int
    error: str
    ended: str | None


class WishDocument(TypedDict):
    """A point that a user requested and that is not submitted yet; `retries` is the failed trial that it repeats."""

    point: dict[str, Any]
    retries: int | None
    who: str
    created: str | None


class OutlookDocument(TypedDict):
    """The state of a running search, for people.

    `eta` is null while it cannot be estimated, and where the search does not run or is not steered. `last_failure` is
    the failed trial that ended last. `course` is the best value after each of at most 60 results, evenly spaced; null
    with several objectives. `wishes` are the points that users requested. `optimizer_state` describes what the
    optimizer does, and `monitor` is the address of the search's tasks at the monitor of its PanDA server, if it has
    one. `hours_used` is the used part of the budget's hours; null before the start.
    """

    eta: NotRequired[EtaDocument | None]
    last_failure: NotRequired[FailureDocument | None]
    course: NotRequired[list[float] | None]
    wishes: NotRequired[list[WishDocument]]
    optimizer_state: NotRequired[str | None]
    monitor: NotRequired[str | None]
    hours_used: NotRequired[float | None]


def eta_document(estimate: Estimate, now: float) -> EtaDocument:
    """Returns an estimate as a document; it was made at `now`, in seconds since the epoch."""
    return {
        "seconds": round(estimate.seconds, 1),
        "earliest": round(estimate.earliest, 1),
        "latest": round(estimate.latest, 1),
        "end": datetime.fromtimestamp(now + estimate.seconds, UTC).isoformat(timespec="seconds"),
        "basis": estimate_basis(estimate),
    }


def failure_document(failure: Failure) -> FailureDocument:
    """Returns a failed trial as a document."""
    ended = None if failure.ended is None else datetime.fromtimestamp(failure.ended, UTC)
    return {"trial": failure.trial, "error": failure.error, "ended": time_text(ended)}


def wish_document(wish: PointRequest) -> WishDocument:
    """Returns a requested point as a document."""
    return {"point": wish.point, "retries": wish.retries, "who": wish.who, "created": time_text(wish.created)}


#: Final states of searches and of trials: values of `SearchState` and of `Trial.shown_state`.
OVER_SEARCHES = ("done", "failed", "stopped")
OVER_TRIALS = ("failed", "finished", "infeasible", "paused", "stopped")


class AskedDocument(TypedDict):
    """The answer to a client that asks for a trial. Without one its fields are null, and `message` says why.

    `over`: there are no more trials. `attempt` counts the clients that got the trial. After `lease` seconds without
    report or result another client gets it.
    """

    search: str
    state: str
    over: bool
    message: str
    trial: int | None
    point: dict[str, Any] | None
    seed: int | None
    attempt: int | None
    lease: float | None


class ToldDocument(TypedDict):
    """The answer to a client's result or intermediate value.

    `stop`: the client should end the trial and ask for another. `counts`: false for a trial that was stopped. `message`
    has the reason of both, or that of a failure.
    """

    search: str
    trial: int
    counts: bool
    stop: bool
    message: str


class ObjectiveDocument(TypedDict):
    """An objective: the name of a figure of merit, and `minimize` or `maximize`."""

    metric: str
    goal: str


class FrontDocument(TypedDict):
    """The Pareto front: the numbers of its trials, its hypervolume, and the reference point in the payload's units."""

    trials: list[int]
    hypervolume: float
    reference: list[float]


class FrontSizeDocument(TypedDict):
    """The size of the Pareto front: number of trials, and hypervolume."""

    size: int
    hypervolume: float


class LevelDocument(TypedDict):
    """The trials of one level: `paused` ones finished below the highest level and were not promoted.

    `trained` is the sum of the levels that the jobs of these trials train, as 18 for a trial from 9 to 27 epochs, or
    27 if it trained from the start. Confirmation runs are not counted.
    """

    level: float
    trials: int
    finished: int
    paused: int
    trained: float
    job_seconds: float


class SteererDocument(TypedDict):
    """The process that steers a search: its command, host and process, and since when it has the search."""

    mode: str
    host: str
    pid: int
    since: str


class SearchDocument(AnnotationDocument):
    """One search with its progress; `trials` counts them by state, `best` is a trial without log tails.

    `over` is the number of trials that are over, and `planned` the number that there will be. Both include confirmation
    runs, and leave out trials that were stopped together with their search. `confirmations` is the number of
    confirmation runs that are over; they do not count against the budget.
    `steered` says whether a `run` or `serve` drives the search now; while it is false, no trial starts and no result is
    collected. It is null where the search is over.
    `levels` is there in the status of a search with levels of its training (`fidelity`), `steered_by` while a process
    steers it.
    `remarks`, in the document of one search and of a run, are notes for people. `added`, in the answer to a request for
    points, is the number of points added.

    With several objectives, `objective` is a list, `best` is null, and `front` is the Pareto front; it is null while
    there is none.

    A family has one search for each segment of a file. Its document has the sums, number 0 and no `best`; its searches
    are in `segments`.
    """

    id: int
    name: str
    state: str
    message: str
    owner: str
    server: str | None
    family: str | None
    objective: ObjectiveDocument | list[ObjectiveDocument]
    trials: dict[str, int]
    budget: dict[str, Any]
    best: TrialDocument | None
    front: NotRequired[FrontDocument | None]
    created: str | None
    started: str | None
    ended: str | None
    segments: NotRequired[list[Any]]
    over: int
    planned: int
    confirmations: int
    levels: NotRequired[list[LevelDocument]]
    steered: bool | None
    steered_by: NotRequired[SteererDocument]
    remarks: NotRequired[list[str]]
    added: NotRequired[int]


class StatusDocument(SearchDocument, OutlookDocument):
    """One search with everything but its trials; `definition` is its search file with all defaults."""

    job_seconds: float
    gpu_hours: float
    cost: CostDocument
    gain: GainDocument | None
    source: str
    definition: dict[str, Any]


class RunDocument(SearchDocument):
    """The outcome of a run; `report` is the path of its report."""

    report: str


class FigureDocument(TypedDict):
    """The figure of merit of a trial, with the standard deviation over its folds."""

    number: int
    value: float
    std: float | None


class ConfirmedBestDocument(TypedDict):
    """The best confirmed trial: the mean over its confirmation runs, and their number."""

    number: int
    value: float
    runs: int


class ProgressDocument(TypedDict):
    """The progress of a search in few bytes: `over` of `total` trials are over.

    `best` is the best trial by its own folds; `confirmed` is the best one by its confirmation runs, which people should
    be shown instead; it is null where no trial was confirmed.

    `steered` is as in `SearchDocument`. `failures` has the first failed trial for each of at most 5 reasons, without
    failures from before the search was last resumed.

    With several objectives, `metric` names all, separated by commas, `best` is null, and there is a `front`. `remarks`
    say why the PanDA server keeps tasks waiting.
    """

    id: int
    name: str
    state: str
    message: str
    metric: str
    trials: dict[str, int]
    over: int
    total: int
    best: FigureDocument | None
    confirmed: NotRequired[ConfirmedBestDocument | None]
    front: NotRequired[FrontSizeDocument | None]
    remarks: NotRequired[list[str]]
    steered: NotRequired[bool | None]
    failures: NotRequired[list[FailureDocument]]


class EventDocument(TypedDict):
    """An event: time, user or component, and action."""

    time: str | None
    who: str
    what: str


class ProblemDocument(TypedDict):
    """One mistake in a search file; line and column count from 1, and are null where it concerns the whole file."""

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    suggestion: str


class ExaminationDocument(TypedDict):
    """The result of checking a search file; `search` is null where the file has problems.

    `python` is the path of the Python that runs the payload: of the active environment, of the environment of a
    service, or `payload.python`. It is null where jobs run elsewhere or in a container.
    """

    valid: bool
    problems: list[ProblemDocument]
    notes: list[ProblemDocument]
    search: dict[str, Any] | None
    python: str | None


class FindingDocument(TypedDict):
    """The result of one check of `doctor`."""

    what: str
    ok: bool
    detail: str
    needed: bool


def search_document(
    record: SearchRecord, progress: SearchProgress, best: Standing | None, price: Price | None, *, steered: bool | None
) -> SearchDocument:
    """Returns a search with its progress as a document.

    Args:
        record: the search.
        progress: its progress.
        best: its best trial, with one objective.
        price: for the cost of the best trial; None: without it.
        steered: whether a process steers it; None: it is over.
    """
    objectives: list[ObjectiveDocument] = [{"metric": o["metric"], "goal": o["goal"]} for o in record.objectives]
    extent = progress.extent(record.planned_trials, is_done=record.state.value == "done")
    document: SearchDocument = {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "message": record.message,
        "owner": record.owner,
        "server": record.server,
        "family": record.family,
        "objective": objectives if len(objectives) > 1 else objectives[0],
        "trials": {state.value: count for state, count in sorted(progress.counts.items())},
        "budget": dict(record.budget),
        "best": None if best is None else best_document(best, price, logs=False, levels=record.levels),
        "created": time_text(record.created),
        "started": time_text(record.started),
        "ended": time_text(record.ended),
        "over": extent.over,
        "planned": extent.planned,
        "confirmations": extent.confirmations,
        "steered": steered,
    }
    if len(objectives) > 1:
        document["front"] = _front_document(progress)
    return document


def _front_document(progress: SearchProgress) -> FrontDocument | None:
    """Returns the Pareto front; None while no trial has finished."""
    if progress.hypervolume is None:
        return None
    numbers, reference = list(progress.front), list(progress.reference)
    return {"trials": numbers, "hypervolume": progress.hypervolume, "reference": reference}


def status_document(
    record: SearchRecord,
    progress: SearchProgress,
    best: Standing | None,
    price: Price,
    gain: Gain | None,
    outlook: OutlookDocument,
    *,
    steered: bool | None,
) -> StatusDocument:
    """Returns all that is known of one search as a document."""
    cost = cost_document(price.cost(progress.spent))
    return {
        **search_document(record, progress, best, price, steered=steered),
        "job_seconds": cost["job_seconds"],
        "gpu_hours": cost["gpu_hours"],
        "cost": cost,
        "gain": None if gain is None else cast("GainDocument", asdict(gain)),
        **outlook,
        "source": record.source,
        "definition": record.search.shown(),
    }


def progress_document(record: SearchRecord, progress: SearchProgress) -> ProgressDocument:
    """Returns the progress of a search as a document."""
    metrics = [objective["metric"] for objective in record.objectives]
    best = confirmed = None
    if progress.best is not None and progress.best_value is not None:
        best = FigureDocument(number=progress.best, value=progress.best_value, std=progress.best_std)
    if progress.confirmed is not None and progress.confirmed_value is not None:
        confirmed = ConfirmedBestDocument(
            number=progress.confirmed, value=progress.confirmed_value, runs=progress.confirmed_runs
        )
    extent = progress.extent(record.planned_trials, is_done=record.state.value == "done")
    document: ProgressDocument = {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "message": record.message,
        "metric": ", ".join(metrics),
        "trials": {state.value: count for state, count in sorted(progress.counts.items())},
        "over": extent.over,
        "total": extent.planned,
        "best": best,
        "confirmed": confirmed,
    }
    if len(metrics) > 1:
        front = _front_document(progress)
        document["front"] = front and {"size": len(front["trials"]), "hypervolume": front["hypervolume"]}
    return document


def event_document(event: Event) -> EventDocument:
    """Returns an event as a document."""
    return {"time": time_text(event.time), "who": event.who, "what": event.what}


def is_unsteered(document: SearchDocument | ProgressDocument) -> bool:
    """Tells whether the search is not over and nothing steers it."""
    return document.get("steered") is False
