"""Searches and trials to draw and to report on, made up but plausible."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import plotly.graph_objects as go

from hpo_pilot.report.catalogue import build
from hpo_pilot.report.figure import Figure, FigureData, Reports
from hpo_pilot.report.html import ReportFacts, render_report
from hpo_pilot.search import EarlyStop, Search, Trial, TrialState
from hpo_pilot.search.progress import ProgressTracker
from hpo_pilot.search.trials import Spent, mean_and_std
from tests.made import made_fold, made_trial

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)

SPACE: dict[str, Any] = {
    "learning_rate": {"type": "real", "low": 1e-4, "high": 1e-1, "scale": "log"},
    "layers": {"type": "integer", "low": 1, "high": 4},
    "width": {"type": "integer", "low": 16, "high": 256, "scale": "log"},
    "alpha": {"type": "real", "low": 1e-6, "high": 1.0, "scale": "log"},
    "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
    "batch": {"type": "ordinal", "choices": [32, 64, 128, 256]},
    "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"solver": "sgd"}},
}


#: The kinds of figures of a search with one objective.
KEYS = ["convergence", "parallel", "importance", "correlations", "slices", "contours"]
KEYS += ["ranks", "distribution", "timeline", "folds", "curves", "slots", "failures"]

#: Two objectives, and figures of merit for them; the fourth trial failed.
TWO = [{"metric": "loss"}, {"metric": "speed", "goal": "maximize"}]
ROWS = [(3.0, 9.0), (1.0, 1.0), (2.0, 5.0), None, (2.5, 4.0), (2.0, 5.0), (9.0, 0.5)]

STOP = EarlyStop(4, "loss 0.83 is 3rd of 3 at step 9, where 1 goes on (asha)", 3, 0.9, (0.7,))

#: What a training on two ranks measures, and where.
RANK_METRICS = {
    "ranks": 2.0,
    "pop_parallel_efficiency": 0.6,
    "pop_load_balance": 0.75,
    "pop_communication_efficiency": 0.8,
    "pop_input_fraction": 0.1,
    "images_per_second": 100.0,
    "compute_seconds": 6.0,
}
RANKS = [{"rank": 0, "host": "n1", "compute": 8.0}, {"rank": 1, "host": "n2", "compute": 4.0}]


def strings(value: Any) -> list[str]:
    """All texts in a JSON document."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in strings(each)]
    return [text for each in value for text in strings(each)] if isinstance(value, list | tuple) else []


def draw(key: str, search: Search, trials: list[Trial], /, **data: Any) -> list[Figure]:
    """The figures of a kind, once plotly has taken them and JSON too."""
    figures = build(key, FigureData(search, trials, **data))
    for figure in figures:
        assert figure.description
        json.dumps(figure.spec, allow_nan=False)
        go.Figure(figure.spec)
    return figures


def rendered(
    search: Search, trials: list[Trial], events: Any, facts: ReportFacts, reports: Reports | None = None
) -> str:
    """The report of a search with these trials."""
    in_order = sorted(trials, key=lambda trial: trial.told or 0)
    progress = ProgressTracker(search, in_order, spent=Spent(), generations=0, confirmed=trials).progress
    by_number = sorted(trials, key=lambda trial: trial.number)
    data = FigureData(search, by_number, reports or {}, now=facts.ended)
    return render_report(search, progress, trials, events, facts, lambda _key: data)


def trace(figure: Figure, name: str) -> dict[str, Any]:
    (found,) = [each for each in figure.spec["data"] if each["name"] == name]
    return found


def measured(number: int, *changes: dict[str, Any], ranks: Any = RANKS) -> Trial:
    """A trial with a fold for each of the changes to what its ranks measured."""
    folds = tuple(
        made_fold(fold=fold, value=0.1, metrics={**RANK_METRICS, **change}, metadata={"hpo_pilot_ranks": ranks})
        for fold, change in enumerate(changes)
    )
    return make_trial(number, 0.1, folds=folds)


def several_trials(*rows: tuple[float, ...] | None) -> list[Trial]:
    """Trials of several objectives; None: it failed."""
    return [make_trial(n, None if row is None else row[0], values=row) for n, row in enumerate(rows, start=1)]


def make_search(**changes: Any) -> Search:
    document: dict[str, Any] = {
        "search": "digits-mlp",
        "space": SPACE,
        "constraints": ["layers * width <= 512"],
        "budget": {"trials": 48, "parallel": 4},
        "folds": 3,
        "seed": 7,
        "payload": {"files": ".", "command": "python train.py", "outputs": ["model.npz"], "checkpoint": ["ckpt"]},
        "resources": {"memory_mb": 1500, "minutes": 5.0},
    }
    return Search.model_validate({**document, **changes})


def make_trial(number: int, value: float | None, /, **changes: Any) -> Trial:
    """A trial that finished with `value`, or failed where it is None."""
    settings: dict[str, Any] = {
        "number": number,
        "generation": number,
        "point": {"learning_rate": 1e-3, "layers": 1, "width": 100, "alpha": 1e-4, "solver": "adam", "batch": 256},
        "state": TrialState.FAILED if value is None else TrialState.FINISHED,
        "value": value,
        "told": number,
        "error": "the payload ended with exit status 1" if value is None else None,
    }
    return made_trial(**{**settings, **changes})


def make_trials(search: Search, n: int, *, fail_every: int = 11, seed: int = 1) -> list[Trial]:
    """`n` trials of a search whose figure of merit looks like a training's loss."""
    rng = random.Random(seed)
    space = search.space
    trials: list[Trial] = []
    for number in range(1, n + 1):
        point = space.decode([rng.random() for _ in space.names])
        cost = 0.05 + 0.02 * rng.random()
        for name, unit in zip(space.names, space.encode(point), strict=True):
            cost += (0.05 if name == "alpha" else 0.4) * abs(unit - 0.7) ** 2 if name in point else 0.0
        cost *= math.exp(2.5 * rng.random() ** (1 + 4 * number / n))
        started = START + timedelta(seconds=4 * number)
        times = {"submitted": START, "started": started, "ended": started + timedelta(seconds=3 + 5 * rng.random())}
        if number % fail_every == 0:
            error = "training diverged in epoch 3: the weights are no longer finite"
            if number % 2:
                error = f"the payload ended with exit status 1 after {number} s"
            folds = [
                made_fold(fold=0, error=error, log_tail="epoch 1\nTraceback (most recent call last):\nValueError: nan")
            ]
            trials.append(make_trial(number, None, point=point, folds=tuple(folds), error=error, **times))
            continue
        values = [cost * (1 + 0.06 * rng.gauss(0, 1)) for _ in range(search.folds.k)]
        mean, std = mean_and_std(values)
        folds = [
            made_fold(fold=fold, value=value, seconds=2.1, attempt=1 + (number % 17 == 0))
            for fold, value in enumerate(values)
        ]
        trials.append(make_trial(number, mean, point=point, std=std, folds=tuple(folds), **times))
    return trials


def on_nodes(trials: list[Trial], prefix: str = "node", count: int = 3) -> list[Trial]:
    """The trials with the times and nodes of their folds, as pilots tell them; each fold's job ran for two seconds."""
    rng = random.Random(2)
    found = []
    for trial in trials:
        begun = trial.started or START + timedelta(seconds=4 * trial.number)
        folds = []
        for fold in trial.folds:
            started = begun.timestamp() + 0.1 * fold.number
            ran = replace(fold.result, node=f"{prefix}{rng.randrange(count)}", started=started, ended=started + 2)
            folds.append(replace(fold, attempts=(ran,)))
        found.append(replace(trial, folds=tuple(folds), submitted=trial.submitted or START, started=begun))
    return found
