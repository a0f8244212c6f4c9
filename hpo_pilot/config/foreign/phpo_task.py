"""Importing phpo tasks: hyper-parameter optimization on PanDA as panda-client submits it."""

from __future__ import annotations

import math
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.config.foreign.algorithms import for_steering, goal_of_steering
from hpo_pilot.config.foreign.draft import Draft
from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.config.foreign.foreign_space import ForeignSpace
from hpo_pilot.config.foreign.imported import ImportOptions
from hpo_pilot.config.foreign.naming import put_name, put_sites, rucio_name, subject_of
from hpo_pilot.config.foreign.phpo_options import NUMBERS, PhpoTask
from hpo_pilot.config.foreign.spaces import read_space
from hpo_pilot.search.misfit import Path
from hpo_pilot.search.point import show

#: phpo's names for the payload's files, and those of a search file.
FILE_NAMES = {
    "evaluationInput": "point",
    "evaluationOutput": "result",
    "evaluationTrainingData": "inputs",
    "evaluationMeta": "metadata",
    "evaluationMetrics": "metrics",
}

#: Options without a meaning here, and why.
_UNUSED = {
    "steeringContainer": "the optimizer runs in the service, in no container",
    "nPointsPerIteration": "points are not made in rounds here: each free slot gets the next one",
    "checkPointToLoad": "checkpoints are put back in their places; no tarball is made of them",
    "checkPointInterval": "checkpoints are kept as they are written",
    "alrbArgs": "containers are not started through ALRB here",
    "official": "a search makes no official data sets",
    "vomsRoles": "the search uses the proxy or token that it is submitted with",
    "noEmail": "nobody is sent mail",
    "intrSrv": "the server is named when the search is run: --server",
    "dumpJson": "it is about the command's own output",
    "noSubmit": "it is about the command's own output",
    "verbose": "it is about the command's own output",
    "version": "it is about the command's own output",
    "python3": "it is about the command's own output",
}


def import_phpo(task: PhpoTask, options: ImportOptions) -> Draft:
    """The search of a task; what is wrong with it is noted in the task's files."""
    draft = Draft()
    if any(file.problems for file in task.files()):
        return draft
    _put_name(draft, task)
    _put_payload(draft, task, options)
    _put_budget(draft, task)
    _put_panda(draft, task)
    steering = task.get("steeringExec")
    if steering is not None:
        found = for_steering(steering)
        origin = "what steeringExec does" if found else "nobody can see what steeringExec does"
        draft.put("optimizer", found or "bayesian", origin=origin)
        task.warn("steeringExec", f"the optimizer runs in the service instead: {found or 'bayesian'}")
    draft.put("objective", {"metric": "loss", "goal": goal_of_steering(steering or "") or "minimize"})
    for name, reason in _UNUSED.items():
        if task.get(name):
            task.warn(name, reason)
    spaces = _spaces(task)
    if spaces:
        draft.put_space(spaces[0])
    if "segmentSpecFile" in task.options:
        _put_segments(draft, task, spaces)
    return draft


def _put_name(draft: Draft, task: PhpoTask) -> None:
    file, path = task.source("outDS")
    subject = subject_of(task.get("outDS", ""))
    if subject:
        put_name(draft, file, path, subject, "phpo")
        task.warn("outDS", "the search's tasks get names of their own; its subject is the search's name")
    else:
        here = FilePath(file.name).stem if file.name != "command line" else "phpo-search"
        put_name(draft, file, (), here, "phpo")


def _put_payload(draft: Draft, task: PhpoTask, options: ImportOptions) -> None:
    draft.put("payload", "files", options.relative(task.folder), origin="phpo sends the files of its folder")
    if task.get("evaluationExec"):
        draft.put("payload", "command", task.get("evaluationExec"), origin="evaluationExec")
    elif options.command is None:
        task.wrong("evaluationExec", "is missing: nothing says what evaluates a point")
    if task.get("evaluationContainer"):
        draft.put("payload", "container", task.get("evaluationContainer"), origin="evaluationContainer")
    if task.get("trainingDS"):
        names = [rucio_name(name) for name in task.get("trainingDS").split(",")]
        draft.put("payload", "inputs", names, origin="trainingDS")
    kept = task.get("checkPointToSave")
    if kept:
        names = [name.strip().rstrip("/") for name in kept.split(",") if name.strip()]
        draft.put("payload", "checkpoint", names, origin="checkPointToSave")
    files: dict[str, str] = {}
    for option, key in FILE_NAMES.items():
        if not task.get(option):
            continue
        name = task.get(option).removeprefix("./")
        if "/" in name:
            task.wrong(option, f"must be a plain file name, not {show(name)}")
        files[key] = name
    if files:
        draft.put("payload", "file_names", files, origin="evaluationInput and the like")


def _number(task: PhpoTask, name: str, least: int) -> int | None:
    value = task.get(name, NUMBERS[name])
    if value is not None and value < least:
        task.wrong(name, f"must be {least} or more, not {value}")
        return None
    return value  # type: ignore[no-any-return]  # numbers were checked when they were read


def _put_budget(draft: Draft, task: PhpoTask) -> None:
    trials, parallel = _number(task, "maxPoints", 1), _number(task, "nParallelEvaluation", 1)
    draft.put("budget", "trials", trials, origin="maxPoints" if "maxPoints" in task.options else "phpo's default")
    given = "nParallelEvaluation" in task.options
    draft.put("budget", "parallel", parallel, origin="nParallelEvaluation" if given else "phpo's default")
    if (waiting := _number(task, "minUnevaluatedPoints", 0)) and parallel:
        draft.put("budget", "queued", max(0, waiting - parallel), origin="minUnevaluatedPoints beyond those that run")
    if per_job := _number(task, "maxPointsPerEvaluationJob", 0):
        draft.put("resources", "trials_per_job", per_job, origin="maxPointsPerEvaluationJob")
    if (jobs := _number(task, "maxEvaluationJobs", 1)) is not None and trials:
        attempts = max(1, math.ceil(jobs * (per_job or 1) / trials))
        draft.put("panda", "attempts", attempts, origin="maxEvaluationJobs, as attempts of each job")
        message = f"phpo counts the jobs of all points together; here each job has {attempts} attempts"
        task.warn("maxEvaluationJobs", message)


def _put_panda(draft: Draft, task: PhpoTask) -> None:
    if task.get("architecture"):
        draft.put("site", "architecture", task.get("architecture"), origin="architecture")
    if task.get("site"):
        file, path = task.source("site")
        put_sites(draft, file, path, [site.strip() for site in task.get("site").split(",")], "site")
    if task.get("workingGroup"):
        draft.put("panda", "working_group", task.get("workingGroup"), origin="workingGroup")


def _named_file(task: PhpoTask, option: str) -> ForeignFile | None:
    """The file that an option names, beside the task's or where we are; what is wrong with it is noted."""
    name = FilePath(task.get(option)).expanduser()
    path = task.folder / name
    if not path.exists() and name.exists():
        path = name
    if not path.exists():
        task.wrong(option, f"there is no file {path}")
        return None
    return ForeignFile.read(path)


def _spaces(task: PhpoTask) -> list[ForeignSpace]:
    """The search space, or those of all segments in their order."""
    if not task.get("searchSpaceFile"):
        task.wrong("searchSpaceFile", "is missing: nothing says what is searched")
        return []
    file = _named_file(task, "searchSpaceFile")
    if file is None:
        return []
    spaces: list[ForeignSpace] = []
    if not file.problems:
        if not isinstance(file.value, list):
            spaces.append(read_space(file, (), file.value))
        elif "segmentSpecFile" not in task.options:
            file.wrong((), "is a list of spaces, which needs segments: segmentSpecFile")
        else:
            spaces = _listed_spaces(file, file.value)
    task.source("searchSpaceFile")[0].join(file)
    return spaces if not file.problems else []


def _listed_spaces(file: ForeignFile, items: list[Any]) -> list[ForeignSpace]:
    found: dict[int, ForeignSpace] = {}
    for index, item in enumerate(items):
        path: Path = (index,)
        if isinstance(item, dict) and "search_space" in item:
            number = item.get("model_id", index)
            if isinstance(number, bool) or not isinstance(number, int) or number in found:
                file.wrong((*path, "model_id"), f"must be a number that no other has, not {show(number)}")
                continue
            found[number] = read_space(file, (*path, "search_space"), item["search_space"])
        else:
            found[index] = read_space(file, path, item)
    return [found[number] for number in sorted(found)]


def _put_segments(draft: Draft, task: PhpoTask, spaces: list[ForeignSpace]) -> None:
    file = _named_file(task, "segmentSpecFile")
    if file is None:
        return
    if not file.problems and not (isinstance(file.value, list) and file.value):
        file.wrong((), "must be a list of segments, each with name and files")
    segments: dict[str, dict[str, Any]] = {}
    for index, item in enumerate(file.value if not file.problems else []):
        found = file.mapping((index,), item)
        name = None if found is None else file.text((index, "name"), found.get("name"))
        if found is None or name is None:
            continue
        if name in segments:
            file.wrong((index, "name"), f"{name!r} is the name of another segment too")
        segments[name] = _inputs(file, index, found, task.get("trainingDS"))
    if len(spaces) > 1 and not file.problems:
        if len(spaces) != len(segments):
            file.wrong((), f"there are {len(segments)} segments and {len(spaces)} search spaces")
        elif any(space.shape != spaces[0].shape for space in spaces):
            file.wrong((), "the spaces of the segments have different constants, arrays or nested choices")
        else:
            for segment, space in zip(segments.values(), spaces, strict=True):
                if space.dimensions != spaces[0].dimensions:
                    segment["space"] = space.dimensions
    task.source("segmentSpecFile")[0].join(file)
    if not file.problems:
        draft.put("segments", segments, origin="segmentSpecFile; the budget is for each of them")


def _inputs(file: ForeignFile, index: int, segment: dict[str, Any], training: str | None) -> dict[str, Any]:
    """A segment's own inputs: files of the training data set, or whole data sets of it."""
    for key in segment.keys() - {"name", "files", "datasets", "id"}:
        file.warn((index, key), "is not known to phpo")
    for key in ("files", "datasets"):
        names = segment.get(key)
        if names is None:
            continue
        if not (isinstance(names, list) and all(isinstance(name, str) and name for name in names)):
            file.wrong((index, key), f"must be a list of names, not {show(names)}")
            return {}
        if key == "datasets":
            return {"inputs": [rucio_name(name) for name in names]}
        scope = rucio_name(training).split(":")[0] if training else None
        return {"inputs": [name if ":" in name or "/" in name or not scope else f"{scope}:{name}" for name in names]}
    return {}
