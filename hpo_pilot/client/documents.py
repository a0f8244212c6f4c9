"""Searches, trials and what else is told of them, as JSON documents.

The same ones are printed by ``--json``, answered by the REST API and returned by every `SearchClient`. Their keys are
part of the interface: new ones may come, none goes or changes its meaning. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NotRequired

# pydantic makes the OpenAPI schemas of these; Python 3.11's own TypedDict tells it too little.
from typing_extensions import TypedDict

from hpo_pilot.client.cost_documents import CostDocument, GainDocument, cost_document, gain_document
from hpo_pilot.client.outlook_documents import FailureDocument, OutlookDocument
from hpo_pilot.client.time_text import time_text

if TYPE_CHECKING:
    from hpo_pilot.search import Trial, TrialState
    from hpo_pilot.search.cost import Price, Spent
    from hpo_pilot.search.gain import Gain
    from hpo_pilot.store import Event, SearchRecord

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
