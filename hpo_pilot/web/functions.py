"""Runs a search over a Python function, from a script or a notebook."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole
from hpo_pilot.steering.results import RunResult
from hpo_pilot.steering.service import Progress
from hpo_pilot.steering.service import run as run_file
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.web.local_client import LocalClient
from hpo_pilot.web.notebook import OpenedSearch, open_search
from hpo_pilot.web.rest_client import connect

if TYPE_CHECKING:
    from hpo_pilot.web.operations import SearchClient

_FILE = "objective.pkl"


def run(
    search: str | Path | Callable[..., Any],
    space: Mapping[str, Any] | str | Path | None = None,
    *,
    workdir: str | Path | None = None,
    store: str | None = None,
    slots: int | None = None,
    server: str | None = None,
    service: str | None = None,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    name: str | None = None,
    files: str | Path | None = None,
    on_server: Callable[[str], None] = lambda _server: None,
    on_progress: Progress = lambda _store, _record: None,
    **sections: Any,
) -> RunResult | OpenedSearch:
    """Runs a search to its end: that of a search file, or one over a Python function.

    ::

        def objective(point):
            return (point["x"] - 2) ** 2

        result = hpo_pilot.run(objective, {"x": {"type": "real", "low": -10, "high": 10}}, budget={"trials": 50})
        print(result.best.point, result.best.value)

    The function gets the point as a mapping and, if it takes a second argument, a trial: ``trial.number``,
    ``trial.seed``, ``trial.fold``, ``trial.report(value, step)``. It returns the figure of merit. Each call runs in a
    process of its own, to which the function is sent with cloudpickle; modules that it imports must be there, too.

    Args:
        search: a search file, or a function.
        space: the search space of a function, as in a search file; with a search file instead of a function, the work
            folder.
        workdir: the work folder; default ./hpo-pilot.
        store: SQLAlchemy URL of another store.
        slots: number of jobs at once; default: as many as fit on the machine's cores.
        server: URL of the PanDA server, or `embedded`; default: as for `hpo-pilot run`.
        service: URL of a service that runs the search, instead of this process.
        token_file: file with your token for the service.
        ca: PEM file with the authority of the service's certificate.
        name: name of the search of a function; a call with the name of an interrupted search resumes it. Default: the
            function's name, with a number if there is such a search.
        files: folder that goes to the jobs with the function.
        on_server: called with the chosen server before anything is sent there; not with `service`.
        on_progress: called about twice a second; not with `service`.
        sections: further sections of the search file of a function, such as ``budget={"trials": 50, "parallel": 4}``,
            ``optimizer="cma"``, ``objective={"metric": "auc", "goal": "maximize"}``, ``folds=5``.

    Returns:
        The result; with `service` the search, opened for reading.

    Raises:
        InputError: an argument is wrong.
        TryAgainError: the run was interrupted, or a server does not answer.
        GiveUpError: the embedded server or the pilot ends again and again.
    """
    if service is not None and token_file is None:
        raise InputError("token_file is missing: it holds your token for the service")
    if isinstance(space, str | Path):
        if callable(search):
            raise InputError("space is a file's name, and must be the search space, as in a search file")
        workdir, space = space, None
    client: SearchClient = LocalClient(workdir, store) if service is None else connect(service, token_file or "", ca=ca)
    if callable(search):
        if space is None:
            raise InputError("space is missing: the search space of the function, as in a search file")
        folder = WorkDir.make(workdir).root / "functions"
        name = _free_name(client, search) if name is None else name
        file = _search_file(search, space, name, folder, files, sections, here=service is None)
    elif space is not None or name is not None or files is not None or sections:
        raise InputError("space, name, files and sections are those of the search file")
    else:
        file = Path(search)
    if service is None:
        return run_file(
            file, workdir, store=store, slots=slots, server=server, on_server=on_server, on_progress=on_progress
        )
    document = client.run(file, lambda _progress: None, slots=slots, server=server)
    return open_search(document["name"], service=service, token_file=token_file, ca=ca)


def _free_name(client: SearchClient, function: Callable[..., Any]) -> str:
    """Returns the function's name, with a number if there is a search of this name."""
    plain = re.sub(r"[^a-z0-9]+", "-", getattr(function, "__name__", "").lower()).strip("-") or "function"
    try:
        taken = {search["name"] for search in client.searches()}
    except InputError:  # there is no store yet
        taken = set()
    number = 1
    while (name := plain if number == 1 else f"{plain}-{number}") in taken:
        number += 1
    return name


def _search_file(
    function: Callable[..., Any],
    space: Mapping[str, Any],
    name: str,
    folder: Path,
    files: str | Path | None,
    sections: Mapping[str, Any],
    *,
    here: bool,
) -> Path:
    """Writes the search file of a function and the folder of its payload; `here`: for jobs on this machine."""
    import cloudpickle  # noqa: PLC0415 - only functions need it

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"name: {name!r} is no name of a search: letters, digits, '.', '_' and '-'")
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    is_own = module is not None and module.__name__ != "__main__"
    if is_own and module is not None:  # it may not be importable where the job runs
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(function)
    except Exception as error:  # any type, by what the function refers to
        raise InputError(f"the function cannot be sent to a job: {error}") from error
    finally:
        if is_own and module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    payload = folder / name
    shutil.rmtree(payload, ignore_errors=True)
    if files is not None:
        try:
            shutil.copytree(files, payload, ignore=shutil.ignore_patterns("__pycache__", ".git"))
        except (OSError, shutil.Error) as error:
            raise InputError(f"files: the folder {str(files)!r} cannot be copied: {error}") from error
    payload.mkdir(parents=True, exist_ok=True)
    write_whole(payload / _FILE, pickled)
    mine = {"files": name, "function": _FILE} | ({"python": sys.executable} if here else {})
    document = {
        "search": name,
        "objective": {"metric": "value", "goal": "minimize"},
        "space": dict(space),
        **sections,
        "payload": mine | dict(sections.get("payload", {})),
    }
    file = folder / f"{name}.yaml"
    write_whole(file, yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return file
