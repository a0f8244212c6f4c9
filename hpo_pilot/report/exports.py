"""Exports of a search: the text formats (CSV, JSON, hpogrid), and the columns of tables of trials."""

from __future__ import annotations

import csv
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs.results import MEASURES
from hpo_pilot.report.formatting import listed
from hpo_pilot.report.json_text import laid_out
from hpo_pilot.report.trial_documents import trial_documents

if TYPE_CHECKING:
    from datetime import datetime

    from hpo_pilot.operations.client import SearchClient
    from hpo_pilot.report.trial_documents import TrialDocument
    from hpo_pilot.search import Search, Trial


def trial_costs(trial: TrialDocument) -> dict[str, Any]:
    """Returns the cost of a trial by column name; None where it is not known."""
    return {name: trial["cost"][name] if "cost" in trial else None for name in COSTS}  # type: ignore[literal-required]


def panda_ids(trial: TrialDocument) -> list[int]:
    """Returns the PandaIDs of a trial's folds, in the order of the folds."""
    return [fold["panda_id"] for fold in trial["folds"] if fold["panda_id"] is not None]


#: Columns of a trial's cost, with the names that `Cost` uses.
COSTS = ("job_seconds", "gpu_hours", "core_hours", "energy_kwh", "co2_kg")


def without_stops(columns: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    """Returns the columns of `trial_columns` without those on early stopping."""
    own, of_stops = set(named.values()), ("stopped_", "projected")
    return {name: column for name, column in columns.items() if name in own or not name.startswith(of_stops)}


def trial_columns(
    trials: Sequence[TrialDocument], metrics: Sequence[str], folds: int, space: Iterable[str], *, levels: bool
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Returns the columns of a table of trials, in their order; None where a trial has no value.

    Args:
        trials: the trials, one row each.
        metrics: names of the objectives; several objectives have columns of their own (`value_loss`).
        folds: number of folds of a trial.
        space: names of the parameters.
        levels: whether the search has levels.

    Returns:
        The columns, and the column of each parameter by its name.
    """
    from hpo_pilot.search.earlier_results import parameter_column  # noqa: PLC0415 - the command line starts light

    def figures(documents: Sequence[Any], key: str) -> list[list[Any]]:
        found = [() if document is None else listed(document[key]) for document in documents]
        return [[figures[i] if figures else None for figures in found] for i in objectives]

    objectives = range(len(metrics))
    ends = [f"_{metric}" for metric in metrics] if len(metrics) > 1 else [""]
    columns: dict[str, list[Any]] = {
        name: [trial[name] for trial in trials] for name in ("number", "generation", "state")
    }
    for end, values, stds in zip(ends, figures(trials, "value"), figures(trials, "std"), strict=True):
        columns |= {f"value{end}": values, f"std{end}": stds}
    before, columns = columns, {"seed": [trial["seed"] for trial in trials]}
    by_number = [{fold["fold"]: fold for fold in trial["folds"]} for trial in trials]
    for fold in range(folds):
        for end, values in zip(ends, figures([found.get(fold) for found in by_number], "value"), strict=True):
            columns[f"fold_{fold}{end}"] = values
    for name in ("error", "submitted", "started", "ended", "confirms", "retries", "told"):
        columns[name] = [trial[name] for trial in trials]
    for name in ("level", "continues") if levels else ():
        columns[name] = [trial.get(name) for trial in trials]
    stops = [trial["stopped"] for trial in trials]
    columns["stopped_step"] = [stop and stop["step"] for stop in stops]
    columns["stopped_value"] = [stop and stop["value"] for stop in stops]
    columns |= {f"projected{end}": values for end, values in zip(ends, figures(stops, "projected"), strict=True)}
    costs = [trial_costs(trial) for trial in trials]
    columns |= {name: [cost[name] for cost in costs] for name in COSTS}
    # CSV files also have `panda_ids`, and data frames `seconds`.
    taken = {*before, *columns, "panda_ids", "seconds"}
    named = {name: parameter_column(name, taken) for name in space}
    points = {column: [trial["point"].get(name) for trial in trials] for name, column in named.items()}
    return before | points | columns, named


def as_json(search: Search, trials: Iterable[Trial]) -> Iterator[str]:
    """Yields the search and its trials as JSON, with folds and log tails."""
    head = json.dumps({"search": search.shown()}, indent=1, ensure_ascii=False)
    yield head.removesuffix("\n}") + ',\n "trials": '
    yield from laid_out("[]", (("", document) for document in trial_documents(search, trials)), 1)
    yield "\n}\n"


#: Rows of a CSV table that are written at once.
_ROWS = 200


def as_csv(search: Search, trials: Iterable[Trial]) -> Iterator[str]:
    """Yields a CSV table with one row per trial.

    A parameter with the name of another column, for example `value`, is in the column `point.value`. PandaIDs are
    separated by spaces.

    Args:
        search: the search.
        trials: its trials. They are read before the first row, which depends on all: some columns are there only if a
            trial has a value. Meanwhile the rows are in a temporary file.

    Raises:
        TryAgainError: there is no room for this file.
    """
    try:
        with tempfile.TemporaryFile() as rows:
            yield from _csv_parts(search, trials, rows)
    except OSError as error:  # it may be that there is no folder for it at all
        text = f"no room for the temporary file of a table: {error}; free some, or set TMPDIR to another folder"
        raise TryAgainError(text) from error


def _csv_parts(search: Search, trials: Iterable[Trial], rows: IO[bytes]) -> Iterator[str]:
    known = {measure.name for measure in MEASURES}
    measured: set[str] = set()
    retried, rest = False, iter(trials)
    while some := list(itertools.islice(rest, _ROWS)):
        retried = retried or any(trial.retries for trial in some)
        measured.update(name for trial in some for fold in trial.folds for name in known & fold.metrics.keys())
        rows.write(json.dumps(_csv_columns(search, some, measured)).encode() + b"\n")
    rows.seek(0)
    names = list(_csv_columns(search, (), [measure.name for measure in MEASURES if measure.name in measured]))
    if not retried:
        names.remove("retries")
    yield _csv_text([names])
    for columns in map(json.loads, rows):
        missing = [None] * len(columns["number"])
        yield _csv_text(zip(*(_csv_cells(columns.get(name, missing)) for name in names), strict=True))


def _csv_columns(search: Search, trials: Sequence[Trial], measured: Iterable[str]) -> dict[str, list[Any]]:
    """Returns the columns of some trials in their order; `measured`: the names of figures with a column."""
    documents = list(trial_documents(search, trials, logs=False))
    metrics, levels = [objective.metric for objective in search.objectives], search.levels is not None
    columns, named = trial_columns(documents, metrics, search.folds.k, search.space.names, levels=levels)
    columns["panda_ids"] = [" ".join(map(str, panda_ids(document))) for document in documents]
    if not search.early_stopping.is_on:
        columns = without_stops(columns, named)
    return columns | {f"metrics.{name}": [trial.mean_metric(name) for trial in trials] for name in measured}


def _csv_text(rows: Iterable[Iterable[Any]]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _csv_cells(column: Sequence[Any]) -> list[Any]:
    """Returns values as cells of a table; the writer itself makes texts of numbers and of None."""
    return [_csv_cell(value) if isinstance(value, str | bool) else value for value in column]


def _csv_cell(value: str | bool) -> str:
    """Returns a value as one cell. A text that a spreadsheet would run as a formula gets a leading apostrophe."""
    if isinstance(value, bool):
        return json.dumps(value)
    value = value.replace("\r\n", "\n").replace("\r", "\n")  # the writer would not quote a carriage return
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\n") else value


_HPOGRID_TIME = "%m/%d/%Y, %H:%M:%S"


def as_hpogrid_report(search: Search, trials: Iterable[Trial]) -> Iterator[str]:
    """Returns the finished trials of a search, confirmation runs included, in the format of hpogrid's reports.

    The keys are those of hpogrid 1.3.3 (`hpogrid/core/defaults.py`, `kHPOGridMetadataFormat`), the values as
    `hpogrid/components/hpo_task.py` fills them.

    Args:
        search: the search.
        trials: its trials. They are read twice, because the summary comes first.

    Raises:
        InputError: the search has several objectives; hpogrid supports one.
    """
    if len(search.objectives) > 1:
        metrics = ", ".join(objective.metric for objective in search.objectives)
        raise InputError(
            f"hpogrid supports one objective, and search {search.name!r} has {metrics}; export csv or json"
        )
    return _hpogrid_report(search, trials)


def _hpogrid_report(search: Search, trials: Iterable[Trial]) -> Iterator[str]:
    metric, sign = search.objective.metric, search.objective.sign
    best: Trial | None = None
    begun: datetime | None = None
    ended: datetime | None = None
    found: dict[str, None] = {}
    for trial in trials:
        if (time := trial.started or trial.submitted) is not None:
            begun = time if begun is None else min(begun, time)
        if trial.ended is not None:
            ended = trial.ended if ended is None else max(ended, trial.ended)
        if _is_done(trial):
            found |= dict.fromkeys(search.payload_point(trial.point, trial.level))
            key = -(trial.level or 0), sign * (trial.value or 0.0)
            if trial.confirms is None and (best is None or key < (-(best.level or 0), sign * (best.value or 0.0))):
                best = trial
    names = list(found) or list(search.payload_point(dict.fromkeys(search.space.names)))
    summary: dict[str, Any] = {
        "project_name": search.name,
        "start_datetime": begun and begun.strftime(_HPOGRID_TIME),
        "end_datetime": ended and ended.strftime(_HPOGRID_TIME),
        "start_timestamp": None if begun is None else begun.timestamp(),
        "task_time_s": (ended - begun).total_seconds() if begun and ended else None,
        "hyperparameters": names,
        "metric": metric,
        "mode": "min" if search.objective.goal == "minimize" else "max",
        "best_config": None if best is None else search.payload_point(best.point, best.level),
        "best_metric_score": None if best is None else best.value,
    }

    def row(trial: Trial) -> dict[str, Any]:
        point = search.payload_point(trial.point, trial.level)
        return {
            # hpogrid makes one table: every row has every column.
            **{name: point.get(name) for name in names},
            metric: trial.value,
            # The run time of the longest fold.
            "time_s": max((s for fold in trial.folds if (s := fold.result.seconds) is not None), default=None),
            "timestamp": None if trial.ended is None else int(trial.ended.timestamp()),
        }

    yield json.dumps(summary, indent=1, ensure_ascii=False).removesuffix("\n}") + ',\n "result": '
    done = (trial for trial in trials if _is_done(trial))
    yield from laid_out("{}", ((f'"{index}": ', row(trial)) for index, trial in enumerate(done)), 1)
    yield "\n}\n"


def _is_done(trial: Trial) -> bool:
    return trial.state.value == "finished" and trial.value is not None


class TextForm(NamedTuple):
    """A format that is one text.

    Attributes:
        write: yields the text of a search in pieces; some formats read the trials twice.
        logs: whether it contains the log tails of folds.
    """

    write: Callable[[Search, Iterable[Trial]], Iterator[str]]
    logs: bool = False


#: The text formats by name.
TEXT_FORMS: Mapping[str, TextForm] = {
    "csv": TextForm(as_csv),
    "json": TextForm(as_json, logs=True),
    "hpogrid-report": TextForm(as_hpogrid_report),
}


def text_form(name: str) -> TextForm:
    """Returns the text format of that name.

    Raises:
        InputError: the format is unknown.
    """
    if name not in TEXT_FORMS:
        raise InputError(f"unknown export format {name!r}; the formats are {', '.join(TEXT_FORMS)}")
    return TEXT_FORMS[name]


def export_mlflow(client: SearchClient, identity: str, path: Path | None) -> str:
    """Writes a search as MLflow runs; a second export to the same place adds the trials that are over since.

    Args:
        client: the client through which the search is read.
        identity: name or number of the search.
        path: an SQLite database, created if it is missing; it may have other searches too.

    Returns:
        A text for people: what was written, and how to open it.

    Raises:
        InputError: no path was given, the path holds something else or cannot be written, or a library is missing.
        TryAgainError: the store or the service cannot be reached, or another program has locked the file.
    """
    if path is None:
        raise InputError("MLflow runs cannot be written to standard output; give a path with -o FILE.db")
    try:
        from hpo_pilot.report.mlflow import ExportedSearch, write  # noqa: PLC0415 - it takes a second to load

        if not path.absolute().parent.is_dir():
            raise InputError(
                f"the folder {path.absolute().parent} does not exist; create it, or give another path with -o"
            )
        return write(ExportedSearch.read(client, identity), path)
    except ModuleNotFoundError as error:
        if (error.name or "hpo_pilot").split(".")[0] == "hpo_pilot":
            raise
        raise InputError(
            f"--format mlflow needs {error.name}, which is not installed: pip install 'hpo-pilot[service,mlflow]'"
        ) from error
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
