"""A search as MLflow runs: in a folder that is MLflow's file store, or in an SQLite file that is its database."""

from __future__ import annotations

from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.exports.subject import Subject

#: File names that mean a database; any other is a folder's.
_DATABASES = (".db", ".sqlite", ".sqlite3")


def write(subject: Subject, path: Path) -> str:
    """Writes the search as an experiment of its name, beside others that are there.

    MLflow 3 opens a database without further ado, and calls file stores "in maintenance mode": it wants
    MLFLOW_ALLOW_FILE_STORE=true to open one (`mlflow.store.tracking.file_store`, 3.17).

    Raises:
        InputError: there is something else at the path, or an experiment of that name that is no export of ours.
        OSError: it cannot be written.
    """
    if path.suffix in _DATABASES:
        from hpo_pilot.exports import mlflow_database  # noqa: PLC0415 - mlflow and SQLAlchemy take a second to load

        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no file: name another place")
        count = mlflow_database.write(subject, path.absolute())
        opens = f"mlflow ui --backend-store-uri sqlite:///{path.absolute()}"
    else:
        from hpo_pilot.exports import mlflow_files  # noqa: PLC0415

        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: name a folder, or a database that ends in {' or '.join(_DATABASES)}")
        count = mlflow_files.write(subject, path.absolute())
        opens = f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {path.absolute().as_uri()}"
    return f"wrote {count} of {len(subject.trials)} runs to {path}, the others are as they were; open it with: {opens}"
