"""The forms of exports that are files, and what writes each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hpo_pilot.errors import InputError
from hpo_pilot.exports.subject import Subject

if TYPE_CHECKING:
    from hpo_pilot.client.search_client import SearchClient

#: Writes a search to a path; returns what to do with it, for people.
_Write = Callable[[Subject, Path], str]


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
    "parquet": FileForm("hpo_pilot.exports.parquet:write", "FILE.parquet", "parquet", False),
    "mlflow": FileForm(
        "hpo_pilot.exports.mlflow:write", "FOLDER or FILE.db", "mlflow", True, "MLflow takes some 0.1 s a trial"
    ),
    "optuna": FileForm("hpo_pilot.exports.optuna:write", "FILE.log", "optuna", True),
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
        return write(Subject.read(client, identity, curves=chosen.curves), path)
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
