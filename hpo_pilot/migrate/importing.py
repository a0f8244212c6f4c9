"""Imports a search of another tool: makes a search file of it. iDDS requests are read here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError, Problem, SearchFileError
from hpo_pilot.migrate.draft import (
    Draft,
    ImportedSearch,
    ImportOptions,
    for_nevergrad,
    for_steering,
    goal_of_steering,
    library_of_steering,
    put_name,
)
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.hpogrid import import_hpogrid
from hpo_pilot.migrate.phpo import import_phpo, read_phpo
from hpo_pilot.migrate.spaces import ForeignSpace, read_space
from hpo_pilot.migrate.sweeps import SWEEPS, import_sweep
from hpo_pilot.search import Point, SearchSpace, point_key
from hpo_pilot.search.mistakes import FieldPath, closest
from hpo_pilot.search.values import is_number, show
from hpo_pilot.steering.search_file import parse_search

#: The tools whose files are imported.
TOOLS = ("hpogrid", "phpo", "idds", *SWEEPS)


def import_search(
    tool: str, path: Path | None, options: ImportOptions, arguments: Sequence[str] = ()
) -> ImportedSearch:
    """Returns the search file made of another tool's file.

    Args:
        tool: one of `TOOLS`.
        path: the tool's file; None is allowed for phpo where `arguments` has the words of the command.
        options: the user's own settings.
        arguments: phpo's command line.

    Raises:
        SearchFileError: the file is wrong; the error has all mistakes with their places.
        InputError: the file is missing, or `tool` is not one of `TOOLS`.
    """
    if tool == "phpo":
        task = read_phpo(path, arguments)
        draft, files = import_phpo(task, options), task.files()
    elif tool in TOOLS:
        if path is None:
            raise InputError(f"no file is given: use `hpo-pilot import {tool} FILE`")
        if arguments:
            raise InputError(f"{tool} has no command line; only phpo has: {' '.join(arguments)}")
        file = ForeignFile.read(path)
        readers = {"hpogrid": import_hpogrid, "idds": _import_idds}
        draft, files = readers.get(tool, partial(import_sweep, tool))(file, options), [file]
    else:
        raise InputError(f"there is no importer for {tool!r}; there is {', '.join(TOOLS)}")
    problems = list(dict.fromkeys(problem for file in files for problem in file.problems))
    if problems:
        raise SearchFileError(problems)
    warnings = tuple(warning for file in files for warning in file.warnings)
    return _finished(draft, options, tool, path, warnings)


def _finished(
    draft: Draft, options: ImportOptions, tool: str, path: Path | None, warnings: tuple[Problem, ...]
) -> ImportedSearch:
    if options.name is not None:
        draft.put("search", options.name, origin="--name")
    if options.command is not None:
        draft.put("payload", "command", options.command, origin="--command")
    if options.payload is not None:
        draft.put("payload", "files", options.relative(options.payload), origin="--files")
    source = "phpo's command line" if path is None else str(path)
    text = draft.text([f"Made by `hpo-pilot import {tool}` of {source}."], warnings)
    # The result must be a valid search file: mistakes left are reported by the checks of search files.
    return ImportedSearch(text, parse_search(text, f"the search file made of {source}"), warnings)


# iDDS requests for hyper-parameter optimization, and the request data of PanDA's HPO tasks. The keys are those that
# idds-server 2.6 reads (`idds/rest/v1/utils.py`) and panda-client 2.2 sends (`PhpoScript.py`).

#: Keys of larger documents that contain a request.
_INSIDE = ("request_metadata", "hpoRequestData")

_UNUSED = {
    **dict.fromkeys(
        ("sandbox", "executable", "arguments", "parameters", "workdir", "output_json"),
        "it tells iDDS how to run its steering container; the optimizer here takes that place",
    ),
    "workload_id": "it is the number of one PanDA task; every task of this search gets its own",
    **dict.fromkeys(
        ("num_points_per_generation", "num_points_per_iteration", "min_unevaluated_points"),
        "there are no rounds here: a new point starts as soon as a slot is free",
    ),
}
_READ = ("method", "opt_space", "initial_points", "max_points")

#: Default command: a request does not say what evaluates a point.
_COMMAND = "python evaluate.py"


def _import_idds(file: ForeignFile, options: ImportOptions) -> Draft:
    """Returns the search of an iDDS request; mistakes are recorded in the file."""
    draft = Draft()
    if file.problems or file.mapping((), file.value, "must be a mapping: an iDDS request") is None:
        return draft
    request: dict[str, Any] = file.value
    path: FieldPath = ()
    for inside in _INSIDE:
        if isinstance(request.get(inside), dict):
            for key in request.keys() - {inside, "name"}:
                file.warn((key,), "it tells iDDS how to handle the request, not what to search")
            path, request = (inside,), request[inside]
            break
    name = file.value.get("name") or request.get("workload_id")
    unplaced = ForeignFile.of(None, file.name, file.folder)  # its warnings are dropped: the name was never the user's
    put_name(draft, unplaced, (), f"idds-{name}" if name else Path(file.name).stem, "idds")
    for key in request:
        if key in _UNUSED:
            if request[key] is not None:
                file.warn((*path, key), _UNUSED[key])
        elif key not in _READ:
            near = closest(key, [known for known in (*_READ, *_UNUSED) if known not in request])
            if near in _READ:
                file.wrong((*path, key), "is not a key of an iDDS request", f"did you mean {near}?", at_key=True)
            else:
                file.warn((*path, key), "is not a key of an iDDS request")
    _put_idds_search(draft, file, path, request)
    _put_idds_payload(draft, file, path, options)
    if not request.get("opt_space"):
        file.wrong((*path, "opt_space"), "is missing: there is nothing to search", at_key="opt_space" not in request)
        return draft
    if isinstance(request["opt_space"], list):
        message = "is a list: a segmented request; import the phpo configuration it came from, which names the segments"
        file.wrong((*path, "opt_space"), message)
        return draft
    library = library_of_steering(_steering_of(request))
    space = read_space(file, (*path, "opt_space"), request["opt_space"], library)
    draft.put_space(space)
    if request.get("initial_points") is not None:
        _put_initial_points(draft, file, (*path, "initial_points"), request["initial_points"], space)
    return draft


def _steering_of(request: dict[str, Any]) -> str:
    """Returns the command of the steering container."""
    return " ".join(str(request.get(key) or "") for key in ("sandbox", "executable", "arguments"))


def _put_idds_search(draft: Draft, file: ForeignFile, path: FieldPath, request: dict[str, Any]) -> None:
    goal = goal_of_steering(str(request.get("arguments")))
    draft.put("objective", {"metric": "loss", "goal": goal or "minimize"})
    points = request.get("max_points")
    if points is None:
        file.warn(path, "the request has no max_points; 20 are tried, as iDDS's examples do")
        points = 20
    elif isinstance(points, str) and points.isdigit():
        points = int(points)
    trials = file.count((*path, "max_points"), points)
    if trials is not None:
        draft.put("budget", "trials", trials, origin="max_points")
    method = request.get("method")
    steering = _steering_of(request)
    if method == "nevergrad":
        draft.put("optimizer", for_nevergrad("DiscreteOnePlusOne"), origin="method: nevergrad, a (1+1) evolution")
    elif method == "bayesian":
        draft.put("optimizer", "bayesian", origin="method: bayesian")
    elif method in (None, "container", "docker", "sandbox"):
        found = for_steering(steering)
        origin = "as in the steering container" if found else "what the steering container does is not known"
        draft.put("optimizer", found or "bayesian", origin=origin)
    else:
        known = ["nevergrad", "bayesian", "container", "docker", "sandbox"]
        file.warn((*path, "method"), f"{show(method)} is not a method of iDDS ({', '.join(known)}): bayesian instead")
        draft.put("optimizer", "bayesian")


def _put_idds_payload(draft: Draft, file: ForeignFile, path: FieldPath, options: ImportOptions) -> None:
    draft.put("payload", "files", options.relative(options.payload or file.folder))
    if options.command is None:
        message = f"the request does not say what evaluates a point: payload.command is a guess, {_COMMAND!r}"
        file.warn(path, message, "set it in the search file, or give --command")
        draft.put("payload", "command", _COMMAND, origin="a guess: an iDDS request does not say it")


def _put_initial_points(draft: Draft, file: ForeignFile, path: FieldPath, points: Any, space: ForeignSpace) -> None:
    """Sets `start` and `known` from a list of `[{name: value}, loss or null]`."""
    if not isinstance(points, list):
        file.wrong(path, f"must be a list of [point, loss], not {show(points)}")
        return
    if not space.dimensions or file.problems:
        return
    checked, shape = SearchSpace.from_dict(space.dimensions), space.shape
    start: dict[str, Point] = {}
    known: list[dict[str, Any]] = []
    for index, item in enumerate(points):
        place = (*path, index)
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict)):
            file.wrong(place, f"must be [point, loss or null], not {show(item)}")
            continue
        try:
            point = checked.canonical(shape.search_point(item[0]))
        except (InputError, ValueError) as error:
            file.warn(place, f"is left out, because it is not a point of the space: {error}")
            continue
        loss = item[1]
        if loss is None:
            if point_key(point) in start:
                file.warn(place, "is the same point as one before it, and is tried once")
            start.setdefault(point_key(point), point)
        elif is_number(loss):
            known.append({"point": point, "value": float(loss)})
        else:
            file.wrong((*place, 1), f"must be a number or null, not {show(loss)}")
    if start:
        draft.put("start", list(start.values()), origin="points without a loss")
    if known:
        draft.put("known", known, origin="points with their losses")
