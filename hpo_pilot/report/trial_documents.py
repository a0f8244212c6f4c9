"""Trials, their results and their cost as JSON documents; see documents.py for the rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NotRequired, cast

from typing_extensions import TypedDict

from hpo_pilot.jobs import Attempt, JobState
from hpo_pilot.jobs.results import from_epoch
from hpo_pilot.report.formatting import listed

if TYPE_CHECKING:
    from hpo_pilot.search import Fold, Search, Trial
    from hpo_pilot.search.fidelity import Levels
    from hpo_pilot.search.ranking import Standing
    from hpo_pilot.search.trials import Cost, Price
    from hpo_pilot.store import Annotation, Store


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
        values=tuple(listed(document["value"])),
        stds=tuple(listed(document["std"])),
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
        stop=stop and EarlyStop(0, "", stop["step"], stop["value"], tuple(listed(stop["projected"])) or None),
    )


def _fold_document(fold: Fold, logs: bool) -> FoldDocument:
    result = fold.result
    document = {
        "fold": fold.number,
        "value": _one_or_more(result.values),
        "error": result.error,
        "log_tail": result.log_tail,
        "attempt": fold.attempt,
        "seconds": result.seconds,
        "metrics": _finite(result.metrics or {}),
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

    values = tuple(listed(document["value"]))
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
    """Returns the figure of one objective, a list for several, and None without figures; `listed` reverses it."""
    return list(figures) if len(figures) > 1 else figures[0] if figures else None


def _stop_document(trial: Trial) -> StoppedDocument | None:
    if (stop := trial.stop) is None or not trial.stopped_early:
        return None
    return {"step": stop.step, "value": stop.value, "projected": _one_or_more(stop.projected or ())}


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON does not have, by null; a payload's metrics may contain anything."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: item if type(item) in (int, str) else _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


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


def all_intermediate(store: Store, search_id: int) -> list[IntermediateDocument]:
    """Returns the intermediate values of all trials, sorted by number; queries 500 trials at a time."""
    found: list[IntermediateDocument] = []
    after: int | None = 0
    while after is not None:
        some, after = intermediate_documents(store, search_id, after, 500)
        found += some
    return found


def mean_curve(folds: Iterable[Iterable[Sequence[Any]]]) -> list[tuple[int, float]]:
    """Returns the means over a trial's folds at the steps that most of them reported; NaN where one is not finite.

    Args:
        folds: (step, value) of each fold; value None: not finite.
    """
    at: dict[int, list[float]] = {}
    for values in folds:
        for step, value in values:
            at.setdefault(step, []).append(math.nan if value is None else value)
    most = max(map(len, at.values()), default=0)
    return [(step, sum(one / most for one in values)) for step, values in sorted(at.items()) if len(values) == most]
