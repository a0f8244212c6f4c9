"""MLflow's file store, written as it lies on the disk.

Its layout has not changed for years and is not to: MLflow has put it into maintenance mode. MLflow's own client takes
ten times as long (tests/performance/exports.py). A file for each parameter, metric and tag makes some forty a run: of
many trials a database is the better export.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.exports.mlflow_runs import DIGEST, MARK, MlflowRun, definition_of, experiment_tags, runs_of
from hpo_pilot.exports.subject import Subject, when

#: Numbers of `mlflow.entities.RunStatus` and of `SourceType.JOB`, which a file store has in place of the words.
_STATUS = {"RUNNING": 1, "SCHEDULED": 2, "FINISHED": 3, "FAILED": 4, "KILLED": 5}
_SOURCE_JOB = 2

_META = "meta.yaml"


def write(subject: Subject, store: Path) -> int:
    """Writes the search's runs that are new or have changed; returns how many.

    Raises:
        InputError: the folder has something else in it, or an experiment of that name that is no export of ours.
    """
    _check_store(store)
    experiment = _find_experiment(subject, store)
    with _scratch(store) as scratch:
        if experiment is None:
            # A number: MLflow's tool that moves file stores into databases takes no other id.
            experiment = store / str(uuid.uuid5(uuid.NAMESPACE_URL, f"hpo-pilot:{subject.mark}").int % 10**18)
            made = scratch / experiment.name
            made.mkdir()
            count = _write_runs(subject, scratch, made, experiment)
            _write_experiment(subject, made, experiment)
            store.mkdir(exist_ok=True)
            made.rename(experiment)
            return count
        count = _write_runs(subject, scratch, experiment, experiment)
        _write_experiment(subject, experiment, experiment)
        return count


def _check_store(store: Path) -> None:
    if not store.exists():
        return
    with os.scandir(store) as entries:
        strange = [
            entry.name
            for entry in entries
            if entry.name not in (".trash", "models") and not Path(entry.path, _META).is_file()
        ]
    if strange:
        raise InputError(f"{store} has {strange[0]} in it, so it is no MLflow file store: name a new folder")


def _find_experiment(subject: Subject, store: Path) -> Path | None:
    name = subject.search["name"]
    if not store.exists():
        return None
    for meta in sorted(store.glob(f"*/{_META}")):
        if _name_in(meta) != name:
            continue
        mark = meta.parent / "tags" / MARK
        if not mark.is_file() or mark.read_text() != subject.mark:
            raise InputError(f"{store} has an experiment {name!r} that is no export of this search: name a new folder")
        return meta.parent
    return None


def _name_in(meta: Path) -> Any:
    """The name in an experiment's file, written by MLflow or by us."""
    for line in meta.read_text().splitlines():
        if line.startswith("name:"):
            text = line.removeprefix("name:").strip()
            try:
                return json.loads(text)
            except ValueError:
                return text.strip("'")
    return None


@contextlib.contextmanager
def _scratch(store: Path) -> Iterator[Path]:
    """A folder on the same file system, whose contents MLflow never sees."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{store.name}.", suffix=".part", dir=store.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_experiment(subject: Subject, folder: Path, place: Path) -> None:
    """The experiment's own files, whole each; `place` is where the folder will be."""
    created = when(subject.search["created"])
    millis = 0 if created is None else round(created.timestamp() * 1000)
    _write_meta(
        folder,
        {
            "artifact_location": place.as_uri(),
            "creation_time": millis,
            "experiment_id": place.name,
            "last_update_time": millis,
            "lifecycle_stage": "active",
            "name": subject.search["name"],
        },
    )
    _write_files(folder / "tags", experiment_tags(subject))


def _write_runs(subject: Subject, scratch: Path, folder: Path, place: Path) -> int:
    """Writes runs into an experiment's folder, each whole or not at all; `place` is where the folder will be."""
    count = 0
    definition = scratch / "search.yaml"
    definition.write_text(definition_of(subject))
    for run in runs_of(subject):
        there = folder / run.run_id
        digest = run.digest
        known = there / "tags" / DIGEST
        if known.is_file() and known.read_text() == digest:
            continue
        count += 1
        if not there.exists():
            _write_run(run, digest, scratch / run.run_id, place)
        else:
            _write_run(run, digest, scratch / run.run_id, place, older=there)
            there.rename(scratch / f"{run.run_id}.old")
        artifacts = scratch / run.run_id / "artifacts"
        # One file with a name in every run: nobody changes artifacts.
        os.link(definition, artifacts / "search.yaml")
        (scratch / run.run_id).rename(there)
    return count


def _write_run(run: MlflowRun, digest: str, folder: Path, place: Path, older: Path | None = None) -> None:
    """One run; what people have added to the older one's tags and artifacts stays."""
    for name in ("params", "metrics", "tags", "artifacts"):
        (folder / name).mkdir(parents=True)
    if older is not None:
        for name in ("tags", "artifacts"):
            shutil.copytree(older / name, folder / name, dirs_exist_ok=True)
        (folder / "artifacts" / "search.yaml").unlink(missing_ok=True)
    _write_meta(
        folder,
        {
            "artifact_uri": f"{place.as_uri()}/{run.run_id}/artifacts",
            "end_time": run.ended,
            "entry_point_name": "",
            "experiment_id": place.name,
            "lifecycle_stage": "active",
            "run_id": run.run_id,
            "run_name": run.name,
            "source_name": "hpo-pilot",
            "source_type": _SOURCE_JOB,
            "source_version": "",
            "start_time": run.started,
            "status": _STATUS[run.status],
            "tags": [],
            "user_id": run.tags["owner"],
        },
    )
    _write_files(folder / "params", run.params)
    _write_files(folder / "tags", {**run.tags, DIGEST: digest})
    _write_files(folder / "artifacts", run.logs)
    lines: dict[str, list[str]] = {}
    for metric in run.metrics:
        lines.setdefault(metric.key, []).append(f"{metric.timestamp} {metric.value} {metric.step}\n")
    _write_files(folder / "metrics", {key: "".join(texts) for key, texts in lines.items()})


def _write_meta(folder: Path, values: Mapping[str, Any]) -> None:
    # JSON's values are YAML's.
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    _write_files(folder, {_META: text})


def _write_files(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        # Half the time that pathlib takes, of hundreds of thousands of files.
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as stream:  # noqa: PTH118, PTH123
            stream.write(text)
