"""Searches in other forms: what `export` writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from hpo_pilot.client.documents import time_text, trial_document
from hpo_pilot.errors import InputError

if TYPE_CHECKING:
    from hpo_pilot.search import Search, Trial

#: What turns a search and its trials into a text.
Exporter = Callable[["Search", Sequence["Trial"]], str]

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
    document = {"search": search.to_dict(), "trials": [trial_document(trial) for trial in trials]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_csv(search: Search, trials: Sequence[Trial]) -> str:
    """One row a trial."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    names, folds = search.space.names, range(search.folds.k)
    head = ["number", "generation", "state", "value", "std"]
    writer.writerow([*head, *names, *(f"fold_{fold}" for fold in folds), "error", "submitted", "started", "ended"])
    for trial in trials:
        values = {fold.fold: fold.value for fold in trial.folds}
        writer.writerow(
            [
                *(trial.number, trial.generation, trial.state.value, _cell(trial.value), _cell(trial.std)),
                *(_cell(trial.point.get(name)) for name in names),
                *(_cell(values.get(fold)) for fold in folds),
                _cell(trial.error),
                *(time_text(when) or "" for when in (trial.submitted, trial.started, trial.ended)),
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
