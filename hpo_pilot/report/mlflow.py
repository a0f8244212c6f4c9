"""Writes a search as MLflow runs, through MLflow's client: to an SQLite file or to a folder, its file store.

Folds are metrics of their trial's run (`fold_0`, `fold_1`, …, as in the CSV export), not nested runs. So every row in a
table of runs is a point of the space, and 10,000 trials with five folds are 10,000 runs.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sqlite3
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report.exports import ExportedSearch, mean_metrics, panda_ids, payload_metrics, trial_costs, utf8
from hpo_pilot.report.trial_documents import mean_curve, time_of

# MLflow sends usage data to its developers unless this variable is set when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
from mlflow.entities import Metric, Param, ViewType
from mlflow.exceptions import MlflowException

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from hpo_pilot.report.trial_documents import TrialDocument

#: The experiment's tag that identifies the search: only an experiment that has it is added to.
MARK = "hpo_pilot.search_mark"

#: Suffixes of databases; any other path is a folder.
_DATABASES = (".db", ".sqlite", ".sqlite3")

#: MLflow's run statuses (`mlflow.entities.RunStatus`) for our final states of trials.
_STATUSES = dict.fromkeys(("finished", "infeasible", "paused"), "FINISHED") | {"failed": "FAILED", "stopped": "KILLED"}

#: MLflow's limits (`mlflow.utils.validation`, 3.17): characters of a key, and of the values of parameters and tags;
#: parameters and metrics per call; runs per page.
_KEY, _PARAM, _TAG = 250, 6000, 8000
_PARAMS, _METRICS = 100, 900
_RUNS = 5000

#: Characters that MLflow's keys must not contain, and `/`, which would create folders in a file store.
_NO_KEY = re.compile(r"[^\w.\- ]")


def write(subject: ExportedSearch, path: Path) -> str:
    """Writes the trials that are over and not yet written to an experiment with the search's name.

    MLflow cannot replace metrics, so a run is written once, when its trial is over. `set_terminated` comes last: the
    next export writes runs again that an interrupted one left running.

    Raises:
        InputError: the path holds something else, an experiment with this name belongs to another search, or MLflow
            refuses the store.
        TryAgainError: another program has locked the store.
        OSError: the store cannot be written.
    """
    place = path.absolute()
    is_database = path.suffix in _DATABASES
    (_check_database if is_database else _check_folder)(path)
    uri = f"sqlite:///{place}" if is_database else place.as_uri()
    try:
        with _client(uri) as client, tempfile.TemporaryDirectory() as scratch:
            experiment = _experiment(client, subject, place, is_database=is_database)
            known, unfinished = _known_runs(client, experiment)
            new = [trial for trial in subject.over if str(trial["number"]) not in known]
            for trial in new:
                _write_run(client, subject, trial, experiment, unfinished.get(str(trial["number"])), Path(scratch))
    except MlflowException as error:
        if error.error_code == "TEMPORARILY_UNAVAILABLE":
            raise TryAgainError(f"{path} is in use by another program: {error.message}") from error
        raise InputError(f"MLflow cannot use {path}: {error.message}") from error
    opens = f"mlflow ui --backend-store-uri {uri}"
    if not is_database:
        opens = f"MLFLOW_ALLOW_FILE_STORE=true {opens}"
    return f"wrote {subject.counted(len(new))} to {path}; open it with: {opens}"


def key_of(name: str) -> str:
    """Returns a name as a valid key of MLflow."""
    key = _NO_KEY.sub("_", name.encode("utf-8", "replace").decode())[:_KEY]
    return key if key.strip(" .") else "_" * max(1, len(key))


@contextmanager
def _client(uri: str) -> Iterator[MlflowClient]:
    """Returns MLflow's client of a store, which is created if necessary; silences MLflow's messages."""
    for name in ("mlflow", "alembic"):  # else every migration prints a line
        logging.getLogger(name).setLevel(logging.WARNING)
    # MLflow 3 has file stores in maintenance mode, and opens one only if this variable is set.
    allowed = os.environ.get("MLFLOW_ALLOW_FILE_STORE")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield mlflow.MlflowClient(tracking_uri=uri)
    finally:
        if allowed is None:
            del os.environ["MLFLOW_ALLOW_FILE_STORE"]
        else:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = allowed


def _check_database(path: Path) -> None:
    """Refuses a file that is not MLflow's, because MLflow would create its tables in any SQLite file."""
    # mlflow-skinny lacks these modules, and the message of MLflow itself is then misleading.
    for name in ("alembic", "sqlalchemy"):
        import_module(name)
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{path} exists and is not a file; give another path")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as there:
            names = {name for (name,) in there.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise TryAgainError(f"{path} is locked by another program; export again when it has finished") from error
        names = set()
    if not {"experiments", "runs"} <= names:
        raise InputError(f"{path} exists and is not a database of MLflow; give another path")


def _check_folder(path: Path) -> None:
    """Refuses a folder with anything but experiments, because MLflow would add its own files."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; give a folder, or a database that ends in {' or '.join(_DATABASES)}")
    for entry in path.iterdir():
        if entry.name not in (".trash", "models") and not (entry / "meta.yaml").is_file():
            raise InputError(f"{path} contains {entry.name}, so it is not an MLflow file store; give a new folder")


def _experiment(client: MlflowClient, subject: ExportedSearch, place: Path, *, is_database: bool) -> str:
    """Returns the id of the search's experiment; creates it if it does not exist."""
    search = subject.search
    note = f"Search {search['name']} of {search['owner']}, exported by hpo-pilot; see each run's tags."
    tags = {
        MARK: subject.mark,
        "mlflow.note.content": note,
        "search": search["name"],
        "owner": search["owner"],
        "state": search["state"],
        "goals": ", ".join(f"{objective['goal']} {objective['metric']}" for objective in subject.objectives),
    }
    found = client.get_experiment_by_name(search["name"])
    if found is None:
        location = (place.with_name(f"{place.stem}-artifacts") / search["name"]).as_uri() if is_database else None
        return str(client.create_experiment(search["name"], location, tags))
    if found.tags.get(MARK) != subject.mark:
        raise InputError(
            f"{place} has an experiment {search['name']!r} that is not an export of this search; give another path"
        )
    for key, value in tags.items():
        if found.tags.get(key) != value:
            client.set_experiment_tag(found.experiment_id, key, value)
    return str(found.experiment_id)


def _known_runs(client: MlflowClient, experiment: str) -> tuple[set[str], dict[str, str]]:
    """Returns the trials with a complete run, also deleted ones, and the ids of interrupted runs by trial."""
    known: set[str] = set()
    unfinished: dict[str, str] = {}
    token = None
    while True:
        page = client.search_runs([experiment], run_view_type=ViewType.ALL, max_results=_RUNS, page_token=token)
        for run in page:
            number = run.data.tags.get("trial", "")
            if run.info.status in _STATUSES.values():
                known.add(number)
            else:
                unfinished[number] = run.info.run_id
        token = page.token
        if not token:
            return known, unfinished


def _write_run(
    client: MlflowClient,
    subject: ExportedSearch,
    trial: TrialDocument,
    experiment: str,
    run_id: str | None,
    scratch: Path,
) -> None:
    """Writes a trial as a run; `run_id` is the run of an interrupted export, if there is one."""
    started = _milliseconds(trial["started"] or trial["submitted"] or trial["ended"])
    ended = _milliseconds(trial["ended"]) or started or 0
    name = f"{subject.search['name']}-{trial['number']}"
    if run_id is None:
        tags = {key: utf8(value)[:_TAG] for key, value in _tags(subject, trial).items() if value}
        run_id = client.create_run(experiment, start_time=started, tags=tags, run_name=name).info.run_id
    params = [Param(key, value) for key, value in _params(trial).items()]
    metrics = [Metric(key, value, ended, step) for key, step, value in _metrics(subject, trial)]
    for first in range(max(-(-len(params) // _PARAMS), -(-len(metrics) // _METRICS), 1)):
        client.log_batch(
            run_id,
            params=params[first * _PARAMS : (first + 1) * _PARAMS],
            metrics=metrics[first * _METRICS : (first + 1) * _METRICS],
        )
    _write_artifacts(client, subject, trial, run_id, scratch)
    client.set_terminated(run_id, _STATUSES[trial["state"]], end_time=ended)


def _write_artifacts(
    client: MlflowClient, subject: ExportedSearch, trial: TrialDocument, run_id: str, scratch: Path
) -> None:
    """Writes the definition to `search.yaml` (as JSON, which is also YAML), and the log tails of folds."""
    folder = scratch / run_id
    folder.mkdir()
    (folder / "search.yaml").write_text(json.dumps(subject.search["definition"], indent=1) + "\n")
    for fold in trial["folds"]:
        if tail := fold.get("log_tail"):
            (folder / f"fold_{fold['fold']}.log").write_text(utf8(tail), encoding="utf-8")
    client.log_artifacts(run_id, str(folder))


def _milliseconds(text: str | None) -> int | None:
    time = time_of(text)
    return None if time is None else round(time.timestamp() * 1000)


def _params(trial: TrialDocument) -> dict[str, str]:
    return {
        key_of(name): (utf8(value) if isinstance(value, str) else json.dumps(value))[:_PARAM]
        for name, value in trial["point"].items()
    }


def _metrics(subject: ExportedSearch, trial: TrialDocument) -> Iterator[tuple[str, int, float]]:
    """Yields key, step and value. Figures of merit come first, so they have precedence over the payload's metrics."""
    taken: set[str] = set()
    for name, points in _named_metrics(subject, trial):
        key = key_of(name)
        if key not in taken:
            taken.add(key)
            yield from ((key, step, math.nan if value is None else value) for step, value in points)


def _named_metrics(
    subject: ExportedSearch, trial: TrialDocument
) -> Iterator[tuple[str, Iterable[tuple[int, float | None]]]]:
    for name, value in _own_metrics(subject, trial):
        if value is not None:
            yield name, [(0, value)]
    for name, value in mean_metrics(trial).items():
        yield name, [(0, value)]
    if subject.folds > 1:
        for name, values in payload_metrics(trial).items():
            for fold, value in values:
                yield f"fold_{fold}_{name}", [(0, value)]
    if (curve := subject.curves.get(trial["number"])) is not None:
        yield "intermediate_value", mean_curve(fold["values"] for fold in curve["folds"])
        if subject.folds > 1:
            yield from ((f"fold_{fold['fold']}_intermediate_value", fold["values"]) for fold in curve["folds"])


def _own_metrics(subject: ExportedSearch, trial: TrialDocument) -> Iterator[tuple[str, float | None]]:
    ends = subject.suffixes
    values, stds = subject.values_of(trial, "value"), subject.values_of(trial, "std")
    for name, end, value, std in zip(subject.metrics, ends, values, stds, strict=True):
        yield name, value
        yield f"std{end}", std
    for fold in trial["folds"]:
        for end, value in zip(ends, subject.values_of(fold, "value"), strict=True):
            yield f"fold_{fold['fold']}{end}", value
    if stop := trial["stopped"]:
        yield "stopped_step", stop["step"]
        yield "stopped_value", stop["value"]
    yield from trial_costs(trial).items()


def _tags(subject: ExportedSearch, trial: TrialDocument) -> dict[str, str]:
    owner, ids = subject.search["owner"], panda_ids(trial)
    return {
        "mlflow.user": owner,
        "mlflow.source.name": "hpo-pilot",
        "mlflow.source.type": "JOB",
        "search": subject.search["name"],
        "owner": owner,
        "trial": str(trial["number"]),
        "generation": str(trial["generation"]),
        "state": trial["state"],
        "seed": str(trial["seed"]),
        "confirms": "" if trial["confirms"] is None else str(trial["confirms"]),
        **{name: str(trial[name]) for name in ("level", "continues") if trial.get(name) is not None},
        "told": "" if trial["told"] is None else str(trial["told"]),
        "error": trial["error"] or "",
        "panda_ids": " ".join(map(str, ids)),
    }
