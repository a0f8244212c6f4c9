"""Searches and trials as the JSON documents of ``--json`` and ``export``. Their keys are part of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_pilot.search import Trial, TrialState
    from hpo_pilot.store import SearchRecord


def time_text(time: datetime | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def trial_document(trial: Trial, *, logs: bool = True) -> dict[str, Any]:
    """One trial; `logs` includes the log tails of failed folds."""
    folds = []
    for fold in trial.folds:
        document = {**asdict(fold), "started": time_text(fold.started), "ended": time_text(fold.ended)}
        if not logs:
            del document["log_tail"]
        folds.append(document)
    return {
        "number": trial.number,
        "generation": trial.generation,
        "state": trial.state.value,
        "point": trial.point,
        "value": trial.value,
        "std": trial.std,
        "folds": folds,
        "error": trial.error,
        "seed": trial.seed,
        "confirms": trial.confirms,
        "told": trial.told,
        "submitted": time_text(trial.submitted),
        "started": time_text(trial.started),
        "ended": time_text(trial.ended),
    }


def search_document(record: SearchRecord, counts: Mapping[TrialState, int], best: Trial | None) -> dict[str, Any]:
    """One search with its progress."""
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "message": record.message,
        "owner": record.owner,
        "trials": {state.value: count for state, count in sorted(counts.items())},
        "budget": record.search.budget.model_dump(),
        "best": None if best is None else trial_document(best, logs=False),
        "created": time_text(record.created),
        "started": time_text(record.started),
        "ended": time_text(record.ended),
    }
