"""Trials as data frames of pandas, for notebooks and scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import trial_columns
from hpo_pilot.report.trial_documents import IntermediateDocument, TrialDocument
from hpo_pilot.search import Search, TrialState
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.values import is_number

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ("submitted", "started", "ended")
#: Columns of folds after their values, with their types; times have none.
_FOLD_COLUMNS = {
    **{"attempt": "Int64", "seconds": "Float64", "panda_id": "Int64", "node": "string"},
    **{"started": "", "ended": "", "error": "string"},
}
_WHOLE_NUMBERS = ("generation", "told", "confirms", "retries", "continues", "seed", "stopped_step")


def trials_frame(search: Search, documents: Sequence[TrialDocument]) -> pd.DataFrame:
    """Returns a data frame with one row per trial; the index is the trial's `number`.

    The columns have the names of the CSV export: `generation`, `state`, `value` and `std`, with several
    objectives `value_loss` and so on; one column per parameter, with the prefix ``point.`` if another column has the
    same name; `seed`, `error`, `submitted`, `started`, `ended` (UTC), `confirms`, `retries`, `told`, `stopped_step`,
    `stopped_value`, `projected`, the cost; with levels `level` and `continues`; and also `seconds` from start to end.
    """
    pd = pandas()
    metrics, levels = [objective.metric for objective in search.objectives], search.levels is not None
    listed, named = trial_columns(documents, metrics, 0, search.space_dimensions, levels=levels)
    index = pd.Index(listed.pop("number"), name="number", dtype="int64")
    parameters = {column: search.space_dimensions[name] for name, column in named.items()}
    columns: dict[str, Any] = {}
    for name, values in listed.items():
        if name in parameters:
            columns[name] = _parameter(parameters[name], values)
        elif name == "state":
            states = [state.value for state in TrialState] + (["paused"] if levels else [])
            columns[name] = pd.Categorical(values, categories=states)
        elif name == "error":
            columns[name] = pd.array(values, dtype="string")
        elif name in _TIMES:
            columns[name] = _moments(values)
        else:
            columns[name] = pd.array(values, dtype="Int64" if name in _WHOLE_NUMBERS else "Float64")
    columns["seconds"] = (columns["ended"] - columns["started"]).total_seconds()
    return pd.DataFrame(columns, index=index)


def folds_frame(search: Search, documents: Sequence[TrialDocument]) -> pd.DataFrame:
    """Returns a data frame with one row per fold; the index is (number of the trial, fold).

    Columns: `value`, or one for each of several objectives (`value_loss`), `attempt`, `seconds`, `panda_id`, `node`,
    `started`, `ended` (UTC), `error`, and the numeric metrics of the payload (`metrics.accuracy`).
    """
    pd = pandas()
    rows = [(trial["number"], fold) for trial in documents for fold in trial["folds"]]
    metrics = [objective.metric for objective in search.objectives]
    columns: dict[str, Any] = {
        f"value_{metric}" if len(metrics) > 1 else "value": pd.array(
            [_at(fold["value"], index) for _, fold in rows], dtype="Float64"
        )
        for index, metric in enumerate(metrics)
    }
    for name, kind in _FOLD_COLUMNS.items():
        values = [fold[name] for _, fold in rows]  # type: ignore[literal-required]
        columns[name] = pd.array(values, dtype=kind) if kind else _moments(values)
    for name in dict.fromkeys(name for _, fold in rows for name in fold["metrics"]):
        columns[f"metrics.{name}"] = pd.array([_number(fold["metrics"].get(name)) for _, fold in rows], dtype="Float64")
    places = [(number, fold["fold"]) for number, fold in rows]
    return pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(places, names=("number", "fold")))


def intermediate_frame(documents: Sequence[IntermediateDocument]) -> pd.DataFrame:
    """Returns a data frame with one row per reported value: `number`, `fold`, `step`, `value` (NaN if not finite)."""
    pd = pandas()
    rows = [
        (document["number"], fold["fold"], step, math.nan if value is None else value)
        for document in documents
        for fold in document["folds"]
        for step, value in fold["values"]
    ]
    names = ("number", "fold", "step", "value")
    frame = pd.DataFrame(rows, columns=names)
    return frame.astype({"number": "int64", "fold": "int64", "step": "int64", "value": "float64"})


def pandas() -> Any:
    """Imports and returns pandas.

    Raises:
        InputError: it is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("data frames need pandas: pip install 'hpo-pilot[notebook]'") from error
    return pd


def _at(figure: float | list[float] | None, index: int) -> float | None:
    """Returns the value of objective `index`; with one objective, the value itself."""
    return (figure[index] if index < len(figure) else None) if isinstance(figure, list) else figure


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _moments(texts: Sequence[str | None]) -> Any:
    # Always microseconds: pandas would choose the unit from the texts.
    return pandas().to_datetime(list(texts), utc=True, format="ISO8601").astype("datetime64[us, UTC]")


def _parameter(dimension: Dimension, values: Sequence[Any]) -> Any:
    """Returns a parameter's values as a column of its dimension's type; missing where it is not active."""
    pd = pandas()
    if dimension.type == "real":
        return pd.array([None if value is None else float(value) for value in values], dtype="Float64")
    if dimension.type == "integer":
        return pd.array(list(values), dtype="Int64")
    ordered = dimension.type == "ordinal"
    choices = list(dimension.choices)
    if None in choices or len({str(choice) for choice in choices}) < len(choices):
        return pd.array(list(values), dtype="object")  # pandas would not distinguish these choices
    return pd.Categorical(list(values), categories=choices, ordered=ordered)
