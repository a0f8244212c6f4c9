"""Searches in other forms: what `export` writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from hpo_pilot.client.documents import trial_document
from hpo_pilot.client.time_text import time_text
from hpo_pilot.errors import InputError

if TYPE_CHECKING:
    from hpo_pilot.search import Search, Trial

#: What turns a search and its trials into a text.
Exporter = Callable[["Search", Sequence["Trial"]], str]

#: Columns of a trial's cost, as `Cost` calls them.
_COSTS = ("job_seconds", "gpu_hours", "core_hours", "energy_kwh")

#: The exporter of each form, as module:function: it is imported when it is asked for.
FORMS = {
    "csv": "hpo_pilot.client.exports:as_csv",
    "json": "hpo_pilot.client.exports:as_json",
    "hpogrid-report": "hpo_pilot.config.foreign.hpogrid_report:as_hpogrid_report",
}


def exporter(form: str) -> Exporter:
    """The exporter of a form.

    Raises:
        InputError: there is none.
    """
    if form not in FORMS:
        raise InputError(f"there is no export to {form!r}; there is {', '.join(FORMS)}")
    module, _, function = FORMS[form].partition(":")
    return cast(Exporter, getattr(import_module(module), function))


def as_json(search: Search, trials: Sequence[Trial]) -> str:
    """The search and its trials, folds and log tails included."""
    from hpo_pilot.config.site_power import price_of  # noqa: PLC0415 - the command line starts light

    price = price_of(search)
    document = {"search": search.to_dict(), "trials": [trial_document(trial, price) for trial in trials]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_csv(search: Search, trials: Sequence[Trial]) -> str:
    """One row a trial; a parameter with the name of another column, such as `value`, is in `point.value`."""
    from hpo_pilot.config.result_columns import parameter_column  # noqa: PLC0415 - the command line starts light
    from hpo_pilot.config.site_power import price_of  # noqa: PLC0415

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    names, folds = search.space.names, range(search.folds.k)
    # With several objectives each has columns of its own.
    ends = [f"_{objective.metric}" for objective in search.objectives] if len(search.objectives) > 1 else [""]
    nothing = (None,) * len(ends)
    figures = [f"{figure}{end}" for end in ends for figure in ("value", "std")]
    of_folds = [f"fold_{fold}{end}" for fold in folds for end in ends]
    head = ["number", "generation", "state", *figures]
    projected = [f"projected{end}" for end in ends]
    stopped = ["stopped_step", "stopped_value", *projected] if search.early_stopping.is_on else []
    price = price_of(search)
    confirms = ["confirms"] if search.confirm.top or any(trial.confirms is not None for trial in trials) else []
    retries = ["retries"] if any(trial.retries is not None for trial in trials) else []
    tail = [*of_folds, "error", "submitted", "started", "ended", *confirms, *retries, *stopped, *_COSTS]
    writer.writerow([*head, *(parameter_column(name, [*head, *tail]) for name in names), *tail])
    for trial in trials:
        values = {fold.fold: fold.figures for fold in trial.folds}
        stop: tuple[float | None, ...] = (None, None, *nothing)
        if trial.stop and trial.stopped_early:
            stop = (trial.stop.step, trial.stop.value, *(trial.stop.projected or nothing))
        pairs = zip(trial.figures or nothing, trial.spreads or nothing, strict=True)
        writer.writerow(
            [
                *(trial.number, trial.generation, trial.state.value, *(_cell(each) for pair in pairs for each in pair)),
                *(_cell(trial.point.get(name)) for name in names),
                *(_cell(figure) for fold in folds for figure in values.get(fold) or nothing),
                _cell(trial.error),
                *(time_text(when) or "" for when in (trial.submitted, trial.started, trial.ended)),
                *([_cell(trial.confirms)] if confirms else ()),
                *([_cell(trial.retries)] if retries else ()),
                *(map(_cell, stop) if stopped else ()),
                *(_cell(getattr(price.cost(trial.spent), name)) for name in _COSTS),
            ]
        )
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    """A value as one cell; a text that a spreadsheet would run as a formula is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value
    return repr(value) if isinstance(value, float) else value
