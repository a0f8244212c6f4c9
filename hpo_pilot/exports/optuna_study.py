"""A search as a study in an Optuna storage, an SQLite file: its tables are Optuna's own to make, rows go in in bulk.

Optuna's `Study.add_trial` takes a transaction a trial (tests/performance/exports.py compares the two). Nor can trials
of a study be changed through its API, and a second export is to bring the first one up to date.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import DBAPIError

from hpo_pilot import __version__
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.exports.optuna_trials import StudyTrial, trials_of
from hpo_pilot.exports.subject import Subject

#: The study's attribute that tells which search it is; what has it is ours to bring up to date.
MARK = "hpo_pilot"

#: What hangs on a trial.
_DETAILS = (
    models.TrialParamModel,
    models.TrialValueModel,
    models.TrialIntermediateValueModel,
    models.TrialUserAttributeModel,
    models.TrialSystemAttributeModel,
    models.TrialHeartbeatModel,
)

#: Optuna 5 has times of day in UTC in its tables, older ones in local time.
_HAS_UTC = hasattr(models.TrialModel, "_datetime_start_utc")

#: Trials whose rows are made at once: a search of many steps has millions of them.
_TRIALS = 500


def write(subject: Subject, path: Path) -> str:
    """Writes the search as a study of its name, beside others that are there; its trials all at once.

    Raises:
        InputError: another file is there, a storage of another Optuna, or a study of that name that is no export of
            this search, or that has trials which are not from here.
        TryAgainError: another program has the storage locked.
        OSError: it cannot be written.
    """
    place = path.absolute()
    try:
        if place.exists():
            _check_storage(path)
            _write_study(subject, place, path)
        else:
            part = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
            try:
                _write_study(subject, part, path)
                part.rename(place)
            finally:
                part.unlink(missing_ok=True)
    except (DBAPIError, optuna.exceptions.StorageInternalError) as error:
        # Optuna's own names the database's as its cause.
        reason = getattr(error.__cause__, "orig", None) or getattr(error, "orig", error)
        if _is_locked(reason):
            raise _locked(path) from error
        raise OSError(str(reason)) from error
    study = f"optuna.load_study(study_name={subject.search['name']!r}, storage='sqlite:///{path}')"
    return f"wrote {len(subject.trials)} trials to {path}; open it with: optuna-dashboard sqlite:///{path} or {study}"


def _check_storage(path: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as there:
            names = {name for (name,) in there.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        if _is_locked(error):
            raise _locked(path) from error
        names = set()
    if not {"studies", "trials", "trial_params", "version_info"} <= names:
        raise InputError(f"{path} is there, and no storage of Optuna: name another file")


def _is_locked(error: object) -> bool:
    # The lowest byte is the error, the others are its variety.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _locked(path: Path) -> TryAgainError:
    return TryAgainError(f"{path} is locked by another program: export again when that is done with it")


def _write_study(subject: Subject, database: Path, path: Path) -> None:
    with _storage(database, path) as storage:
        study_id = _study(subject, storage, path)
        with storage.engine.begin() as connection:
            ids = _known_trials(connection, study_id, subject, path)
            _remove(connection, study_id)
            _add(connection, study_id, subject, ids)


@contextmanager
def _storage(database: Path, path: Path) -> Iterator[RDBStorage]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        try:
            storage = RDBStorage(f"sqlite:///{database}")
        except RuntimeError as error:  # what it says of tables of another version
            raise InputError(f"Optuna {optuna.__version__} cannot use {path}: {error}") from error
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    finally:
        optuna.logging.set_verbosity(before)


def _study(subject: Subject, storage: RDBStorage, path: Path) -> int:
    """The study's id in its storage; made where there is none."""
    name = subject.search["name"]
    directions = [objective["goal"] for objective in subject.objectives]
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        if study.user_attrs.get(MARK, {}).get("mark") != subject.mark:
            raise InputError(f"{path} has a study {name!r} that is no export of this search: name another file")
    else:
        study = optuna.create_study(study_name=name, storage=storage, directions=directions)
        study.set_user_attr(MARK, {"mark": subject.mark})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(subject.metrics)
    study.set_user_attr(MARK, {"mark": subject.mark, "version": __version__})
    for key in ("owner", "state", "definition"):
        study.set_user_attr(key, subject.search[key])
    return int(study._study_id)


def _known_trials(connection: Connection, study_id: int, subject: Subject, path: Path) -> dict[int, int]:
    """The ids of the study's trials, by number: notes that people have made in the dashboard hang on them.

    Raises:
        InputError: somebody has gone on with the study, and those trials would be lost.
    """
    trials, attributes = models.TrialModel.__table__, models.TrialUserAttributeModel.__table__
    ours = select(attributes.c.trial_id).where(attributes.c.key == "trial")
    query = select(trials.c.number, trials.c.trial_id, trials.c.trial_id.in_(ours)).where(trials.c.study_id == study_id)
    rows = list(connection.execute(query))
    if any(not is_ours for _, _, is_ours in rows) or len(rows) > len(subject.trials):
        raise InputError(
            f"{path} has trials of study {subject.search['name']!r} that are not from search "
            f"{subject.search['name']!r}: name another file"
        )
    return {number: trial_id for number, trial_id, _ in rows}


def _remove(connection: Connection, study_id: int) -> None:
    trials = models.TrialModel.__table__
    ids = select(trials.c.trial_id).where(trials.c.study_id == study_id)
    for model in _DETAILS:
        connection.execute(delete(model.__table__).where(model.__table__.c.trial_id.in_(ids)))
    connection.execute(delete(trials).where(trials.c.study_id == study_id))


def _add(connection: Connection, study_id: int, subject: Subject, ids: dict[int, int]) -> None:
    trials = models.TrialModel.__table__
    free = max([connection.execute(select(func.max(trials.c.trial_id))).scalar() or 0, *ids.values()]) + 1
    rows: dict[Any, list[dict[str, Any]]] = {}
    for number, trial in enumerate(trials_of(subject)):
        trial_id = ids.get(number, free + number)
        row = {"trial_id": trial_id, "number": number, "study_id": study_id, "state": trial.state}
        row |= {"datetime_start": _stored(trial.started), "datetime_complete": _stored(trial.ended)}
        rows.setdefault(models.TrialModel, []).append(row)
        for model, detail in _details(trial):
            rows.setdefault(model, []).append({"trial_id": trial_id, **detail})
        if (number + 1) % _TRIALS == 0:
            _insert(connection, rows)
    _insert(connection, rows)


def _insert(connection: Connection, rows: dict[Any, list[dict[str, Any]]]) -> None:
    """Writes rows and forgets them, those of trials first."""
    for model, some in rows.items():
        connection.execute(insert(model.__table__), some)
    rows.clear()


def _stored(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC if _HAS_UTC else None).replace(tzinfo=None)


def _details(trial: StudyTrial) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The rows that hang on a trial, as Optuna itself stores them."""
    for name, (value, distribution) in trial.params.items():
        yield models.TrialParamModel, {"param_name": name, "param_value": value, "distribution_json": distribution}
    for objective, value in enumerate(trial.values):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        yield models.TrialValueModel, {"objective": objective, "value": stored, "value_type": kind}
    of_steps = models.TrialIntermediateValueModel
    for step, value in trial.intermediate:
        number, sort = of_steps.intermediate_value_to_stored_repr(value)
        yield of_steps, {"step": step, "intermediate_value": number, "intermediate_value_type": sort}
    for key, attribute in trial.user_attrs.items():
        yield models.TrialUserAttributeModel, {"key": key, "value_json": json.dumps(attribute)}
