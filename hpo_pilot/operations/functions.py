"""Runs a search over a Python function, from a script or a notebook."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hpo_pilot.advice import Place, command
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError
from hpo_pilot.files import write_whole
from hpo_pilot.operations.client import SearchClient, connect
from hpo_pilot.operations.documents import search_progress
from hpo_pilot.operations.notebook import OpenedSearch, ProgressDisplay, live_figure, open_search
from hpo_pilot.panda.sandbox import payload_files
from hpo_pilot.report.documents import OVER_SEARCHES
from hpo_pilot.steering.results import RunResult
from hpo_pilot.steering.service import Progress
from hpo_pilot.steering.service import run as run_file
from hpo_pilot.steering.workdir import WorkDir

_FILE = "objective.pkl"

#: The first line of the search file of a function.
_HEADER = "# hpo_pilot.run, function {}\n"


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
    on_progress: Progress | None = None,
    quiet: bool = False,
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
    process of its own, to which the function is sent with cloudpickle, together with what it uses of the script and of
    the modules beside it; installed modules must be there, too.

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
        name: name of the search of a function; a call with the name of an interrupted search continues it. Default: the
            unfinished search of this function, else a new one with the function's name, with a number if there is such
            a search.
        files: folder that goes to the jobs with the function.
        on_server: called with the chosen server before anything is sent there; not with `service`.
        on_progress: called about twice a second, instead of the display of the progress; not with `service`.
        quiet: no display of the progress: a bar and a figure in a notebook, else lines on standard error.
        sections: further sections of the search file of a function, such as ``budget={"trials": 50, "parallel": 4}``,
            ``optimizer="cma"``, ``objective={"metric": "auc", "goal": "maximize"}``, ``folds=5``.

    Returns:
        The result; with `service` the search, opened for reading.

    Raises:
        InputError: an argument is wrong.
        TryAgainError: the run was interrupted, or a server does not answer; the same call continues the search.
        GiveUpError: every call of the function failed, or the embedded server or the pilot ends again and again.
    """
    if service is not None and token_file is None:
        raise InputError("token_file is missing: it holds your token for the service")
    if isinstance(space, str | Path):
        if callable(search):
            raise InputError("space must be a search space as in a search file, not the name of a file")
        workdir, space = space, None
    client = SearchClient.local(workdir, store) if service is None else connect(service, token_file or "", ca=ca)
    show = ProgressDisplay(sys.stderr, seconds=_LINE_SECONDS, draw=live_figure(client))

    def show_record(*found: Any) -> None:
        show(search_progress(*found))

    def run_at(file: Path) -> RunResult | OpenedSearch:
        if service is None:
            told = on_progress or (_ignore if quiet else show_record)
            return run_file(
                file, workdir, store=store, slots=slots, server=server, on_server=on_server, on_progress=told
            )
        document = client.run(file, _ignore if quiet else show, slots=slots, server=server)
        return open_search(document["name"], service=service, token_file=token_file, ca=ca)

    try:
        if not callable(search):
            if not isinstance(search, str | Path):
                raise InputError(f"the first argument must be a function or a search file, not {search!r}")
            if space is not None or name is not None or files is not None or sections:
                raise InputError("space, name, files and sections belong in the search file; leave them out")
            return run_at(Path(search))
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise InputError(f"name: {name!r} is no name of a search: letters, digits, '.', '_' and '-'")
        folder = WorkDir.make(workdir).root / "functions"
        payload = _FunctionPayload(search, space, folder, files, sections, here=service is None)
        states = _states(client)
        if name is None:
            name, note = payload.name_among(states)
            if note and not quiet:
                show.say(note)
        elif name in states:
            payload.check_same(name)
        result = payload.run(name, run_at)
        check_results(client, name)
    except HpoPilotError as error:
        error.args = (Place(workdir, store, service, token_file, ca).completed(str(error)),)
        raise
    return result


#: Seconds between two lines of progress on standard error; each tenth of the budget has one, too.
_LINE_SECONDS = 30.0


def _ignore(*_: object) -> None:
    """Shows nothing."""


def _states(client: SearchClient) -> dict[str, str]:
    """Returns the state of each search, by name, oldest first."""
    try:
        return {search["name"]: search["state"] for search in sorted(client.searches(), key=lambda one: one["id"])}
    except InputError:  # there is no store yet
        return {}


def check_results(client: SearchClient, name: str) -> None:
    """Raises a GiveUpError with the first reason if trials failed and none finished."""
    counts = client.status(name)["trials"]
    failed = counts.get("failed", 0)
    if not failed or any(counts.get(state) for state in ("finished", "infeasible", "stopped")):
        return
    first = next(trial for trial in client.trials(name, logs=False) if trial["state"] == "failed")
    raise GiveUpError(
        f"no trial of search {name!r} has a result, {failed} failed; trial {first['number']}: {first['error']} "
        f"({command('trials', name, '--log')} shows more)"
    )


class _FunctionPayload:
    """A function, and the search file and the folder that are written for it: NAME.yaml and NAME in a folder."""

    def __init__(
        self,
        function: Callable[..., Any],
        space: Any,
        folder: Path,
        files: str | Path | None,
        sections: Mapping[str, Any],
        *,
        here: bool,
    ) -> None:
        """Checks and pickles the function; writes nothing.

        Args:
            function: the function.
            space: its search space.
            folder: for search files of functions.
            files: folder that goes to the jobs with it.
            sections: further sections of the search file.
            here: whether the jobs run on this machine.

        Raises:
            InputError: the space is no mapping, or the function cannot be called or sent.
        """
        from hpo_pilot.operations.pickling import pickled  # noqa: PLC0415 - cloudpickle is for functions only

        if space is None:
            raise InputError("space is missing: the search space of the function, as in a search file")
        if not isinstance(space, Mapping):
            example = "{'x': {'type': 'real', 'low': 0, 'high': 1}}"
            raise InputError(
                f"space must be a mapping with each parameter's type and range, as {example}, not {space!r}"
            )
        # A point cannot be the key of a cache, and no call sees that of another.
        while isinstance(function, functools._lru_cache_wrapper):
            function = function.__wrapped__
        _check_call(function, space)
        self._plain = re.sub(r"[^a-z0-9]+", "-", _name_of(function).lower()).strip("-") or "function"
        self._folder, self._files = folder, None if files is None else Path(files)
        self._space, self._sections, self._here = space, sections, here
        if self._files is not None and not self._files.is_dir():
            raise InputError(f"files: there is no folder {str(files)!r}")
        self._pickle, identity = pickled(function, self._files)
        self._header = _HEADER.format(_with_files(identity, self._files))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.yaml"

    def _text(self, name: str) -> str:
        """Returns the search file of this function under a name."""
        mine = {"files": name, "function": _FILE} | ({"python": sys.executable} if self._here else {})
        document = {
            "search": name,
            "objective": {"metric": "value", "goal": "minimize"},
            "space": dict(self._space),
            **self._sections,
            "payload": mine | dict(self._sections.get("payload", {})),
        }
        try:
            return self._header + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        except yaml.YAMLError as error:
            raise InputError(f"space and sections must be plain numbers, texts, lists and mappings: {error}") from error

    def _changes(self, name: str) -> str | None:
        """Returns what differs from the written files apart from the budget, in words; None: there are none."""
        try:
            old = self._file(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        new = self._text(name)
        before, after = yaml.safe_load(old), yaml.safe_load(new)
        sections = [key for key in before | after if key != "budget" and before.get(key) != after.get(key)]
        return ", ".join([*([] if self._is_sent_as(name) else ["the function"]), *sections])

    def _is_sent_as(self, name: str) -> bool:
        """Returns True if this function and its files are written under a name; another pickle is another payload."""
        file, pickle = self._file(name), self._folder / name / _FILE
        return pickle.exists() and file.exists() and file.read_text(encoding="utf-8").startswith(self._header)

    def name_among(self, states: Mapping[str, str]) -> tuple[str, str]:
        """Returns the name of the unfinished search of this function, else a new name, and a note for the user.

        Args:
            states: state of each search, by name.
        """
        alike = re.compile(re.escape(self._plain) + r"(-\d+)?")
        unfinished = [name for name, state in states.items() if alike.fullmatch(name) and state not in OVER_SEARCHES]
        for name in reversed(unfinished):
            if self._changes(name) == "":
                return name, f"search {name!r} continues"
        number = 1
        while (name := self._plain if number == 1 else f"{self._plain}-{number}") in states:
            number += 1
        note = ""
        if unfinished and (what := self._changes(unfinished[-1])):
            note = f"search {name!r} is a new one: {what} changed since search {unfinished[-1]!r} began"
        return name, note

    def check_same(self, name: str) -> None:
        """Checks that a search is that of this function.

        Raises:
            InputError: something but its budget differs.
        """
        if what := self._changes(name):
            raise InputError(
                f"{what} changed since search {name!r} began; only its budget may grow. Undo the change, or call with "
                "another name for a new search"
            )

    def run(self, name: str, run_at: Callable[[Path], RunResult | OpenedSearch]) -> RunResult | OpenedSearch:
        """Writes the files and runs the search file. If that of a registered search is refused, the old one stays.

        Args:
            name: name of the search.
            run_at: runs a search file.

        Raises:
            InputError: the search file is refused.
        """
        file, text = self._file(name), self._text(name)
        before = file.read_bytes() if file.exists() else None
        if not self._is_sent_as(name):
            before = None
            file.unlink(missing_ok=True)  # its first line says which function is in the folder
            self._write_payload(self._folder / name)
        write_whole(file, text)
        try:
            return run_at(file)
        except InputError:
            if before is not None:
                write_whole(file, before)
            raise

    def _write_payload(self, payload: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            staged = Path(scratch, payload.name)
            for inside, path in list(payload_files(self._files)):  # the scratch folder may be in it
                (staged / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, staged / inside)
            staged.mkdir(exist_ok=True)
            write_whole(staged / _FILE, self._pickle)
            shutil.rmtree(payload, ignore_errors=True)
            staged.rename(payload)


def _with_files(identity: str, folder: Path | None) -> str:
    """Returns the identity of a function together with the files that go with it."""
    digest = hashlib.sha256(identity.encode())
    for name, path in payload_files(folder):
        digest.update(f"{name} {path.stat().st_mode & 0o100} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _name_of(function: Callable[..., Any]) -> str:
    named = getattr(function, "func", function)  # of functools.partial
    name = str(getattr(named, "__name__", type(named).__name__))
    return "f" if name == "<lambda>" else name


def _check_call(function: Callable[..., Any], parameters: Iterable[str]) -> None:
    """Checks that a function can be called with a point.

    Raises:
        InputError: it takes other arguments; the message says how to write it.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return
    found = list(signature.parameters.values())
    positional = [one for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [
        one.name for one in found if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    name = _name_of(function)
    one_by_one = (
        f"takes the parameters one by one, and gets the point as one mapping: pass lambda point: {name}(**point)"
    )
    if {*needed, *(one.name for one in positional[:1])} & set(parameters):
        raise InputError(f"{name}{signature} {one_by_one}, or give that mapping a name that no parameter has")
    takes_two = len(positional) > 1 or any(one.kind is one.VAR_POSITIONAL for one in found)
    try:
        signature.bind(*(("point", "trial") if takes_two else ("point",)))
    except TypeError as error:
        raise InputError(
            f"{name}{signature} is called with the point, and with the trial if it takes two arguments: {error}"
        ) from error
