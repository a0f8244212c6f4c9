"""Exports results in the format of hpogrid, for its reports.

The keys are those of hpogrid 1.3.3 (`hpogrid/core/defaults.py`, `kHPOGridMetadataFormat`), the values as
`hpogrid/components/hpo_task.py` fills them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.search import Search, Trial, TrialState

_TIME = "%m/%d/%Y, %H:%M:%S"


def as_hpogrid_report(search: Search, trials: Sequence[Trial]) -> str:
    """Returns the finished trials of a search, confirmation runs included, with hpogrid's keys.

    Raises:
        InputError: the search has several objectives; hpogrid supports one.
    """
    if len(search.objectives) > 1:
        metrics = ", ".join(objective.metric for objective in search.objectives)
        raise InputError(
            f"hpogrid supports one objective, and search {search.name!r} has {metrics}; export csv or json"
        )
    done = [trial for trial in trials if trial.state is TrialState.FINISHED and trial.value is not None]
    metric, shape = search.objective.metric, search.payload.point
    searched = [trial for trial in done if trial.confirms is None]
    best = min(searched, key=lambda trial: search.objective.sign * (trial.value or 0.0), default=None)
    begun = min((time for trial in trials if (time := _start(trial))), default=None)
    ended = max((trial.ended for trial in trials if trial.ended), default=None)
    points = [shape.payload_point(trial.point) for trial in done]
    names = list(dict.fromkeys(name for point in points for name in point))
    names = names or list(shape.payload_point(dict.fromkeys(search.space.names)))
    result = {
        str(index): {
            # hpogrid makes one table: every row has every column.
            **{name: point.get(name) for name in names},
            metric: trial.value,
            "time_s": _seconds(trial),
            "timestamp": None if trial.ended is None else int(trial.ended.timestamp()),
        }
        for index, (trial, point) in enumerate(zip(done, points, strict=True))
    }
    report: dict[str, Any] = {
        "project_name": search.name,
        "start_datetime": _text(begun),
        "end_datetime": _text(ended),
        "start_timestamp": None if begun is None else begun.timestamp(),
        "task_time_s": (ended - begun).total_seconds() if begun and ended else None,
        "hyperparameters": names,
        "metric": metric,
        "mode": "min" if search.objective.goal == "minimize" else "max",
        "best_config": None if best is None else shape.payload_point(best.point),
        "best_metric_score": None if best is None else best.value,
        "result": result,
    }
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def _start(trial: Trial) -> datetime | None:
    return trial.started or trial.submitted


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.strftime(_TIME)


def _seconds(trial: Trial) -> float | None:
    """Returns the run time of the longest fold."""
    return max((fold.seconds for fold in trial.folds if fold.seconds is not None), default=None)
