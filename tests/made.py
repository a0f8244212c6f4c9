"""Attempts, folds and trials for tests, from the figures that a test is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hpo_pilot.jobs import Attempt, JobState, RunReport
from hpo_pilot.search import Fold, Search, Trial, TrialState


def made_attempt(
    task_id: int, trial: int, fold: int, attempt: int, state: JobState, value: float | None = None, **more: Any
) -> Attempt:
    """An attempt of a fold; `value`: of one objective."""
    more.setdefault("values", _one(value))
    return Attempt(task_id=task_id, trial=trial, fold=fold, attempt=attempt, state=state, **more)


def made_fold(fold: int, value: float | None = None, *, attempt: int = 1, **more: Any) -> Fold:
    """A fold whose attempt number `attempt` is known; times may be datetimes."""
    for name in ("started", "ended"):
        if isinstance(more.get(name), datetime):
            more[name] = more[name].replace(tzinfo=more[name].tzinfo or UTC).timestamp()
    state = JobState.FINISHED if value is not None or more.get("values") else JobState.FAILED
    return Fold(fold, (made_attempt(1, 1, fold, attempt, state, value, **more),), attempt - 1)


def made_report(
    uid: str,
    generation: int,
    trial: int,
    fold: int,
    job: int,
    attempt: int,
    value: float | None,
    message: str = "",
    *,
    was_run: bool = True,
    values: Sequence[float] = (),
    **more: Any,
) -> RunReport:
    """The runner's report on a fold; without a value the payload failed, or was not run."""
    return RunReport(
        uid=uid,
        generation=generation,
        trial=trial,
        fold=fold,
        job=job,
        attempt=attempt,
        status="not run" if not was_run else "failed" if value is None else "ok",
        values=tuple(values) or _one(value),
        message=message,
        **more,
    )


def made_end(
    number: int, state: TrialState, value: float | None = None, told: int | None = None, ended: float = 1.0, **more: Any
) -> Trial:
    """A trial that is over."""
    more.setdefault("values", _one(value))
    return Trial(number, 1, {}, state, told=told, ended=datetime.fromtimestamp(ended, UTC), **more)


def _one(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def made_trial(**settings: Any) -> Trial:
    """A trial; `value` and `std` are of one objective, `values` and `stds` of several."""
    for one, several in (("value", "values"), ("std", "stds")):
        figure = settings.pop(one, None)
        settings[several] = tuple(settings.get(several) or _one(figure))
    return Trial(**settings)


def made_search(name: str = "demo", **document: Any) -> Search:
    """A search of one parameter; `document`: what else its file says."""
    base = {
        "search": name,
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "optimizer": "random",
        "payload": {"command": "true"},
    }
    return Search.model_validate({**base, **document})
