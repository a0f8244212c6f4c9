"""Imports hpogrid projects: `config.json`, or a YAML file of the same form.

It accepts the same keys as hpogrid 1.3.3 (`hpogrid/core/defaults.py`, `kConfigFormat`). A project's model runs through
hpogrid itself, in its mode for iDDS: it reads `input.json` and writes `output.json`. The key there is always
`loss`; the metric's name does not matter.
"""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.files import top_names
from hpo_pilot.migrate.draft import HPOGRID, Draft, ImportOptions, for_hpogrid, put_name, put_sites, rucio_name
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import read_space
from hpo_pilot.search.mistakes import FieldPath, closest, listing
from hpo_pilot.search.values import show

_TEXT, _COUNT, _MAPPING, _LIST, _FLAG, _NULL = "text", "a whole number", "a mapping", "a list", "true or false", "null"
_TYPES: dict[str, tuple[type, ...]] = {
    _TEXT: (str,),
    _COUNT: (int,),
    _MAPPING: (dict,),
    _LIST: (list,),
    _FLAG: (bool, int),
    _NULL: (type(None),),
}

#: Section -> key -> the types allowed.
_KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "model_config": {"script": (_TEXT,), "model": (_TEXT,), "param": (_MAPPING,)},
    "hpo_config": {
        "algorithm": (_TEXT,),
        "scheduler": (_TEXT,),
        "metric": (_TEXT,),
        "extra_metrics": (_LIST, _NULL),
        "mode": (_TEXT,),
        "resource": (_MAPPING, _NULL),
        "num_trials": (_COUNT,),
        "log_dir": (_TEXT, _NULL),
        "verbose": (_COUNT,),
        "max_concurrent": (_COUNT,),
        "stop": (_MAPPING,),
        "scheduler_param": (_MAPPING, _NULL),
        "algorithm_param": (_MAPPING, _NULL),
    },
    "grid_config": {
        "site": (_LIST, _TEXT, _NULL),
        "container": (_TEXT,),
        "inDS": (_TEXT, _NULL),
        "outDS": (_TEXT,),
        "retry": (_FLAG,),
        "extra": (_MAPPING,),
    },
}
_REQUIRED = {"model_config": ("script", "model"), "hpo_config": ("num_trials",), "grid_config": ()}
_CHOICES = {
    ("hpo_config", "algorithm"): sorted([*HPOGRID, "nevergrad"]),
    ("hpo_config", "scheduler"): ["asynchyperband", "bohbhyperband", "pbt"],
    ("hpo_config", "mode"): ["min", "max"],
}
_DEFAULT_ALGORITHM = "random"
_TOP = ("project_name", "scripts_path", *_KEYS, "search_space")

#: Options of prun in `grid_config.extra`, and their keys in a search file.
_EXTRA = {
    "memory": ("resources", "memory_mb"),
    "nCore": ("resources", "cores"),
    "architecture": ("site", "architecture"),
    "workingGroup": ("panda", "working_group"),
    "priority": ("panda", "priority"),
}


def import_hpogrid(file: ForeignFile, options: ImportOptions) -> Draft:
    """Returns the search of a project; mistakes are recorded in the file."""
    draft = Draft()
    if file.problems or file.mapping((), file.value, "must be a mapping: an hpogrid project") is None:
        return draft
    project: dict[str, Any] = file.value
    for key in project:
        if key not in _TOP:
            file.warn((key,), "is not a key of hpogrid, and hpogrid ignores it")
    name = project.get("project_name")
    if name is not None and file.text(("project_name",), name):
        put_name(draft, file, ("project_name",), name, "project")
    for key in _TOP:
        if key not in project:
            near = closest(key, [other for other in project if other not in _TOP])
            file.wrong((key,), "is missing", f"is it {near}?" if near else "", at_key=True)
    sections = {key: _section(file, key, project[key]) for key in _KEYS if key in project}
    _put_search(draft, file, sections.get("hpo_config", {}))
    _put_grid(draft, file, sections.get("grid_config", {}))
    model = sections.get("model_config", {})
    if not file.problems and isinstance(project.get("scripts_path"), str):
        _put_payload(draft, file, options, project, model)
    if "search_space" in project:
        library = sections.get("hpo_config", {}).get("algorithm", _DEFAULT_ALGORITHM)
        place: FieldPath = ("search_space",)
        space = read_space(file, place, _decoded(file, place, project["search_space"]), library)
        draft.put_space(space)
        if space.dimensions and sections.get("hpo_config", {}).get("metric", "loss") in space.dimensions:
            file.warn(("hpo_config", "metric"), "a parameter has the same name as the metric")
    return draft


def _decoded(file: ForeignFile, path: FieldPath, value: Any) -> Any:
    """Returns a mapping that may be written as JSON text, which hpogrid accepts too."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        file.wrong(path, f"is text that is not JSON: {error}")
        return {}


def _section(file: ForeignFile, section: str, value: Any) -> dict[str, Any]:
    """Returns the valid values of a section; mistakes are recorded."""
    found = file.mapping((section,), value)
    if found is None:
        return {}
    keys, sound = _KEYS[section], {}
    for key in _REQUIRED[section]:
        if key not in found:
            file.wrong((section, key), "is missing", at_key=True)
    for key, item in found.items():
        place = (section, key)
        if key not in keys:
            free = [known for known in keys if known not in found]
            file.unknown_key(place, "is not a key of hpogrid", free, f"there is {listing(list(keys))}")
            continue
        kinds = keys[key]
        if _MAPPING in kinds:
            item = _decoded(file, place, item)  # noqa: PLW2901  it stands for the same thing
        elif _LIST in kinds and isinstance(item, str) and _TEXT not in kinds:
            item = item.split(",")  # noqa: PLW2901  as above
        if not isinstance(item, tuple(t for kind in kinds for t in _TYPES[kind])):
            file.wrong(place, f"must be {listing(list(kinds), 'or')}, not {show(item)}")
        elif place not in _CHOICES or file.one_of(place, item, _CHOICES[place]):
            sound[key] = item
    return sound


def _put_search(draft: Draft, file: ForeignFile, hpo: dict[str, Any]) -> None:
    mode, metric = hpo.get("mode", "min"), hpo.get("metric", "loss")
    goal = "maximize" if mode == "max" else "minimize"
    origin = f"hpogrid writes its metric ({metric}) as loss, with its own sign"
    draft.put("objective", {"metric": "loss", "goal": goal}, origin=origin)
    if "num_trials" in hpo and (trials := file.count(("hpo_config", "num_trials"), hpo["num_trials"])) is not None:
        draft.put("budget", "trials", trials, origin="hpo_config.num_trials")
    at_once = file.count(("hpo_config", "max_concurrent"), hpo.get("max_concurrent", 3))
    draft.put("budget", "parallel", at_once, origin="hpo_config.max_concurrent")
    algorithm, params = hpo.get("algorithm", _DEFAULT_ALGORITHM), hpo.get("algorithm_param") or {}
    method = params.get("method")
    text = f"hpo_config.algorithm: {algorithm}" + (f", {method}" if method else "")
    draft.put("optimizer", for_hpogrid(algorithm, method if isinstance(method, str) else None), origin=text)
    for key in params:
        if key != "method" or algorithm != "nevergrad":
            file.warn(
                ("hpo_config", "algorithm_param", key),
                f"is a setting of {algorithm}, and {algorithm} does not run here",
            )
    _put_scheduler(draft, file, hpo)
    reasons = {
        **dict.fromkeys(("stop", "log_dir", "verbose"), "it stays with the payload: hpogrid reads it from the project"),
        "extra_metrics": "they are in the metadata that hpogrid writes (payload.file_names.metadata)",
    }
    for key, reason in reasons.items():
        if hpo.get(key):
            file.warn(("hpo_config", key), reason)
    resource = hpo.get("resource") or {}
    for device, key in (("cpu", "cores"), ("gpu", "gpus_per_node")):
        if resource.get(device):
            _put_devices(draft, file, ("hpo_config", "resource", device), resource[device], key)
    for key in resource.keys() - {"cpu", "gpu"}:
        file.warn(("hpo_config", "resource", key), "hpogrid knows cpu and gpu only")


def _put_devices(draft: Draft, file: ForeignFile, path: FieldPath, value: Any, key: str) -> None:
    amount = file.number(path, value)
    if amount is None:
        return
    if amount < 0:
        file.wrong(path, f"must be 0 or more, not {show(amount)}")
        return
    if not float(amount).is_integer():
        file.warn(path, f"a job has whole devices: {show(amount)} becomes {math.ceil(amount)}")
    draft.put("resources", key, math.ceil(amount), origin=".".join(str(part) for part in path))
    if key == "gpus_per_node":
        draft.put("site", "profile", "grid")


def _put_grid(draft: Draft, file: ForeignFile, grid: dict[str, Any]) -> None:
    site = grid.get("site")
    sites = site.split(",") if isinstance(site, str) else [str(item) for item in site or []]
    put_sites(draft, file, ("grid_config", "site"), sites, "grid_config.site")
    retry = int(grid.get("retry", 0))
    if "retry" in grid and not retry:
        file.warn(
            ("grid_config", "retry"),
            "jobs lost by the infrastructure are started again here, too; panda.attempts: 1 prevents it",
        )
    if retry > 1:
        draft.put("panda", "attempts", 1 + retry, origin="grid_config.retry, and the first attempt")
    if grid.get("outDS"):
        message = "name the files to keep in payload.outputs; the data sets get other names"
        file.warn(("grid_config", "outDS"), message)
    for key, value in (grid.get("extra") or {}).items():
        place = ("grid_config", "extra", key)
        bare = key.lstrip("-")
        if bare in ("excludedSite", "exclude"):
            draft.put("site", "exclude", str(value).split(","), origin=f"grid_config.extra.{key}")
        elif bare in _EXTRA:
            draft.put(*_EXTRA[bare], value, origin=f"grid_config.extra.{key}")
        else:
            file.warn(place, "is an option of prun without a counterpart in a search file")


def _put_payload(
    draft: Draft, file: ForeignFile, options: ImportOptions, project: dict[str, Any], model: dict[str, Any]
) -> None:
    here = FilePath(file.name)
    is_saved = here.parent.name == "config" and (here.parent.parent / "scripts").is_dir()
    scripts = here.parent / FilePath(project["scripts_path"]).expanduser()
    if is_saved:
        scripts = here.parent.parent / "scripts"
    folder = scripts if scripts.is_dir() else scripts.parent
    script = folder / model["script"]
    if is_saved:
        root, what = here.parent.parent, shlex.quote(project["project_name"])
    else:
        root, what = here.parent, shlex.quote(here.name)
    command, origin = f"hpogrid run {what} --mode idds", "hpogrid runs its model, and reads and writes our files"
    if _is_a_program(script, model["model"]):
        root, command = folder, f"python {shlex.quote(model['script'])}"
        origin = f"{model['script']} does not define {model['model']}: the script itself runs"
    elif not options.command:
        _warn_of_hpogrid(file, root, folder, is_saved)
        draft.put("payload", "file_names", {"metadata": "userJobMetadata.json"}, origin="hpogrid's own results")
    if not folder.is_dir():
        file.warn(("scripts_path",), f"there is no folder {folder}", "give payload.files the folder with the scripts")
    draft.put("payload", "files", options.relative(root))
    draft.put("payload", "command", command, origin=origin)
    grid = project.get("grid_config") or {}
    if grid.get("container"):
        draft.put("payload", "container", grid["container"], origin="grid_config.container")
    if grid.get("inDS"):
        draft.put(
            "payload", "inputs", [rucio_name(name) for name in grid["inDS"].split(",")], origin="grid_config.inDS"
        )


def _is_a_program(script: FilePath, model: str) -> bool:
    """Returns True if the script exists but does not define `model`; hpogrid cannot run such a script."""
    try:
        names = top_names(script if script.suffix else script.with_suffix(".py"))
    except (OSError, ValueError, SyntaxError):
        return False
    return names is not None and model not in names


def _warn_of_hpogrid(file: ForeignFile, root: FilePath, folder: FilePath, is_saved: bool) -> None:
    if FilePath(file.name).suffix != ".json" and not is_saved:
        message = "hpogrid 1.3.3 runs JSON projects only: `hpogrid project create` makes one, import that"
        file.warn(("project_name",), message)
    if folder.is_dir() and not folder.resolve().is_relative_to(root.resolve()):
        message = f"the scripts are outside of {root}, the folder that goes to the jobs: copy them into it"
        file.warn(("scripts_path",), message)


# hpogrid's trial scheduler is one of Ray Tune's; two of them become early stopping. Ray's AsyncHyperBandScheduler is
# ASHA in the form that stops trials. Its HyperBandForBOHB compares at the same steps, but pauses trials until the
# others reach the step. Names and defaults are those of Ray 2 (`ray/tune/schedulers/`).

_SCHEDULER, _PARAMETERS = ("hpo_config", "scheduler"), ("hpo_config", "scheduler_param")

#: Ray's defaults: steps of a training, eta.
_DEFAULTS = {"asynchyperband": (100, 4), "bohbhyperband": (81, 3)}

#: Ray's name: our name, smallest value, largest value.
_COUNTS = {
    "max_t": ("max_steps", 1, 2**53),
    "grace_period": ("min_steps", 1, 2**53),
    "reduction_factor": ("eta", 2, 100),
    "brackets": ("brackets", 1, 10),
}

#: Settings of Ray that are not needed: which figure decides, and whether trials that reach max_t end.
_NOT_NEEDED = ("metric", "mode", "stop_last_trials")


def _put_scheduler(draft: Draft, file: ForeignFile, hpo: dict[str, Any]) -> None:
    """Sets `early_stopping` if the project names a scheduler that stops trials; lost settings are recorded.

    Args:
        draft: the search file.
        file: the project.
        hpo: the valid values of its `hpo_config`.
    """
    name, given = hpo.get("scheduler"), hpo.get("scheduler_param") or {}
    if name not in _DEFAULTS:
        if name is not None:
            file.warn(
                _SCHEDULER, "is dropped: it changes the parameters of running trials, and here a trial keeps its point"
            )
        if given:
            file.warn(_PARAMETERS, "there is no such scheduler here")
        return
    max_steps, eta = _DEFAULTS[name]
    settings: dict[str, Any] = {"method": "asha", "max_steps": max_steps, "eta": eta}
    if name == "asynchyperband":
        settings["min_steps"] = 1
    for key, value in given.items():
        if key in _COUNTS:
            _put_count(settings, file, key, value)
        elif key == "time_attr" and value != "training_iteration":
            file.warn((*_PARAMETERS, key), "is dropped: the training writes the steps into progress.jsonl")
        elif key != "time_attr" and key not in _NOT_NEEDED:
            file.warn((*_PARAMETERS, key), f"is a setting of {name} without a counterpart in asha")
    if settings.get("min_steps", 0) >= settings["max_steps"]:
        file.warn((*_PARAMETERS, "grace_period"), "is left out: no trial would be compared before its end")
        del settings["min_steps"]
    message = "becomes early_stopping, which needs values in progress.jsonl: hpogrid writes none, the training must"
    file.warn(_SCHEDULER, message)
    draft.put("early_stopping", settings, origin=f"hpo_config.scheduler: {name}")


def _put_count(settings: dict[str, Any], file: ForeignFile, key: str, value: Any) -> None:
    """Sets a number of asha; a value out of range is changed, and the change is recorded."""
    path, (ours, least, most) = (*_PARAMETERS, key), _COUNTS[key]
    amount = file.number(path, value)
    if amount is None:
        return
    whole = min(max(math.ceil(amount), least), most)
    if whole != amount:
        file.warn(path, f"asha has whole numbers from {least} to {most}: it becomes {whole}")
    settings[ours] = whole
