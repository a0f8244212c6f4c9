"""Exports of a search: the formats, CSV and JSON, and the data that the file exports share."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo_pilot.errors import InputError
from hpo_pilot.report.documents import IntermediateDocument, time_text, trial_document

if TYPE_CHECKING:
    from hpo_pilot.report.documents import FoldDocument, StatusDocument, StoppedDocument, TrialDocument
    from hpo_pilot.search import Search, Trial
    from hpo_pilot.web.operations import SearchClient


@dataclass(frozen=True)
class ExportedSearch:
    """A search and its trials, as the file exports read them.

    Attributes:
        search: the status of the search, with its definition.
        trials: all its trials, sorted by number.
        curves: the intermediate values that trials reported, by trial number.
    """

    search: StatusDocument
    trials: Sequence[TrialDocument]
    curves: Mapping[int, IntermediateDocument] = field(default_factory=dict)

    @classmethod
    def read(cls, client: SearchClient, identity: str, *, curves: bool) -> ExportedSearch:
        """Reads a search through a client; `curves`: also the intermediate values of its trials.

        Raises:
            InputError: there is no such search, or it is a family; the searches of a family are exported one by one.
            TryAgainError: the store or the service cannot be reached.
        """
        # In this order, each intermediate value has its trial, and the status is never older than the trials.
        reported = {one["number"]: one for one in client.intermediate(identity)} if curves else {}
        trials = client.trials(identity)
        return cls(client.status(identity), trials, reported)

    @property
    def mark(self) -> str:
        """Identifies this search, also among searches of the same name in other stores."""
        return f"{self.search['name']} {self.search['created']}"

    @property
    def over(self) -> list[TrialDocument]:
        """The trials that are over, sorted by number."""
        return [trial for trial in self.trials if trial["state"] in ("finished", "failed", "stopped")]

    def counted(self, written: int) -> str:
        """Returns a text for people: `written` trials of all, and why the others were not written."""
        over = len(self.over)
        present, running = over - written, len(self.trials) - over
        return (
            f"{written} of {len(self.trials)} trials"
            + (f" ({present} {'was' if present == 1 else 'were'} already written)" if present else "")
            + (f" ({running} {'is' if running == 1 else 'are'} not over; export again later)" if running else "")
        )

    @property
    def metrics(self) -> list[str]:
        """The names of the objectives, in order."""
        return [objective["metric"] for objective in self.objectives]

    @property
    def suffixes(self) -> list[str]:
        """For each objective, the end of its columns' names; one objective needs none."""
        return [f"_{metric}" for metric in self.metrics] if len(self.objectives) > 1 else [""]

    def values_of(self, document: TrialDocument | FoldDocument | StoppedDocument, key: str) -> Sequence[float | None]:
        """The entry `key` of a document (`value`, `std`, `projected`): one figure for each objective."""
        value: float | Sequence[float] | None = document[key]  # type: ignore[literal-required]
        if value is None:
            return [None] * len(self.objectives)
        return value if isinstance(value, Sequence) else [value]

    @property
    def objectives(self) -> list[Any]:
        """The objectives, each a mapping with `metric` and `goal`."""
        objective = self.search["objective"]
        return objective if isinstance(objective, list) else [objective]

    @property
    def space(self) -> dict[str, Any]:
        """The parameters as the search's definition has them, by name."""
        space: dict[str, Any] = self.search["definition"]["space"]
        return space

    @property
    def folds(self) -> int:
        """The number of folds of each trial."""
        k: int = self.search["definition"]["folds"]["k"]
        return k


def time_of(text: str | None) -> datetime | None:
    """Parses a time of a document; the result has its time zone."""
    return None if text is None else datetime.fromisoformat(text)


def utf8(text: str) -> str:
    """Returns `text` as valid UTF-8; the output of a payload may contain other bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def trial_costs(trial: TrialDocument) -> dict[str, Any]:
    """The cost of a trial by column name; None where it is not known."""
    return {name: trial["cost"][name] if "cost" in trial else None for name in COSTS}  # type: ignore[literal-required]


def payload_metrics(trial: TrialDocument) -> dict[str, list[tuple[int, float]]]:
    """The numeric metrics of a trial's payload, by name: (fold, number) for each fold that has one."""
    found: dict[str, list[tuple[int, float]]] = {}
    for fold in trial["folds"]:
        for name, value in fold["metrics"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                try:
                    found.setdefault(name, []).append((fold["fold"], float(value)))
                except OverflowError:  # an integer larger than any float
                    continue
    return found


def mean_metrics(trial: TrialDocument) -> dict[str, float]:
    """The means of the payload's metrics over the folds that have them, by name."""
    return {name: statistics.fmean(value for _, value in values) for name, values in payload_metrics(trial).items()}


def panda_ids(trial: TrialDocument) -> list[int]:
    """The PandaIDs of a trial's folds, in the order of the folds."""
    return [fold["panda_id"] for fold in trial["folds"] if fold["panda_id"] is not None]


#: Columns of a trial's cost, with the names that `Cost` uses.
COSTS = ("job_seconds", "gpu_hours", "core_hours", "energy_kwh")

#: The formats that are one text.
TEXT_FORMS = ("csv", "json", "hpogrid-report")


def exporter(form: str) -> Callable[[Search, Sequence[Trial]], str]:
    """Returns the function that makes the text of a format from a search and its trials.

    Raises:
        InputError: the format is unknown.
    """
    if form == "csv":
        return as_csv
    if form == "json":
        return as_json
    if form == "hpogrid-report":
        from hpo_pilot.report.hpogrid import as_hpogrid_report  # noqa: PLC0415 - seldom wanted; needs pydantic

        return as_hpogrid_report
    raise InputError(f"unknown export format {form!r}; the formats are {', '.join(TEXT_FORMS)}")


def as_json(search: Search, trials: Sequence[Trial]) -> str:
    """Returns the search and its trials as JSON, with folds and log tails."""
    from hpo_pilot.hpc.site_files import price_of  # noqa: PLC0415 - the command line starts light

    price = price_of(search)
    document = {"search": search.to_dict(), "trials": [trial_document(trial, price) for trial in trials]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_csv(search: Search, trials: Sequence[Trial]) -> str:
    """Returns a CSV table with one row per trial.

    A parameter with the name of another column, for example `value`, is in the column `point.value`.
    """
    from hpo_pilot.hpc.site_files import price_of  # noqa: PLC0415
    from hpo_pilot.search.earlier_results import parameter_column  # noqa: PLC0415 - the command line starts light

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    names, folds = search.space.names, range(search.folds.k)
    # With several objectives, each has its own columns.
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
    tail = [*of_folds, "error", "submitted", "started", "ended", *confirms, *retries, *stopped, *COSTS]
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
                *(_csv_cell(getattr(price.cost(trial.spent), name)) for name in COSTS),
            ]
        )
    return buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    """Returns a value as one cell. A text that a spreadsheet would run as a formula gets a leading apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value
    return repr(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class FileForm:
    """A format that is written to a file or folder.

    Attributes:
        target: what `-o` names.
        curves: whether it contains the intermediate values of trials.
        note: what users should know before it begins.
    """

    target: str
    curves: bool
    note: str = ""


#: The file formats by name; the package's extra with the library of a format has the same name.
FILE_FORMS = {
    "parquet": FileForm("FILE.parquet", curves=False),
    "mlflow": FileForm("FOLDER or FILE.db", curves=True, note="MLflow takes some 0.1 s a trial"),
    "optuna": FileForm("FILE.log", curves=True),
}


def _writer(form: str) -> Callable[[ExportedSearch, Path], str]:
    """Returns the function that writes a file format; imported here because its library takes a second to load."""
    if form == "parquet":
        from hpo_pilot.report.parquet import write as write_parquet  # noqa: PLC0415

        return write_parquet
    if form == "mlflow":
        from hpo_pilot.report.mlflow import write as write_mlflow  # noqa: PLC0415

        return write_mlflow
    from hpo_pilot.report.optuna import write as write_optuna  # noqa: PLC0415

    return write_optuna


def export_file(client: SearchClient, identity: str, form: str, path: Path | None) -> str:
    """Writes a search in one of `FILE_FORMS`; a second export to the same place updates the first.

    Args:
        client: the client through which the search is read.
        identity: name or number of the search.
        form: the name of the format.
        path: the file or folder. Only an earlier export of the same search is overwritten.

    Returns:
        A text for people: what was written, and how to open it.

    Raises:
        InputError: no path was given, the path holds something else or cannot be written, or the format's library is
            not installed.
        TryAgainError: the store or the service cannot be reached, or another program has locked the file.
    """
    chosen = FILE_FORMS[form]
    if path is None:
        raise InputError(f"--format {form} cannot be written to standard output; give a path with -o {chosen.target}")
    try:
        write = _writer(form)
        if not path.absolute().parent.is_dir():
            raise InputError(
                f"the folder {path.absolute().parent} does not exist; create it, or give another path with -o"
            )
        return write(ExportedSearch.read(client, identity, curves=chosen.curves), path)
    except ModuleNotFoundError as error:
        if (error.name or "hpo_pilot").split(".")[0] == "hpo_pilot":
            raise
        # MLflow's database needs libraries of the service.
        extras = f"service,{form}" if error.name in ("alembic", "sqlalchemy") else form
        raise InputError(
            f"--format {form} needs {error.name}, which is not installed: pip install 'hpo-pilot[{extras}]'"
        ) from error
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
