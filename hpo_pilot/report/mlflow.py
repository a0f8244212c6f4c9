"""Writes a search as MLflow runs, through MLflow's client, to an SQLite file.

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
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report.documents import OVER_TRIALS
from hpo_pilot.report.exports import panda_ids, trial_costs
from hpo_pilot.report.formatting import count, listed
from hpo_pilot.report.trial_documents import mean_curve, time_of
from hpo_pilot.search.values import is_number

# MLflow sends usage data to its developers unless this variable is set when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, ViewType
from mlflow.exceptions import MlflowException

if TYPE_CHECKING:
    from hpo_pilot.operations.client import SearchClient
    from hpo_pilot.report.documents import StatusDocument
    from hpo_pilot.report.trial_documents import FoldDocument, IntermediateDocument, TrialDocument

#: The experiment's tag that identifies the search: only an experiment that has it is added to.
MARK = "hpo_pilot.search_mark"

#: MLflow's run statuses (`mlflow.entities.RunStatus`) for our final states of trials.
_STATUSES = dict.fromkeys(("finished", "infeasible", "paused"), "FINISHED") | {"failed": "FAILED", "stopped": "KILLED"}

#: MLflow's limits (`mlflow.utils.validation`, 3.17): characters of a key, and of the values of parameters and tags;
#: parameters and metrics per call; runs per page.
_KEY, _PARAM, _TAG = 250, 6000, 8000
_PARAMS, _METRICS = 100, 900
_RUNS = 5000

#: Characters that MLflow's keys must not contain, and `/`, which would create folders of artifacts.
_NO_KEY = re.compile(r"[^\w.\- ]")


@dataclass(frozen=True)
class ExportedSearch:
    """A search and its trials.

    Attributes:
        search: the status of the search, with its definition.
        trials: all its trials, sorted by number.
        curves: the intermediate values that trials reported, by trial number.
    """

    search: StatusDocument
    trials: Sequence[TrialDocument]
    curves: Mapping[int, IntermediateDocument] = field(default_factory=dict)

    @classmethod
    def read(cls, client: SearchClient, identity: str) -> ExportedSearch:
        """Reads a search through a client.

        Raises:
            InputError: there is no such search, or it is a family; the searches of a family are exported one by one.
            TryAgainError: the store or the service cannot be reached.
        """
        # In this order, each intermediate value has its trial, and the status is never older than the trials.
        reported = {one["number"]: one for one in client.intermediate(identity)}
        trials = list(client.trials(identity, logs=False))
        return cls(client.status(identity), trials, reported)

    @property
    def mark(self) -> str:
        """Identifies this search, also among searches of the same name in other stores."""
        return f"{self.search['name']} {self.search['created']}"

    @property
    def metrics(self) -> list[str]:
        """The names of the objectives, in order."""
        return [objective["metric"] for objective in self.objectives]

    @property
    def suffixes(self) -> list[str]:
        """For each objective, the end of its columns' names; one objective needs none."""
        return [f"_{metric}" for metric in self.metrics] if len(self.objectives) > 1 else [""]

    def values_of(self, document: TrialDocument | FoldDocument, key: str) -> Sequence[float | None]:
        """Returns the entry `key` of a document (`value` or `std`): one figure for each objective."""
        return listed(document[key]) or [None] * len(self.objectives)  # type: ignore[literal-required]

    @property
    def objectives(self) -> list[Any]:
        """The objectives, each a mapping with `metric` and `goal`."""
        objective = self.search["objective"]
        return objective if isinstance(objective, list) else [objective]

    @property
    def folds(self) -> int:
        """The number of folds of each trial."""
        k: int = self.search["definition"]["folds"]["k"]
        return k


def _utf8(text: str) -> str:
    """Returns `text` as valid UTF-8; the output of a payload may contain other bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


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
    _check_database(path)
    uri = f"sqlite:///{path.absolute()}"
    for name in ("mlflow", "alembic"):  # else every migration prints a line
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            client = MlflowClient(tracking_uri=uri)
            experiment = _experiment(client, subject, path)
            known, unfinished = _known_runs(client, experiment)
            over = [trial for trial in subject.trials if trial["state"] in OVER_TRIALS]
            new = [trial for trial in over if str(trial["number"]) not in known]
            for trial in new:
                _write_run(client, subject, trial, experiment, unfinished.get(str(trial["number"])), Path(scratch))
    except MlflowException as error:
        if error.error_code == "TEMPORARILY_UNAVAILABLE":
            raise TryAgainError(f"{path} is in use by another program: {error.message}") from error
        raise InputError(f"MLflow cannot use {path}: {error.message}") from error
    said = f"wrote {len(new)} of {count(len(subject.trials), 'trial')}"
    if before := len(over) - len(new):
        said += f" ({before} {'was' if before == 1 else 'were'} already written)"
    if running := len(subject.trials) - len(over):
        said += f" ({running} {'is' if running == 1 else 'are'} not over; export again later)"
    return f"{said} to {path}; open it with: mlflow ui --backend-store-uri {uri}"


def key_of(name: str) -> str:
    """Returns a name as a valid key of MLflow."""
    key = _NO_KEY.sub("_", name.encode("utf-8", "replace").decode())[:_KEY]
    return key if key.strip(" .") else "_" * max(1, len(key))


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


def _experiment(client: MlflowClient, subject: ExportedSearch, path: Path) -> str:
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
        location = (path.absolute().with_name(f"{path.stem}-artifacts") / search["name"]).as_uri()
        return str(client.create_experiment(search["name"], location, tags))
    if found.tags.get(MARK) != subject.mark:
        raise InputError(
            f"{path} has an experiment {search['name']!r} that is not an export of this search; give another path"
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
        tags = {key: _utf8(value)[:_TAG] for key, value in _tags(subject, trial).items() if value}
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
            (folder / f"fold_{fold['fold']}.log").write_text(_utf8(tail), encoding="utf-8")
    client.log_artifacts(run_id, str(folder))


def _milliseconds(text: str | None) -> int | None:
    time = time_of(text)
    return None if time is None else round(time.timestamp() * 1000)


def _params(trial: TrialDocument) -> dict[str, str]:
    return {
        key_of(name): (_utf8(value) if isinstance(value, str) else json.dumps(value))[:_PARAM]
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


def _payload_metrics(trial: TrialDocument) -> dict[str, list[tuple[int, float]]]:
    """Returns the numeric metrics of a trial's payload by name: (fold, number) for each fold that has one."""
    found: dict[str, list[tuple[int, float]]] = {}
    for fold in trial["folds"]:
        for name, value in fold["metrics"].items():
            if is_number(value):
                found.setdefault(name, []).append((fold["fold"], float(value)))
    return found


def _named_metrics(
    subject: ExportedSearch, trial: TrialDocument
) -> Iterator[tuple[str, Iterable[tuple[int, float | None]]]]:
    for name, value in _own_metrics(subject, trial):
        if value is not None:
            yield name, [(0, value)]
    found = _payload_metrics(trial)
    for name, values in found.items():
        yield name, [(0, statistics.fmean(value for _, value in values))]
    if subject.folds > 1:
        for name, values in found.items():
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
