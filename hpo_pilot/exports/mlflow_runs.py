"""A search in MLflow's words: an experiment, and a run for each trial.

Folds are metrics of their trial's run (`fold_0`, `fold_1`, …, as in the CSV export), not runs nested in it: in a table
of runs every row is then a point of the space, and 10,000 trials with five folds are 10,000 runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hpo_pilot.client.intermediate import mean_curve
from hpo_pilot.exports.subject import Subject, figures, mean_metrics, panda_ids, payload_metrics, utf8, when

if TYPE_CHECKING:
    from hpo_pilot.client.documents import TrialDocument

#: The experiment's tag that tells which search it is; what has it is ours to bring up to date.
MARK = "hpo_pilot.search_mark"
#: A run's tag that tells its content: one that has not changed is not written again.
DIGEST = "hpo_pilot.digest"

#: MLflow's run statuses, by our states of trials (`mlflow.entities.RunStatus`).
STATUSES = {
    "pending": "SCHEDULED",
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
}

#: MLflow's limits (`mlflow.utils.validation`, 3.17): characters of a key, of a parameter's and of a tag's value.
_KEY, _PARAM, _TAG = 250, 6000, 8000

#: What MLflow's keys may not hold, and `/`, which makes folders of a file store's keys.
_NO_KEY = re.compile(r"[^\w.\- ]")


class RunMetric(NamedTuple):
    """One value of a metric; not-a-number where there was none. Milliseconds since the epoch."""

    key: str
    value: float
    timestamp: int
    step: int = 0


@dataclass(frozen=True)
class MlflowRun:
    """One trial. `started` and `ended` are milliseconds since the epoch; `logs` are texts by file name."""

    run_id: str
    name: str
    status: str
    started: int | None
    ended: int | None
    params: Mapping[str, str]
    metrics: tuple[RunMetric, ...]
    tags: Mapping[str, str]
    logs: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """What two runs have in common only if they are the same."""
        said = (self.status, self.started, self.ended, self.params, self.metrics, self.tags, self.logs)
        return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def key_of(name: str) -> str:
    """A name as MLflow takes it for a key."""
    key = _NO_KEY.sub("_", name.encode("utf-8", "replace").decode())[:_KEY]
    return key if key.strip(" .") else "_" * max(1, len(key))


def experiment_tags(subject: Subject) -> dict[str, str]:
    """What is said of the search as a whole."""
    search = subject.search
    note = f"Search {search['name']} of {search['owner']}, exported by hpo-pilot; see each run's tags."
    return {
        MARK: subject.mark,
        "mlflow.note.content": note,
        "search": search["name"],
        "owner": search["owner"],
        "state": search["state"],
        "goals": ", ".join(f"{objective['goal']} {objective['metric']}" for objective in subject.objectives),
    }


def runs_of(subject: Subject) -> Iterator[MlflowRun]:
    """The runs, by trial."""
    for trial in subject.trials:
        started, ended = _milliseconds(trial["started"] or trial["submitted"]), _milliseconds(trial["ended"])
        yield MlflowRun(
            # The same trial has the same id in every export.
            uuid.uuid5(uuid.NAMESPACE_URL, f"hpo-pilot:{subject.mark}:{trial['number']}").hex,
            f"{subject.search['name']}-{trial['number']}",
            STATUSES[trial["state"]],
            started,
            ended,
            {key_of(name): _shown(value)[:_PARAM] for name, value in trial["point"].items()},
            tuple(_metrics(subject, trial, ended or started or 0)),
            {key: utf8(value)[:_TAG] for key, value in _tags(subject, trial).items() if value},
            dict(_logs(trial)),
        )


def _milliseconds(text: str | None) -> int | None:
    time = when(text)
    return None if time is None else round(time.timestamp() * 1000)


def _shown(value: Any) -> str:
    return utf8(value) if isinstance(value, str) else json.dumps(value)


def _metrics(subject: Subject, trial: TrialDocument, at: int) -> Iterator[RunMetric]:
    """Figures of merit first: a payload's metric of the same name is of a fold, and theirs the word that counts."""
    taken: set[str] = set()

    def new(name: str) -> str | None:
        key = key_of(name)
        if key in taken:
            return None
        taken.add(key)
        return key

    for key, value in _own_metrics(subject, trial):
        if value is not None and (name := new(key)):
            yield RunMetric(name, value, at)
    for key, value in mean_metrics(trial).items():
        if name := new(key):
            yield RunMetric(name, value, at)
    if subject.folds > 1:
        for key, values in payload_metrics(trial).items():
            for fold, value in values:
                if name := new(f"fold_{fold}_{key}"):
                    yield RunMetric(name, value, at)
    if (curve := subject.curves.get(trial["number"])) is None:
        return
    curves: list[tuple[str, Iterable[tuple[int, float | None]]]] = [("intermediate_value", mean_curve(curve))]
    if subject.folds > 1:
        curves += [(f"fold_{fold['fold']}_intermediate_value", fold["values"]) for fold in curve["folds"]]
    for key, places in curves:
        if name := new(key):
            for step, value in places:
                yield RunMetric(name, math.nan if value is None else value, at, step)


def _own_metrics(subject: Subject, trial: TrialDocument) -> Iterator[tuple[str, float | None]]:
    names = subject.metrics
    ends = [f"_{metric}" for metric in names] if len(names) > 1 else [""]
    for name, end, value, std in zip(
        names, ends, figures(trial["value"], len(names)), figures(trial["std"], len(names)), strict=True
    ):
        yield name, value
        yield f"std{end}", std
    for fold in trial["folds"]:
        for end, value in zip(ends, figures(fold["value"], len(names)), strict=True):
            yield f"fold_{fold['fold']}{end}", value
    if stop := trial["stopped"]:
        yield "stopped_step", stop["step"]
        yield "stopped_value", stop["value"]
    if "cost" in trial:
        for key in ("job_seconds", "gpu_hours", "core_hours", "energy_kwh"):
            yield key, trial["cost"][key]


def _tags(subject: Subject, trial: TrialDocument) -> dict[str, str]:
    owner, ids = subject.search["owner"], panda_ids(trial)
    return {
        "mlflow.runName": f"{subject.search['name']}-{trial['number']}",
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
        "told": "" if trial["told"] is None else str(trial["told"]),
        "error": trial["error"] or "",
        "panda_ids": " ".join(map(str, ids)),
    }


def definition_of(subject: Subject) -> str:
    """The artifact `search.yaml` of every run: all that the search file says, defaults filled in, as JSON (a YAML)."""
    return json.dumps(subject.search["definition"], indent=1) + "\n"


def _logs(trial: TrialDocument) -> Iterator[tuple[str, str]]:
    for fold in trial["folds"]:
        if tail := fold.get("log_tail"):
            yield f"fold_{fold['fold']}.log", utf8(tail)
