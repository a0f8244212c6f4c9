"""Searches and trials to report on, made up but plausible."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpo_pilot.report import ReportFacts
from hpo_pilot.search import FoldResult, Search, Trial, TrialState
from hpo_pilot.search.cost import Cost
from hpo_pilot.search.trial import mean_and_std

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
    return Trial(**{**settings, **changes})


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
                FoldResult(fold=0, error=error, log_tail="epoch 1\nTraceback (most recent call last):\nValueError: nan")
            ]
            trials.append(make_trial(number, None, point=point, folds=tuple(folds), error=error, **times))
            continue
        values = [cost * (1 + 0.06 * rng.gauss(0, 1)) for _ in range(search.folds.k)]
        mean, std = mean_and_std(values)
        folds = [
            FoldResult(fold=fold, value=value, seconds=2.1, attempt=1 + (number % 17 == 0))
            for fold, value in enumerate(values)
        ]
        trials.append(make_trial(number, mean, point=point, std=std, folds=tuple(folds), **times))
    return trials


def make_facts(**changes: Any) -> ReportFacts:
    settings: dict[str, Any] = {
        "started": START,
        "ended": START + timedelta(seconds=192),
        "state": "finished",
        "message": "The budget of 48 trials is spent.",
        "command": "hpo-pilot run payloads/digits/search.yaml",
        "versions": {"hpo-pilot": "0.1.0", "Python": "3.11.7"},
        "cost": Cost(341.0, 0.0, 341.0 / 3600, None, None),
        "store": "sqlite:///hpo-pilot/hpo-pilot.db",
    }
    return ReportFacts(**{**settings, **changes})


def make_events() -> list[tuple[datetime, str, str]]:
    whats: Sequence[str] = ("submitted the search", "generation 1: 4 trials", "the budget of 48 trials is spent")
    return [(START + timedelta(seconds=10 * i), "me", what) for i, what in enumerate(whats)]


@pytest.fixture
def search() -> Search:
    return make_search()


@pytest.fixture
def trials(search: Search) -> list[Trial]:
    return make_trials(search, 48)


@pytest.fixture
def facts() -> ReportFacts:
    return make_facts()


@pytest.fixture
def search_of() -> Callable[..., Search]:
    return make_search


@pytest.fixture
def trial_of() -> Callable[..., Trial]:
    return make_trial


@pytest.fixture
def trials_of() -> Callable[..., list[Trial]]:
    return make_trials


@pytest.fixture
def facts_of() -> Callable[..., ReportFacts]:
    return make_facts


@pytest.fixture
def events() -> list[tuple[datetime, str, str]]:
    return make_events()
