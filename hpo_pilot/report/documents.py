"""Searches, trials and their parts as JSON documents, as `--json`, the REST API and every `SearchClient` return them.

The keys are part of the interface: new ones may be added, and none is removed or changes its meaning. Times are ISO
8601 in UTC. pydantic makes the OpenAPI schemas from the TypedDicts of `typing_extensions`; the TypedDict of Python 3.11
lacks information that it needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NotRequired, cast

from typing_extensions import TypedDict

from hpo_pilot.jobs import Attempt, JobState
from hpo_pilot.jobs.results import from_epoch
from hpo_pilot.report.formatting import estimate_basis

if TYPE_CHECKING:
    from hpo_pilot.search import Fold, Search, Trial
    from hpo_pilot.search.fidelity import Levels
    from hpo_pilot.search.progress import SearchProgress
    from hpo_pilot.search.ranking import Standing
    from hpo_pilot.search.trials import Cost, Estimate, Gain, Price
    from hpo_pilot.store import Annotation, Event, PointRequest, SearchRecord, Store
    from hpo_pilot.store.queries import Failure
    from hpo_pilot.store.trial_queries import LevelCount


def time_text(time: datetime | None) -> str | None:
    """Formats a time as ISO 8601 in UTC, with milliseconds."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def time_of(text: str | None) -> datetime | None:
    """Parses a time of a document; the result has its time zone."""
    return None if text is None else datetime.fromisoformat(text)


class CostDocument(TypedDict):
    """The cost of jobs: all attempts that are over, including lost and repeated ones.

    `energy_source` says whether `energy_kwh` was measured on the nodes, estimated from the power figures in the site's
    profile, or both (`mixed`). Both keys are null where the energy is not known. `co2_kg` is the mass of CO2 equivalent
    by the profile's figure for the site's electricity, or null.
    """

    job_seconds: float
    gpu_hours: float
    core_hours: float
    energy_kwh: float | None
    energy_source: str | None
    co2_kg: float | None


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


def cost_document(cost: Cost) -> CostDocument:
    """Returns a cost as a document."""
    return {
        "job_seconds": cost.job_seconds,
        "gpu_hours": cost.gpu_hours,
        "core_hours": cost.core_hours,
        "energy_kwh": cost.energy_kwh,
        "energy_source": cost.energy_source,
        "co2_kg": cost.co2_kg,
    }


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


class FoldDocument(TypedDict):
    """The result of one fold of a trial; with several objectives, `value` is a list, in their order."""

    fold: int
    value: float | list[float] | None
    error: str | None
    log_tail: NotRequired[str | None]
    attempt: int
    seconds: float | None
    metrics: dict[str, Any]
    panda_id: int | None
    node: str | None
    started: str | None
    ended: str | None


class StoppedDocument(TypedDict):
    """A trial that was stopped early: its last step, and the value there, which is not a figure of merit.

    `value` is null where the training diverged. `projected` is the projected final value, with several objectives a
    list; null where it cannot be projected, or the trial would have failed.
    """

    step: int
    value: float | None
    projected: float | list[float] | None


class ConfirmedDocument(TypedDict):
    """The mean over the confirmation runs of a trial, with several objectives a list, and the number of the runs."""

    value: float | list[float] | None
    runs: int


class RecommendationDocument(TypedDict):
    """The trial that is probably the best: with noise the lowest value is partly luck.

    `value` is its figure of merit without noise, as a model of all results predicts it, and `error` the standard error.
    Where no model is used, `error` is null, `reason` says why, and the trial is the best one.
    """

    number: int
    point: dict[str, Any]
    value: float
    error: float | None
    reason: str


class AnnotationDocument(TypedDict):
    """Note and tags that users wrote; both are left out where there are none."""

    note: NotRequired[str]
    tags: NotRequired[list[str]]


def add_annotation(document: AnnotationDocument, annotation: Annotation | None) -> None:
    """Adds the note and tags of a search or trial to its document."""
    if annotation:
        document.update(cast("AnnotationDocument", annotation.to_dict()))


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


class TrialDocument(AnnotationDocument):
    """One hyper-parameter point and its result.

    `confirmed` is there only for the best trial or the front, and only where they have confirmation runs. `remarks` is
    there only for the best trial, and `recommended` only in the answer of `hpo-pilot best`.
    With several objectives, `value` and `std` are lists, in their order. `confirms` and `retries` are the number of the
    trial whose point this trial repeats: as a confirmation run, or because that trial failed and a user requested it.
    `level` and `continues`, only in a search with levels, are the level of the training, and the number of the trial of
    the level below that it goes on from. There the state of a trial that finished below the highest level and was not
    promoted is `paused`.
    """

    number: int
    generation: int
    state: str
    point: dict[str, Any]
    value: float | list[float] | None
    std: float | list[float] | None
    folds: list[FoldDocument]
    error: str | None
    stopped: StoppedDocument | None
    seed: int
    confirms: int | None
    retries: int | None
    level: NotRequired[float]
    continues: NotRequired[int | None]
    told: int | None
    submitted: str | None
    started: str | None
    ended: str | None
    cost: NotRequired[CostDocument]
    confirmed: NotRequired[ConfirmedDocument]
    remarks: NotRequired[list[str]]
    recommended: NotRequired[RecommendationDocument | None]


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

    `trained` is the sum of the levels that the jobs of these trials train, as 18 for a trial from 9 to 27 epochs.
    Confirmation runs are not counted.
    """

    level: float
    trials: int
    finished: int
    paused: int
    trained: float
    job_seconds: float


class SearchDocument(AnnotationDocument):
    """One search with its progress; `trials` counts them by state, `best` is a trial without log tails.

    `over` is the number of trials that are over, and `planned` the number that there will be. Both include confirmation
    runs, and leave out trials that were stopped together with their search. `confirmations` is the number of
    confirmation runs that are over; they do not count against the budget.
    `steered` says whether a `run` or `serve` drives the search now; while it is false, no trial starts and no result is
    collected. It is null where the search is over.
    `levels` is there in the status of a search with levels of its training (`fidelity`).
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
    over: NotRequired[int]
    planned: NotRequired[int]
    confirmations: NotRequired[int]
    levels: NotRequired[list[LevelDocument]]
    steered: NotRequired[bool | None]
    remarks: NotRequired[list[str]]
    added: NotRequired[int]


class StatusDocument(SearchDocument, OutlookDocument):
    """One search with everything but its trials; `definition` is its search file with all defaults."""

    job_seconds: float
    gpu_hours: float
    cost: NotRequired[CostDocument]
    gain: NotRequired[GainDocument | None]
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
    over: NotRequired[int]
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


def level_documents(counts: Sequence[LevelCount]) -> list[LevelDocument]:
    """Returns the counts of the levels of a search as documents."""
    return [
        {
            "level": one.level,
            "trials": one.trials,
            "finished": one.finished,
            "paused": one.paused,
            "trained": one.trained,
            "job_seconds": one.seconds,
        }
        for one in counts
    ]


# --- trials: one writer, one reader ---


def trial_document(
    trial: Trial, price: Price | None, *, logs: bool = True, levels: Levels | None = None
) -> TrialDocument:
    """Returns a trial as a document.

    Args:
        trial: the trial.
        price: that of its search; None: without the cost.
        logs: with the log tails of its folds.
        levels: those of its search.
    """
    document: TrialDocument = {
        "number": trial.number,
        "generation": trial.generation,
        "state": trial.shown_state(levels),
        "point": trial.point,
        "value": _one_or_more(trial.values),
        "std": _one_or_more(trial.stds),
        "folds": [_fold_document(fold, logs) for fold in trial.folds],
        "error": trial.error,
        "stopped": _stop_document(trial),
        "seed": trial.seed,
        "confirms": trial.confirms,
        "retries": trial.retries,
        "told": trial.told,
        "submitted": time_text(trial.submitted),
        "started": time_text(trial.started),
        "ended": time_text(trial.ended),
    }
    if trial.level is not None:
        document["level"], document["continues"] = trial.level, trial.continues
    if price is not None:
        document["cost"] = cost_document(price.cost(trial.spent))
    return document


def trial_documents(search: Search, trials: Iterable[Trial], *, logs: bool = True) -> Iterator[TrialDocument]:
    """Yields trials of a search as documents, with their costs."""
    from hpo_pilot.hpc.site_files import price_of  # noqa: PLC0415 - the command line starts light

    price = price_of(search)
    for trial in trials:
        yield trial_document(trial, price, logs=logs, levels=search.levels)


def json_list(documents: Iterable[Any]) -> Iterator[str]:
    """Yields the text of a JSON list in pieces, as `json.dumps(…, indent=1, ensure_ascii=False)` returns it."""
    return laid_out("[]", (("", document) for document in documents))


def laid_out(brackets: str, members: Iterable[tuple[str, Any]], indent: int = 0) -> Iterator[str]:
    """Yields the text of a JSON list or object in pieces, with the layout of `json.dumps(…, indent=1)`.

    Args:
        brackets: the first and the last character.
        members: pairs of the text before a value (for an object its key and a colon) and the value.
        indent: the depth of the list or object in its document.
    """
    line = "\n" + " " * indent
    lead = brackets[0]
    for before, value in members:
        text = json.dumps(value, indent=1, ensure_ascii=False)
        # In JSON, strings contain no line ends.
        yield f"{lead}{line} {before}" + text.replace("\n", f"{line} ")
        lead = ","
    yield f"{line}{brackets[1]}" if lead == "," else brackets


#: Least characters of a part of a text that is sent or written at once.
_PART = 1 << 17


def in_parts(pieces: Iterable[str]) -> Iterator[str]:
    """Joins the pieces of a long text to fewer, larger ones."""
    part: list[str] = []
    size = 0
    for piece in pieces:
        part.append(piece)
        size += len(piece)
        if size >= _PART:
            yield "".join(part)
            part, size = [], 0
    yield "".join(part)


def best_document(
    best: Standing, price: Price | None, *, logs: bool = True, levels: Levels | None = None
) -> TrialDocument:
    """Returns the best trial, or one of the front, as a document."""
    document = trial_document(best.trial, price, logs=logs, levels=levels)
    if best.confirmed:
        document["confirmed"] = {"value": _one_or_more(best.figures), "runs": best.runs}
    return document


def trial_of(document: TrialDocument) -> Trial:
    """Returns a trial from its document. A fold has only the attempt that counts; energy and outputs are not there."""
    from hpo_pilot.search import EarlyStop, Trial, TrialState  # noqa: PLC0415 - pydantic; a service's user has none

    stop = document["stopped"]
    return Trial(
        number=document["number"],
        generation=document["generation"],
        point=document["point"],
        state=TrialState("finished" if document["state"] == "paused" else document["state"]),
        values=_several(document["value"]),
        stds=_several(document["std"]),
        folds=tuple(_fold_of(document["number"], fold) for fold in document["folds"]),
        error=document["error"],
        seed=document["seed"],
        confirms=document["confirms"],
        retries=document["retries"],
        level=document.get("level"),
        continues=document.get("continues"),
        told=document["told"],
        submitted=time_of(document["submitted"]),
        started=time_of(document["started"]),
        ended=time_of(document["ended"]),
        stop=stop and EarlyStop(0, "", stop["step"], stop["value"], _several(stop["projected"]) or None),
    )


def _fold_document(fold: Fold, logs: bool) -> FoldDocument:
    result = fold.result
    document = {
        "fold": fold.number,
        "value": _one_or_more(fold.values),
        "error": result.error,
        "log_tail": result.log_tail,
        "attempt": fold.attempt,
        "seconds": result.seconds,
        "metrics": _finite(fold.metrics),
        "metadata": result.metadata,
        "panda_id": result.panda_id,
        "node": result.node,
        "started": time_text(from_epoch(result.started)),
        "ended": time_text(from_epoch(result.ended)),
    }
    if not logs:
        del document["log_tail"]
    return cast("FoldDocument", document)


def _fold_of(trial: int, document: FoldDocument) -> Fold:
    from hpo_pilot.search import Fold  # noqa: PLC0415 - as above

    values = _several(document["value"])
    attempt = Attempt(
        trial=trial,
        fold=document["fold"],
        state=JobState.FINISHED if values else JobState.FAILED,
        panda_id=document["panda_id"],
        values=values,
        metrics=document["metrics"],
        metadata=cast("dict[str, Any]", document).get("metadata"),
        error=document["error"],
        log_tail=document.get("log_tail"),
        node=document["node"],
        seconds=document["seconds"],
        started=_seconds(document["started"]),
        ended=_seconds(document["ended"]),
    )
    return Fold(document["fold"], (attempt,), document["attempt"] - 1)


def _seconds(text: str | None) -> float | None:
    return None if (time := time_of(text)) is None else time.timestamp()


def _one_or_more(figures: Sequence[float]) -> float | list[float] | None:
    """Returns the figure of one objective, a list for several, and None without figures."""
    return list(figures) if len(figures) > 1 else next(iter(figures), None)


def _several(figures: float | list[float] | None) -> tuple[float, ...]:
    """Reverses `_one_or_more`."""
    return tuple(figures) if isinstance(figures, list) else () if figures is None else (figures,)


def _stop_document(trial: Trial) -> StoppedDocument | None:
    if (stop := trial.stop) is None or not trial.stopped_early:
        return None
    return {"step": stop.step, "value": stop.value, "projected": _one_or_more(stop.projected or ())}


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON does not have, by null; a payload's metrics may contain anything."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def search_document(
    record: SearchRecord, progress: SearchProgress, best: Standing | None, price: Price | None
) -> SearchDocument:
    """Returns a search with its progress as a document.

    Args:
        record: the search.
        progress: its progress.
        best: its best trial, with one objective.
        price: for the cost of the best trial; None: without it.
    """
    objectives: list[ObjectiveDocument] = [{"metric": o["metric"], "goal": o["goal"]} for o in record.objectives]
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
) -> StatusDocument:
    """Returns all that is known of one search as a document."""
    cost = cost_document(price.cost(progress.spent))
    return {
        **search_document(record, progress, best, price),
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
    extent = progress.extent(record.planned_trials, is_over=record.state.is_over)
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
    return document.get("steered") is False  # services of older versions omit the key


def over_count(document: SearchDocument | ProgressDocument) -> int:
    """Returns the number of trials that are over."""
    # Services of older versions omit the key.
    return document.get("over", sum(document["trials"].get(state, 0) for state in OVER_TRIALS))


def planned_count(search: SearchDocument) -> int:
    """Returns the number of trials that there will be."""
    return max(search.get("planned", search["budget"]["trials"]), over_count(search))


#: A step and its value; null where the value is not finite.
StepValue = tuple[int, float | None]


class FoldCurveDocument(TypedDict):
    """The intermediate values of one fold: pairs of step and value in the order of steps; null if not finite."""

    fold: int
    values: list[StepValue]


class IntermediateDocument(TypedDict):
    """The intermediate values of one trial; trials without any have no such document."""

    number: int
    folds: list[FoldCurveDocument]


def intermediate_documents(
    store: Store, search_id: int, after: int, limit: int
) -> tuple[list[IntermediateDocument], int | None]:
    """Returns a page of intermediate values: of the `limit` trials after the number `after`.

    Returns:
        The documents, sorted by trial number, and the value of `after` for the next page; None where no later trial has
        reported.
    """
    from hpo_pilot.store.queries import last_reporting  # noqa: PLC0415 - a client of a service has no store

    values = store.intermediate_values(search_id, range(after + 1, after + limit + 1))
    last = last_reporting(store.engine, search_id)
    found: list[IntermediateDocument] = [
        {
            "number": number,
            "folds": [
                {"fold": fold, "values": [(step, value if math.isfinite(value) else None) for step, value in curve]}
                for fold, curve in sorted(folds.items())
            ],
        }
        for number, folds in sorted(values.items())
    ]
    return found, after + limit if last > after + limit else None


def all_intermediate(store: Store, search_id: int, page: int = 500) -> list[IntermediateDocument]:
    """Returns the intermediate values of all trials, sorted by number; queries `page` trials at a time."""
    found: list[IntermediateDocument] = []
    after: int | None = 0
    while after is not None:
        some, after = intermediate_documents(store, search_id, after, page)
        found += some
    return found


def mean_curve(document: IntermediateDocument) -> list[tuple[int, float]]:
    """Returns the means over a trial's folds at the steps that all of them reported; NaN where one is not finite."""
    at: dict[int, list[float]] = {}
    for fold in document["folds"]:
        for step, value in fold["values"]:
            at.setdefault(step, []).append(math.nan if value is None else value)
    folds = len(document["folds"])
    return [(step, sum(one / folds for one in values)) for step, values in sorted(at.items()) if len(values) == folds]
