"""Searches, trials and their parts as JSON documents, as `--json`, the REST API and every client give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NotRequired, TypeVar, cast

from typing_extensions import TypedDict

from hpo_pilot.errors import InputError

if TYPE_CHECKING:
    from hpo_pilot.search import Trial, TrialState
    from hpo_pilot.search.trials import Cost, Estimate, Gain, Price, Spent
    from hpo_pilot.store import Event, PointRequest, SearchRecord, Store
    from hpo_pilot.store.queries import Failure


def time_text(time: datetime | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


class CostDocument(TypedDict):
    """What jobs took, all attempts together that are over, those that were lost or repeated included.

    `energy_source` says whether `energy_kwh` was measured on the nodes, estimated by the power figures of the site's
    profile, or both (`mixed`); both are null where neither is possible.
    """

    job_seconds: float
    gpu_hours: float
    core_hours: float
    energy_kwh: float | None
    energy_source: str | None


class GainDocument(TypedDict):
    """What a search gained for that: by how much its best figure of merit is better than its first one.

    `per_gpu_hour` and `per_core_hour` are null where its jobs have none. Of several objectives `gain` is the
    hypervolume of the front, and `first` and `best` are null.
    """

    first: float | None
    best: float | None
    gain: float
    per_gpu_hour: float | None
    per_core_hour: float | None


def cost_document(cost: Cost) -> CostDocument:
    """Returns a cost as a document."""
    return cast("CostDocument", asdict(cost))


def gain_document(gain: Gain) -> GainDocument:
    """Returns a gain as a document."""
    return cast("GainDocument", asdict(gain))


class EtaDocument(TypedDict):
    """When a running search will probably be over: seconds from now, the time, and by what that is judged."""

    seconds: float
    end: str
    basis: str


class FailureDocument(TypedDict):
    """A failed trial, and why it failed."""

    trial: int
    error: str
    ended: str | None


class WishDocument(TypedDict):
    """A point that a user asked for and that is not out yet; `retries` is the failed trial that had it, if one had."""

    point: dict[str, Any]
    retries: int | None
    who: str
    created: str | None


class OutlookDocument(TypedDict):
    """What people look at while a search runs.

    `eta` is null while nobody can tell, and where the search does not run or nothing steers it. `last_failure` is the
    failed trial that ended last. `course` is the best value after each of at
    most 60 results, evenly apart; null with several objectives. `optimizer_state` says in words what the optimizer is
    at, and `monitor` is the address of the search's tasks at the monitor of its PanDA server, where it has one.
    `hours_used` is how many of the budget's hours are over; null before its start.
    """

    eta: NotRequired[EtaDocument | None]
    last_failure: NotRequired[FailureDocument | None]
    course: NotRequired[list[float] | None]
    wishes: NotRequired[list[WishDocument]]
    optimizer_state: NotRequired[str | None]
    monitor: NotRequired[str | None]
    hours_used: NotRequired[float | None]


def eta_document(estimate: Estimate, now: float) -> EtaDocument:
    """An estimate that was made at `now`, in seconds since the epoch."""
    return {
        "seconds": round(estimate.seconds, 1),
        "end": datetime.fromtimestamp(now + estimate.seconds, UTC).isoformat(timespec="seconds"),
        "basis": estimate.basis,
    }


def failure_document(failure: Failure) -> FailureDocument:
    """A failed trial."""
    ended = None if failure.ended is None else datetime.fromtimestamp(failure.ended, UTC)
    return {"trial": failure.trial, "error": failure.error, "ended": time_text(ended)}


def wish_document(wish: PointRequest) -> WishDocument:
    """One point that waits."""
    return {"point": wish.point, "retries": wish.retries, "who": wish.who, "created": time_text(wish.created)}


# Searches, trials and what else is told of them, as JSON documents.
#
# The same ones are printed by ``--json``, answered by the REST API and returned by every `SearchClient`. Their keys
# are
# part of the interface: new ones may come, none goes or changes its meaning. Times are ISO 8601 in UTC.

# pydantic makes the OpenAPI schemas of these; Python 3.11's own TypedDict tells it too little.


#: States in which nothing more happens, of searches and of trials: the words of `SearchState` and `TrialState`.
OVER_SEARCHES = ("done", "failed", "stopped")
OVER_TRIALS = ("failed", "finished", "stopped")


class FoldDocument(TypedDict):
    """The last word on one fold of a trial; of several objectives `value` is a list, in their order."""

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
    """How far a trial came that was stopped early: its last step, and the value there, which is no figure of merit.

    `value` is null where the training diverged. `projected` is what it would probably have come to, of several
    objectives a list; null: nobody can tell, or it would have failed.
    """

    step: int
    value: float | None
    projected: float | list[float] | None


class TrialDocument(TypedDict):
    """One hyper-parameter point and what came of it.

    Of several objectives `value` and `std` are lists, in their order. `confirms` and `retries` are the number of the
    trial whose point it repeats: as a confirmation run, or because that one failed and a user asked.
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
    told: int | None
    submitted: str | None
    started: str | None
    ended: str | None
    cost: NotRequired[CostDocument]


class ObjectiveDocument(TypedDict):
    """What is optimised: the name of a figure, and `minimize` or `maximize`."""

    metric: str
    goal: str


class FrontDocument(TypedDict):
    """The Pareto front: its trials' numbers, and its hypervolume beyond the reference point (as reported)."""

    trials: list[int]
    hypervolume: float
    reference: list[float]


class FrontSizeDocument(TypedDict):
    """How large the Pareto front is, in trials and in volume."""

    size: int
    hypervolume: float


class SearchDocument(TypedDict):
    """One search with its progress; `trials` counts them by state, `best` is a trial without log tails.

    `over` says how many trials are over, and `planned` how many there will be; confirmation runs count, and trials that
    were stopped together with their search do not. `confirmations` says how many of those that are over are
    confirmation runs, which come on top of the budget.
    `steered` says whether a `run` or `serve` drives the search now; while it is false no trial starts and no result is
    collected. It is null where the search is over.
    `remarks`, of one search and of a run, are what else people should know, in words. `added`, of an answer to a call
    that asks for points, is how many it added.

    With several objectives `objective` is a list, `best` is null, and `front` tells the trials of the Pareto front;
    it is null while there is none.

    For a family, the searches of a file's segments, it has the sums, number 0 and no `best`; the searches are its
    `segments`.
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
    steered: NotRequired[bool | None]
    remarks: NotRequired[list[str]]
    added: NotRequired[int]


class StatusDocument(SearchDocument, OutlookDocument):
    """All that is known of one search but its trials; `definition` is what its file says, all defaults filled in."""

    job_seconds: float
    gpu_hours: float
    cost: NotRequired[CostDocument]
    gain: NotRequired[GainDocument | None]
    source: str
    definition: dict[str, Any]


class RunDocument(SearchDocument):
    """What came of a run; `report` is the path of its report."""

    report: str


class FigureDocument(TypedDict):
    """The figure of merit of a trial, with the spread of its folds."""

    number: int
    value: float
    std: float | None


class ProgressDocument(TypedDict):
    """How far a search is, in few bytes: of `total` trials `over` are over; `best` leaves confirmation runs aside.

    `steered` is as in `SearchDocument`. `failures` has the first failed trial for each of at most 5 reasons; failures
    from before the search was last resumed are left out.

    With several objectives `metric` names all, with commas between, `best` is null, and there is a `front`. `remarks`
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
    front: NotRequired[FrontSizeDocument | None]
    remarks: NotRequired[list[str]]
    steered: NotRequired[bool | None]
    failures: NotRequired[list[FailureDocument]]


class EventDocument(TypedDict):
    """Who did what when."""

    time: str | None
    who: str
    what: str


class ProblemDocument(TypedDict):
    """One mistake in a search file; line and column count from 1 and are null where the whole file is meant."""

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    suggestion: str


class ExaminationDocument(TypedDict):
    """What was found in a search file; `search` is null where it has problems.

    `python` is the path of the Python that its payload runs in: of the environment active here, of a service's
    environment, or `payload.python`. It is null where jobs run elsewhere or in a container.
    """

    valid: bool
    problems: list[ProblemDocument]
    notes: list[ProblemDocument]
    search: dict[str, Any] | None
    python: str | None


class FindingDocument(TypedDict):
    """One thing that `doctor` looked at."""

    what: str
    ok: bool
    detail: str
    needed: bool


def trial_document(trial: Trial, price: Price, *, logs: bool = True) -> TrialDocument:
    """One trial; `price` is that of its search, and `logs` includes the log tails of failed folds."""
    folds: list[Any] = []
    for fold in trial.folds:
        document = {
            **asdict(fold),
            "value": fold.value if fold.values is None else list(fold.values),
            "metrics": _finite(fold.metrics),
            "started": time_text(fold.started),
            "ended": time_text(fold.ended),
        }
        del document["values"]
        if not logs:
            del document["log_tail"]
        folds.append(document)
    return {
        "number": trial.number,
        "generation": trial.generation,
        "state": trial.state.value,
        "point": trial.point,
        "value": trial.value if trial.values is None else list(trial.values),
        "std": trial.std if trial.stds is None else list(trial.stds),
        "folds": folds,
        "error": trial.error,
        "stopped": _stopped(trial),
        "seed": trial.seed,
        "confirms": trial.confirms,
        "retries": trial.retries,
        "told": trial.told,
        "submitted": time_text(trial.submitted),
        "started": time_text(trial.started),
        "ended": time_text(trial.ended),
        "cost": cost_document(price.cost(trial.spent)),
    }


def _stopped(trial: Trial) -> StoppedDocument | None:
    if trial.stop is None or not trial.stopped_early:
        return None
    guessed = trial.stop.projected
    projected = None if guessed is None else guessed[0] if len(guessed) == 1 else list(guessed)
    return {"step": trial.stop.step, "value": trial.stop.value, "projected": projected}


def _finite(value: Any) -> Any:
    """`value` with null for what JSON has no number for: a payload's metrics may be anything."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def search_document(
    record: SearchRecord,
    counts: Mapping[TrialState, int],
    best: Trial | None,
    price: Price,
    front: FrontDocument | None = None,
) -> SearchDocument:
    """One search with its progress; `front` is of one with several objectives."""
    objectives: list[ObjectiveDocument] = [{"metric": o.metric, "goal": o.goal} for o in record.search.objectives]
    document: SearchDocument = {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "message": record.message,
        "owner": record.owner,
        "server": record.server,
        "family": record.family,
        "objective": objectives if len(objectives) > 1 else objectives[0],
        "trials": {state.value: count for state, count in sorted(counts.items())},
        "budget": record.search.budget.model_dump(),
        "best": None if best is None else trial_document(best, price, logs=False),
        "created": time_text(record.created),
        "started": time_text(record.started),
        "ended": time_text(record.ended),
    }
    if len(objectives) > 1:
        document["front"] = front
    return document


def status_document(
    record: SearchRecord,
    counts: Mapping[TrialState, int],
    best: Trial | None,
    price: Price,
    spent: Spent,
    gain: Gain | None,
    outlook: OutlookDocument,
    front: FrontDocument | None = None,
) -> StatusDocument:
    """The same, and what only the view of one search shows; `spent` is by all its jobs."""
    cost = cost_document(price.cost(spent))
    return {
        **search_document(record, counts, best, price, front),
        "job_seconds": cost["job_seconds"],
        "gpu_hours": cost["gpu_hours"],
        "cost": cost,
        "gain": None if gain is None else gain_document(gain),
        **outlook,
        "source": record.source,
        "definition": record.search.to_dict(),
    }


def progress_document(
    record: SearchRecord,
    counts: Mapping[TrialState, int],
    extent: tuple[int, int],
    best: tuple[int, float, float | None] | None,
    front: FrontDocument | None = None,
) -> ProgressDocument:
    """How far a search is.

    `extent` is how many trials are over, and of how many; `best` is number, value and spread of the best trial so far;
    `front` is that of a search with several objectives.
    """
    document: ProgressDocument = {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "message": record.message,
        "metric": ", ".join(objective.metric for objective in record.search.objectives),
        "trials": {state.value: count for state, count in sorted(counts.items())},
        "over": extent[0],
        "total": extent[1],
        "best": None if best is None else {"number": best[0], "value": best[1], "std": best[2]},
    }
    if len(record.search.objectives) > 1:
        document["front"] = front and {"size": len(front["trials"]), "hypervolume": front["hypervolume"]}
    return document


def event_document(event: Event) -> EventDocument:
    """One event."""
    return {"time": time_text(event.time), "who": event.who, "what": event.what}


def is_unsteered(document: SearchDocument | ProgressDocument) -> bool:
    """Whether the search is not over and nothing drives it."""
    return document.get("steered") is False  # a service of an older version does not say


def over_count(document: SearchDocument | ProgressDocument) -> int:
    """How many trials are over."""
    # A service of an older version does not say.
    return document.get("over", sum(document["trials"].get(state, 0) for state in OVER_TRIALS))


def planned_count(search: SearchDocument) -> int:
    """Of how many."""
    return max(search.get("planned", search["budget"]["trials"]), over_count(search))


#: A step and the value there; null where that was no finite number.
StepValue = tuple[int, float | None]


class FoldCurveDocument(TypedDict):
    """What one fold reported, in the order of steps: pairs of a step and the value there, null for no finite number."""

    fold: int
    values: list[StepValue]


class IntermediateDocument(TypedDict):
    """What one trial reported while it ran; trials that reported nothing have no such document."""

    number: int
    folds: list[FoldCurveDocument]


def intermediate_documents(
    store: Store, search_id: int, after: int, limit: int
) -> tuple[list[IntermediateDocument], int | None]:
    """What those of the `limit` trials after number `after` reported that did, and where the next ones begin.

    Returns:
        The documents by number, and the number after which the others come; None where no later trial has reported.
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
    """What all trials of a search reported, by number; asked `page` trials at a time, for databases limit a list."""
    found: list[IntermediateDocument] = []
    after: int | None = 0
    while after is not None:
        some, after = intermediate_documents(store, search_id, after, page)
        found += some
    return found


def mean_curve(document: IntermediateDocument) -> list[tuple[int, float]]:
    """The means over a trial's folds at the steps that all those folds reported; not-a-number where one has none."""
    at: dict[int, list[float]] = {}
    for fold in document["folds"]:
        for step, value in fold["values"]:
            at.setdefault(step, []).append(math.nan if value is None else value)
    folds = len(document["folds"])
    return [(step, sum(one / folds for one in values)) for step, values in sorted(at.items()) if len(values) == folds]


#: A family's state is the first of these that one of its searches is in.
_STATES = ("running", "submitted", "stopping", "paused", "failed", "stopped", "done")

_Result = TypeVar("_Result")
_Record = TypeVar("_Record")


def family_document(name: str, members: Sequence[SearchDocument]) -> SearchDocument:
    """The sums of the searches of a family; they are in it, as `segments`. Its number is 0, for it has none."""
    first = members[0]
    state = combined_state([member["state"] for member in members])
    ends = [member["ended"] for member in members if member["ended"]]
    document: SearchDocument = {
        **first,
        "id": 0,
        "name": name,
        "state": state,
        "message": "; ".join(f"{member['name']}: {member['message']}" for member in members if member["message"]),
        "family": None,
        "trials": _summed([member["trials"] for member in members]),
        "budget": {**first["budget"], "trials": sum(member["budget"]["trials"] for member in members)},
        "best": None,
        "over": sum(over_count(member) for member in members),
        "planned": sum(planned_count(member) for member in members),
        "confirmations": sum(member.get("confirmations", 0) for member in members),
        "steered": _all_steered([member.get("steered") for member in members]),
        "started": min((member["started"] for member in members if member["started"]), default=None),
        "ended": max(ends, default=None) if state in OVER_SEARCHES else None,
        "segments": list(members),
    }
    document.pop("front", None)  # that of one of them
    document.pop("remarks", None)
    return document


def family_cost(members: Sequence[CostDocument]) -> CostDocument:
    """What the searches of a family cost together; the energy where that of all is known."""
    energies = [member["energy_kwh"] for member in members]
    sources = {source for member in members if (source := member["energy_source"]) is not None}
    known = [energy for energy in energies if energy is not None]
    whole = len(known) == len(energies)
    return {
        "job_seconds": sum(member["job_seconds"] for member in members),
        "gpu_hours": sum(member["gpu_hours"] for member in members),
        "core_hours": sum(member["core_hours"] for member in members),
        "energy_kwh": sum(known) if whole else None,
        "energy_source": (min(sources, default=None) if len(sources) < 2 else "mixed") if whole else None,
    }


def family_progress(name: str, members: Sequence[ProgressDocument]) -> ProgressDocument:
    """How far the searches of a family are together; there is no best point of different models."""
    return {
        "id": 0,
        "name": name,
        "state": combined_state([member["state"] for member in members]),
        "message": "",
        "metric": members[0]["metric"],
        "trials": _summed([member["trials"] for member in members]),
        "over": sum(over_count(member) for member in members),
        "total": sum(member["total"] for member in members),
        "best": None,
        "remarks": [f"{member['name']}: {remark}" for member in members for remark in member.get("remarks", ())],
        "steered": _all_steered([member.get("steered") for member in members]),
        "failures": [
            {**failure, "error": f"{failure['error']} ({member['name']})"}
            for member in members
            for failure in member.get("failures", ())
        ],
    }


def latest_eta(members: Sequence[StatusDocument]) -> EtaDocument | None:
    """When the last of a family's running searches will be over; None while that cannot be told of one of them."""
    running = [member.get("eta") for member in members if member["state"] == "running"]
    known = [eta for eta in running if eta is not None]
    return max(known, key=lambda eta: eta["seconds"], default=None) if len(known) == len(running) else None


def _all_steered(members: Sequence[bool | None]) -> bool | None:
    """Whether all searches of a family that are not over are steered; None: all are over."""
    return None if all(member is None for member in members) else False not in members


def combined_state(states: Sequence[str]) -> str:
    """The state of a family, from those of its searches."""
    return next(state for state in _STATES if state in states)


def for_each(records: Sequence[_Record], change: Callable[[_Record], _Result]) -> list[_Result]:
    """Changes every search of a family whose state allows it.

    Raises:
        InputError: no search's state did.
    """
    results: list[_Result] = []
    refusal: InputError | None = None
    for record in records:
        try:
            results.append(change(record))
        except InputError as error:
            refusal = error
    if not results and refusal is not None:
        raise refusal
    return results


def of_one_segment(name: str, members: Sequence[str]) -> InputError:
    """What is said where one search is wanted and a family was named."""
    return InputError(f"{name!r} is a family of {len(members)} searches: name one of {', '.join(members)}")


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    states = sorted({state for count in counts for state in count})
    return {state: sum(count.get(state, 0) for count in counts) for state in states}


def segments_of(document: SearchDocument) -> list[SearchDocument]:
    """The searches of a family; of a search that is none, itself."""
    return cast("list[SearchDocument]", document.get("segments") or [document])
