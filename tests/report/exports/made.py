"""A search with a trial of every kind, as documents that a client gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.report.mlflow import ExportedSearch
from hpo_pilot.report.trial_documents import trial_document
from hpo_pilot.search import EarlyStop, Search, Trial, TrialState
from tests.made import made_fold, made_trial

START = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)

SPACE: Mapping[str, Any] = {
    "learning_rate": {"type": "real", "low": 1e-4, "high": 1e-1, "scale": "log"},
    "dropout": {"type": "real", "low": 0.0, "high": 0.5, "step": 0.05},
    "layers": {"type": "integer", "low": 1, "high": 4},
    "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
    "value": {"type": "integer", "low": 0, "high": 9, "step": 3},  # also the name of a column
    "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
    "batch": {"type": "ordinal", "choices": [32, 64, 128]},
    "odd": {"type": "categorical", "choices": [1, True, "1", None, 1.5]},
    "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"solver": "sgd"}},
}


def search_of(**changes: Any) -> Search:
    document: dict[str, Any] = {
        "search": "digits",
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": SPACE,
        "folds": 2,
        "payload": {"command": "python train.py"},
    }
    return Search.model_validate({**document, **changes})


def point_of(number: int) -> dict[str, Any]:
    point = {
        "learning_rate": 1e-4 * (1 + number % 100),
        "dropout": [0.0, 0.15, 0.5][number % 3],
        "layers": 1 + number % 4,
        "width": 16 + number % 400,
        "value": 3 * (number % 4),
        "solver": "sgd" if number % 2 else "adam",
        "batch": [32, 64, 128][number % 3],
        "odd": [1, True, "1", None, 1.5][number % 5],
    }
    return {**point, "momentum": 0.9} if number % 2 else point


def finished(number: int, objectives: int = 1, k: int = 2, **changes: Any) -> Trial:
    """A trial that finished; `value`: of one objective."""
    begun, several = START + timedelta(seconds=number), objectives > 1
    times = {"started": begun, "ended": begun + timedelta(seconds=2.5)}
    values = [1.0 / number + fold for fold in range(k)]
    mean = sum(values) / k
    folds = tuple(
        made_fold(
            fold,
            metrics={"accuracy": 0.5 + 0.1 * fold, "epochs": 3, "note": "ä", "best": True, "loss": 7.0},
            panda_id=1000 * number + fold,
            node="wn1",
            seconds=2.5,
            values=(value, value * 10) if several else (value,),
            **times,
        )
        for fold, value in enumerate(values)
    )
    figures = {"values": (mean, mean * 10), "stds": (0.7, 7.0)} if several else {"value": mean, "std": 0.7}
    made = {"number": number, "generation": 1 + number // 8, "point": point_of(number), "state": TrialState.FINISHED}
    made |= {"folds": folds, "seed": 77 + number, "told": number, "submitted": begun - timedelta(seconds=1), **times}
    return made_trial(**{**made, **figures, **changes})


def failed(number: int) -> Trial:
    fold = made_fold(0, error="exit status 1", log_tail="Traceback …\nValueError: <b>\n", panda_id=1000 * number)
    return finished(
        number, state=TrialState.FAILED, value=None, std=None, folds=(fold,), error="fold 0: exit status 1 \udcff"
    )


def stopped_early(number: int) -> Trial:
    stop = EarlyStop(3, "worse than the median", 4, 0.9, (0.8,))
    return finished(number, state=TrialState.STOPPED, value=None, std=None, folds=(), stop=stop)


def every_kind() -> list[Trial]:
    return [
        *(finished(number) for number in range(1, 11)),
        failed(11),
        stopped_early(12),
        finished(13, state=TrialState.STOPPED, value=None, std=None, folds=(), told=None),  # with its search
        finished(14, state=TrialState.RUNNING, value=None, std=None, folds=(), told=None, ended=None),
        finished(15, state=TrialState.PENDING, value=None, std=None, folds=(), told=None, started=None, ended=None),
        finished(16, point=point_of(1), confirms=1),
    ]


def subject_of(search: Search, trials: Sequence[Trial], curves: Mapping[int, Any] | None = None) -> ExportedSearch:
    objectives: list[Any] = [{"metric": one.metric, "goal": one.goal} for one in search.objectives]
    price = price_of(search)
    document: Any = {
        "id": 1,
        "name": search.name,
        "state": "running",
        "owner": "alice",
        "objective": objectives if len(objectives) > 1 else objectives[0],
        "created": "2026-01-05T09:29:58.000+00:00",
        "definition": search.to_dict(),
    }
    return ExportedSearch(document, [trial_document(trial, price) for trial in trials], curves or {})


def curves_of(numbers: Sequence[int], steps: int = 3, folds: int = 2) -> dict[int, Any]:
    """Every fold reports at every step, but the last fold's last value is no number."""
    return {
        number: {
            "number": number,
            "folds": [
                {
                    "fold": fold,
                    "values": [
                        (step, None if (fold, step) == (folds - 1, steps) else 1.0 / step + fold)
                        for step in range(1, steps + 1)
                    ],
                }
                for fold in range(folds)
            ],
        }
        for number in numbers
    }
