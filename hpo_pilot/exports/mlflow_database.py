"""MLflow's tracking database in an SQLite file: its tables are MLflow's own to make, its rows are written in bulk.

MLflow's own client takes 23 ms a run, a transaction for each of its calls (tests/performance/exports.py).
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, MetaData, Table, create_engine, delete, insert, select, update

from hpo_pilot.errors import InputError
from hpo_pilot.exports.mlflow_runs import DIGEST, MARK, MlflowRun, definition_of, experiment_tags, runs_of
from hpo_pilot.exports.subject import Subject, when

_TABLES = ("experiments", "experiment_tags", "runs", "params", "metrics", "latest_metrics", "tags")

#: Rows for one statement, and keys for one `IN`: SQLite takes 32,766 values.
_ROWS = 5000
_KEYS = 500

_T = TypeVar("_T")


def write(subject: Subject, path: Path) -> int:
    """Writes the search's runs that are new or have changed, all of them or none; returns how many.

    Raises:
        InputError: another file is there, a database of another MLflow, or an experiment of that name that is no
            export of ours.
    """
    if path.exists():
        _check_database(path)
        _make_tables(path)
        return _write_runs(subject, path, path)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        _make_tables(scratch / path.name)
        count = _write_runs(subject, scratch / path.name, path)
        (scratch / path.name).rename(path)
        return count
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_database(path: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as there:
            names = {name for (name,) in there.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        names = set()
    if not {*_TABLES, "alembic_version"} <= names:
        raise InputError(f"{path} is there, and no database of MLflow: name another file")


def _make_tables(path: Path) -> None:
    """Has MLflow make its tables, or see that they are those of its version."""
    # MLflow tells its makers of every use unless it is told not to.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - it reads the environment when it is imported
    from mlflow.tracking import MlflowClient  # noqa: PLC0415

    # Else every migration is a line on the terminal.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments(max_results=1)
    except MlflowException as error:
        raise InputError(f"MLflow cannot use {path}: {error.message}") from error


def _write_runs(subject: Subject, database: Path, place: Path) -> int:
    """Writes into a database that will be at `place`; in one transaction."""
    with _transaction(database) as (connection, tables):
        experiment = _experiment(subject, connection, tables, place)
        artifacts = _artifacts_of(place) / str(experiment)
        known = _digests(connection, tables, experiment)
        definition = _definition_in(artifacts, definition_of(subject))
        count = 0
        changed = ((run, digest) for run in runs_of(subject) if known.get(run.run_id) != (digest := run.digest))
        for batch in _batches(changed, _KEYS):
            _forget(connection, tables, [run.run_id for run, _ in batch])
            _insert(connection, tables["runs"], (_row(run, experiment, artifacts) for run, _ in batch))
            for name, rows in _details(batch):
                _insert(connection, tables[name], rows)
            for run, _ in batch:
                _write_artifacts(run.logs, artifacts / run.run_id / "artifacts", definition)
            count += len(batch)
        return count


@contextmanager
def _transaction(database: Path) -> Iterator[tuple[Connection, dict[str, Table]]]:
    engine = create_engine(f"sqlite:///{database}")
    try:
        with engine.begin() as connection:
            # 256 MB: rows go in all over the indices, whose keys are random.
            connection.exec_driver_sql("PRAGMA cache_size = -262144")
            metadata = MetaData()
            metadata.reflect(connection, only=_TABLES)
            yield connection, dict(metadata.tables)
    finally:
        engine.dispose()


def _artifacts_of(place: Path) -> Path:
    return place.with_name(f"{place.stem}-artifacts")


def _experiment(subject: Subject, connection: Connection, tables: dict[str, Table], place: Path) -> int:
    """The number of the search's experiment, made where there is none."""
    experiments, tags = tables["experiments"], tables["experiment_tags"]
    name = subject.search["name"]
    number = connection.execute(select(experiments.c.experiment_id).where(experiments.c.name == name)).scalar()
    if number is None:
        created = when(subject.search["created"])
        millis = 0 if created is None else round(created.timestamp() * 1000)
        row = {"name": name, "lifecycle_stage": "active", "creation_time": millis, "last_update_time": millis}
        number = connection.execute(insert(experiments).values(row)).inserted_primary_key[0]  # type: ignore[index]
        location = (_artifacts_of(place) / str(number)).as_uri()
        connection.execute(
            update(experiments).where(experiments.c.experiment_id == number).values(artifact_location=location)
        )
    else:
        known = select(tags.c.value).where(tags.c.experiment_id == number, tags.c.key == MARK)
        if connection.execute(known).scalar() != subject.mark:
            raise InputError(f"{place} has an experiment {name!r} that is no export of this search: name another file")
    new = experiment_tags(subject)
    connection.execute(delete(tags).where(tags.c.experiment_id == number, tags.c.key.in_(new)))
    _insert(connection, tags, ({"experiment_id": number, "key": key, "value": value} for key, value in new.items()))
    return int(number)


def _digests(connection: Connection, tables: dict[str, Table], experiment: int) -> dict[str, str]:
    runs, tags = tables["runs"], tables["tags"]
    query = (
        select(tags.c.run_uuid, tags.c.value)
        .join(runs, runs.c.run_uuid == tags.c.run_uuid)
        .where(runs.c.experiment_id == experiment, tags.c.key == DIGEST)
    )
    return {row.run_uuid: row.value for row in connection.execute(query)}


def _forget(connection: Connection, tables: dict[str, Table], runs: list[str]) -> None:
    """Removes what was written of runs; tags of other people stay."""
    for name in ("params", "metrics", "latest_metrics", "runs"):
        connection.execute(delete(tables[name]).where(tables[name].c.run_uuid.in_(runs)))


def _row(run: MlflowRun, experiment: int, artifacts: Path) -> dict[str, Any]:
    return {
        "run_uuid": run.run_id,
        "name": run.name,
        "source_type": "JOB",
        "source_name": "hpo-pilot",
        "entry_point_name": "",
        "user_id": run.tags["owner"],
        "status": run.status,
        "start_time": run.started,
        "end_time": run.ended,
        "source_version": "",
        "lifecycle_stage": "active",
        "artifact_uri": (artifacts / run.run_id / "artifacts").as_uri(),
        "experiment_id": experiment,
    }


def _details(batch: Iterable[tuple[MlflowRun, str]]) -> Iterator[tuple[str, Iterable[dict[str, Any]]]]:
    """The rows of all tables but `runs`."""
    batch = list(batch)
    for name, values in (
        ("params", [(run.run_id, run.params) for run, _ in batch]),
        ("tags", [(run.run_id, {**run.tags, DIGEST: digest}) for run, digest in batch]),
    ):
        yield (
            name,
            ({"run_uuid": run, "key": key, "value": value} for run, all_ in values for key, value in all_.items()),
        )
    rows = [
        {
            "run_uuid": run.run_id,
            "key": metric.key,
            "value": 0.0 if math.isnan(metric.value) else metric.value,
            "timestamp": metric.timestamp,
            "step": metric.step,
            "is_nan": math.isnan(metric.value),
        }
        for run, _ in batch
        for metric in run.metrics
    ]
    yield "metrics", rows
    # Steps are in order: the last one of each stays.
    yield "latest_metrics", {(row["run_uuid"], row["key"]): row for row in rows}.values()


def _insert(connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    command = insert(table)
    if table.name in ("tags", "params"):
        command = command.prefix_with("OR REPLACE")
    for some in _batches(rows, _ROWS):
        connection.execute(command, some)


def _definition_in(artifacts: Path, text: str) -> Path:
    """The file that all runs of this time have; those of earlier times keep theirs."""
    artifacts.mkdir(parents=True, exist_ok=True)
    path = artifacts / "search.yaml"
    path.unlink(missing_ok=True)
    path.write_text(text)
    return path


def _batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _write_artifacts(logs: Mapping[str, str], folder: Path, definition: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / definition.name).unlink(missing_ok=True)
    os.link(definition, folder / definition.name)  # one file with a name in every run: nobody changes artifacts
    for name, text in logs.items():
        (folder / name).write_text(text, encoding="utf-8")
