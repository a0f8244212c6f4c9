"""From a search to the files of other tools."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from hpo_pilot.config.foreign.exported import Exported, ExportOptions, check_single, json_text, warn_of_the_rest
from hpo_pilot.config.foreign.exported_space import hpogrid_space, nevergrad_space
from hpo_pilot.config.foreign.hpogrid_model import MODEL, MODEL_FILE, model_text
from hpo_pilot.config.foreign.phpo_task import FILE_NAMES
from hpo_pilot.errors import InputError
from hpo_pilot.search import Search, point_key

#: Our optimizers in hpogrid's words, with algorithm_param where one is needed.
_HPOGRID_ALGORITHMS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "auto": ("skopt", None),
    "random": ("random", None),
    "grid": ("grid", None),
    "bayesian": ("skopt", None),
    "evolutionary": ("nevergrad", {"method": "OnePlusOne"}),
    "cma": ("nevergrad", {"method": "CMA"}),
    "optuna": ("optuna", None),
}

#: What every search says, and every tool too.
_COMMON = ("search", "space", "objective.goal", "optimizer", "budget.trials", "budget.parallel", "payload.point")


def export_search(tool: str, search: Search, options: ExportOptions) -> Exported:
    """What another tool calls a search.

    Args:
        tool: hpogrid, phpo or idds.
        search: the search.
        options: what the user says beside it.

    Raises:
        InputError: there is no such tool, or it knows one objective and the search has several.
    """
    exporters: dict[str, Callable[[Search, ExportOptions], Exported]] = {
        "hpogrid": _hpogrid,
        "phpo": _phpo,
        "idds": _idds,
    }
    if tool not in exporters:
        raise InputError(f"there is no exporter for {tool!r}; there is {', '.join(exporters)}")
    check_single(search, tool)
    return exporters[tool](search, options)


def _hpogrid(search: Search, options: ExportOptions) -> Exported:
    exported = Exported()
    payload, budget, resources = search.payload, search.budget, search.resources
    algorithm, parameters = _HPOGRID_ALGORITHMS.get(search.optimizer.name, ("random", None))
    grid: dict[str, Any] = {"site": search.site.queue or "ANY", "retry": search.panda.attempts - 1, "extra": {}}
    if payload.container:
        grid["container"] = payload.container
    grid["inDS"] = ",".join(payload.inputs) or None
    if search.site.exclude:
        grid["extra"]["excludedSite"] = ",".join(search.site.exclude)
    for place, key in (("architecture", "architecture"),):
        if getattr(search.site, place):
            grid["extra"][key] = getattr(search.site, place)
    if search.panda.working_group:
        grid["extra"]["workingGroup"] = search.panda.working_group
    if resources.memory_mb != type(resources).model_fields["memory_mb"].default:
        grid["extra"]["memory"] = resources.memory_mb
    project = {
        "project_name": search.name,
        "scripts_path": payload.files or ".",
        "model_config": {"script": MODEL_FILE, "model": MODEL, "param": {}},
        "hpo_config": {
            "algorithm": algorithm,
            "metric": search.objective.metric,
            "mode": "min" if search.objective.goal == "minimize" else "max",
            "num_trials": budget.trials,
            "max_concurrent": budget.parallel,
            "resource": {"cpu": resources.cores, "gpu": resources.gpus_per_node},
            "algorithm_param": parameters,
        },
        "grid_config": grid,
        "search_space": hpogrid_space(search, exported, arrays=False),
    }
    exported.text = json_text(project)
    exported.companions[MODEL_FILE] = model_text(search)
    exported.warn("payload.command", f"hpogrid calls a function: {MODEL_FILE} has it, put it beside the scripts")
    carried = (
        *(*_COMMON, "objective.metric", "payload.files", "payload.command", "payload.container", "payload.inputs"),
        *("payload.file_names", "resources.cores", "resources.gpus_per_node", "resources.memory_mb", "site.queue"),
        *("site.profile", "site.exclude", "site.architecture", "panda.attempts", "panda.working_group"),
    )
    _warn_of_settings(exported, search)
    warn_of_the_rest(exported, search, "hpogrid", carried)
    _warn_of_results(exported, options, "hpogrid")
    return exported


def _phpo(search: Search, options: ExportOptions) -> Exported:
    exported = Exported()
    payload, budget = search.payload, search.budget
    names = payload.file_names.model_dump()
    default_names = type(payload.file_names)().model_dump()
    task: dict[str, Any] = {
        "evaluationExec": payload.command,
        "searchSpaceFile": f"{options.stem}.space.json",
        "steeringContainer": options.steering_image,
        "steeringExec": steering_command(search),
        "maxPoints": budget.trials,
        "nParallelEvaluation": budget.parallel,
        "nPointsPerIteration": max(2, budget.parallel),
        "outDS": f"user.{options.owner}.{search.name}/",
        **{option: names[key] for option, key in FILE_NAMES.items() if names[key] != default_names[key]},
    }
    if payload.container:
        task["evaluationContainer"] = payload.container
    else:
        exported.warn("payload.container", "phpo wants one: add evaluationContainer")
    datasets = [name for name in payload.inputs if _is_dataset(name)]
    if datasets:
        task["trainingDS"] = datasets[0]
    for name in payload.inputs:
        if name not in datasets[:1]:
            exported.warn("payload.inputs", f"phpo takes one data set: {name} is left out")
    if payload.checkpoint:
        task["checkPointToSave"] = ",".join(payload.checkpoint)
    if isinstance(budget.queued, int) and budget.queued:
        task["minUnevaluatedPoints"] = budget.parallel + budget.queued
    if search.resources.trials_per_job > 1:
        task["maxPointsPerEvaluationJob"] = search.resources.trials_per_job
    if search.site.architecture:
        task["architecture"] = search.site.architecture
    if search.site.queue:
        task["site"] = search.site.queue
    if search.panda.working_group:
        task["workingGroup"] = search.panda.working_group
    attempts = search.panda.attempts
    if attempts != type(search.panda).model_fields["attempts"].default:
        task["maxEvaluationJobs"] = attempts * -(-budget.trials // search.resources.trials_per_job)
    if search.segments:
        task["segmentSpecFile"] = f"{options.stem}.segments.json"
        exported.companions[task["segmentSpecFile"]] = json_text(_segments(search))
        spaces = [hpogrid_space(part, exported, arrays=True) for part in search.by_segment().values()]
        same = all(space == spaces[0] for space in spaces)
        listed = [{"model_id": index, "search_space": space} for index, space in enumerate(spaces)]
        exported.companions[task["searchSpaceFile"]] = json_text(spaces[0] if same else listed)
        exported.warnings = list(dict.fromkeys(exported.warnings))
    else:
        exported.companions[task["searchSpaceFile"]] = json_text(hpogrid_space(search, exported, arrays=True))
    exported.text = json_text(task)
    if payload.files not in (None, "."):
        exported.warn("payload.files", f"phpo sends the folder in which it is started: start it in {payload.files}")
    carried = (
        *(*_COMMON, "payload.files", "payload.command", "payload.container", "payload.inputs", "payload.checkpoint"),
        *("payload.file_names", "budget.queued", "resources.trials_per_job", "site.architecture", "site.queue"),
        *("site.profile", "panda.working_group", "panda.attempts", "segments", "seed"),
    )
    warn_of_the_rest(exported, search, "phpo", carried)
    _warn_of_results(exported, options, "phpo")
    return exported


def _idds(search: Search, options: ExportOptions) -> Exported:
    exported = Exported()
    shape = search.payload.point
    points: dict[str, list[Any]] = {}
    known = [(known.point, known.value) for known in search.known]
    for point, value in [*known, *options.results, *((start, None) for start in search.start)]:
        canonical = search.space.canonical(point)
        points.setdefault(point_key(canonical), [shape.payload_point(canonical), value])
    request = {
        "sandbox": options.steering_image,
        "workdir": "/data",
        "executable": "docker",
        "arguments": steering_command(search),
        "output_json": "output.json",
        "opt_space": nevergrad_space(search, exported),
        "initial_points": list(points.values()),
        "max_points": search.budget.trials + sum(1 for _, value in points.values() if value is not None),
        # The first is what clients write, the second what iDDS 2.6 reads.
        "num_points_per_generation": search.budget.parallel,
        "num_points_per_iteration": search.budget.parallel,
    }
    exported.text = json_text(request)
    if search.segments:
        exported.warn("segments", "an iDDS request is of one model: phpo makes those of segments")
    exported.warn("payload", "a request speaks of points alone; what evaluates them is the PanDA task's to say")
    carried = (*_COMMON, "start", "known", "payload", "segments", "seed", "objective.metric", "site.profile")
    warn_of_the_rest(exported, search, "iDDS", carried)
    return exported


def steering_command(search: Search) -> str:
    """The command of the steering container that goes on as this search would."""
    words = ["hpo-pilot steer --n=%NUM_POINTS --max=%MAX_POINTS --infile=%IN --outfile=%OUT"]
    words.append(f"--optimizer {search.optimizer.name}")
    words += [f"--set {shlex.quote(f'{key}={value}')}" for key, value in search.optimizer.settings.items()]
    if search.objective.goal == "maximize":
        words.append("--goal maximize")
    if search.seed:
        words.append(f"--seed {search.seed}")
    return " ".join(words)


def _is_dataset(name: str) -> bool:
    return ":" in name and "//" not in name and not name.startswith(("/", "."))


def _segments(search: Search) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = []
    for name, segment in (search.segments or {}).items():
        inputs = segment.inputs if segment.inputs is not None else ()
        segments.append({"name": name, "files": [one.partition(":")[2] if _is_dataset(one) else one for one in inputs]})
    return segments


def _warn_of_settings(exported: Exported, search: Search) -> None:
    for key in search.optimizer.settings:
        exported.warn(f"optimizer.{key}", "is a setting of the optimizer here")


def _warn_of_results(exported: Exported, options: ExportOptions, tool: str) -> None:
    if options.results:
        exported.warn("results", f"{tool} does not take results that are known: {len(options.results)} are left out")
