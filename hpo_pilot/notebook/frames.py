"""Trials, folds and intermediate values as pandas data frames with columns of fitting types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpo_pilot.client.documents import TrialDocument
from hpo_pilot.client.intermediate import IntermediateDocument
from hpo_pilot.errors import InputError
from hpo_pilot.search import Search, TrialState
from hpo_pilot.search.dimension import Dimension

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ("submitted", "started", "ended")
_COSTS = ("job_seconds", "gpu_hours", "core_hours", "energy_kwh")


def trials_frame(search: Search, documents: Sequence[TrialDocument]) -> pd.DataFrame:
    """One row a trial, by its number as the index.

    Columns: `state`; the figure of merit by its metric's name and its spread with ``_std`` (of several, each); a
    column for each parameter, under ``point.`` where its name is another column's; `generation`, `told`, `confirms`,
    `retries`, `seed`, `submitted`, `started`, `ended` (UTC), `seconds`, the cost, `stopped_at`, `error`.
    """
    pd = pandas()
    metrics = [objective.metric for objective in search.objectives]
    columns: dict[str, Any] = {
        "state": pd.Categorical([one["state"] for one in documents], categories=[state.value for state in TrialState])
    }
    for index, metric in enumerate(metrics):
        columns[metric] = pd.array([_at(one["value"], index) for one in documents], dtype="Float64")
        columns[f"{metric}_std"] = pd.array([_at(one["std"], index) for one in documents], dtype="Float64")
    rest: dict[str, Any] = {
        name: pd.array([one[name] for one in documents], dtype="Int64")
        for name in ("generation", "told", "confirms", "retries", "seed")
    }
    rest |= {name: _moments([one[name] for one in documents]) for name in _TIMES}  # type: ignore[literal-required]
    rest["seconds"] = (rest["ended"] - rest["started"]).total_seconds()
    costs: list[Mapping[str, Any]] = [one.get("cost") or {} for one in documents]
    rest |= {name: pd.array([cost.get(name) for cost in costs], dtype="Float64") for name in _COSTS}
    rest["stopped_at"] = pd.array([one["stopped"] and one["stopped"]["step"] for one in documents], dtype="Int64")
    rest["error"] = pd.array([one["error"] for one in documents], dtype="string")
    taken = {*columns, *rest}
    for name, dimension in search.space_dimensions.items():
        values = [one["point"].get(name) for one in documents]
        columns[f"point.{name}" if name in taken else name] = _parameter(dimension, values)
    index = pd.Index([one["number"] for one in documents], name="trial", dtype="int64")
    return pd.DataFrame({**columns, **rest}, index=index)


def folds_frame(search: Search, documents: Sequence[TrialDocument]) -> pd.DataFrame:
    """One row a fold, by trial and fold: figures, `attempt`, `seconds`, `node`, times, `error`, and numeric metrics."""
    pd = pandas()
    rows = [(trial["number"], fold) for trial in documents for fold in trial["folds"]]
    columns: dict[str, Any] = {
        objective.metric: pd.array([_at(fold["value"], index) for _, fold in rows], dtype="Float64")
        for index, objective in enumerate(search.objectives)
    }
    columns["attempt"] = pd.array([fold["attempt"] for _, fold in rows], dtype="Int64")
    columns["seconds"] = pd.array([fold["seconds"] for _, fold in rows], dtype="Float64")
    columns["panda_id"] = pd.array([fold["panda_id"] for _, fold in rows], dtype="Int64")
    columns["node"] = pd.array([fold["node"] for _, fold in rows], dtype="string")
    columns["started"] = _moments([fold["started"] for _, fold in rows])
    columns["ended"] = _moments([fold["ended"] for _, fold in rows])
    columns["error"] = pd.array([fold["error"] for _, fold in rows], dtype="string")
    names = dict.fromkeys(name for _, fold in rows for name in fold["metrics"] if name not in columns)
    for name in names:
        columns[name] = pd.array([_number(fold["metrics"].get(name)) for _, fold in rows], dtype="Float64")
    places = [(number, fold["fold"]) for number, fold in rows]
    return pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(places, names=("trial", "fold")))


def intermediate_frame(documents: Sequence[IntermediateDocument]) -> pd.DataFrame:
    """One row a reported value: `trial`, `fold`, `step`, `value`; not-a-number where it was no finite number."""
    pd = pandas()
    rows = [
        (document["number"], fold["fold"], step, math.nan if value is None else value)
        for document in documents
        for fold in document["folds"]
        for step, value in fold["values"]
    ]
    names = ("trial", "fold", "step", "value")
    frame = pd.DataFrame(rows, columns=names)
    return frame.astype({"trial": "int64", "fold": "int64", "step": "int64", "value": "float64"})


def pandas() -> Any:
    """The module.

    Raises:
        InputError: it is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("data frames need pandas: pip install 'hpo-pilot[notebook]'") from error
    return pd


def _at(figure: float | list[float] | None, index: int) -> float | None:
    """A figure of several; of one objective the figure itself."""
    return (figure[index] if index < len(figure) else None) if isinstance(figure, list) else figure


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _moments(texts: Sequence[str | None]) -> Any:
    # Of microseconds, whatever the times: pandas would choose the unit by the texts.
    return pandas().to_datetime(list(texts), utc=True, format="ISO8601").astype("datetime64[us, UTC]")


def _parameter(dimension: Dimension, values: Sequence[Any]) -> Any:
    """A parameter's values in the type of its dimension; missing where it is not active."""
    pd = pandas()
    if dimension.type == "real":
        return pd.array([None if value is None else float(value) for value in values], dtype="Float64")
    if dimension.type == "integer":
        return pd.array(list(values), dtype="Int64")
    ordered = dimension.type == "ordinal"
    choices = list(dimension.choices)
    if None in choices or len({str(choice) for choice in choices}) < len(choices):
        return pd.array(list(values), dtype="object")  # choices that pandas would take for each other
    return pd.Categorical(list(values), categories=choices, ordered=ordered)
