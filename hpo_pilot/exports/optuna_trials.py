"""Trials in Optuna's words: states, distributions, and parameters as it stores them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import TrialState

from hpo_pilot.client.intermediate import mean_curve
from hpo_pilot.exports.subject import Subject, figures, mean_metrics, panda_ids, when

if TYPE_CHECKING:
    from hpo_pilot.client.documents import TrialDocument

#: Optuna's states, by ours; but one that was stopped together with its search has failed to give a value.
_STATES = {
    "pending": TrialState.WAITING,
    "running": TrialState.RUNNING,
    "finished": TrialState.COMPLETE,
    "failed": TrialState.FAIL,
    "stopped": TrialState.FAIL,
}


@dataclass(frozen=True)
class StudyTrial:
    """One trial.

    Attributes:
        params: of the active parameters the value as Optuna stores it, and the distribution as JSON.
        values: one for each objective; none where there are none.
        intermediate: (step, value), the means over the folds; not-a-number where there was none.
    """

    state: TrialState
    started: datetime | None
    ended: datetime | None
    params: Mapping[str, tuple[float, str]]
    values: Sequence[float]
    intermediate: Sequence[tuple[int, float]]
    user_attrs: Mapping[str, Any]


def distribution_of(dimension: Mapping[str, Any]) -> BaseDistribution:
    """The distribution of a dimension, as a search's definition has it; of an order of choices Optuna knows nothing."""
    kind = dimension["type"]
    if kind in ("categorical", "ordinal"):
        return CategoricalDistribution(dimension["choices"])
    low, high, log, step = dimension["low"], dimension["high"], dimension["scale"] == "log", dimension["step"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that `high` becomes the last step, as it is with us too
        if kind == "integer":
            return IntDistribution(low, high, log=log, step=1 if log else step)
        if step is None:
            return FloatDistribution(low, high, log=log)
        stepped = FloatDistribution(low, high, step=step)
    # A step like 0.3333333333333333 from 0 to 1: our last value is 1, and Optuna's just below it.
    return stepped if stepped._contains(_last_step(low, high, step)) else FloatDistribution(low, high)


def _last_step(low: float, high: float, step: float) -> float:
    from hpo_pilot.search.number import Real  # noqa: PLC0415 - pydantic, for the few spaces that have steps

    return Real(low=low, high=high, step=step).from_unit(1.0)


def stored_value(dimension: Mapping[str, Any], value: Any) -> float:
    """A parameter's value as Optuna stores it: a number, or the place among the choices; 1 and true are two of them."""
    if dimension["type"] not in ("categorical", "ordinal"):
        return float(value)
    choices = dimension["choices"]
    return float(next(place for place, one in enumerate(choices) if type(one) is type(value) and one == value))


def trials_of(subject: Subject) -> Iterator[StudyTrial]:
    """The trials of a search, in order."""
    known = {name: distribution_to_json(distribution_of(dimension)) for name, dimension in subject.space.items()}
    for trial in subject.trials:
        state, stop = _STATES[trial["state"]], trial["stopped"]
        values = [value for value in figures(trial["value"], len(subject.metrics)) if value is not None]
        if stop is not None:
            # As `Study.tell` has it: one that was pruned has the last value that it reported.
            state = TrialState.PRUNED
            values = [] if stop["value"] is None or len(subject.metrics) > 1 else [stop["value"]]
        elif state is not TrialState.COMPLETE:
            values = []
        started = when(trial["started"] or trial["submitted"] or trial["ended"] or subject.search["created"])
        curve = subject.curves.get(trial["number"])
        yield StudyTrial(
            state,
            None if state is TrialState.WAITING else started,
            (when(trial["ended"]) or started) if state.is_finished() else None,
            {
                name: (stored_value(subject.space[name], value), known[name])
                for name, value in trial["point"].items()
                if name in subject.space
            },
            values,
            () if curve is None else mean_curve(curve),
            _attributes(subject, trial),
        )


def _attributes(subject: Subject, trial: TrialDocument) -> dict[str, Any]:
    """What else is known: numbers each under its name, for optuna-dashboard draws those."""
    names = subject.metrics
    ends = [f"_{metric}" for metric in names] if len(names) > 1 else [""]
    found: dict[str, Any] = {
        "trial": trial["number"],
        "state": trial["state"],
        "generation": trial["generation"],
        "seed": trial["seed"],
        "confirms": trial["confirms"],
        "told": trial["told"],
        "error": trial["error"],
        "panda_ids": panda_ids(trial) or None,
    }
    found |= {f"std{end}": std for end, std in zip(ends, figures(trial["std"], len(names)), strict=True)}
    for fold in trial["folds"]:
        values = figures(fold["value"], len(names))
        found |= {f"fold_{fold['fold']}{end}": value for end, value in zip(ends, values, strict=True)}
    if "cost" in trial:
        found |= {key: trial["cost"][key] for key in ("job_seconds", "gpu_hours", "core_hours", "energy_kwh")}
    metrics = {name[:500]: value for name, value in mean_metrics(trial).items()}
    return {**metrics, **{key: value for key, value in found.items() if value is not None}}
