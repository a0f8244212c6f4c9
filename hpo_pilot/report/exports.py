"""Exports of a search: the forms, CSV and JSON, and the data that file exports are written from."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hpo_pilot.errors import InputError
from hpo_pilot.report.documents import IntermediateDocument, time_text, trial_document

if TYPE_CHECKING:
    from hpo_pilot.report.documents import StatusDocument, TrialDocument
    from hpo_pilot.search import Search, Trial
    from hpo_pilot.web.operations import SearchClient


@dataclass(frozen=True)
class ExportedSearch:
    """One search.

    Attributes:
        search: how it stands, with its definition.
        trials: all of its trials, by number.
        curves: what trials reported while they ran, by their number.
    """

    search: StatusDocument
    trials: Sequence[TrialDocument]
    curves: Mapping[int, IntermediateDocument] = field(default_factory=dict)

    @classmethod
    def read(cls, client: SearchClient, identity: str, *, curves: bool) -> ExportedSearch:
        """Asks for all of a search; `curves`: with what its trials reported while they ran.

        Raises:
            InputError: there is no such search, or it is a family, whose searches are exported one by one.
            TryAgainError: the store or the service is out of reach.
        """
        # The trials last: none of their values is without its trial, and none is told of that the state denies.
        reported = {one["number"]: one for one in client.intermediate(identity)} if curves else {}
        trials = client.trials(identity)
        return cls(client.status(identity), trials, reported)

    @property
    def mark(self) -> str:
        """What tells this search from any other, of the same name in another store too."""
        return f"{self.search['name']} {self.search['created']}"

    @property
    def over(self) -> list[TrialDocument]:
        """The trials that are over, by number."""
        return [trial for trial in self.trials if trial["state"] in ("finished", "failed", "stopped")]

    def counted(self, written: int) -> str:
        """`written` of the search's trials, for people: what else there is, and why it was not written."""
        over = len(self.over)
        there, running = over - written, len(self.trials) - over
        return (
            f"{written} of {len(self.trials)} trials"
            + (f" ({there} were there)" if there else "")
            + (f" ({running} not over: export again later)" if running else "")
        )

    @property
    def metrics(self) -> list[str]:
        """The objectives' names, in order."""
        return [objective["metric"] for objective in self.objectives]

    @property
    def objectives(self) -> list[Any]:
        """The objectives, each a mapping with `metric` and `goal`."""
        objective = self.search["objective"]
        return objective if isinstance(objective, list) else [objective]

    @property
    def space(self) -> dict[str, Any]:
        """The dimensions as the search's definition has them, by name."""
        space: dict[str, Any] = self.search["definition"]["space"]
        return space

    @property
    def folds(self) -> int:
        """How many folds each trial has."""
        k: int = self.search["definition"]["folds"]["k"]
        return k


def objective_values(value: float | Sequence[float] | None, count: int) -> Sequence[float | None]:
    """A document's `value`, `std` or the like: `count` figures, one for each objective."""
    if value is None:
        return [None] * count
    return value if isinstance(value, Sequence) else [value]


def time_of(text: str | None) -> datetime | None:
    """A document's time, aware."""
    return None if text is None else datetime.fromisoformat(text)


def utf8(text: str) -> str:
    """A text that is UTF-8; what a payload printed may hold what is none."""
    return text.encode("utf-8", "backslashreplace").decode()


def payload_metrics(trial: TrialDocument) -> dict[str, list[tuple[int, float]]]:
    """The numbers among the metrics that a trial's folds have of their payload: (fold, number) by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for fold in trial["folds"]:
        for name, value in fold["metrics"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                try:
                    found.setdefault(name, []).append((fold["fold"], float(value)))
                except OverflowError:  # a whole number beyond all floats
                    continue
    return found


def mean_metrics(trial: TrialDocument) -> dict[str, float]:
    """The means of those numbers over the folds that have them."""
    return {name: statistics.fmean(value for _, value in values) for name, values in payload_metrics(trial).items()}


def panda_ids(trial: TrialDocument) -> list[int]:
    """The PandaIDs of a trial's folds, in their order."""
    return [fold["panda_id"] for fold in trial["folds"] if fold["panda_id"] is not None]


#: What turns a search and its trials into a text.
Exporter = Callable[["Search", Sequence["Trial"]], str]

#: Columns of a trial's cost, as `Cost` calls them.
_COSTS = ("job_seconds", "gpu_hours", "core_hours", "energy_kwh")

#: The exporter of each form, as module:function: it is imported when it is asked for.
TEXT_FORMS = {
    "csv": "hpo_pilot.report.exports:as_csv",
    "json": "hpo_pilot.report.exports:as_json",
    "hpogrid-report": "hpo_pilot.report.hpogrid:as_hpogrid_report",
}


def exporter(form: str) -> Exporter:
    """The exporter of a form.

    Raises:
        InputError: there is none.
    """
    if form not in TEXT_FORMS:
        raise InputError(f"there is no export to {form!r}; there is {', '.join(TEXT_FORMS)}")
    module, _, function = TEXT_FORMS[form].partition(":")
    return cast(Exporter, getattr(import_module(module), function))


def as_json(search: Search, trials: Sequence[Trial]) -> str:
    """The search and its trials, folds and log tails included."""
    from hpo_pilot.hpc.site_files import price_of  # noqa: PLC0415 - the command line starts light

    price = price_of(search)
    document = {"search": search.to_dict(), "trials": [trial_document(trial, price) for trial in trials]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_csv(search: Search, trials: Sequence[Trial]) -> str:
    """One row a trial; a parameter with the name of another column, such as `value`, is in `point.value`."""
    from hpo_pilot.hpc.site_files import price_of  # noqa: PLC0415
    from hpo_pilot.search.earlier_results import parameter_column  # noqa: PLC0415 - the command line starts light

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
                *(
                    trial.number,
                    trial.generation,
                    trial.state.value,
                    *(_csv_cell(each) for pair in pairs for each in pair),
                ),
                *(_csv_cell(trial.point.get(name)) for name in names),
                *(_csv_cell(figure) for fold in folds for figure in values.get(fold) or nothing),
                _csv_cell(trial.error),
                *(time_text(when) or "" for when in (trial.submitted, trial.started, trial.ended)),
                *([_csv_cell(trial.confirms)] if confirms else ()),
                *([_csv_cell(trial.retries)] if retries else ()),
                *(map(_csv_cell, stop) if stopped else ()),
                *(_csv_cell(getattr(price.cost(trial.spent), name)) for name in _COSTS),
            ]
        )
    return buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    """A value as one cell; a text that a spreadsheet would run as a formula is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value
    return repr(value) if isinstance(value, float) else value


#: Writes a search to a path; returns what to do with it, for people.
_Write = Callable[[ExportedSearch, Path], str]


@dataclass(frozen=True)
class FileForm:
    """A form of exports.

    Attributes:
        writer: module:function; imported when it is asked for, for its library takes a second to load.
        target: what `-o` names.
        extra: what of our package brings the library.
        curves: whether it shows what trials reported while they ran.
        note: what users should know before it begins.
    """

    writer: str
    target: str
    extra: str
    curves: bool
    note: str = ""


#: The forms by name.
FILE_FORMS = {
    "parquet": FileForm("hpo_pilot.report.parquet:write", "FILE.parquet", "parquet", False),
    "mlflow": FileForm(
        "hpo_pilot.report.mlflow:write", "FOLDER or FILE.db", "mlflow", True, "MLflow takes some 0.1 s a trial"
    ),
    "optuna": FileForm("hpo_pilot.report.optuna:write", "FILE.log", "optuna", True),
}


def export_file(client: SearchClient, identity: str, form: str, path: Path | None) -> str:
    """Writes a search in one of `FILE_FORMS`; a second time it is brought up to date, not doubled.

    Args:
        client: knows the search.
        identity: the search.
        form: the form's name.
        path: where; nothing there is overwritten that is not this search's export.

    Returns:
        What was written, and what opens it.

    Raises:
        InputError: there is no path, something else is there, or the form's library is not installed.
        TryAgainError: the store, the service or the disk said no.
    """
    chosen = FILE_FORMS[form]
    if path is None:
        raise InputError(f"--format {form} does not go to standard output: name a place for it, -o {chosen.target}")
    try:
        module, _, function = chosen.writer.partition(":")
        write = cast(_Write, getattr(import_module(module), function))
        if not path.absolute().parent.is_dir():
            raise InputError(f"{path.absolute().parent} is no folder: make it first, or name another -o")
        return write(ExportedSearch.read(client, identity, curves=chosen.curves), path)
    except ModuleNotFoundError as error:
        if (error.name or "hpo_pilot").split(".")[0] == "hpo_pilot":
            raise
        # A database of MLflow's is written with what the service has its store with.
        extras = f"service,{chosen.extra}" if (error.name or "") in ("alembic", "sqlalchemy") else chosen.extra
        raise InputError(
            f"--format {form} needs {error.name}, which is not installed: pip install 'hpo-pilot[{extras}]'"
        ) from error
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
