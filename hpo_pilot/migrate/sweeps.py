"""Imports sweeps of Weights & Biases and Experiments of Katib.

Sources: https://docs.wandb.ai/models/sweeps/sweep-config-keys and wandb/wandb, `wandb/sdk/launch/sweeps/utils.py` (the
macros of a command); kubeflow/katib, `pkg/apis/controller/experiments/v1beta1/` and `pkg/metricscollector/v1beta1/`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.migrate.draft import Draft, ImportOptions, put_name
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.limits import MOST_TRIALS
from hpo_pilot.search.mistakes import FieldPath, path_text
from hpo_pilot.search.values import is_number, show
from hpo_pilot.search.yaml_document import plain_tag, scalar_value

#: Algorithms of the two tools, and our optimizers. Those that only stop trials early draw their points at random.
_OPTIMIZERS = {
    "grid": "grid",
    "cmaes": "cma",
    **dict.fromkeys(("bayes", "bayesianoptimization", "tpe", "multivariate-tpe"), "bayesian"),
    **dict.fromkeys(("random", "sobol", "hyperband"), "random"),
}
_MACRO = re.compile(r"\$\{([^{}]+)\}")

#: Name, place and value of a parameter.
_Leaf = tuple[str, FieldPath, Any]


class _Sweep:
    """One file, and the search made of it. Paths start at the top of the file."""

    def __init__(self, file: ForeignFile, options: ImportOptions) -> None:
        self.file, self.options, self.draft, self.space = file, options, Draft(), ForeignSpace(file)
        self.put, self.warn = self.draft.put, file.warn

    def at(self, *path: str | int, kind: Any = dict) -> Any:
        """Returns the mapping or list at `path`; empty if there is none, or another value, which is recorded."""
        value = self.file.value
        for end, key in enumerate(path, start=1):
            value = value[key] if isinstance(key, int) else value.get(key)
            wanted = kind if end == len(path) else list if isinstance(path[end], int) else dict
            if value is not None and not isinstance(value, wanted):
                self.file.wrong(path[:end], f"must be a {'mapping' if wanted is dict else 'list'}, not {show(value)}")
                value = None
            if value is None:
                return kind()
        return value

    def each(self, *path: str | int) -> list[dict[str, Any]]:
        """Returns the mappings in the list at `path`."""
        return [self.at(*path, index) for index in range(len(self.at(*path, kind=list)))]

    def number(self, given: Mapping[Any, Any], path: FieldPath, default: float | None = None) -> Any:
        """Returns the number at the end of `path`, which may be in quotes; None if it is wrong."""
        value = given.get(path[-1], default)
        if isinstance(value, str):
            with suppress(ValueError):
                value = scalar_value(plain_tag(value), value)
        return self.file.number(path, value)

    def warn_of_rest(self, path: FieldPath, *used: str) -> None:
        for key, value in self.at(*path).items():
            if key not in used and value not in (None, [], {}):
                self.warn((*path, key), "has no counterpart in a search file")

    def put_head(self, named: FieldPath, name: Any, path: FieldPath, metric: Any, goal: Any) -> str:
        """Sets name, objective and the place of the metric in the training's output; returns the metric."""
        # The warnings for a name that was never the user's are dropped.
        file = self.file if name else ForeignFile.of(None, self.file.name, self.file.folder)
        put_name(self.draft, file, named, str(name or FilePath(file.name).stem), "sweep")
        if not isinstance(metric, str) or not metric:
            self.warn(path, "names no metric: objective.metric is a guess", "set it, and payload.result")
            metric = "loss"
        if self.file.one_of(path, goal or "minimize", ["minimize", "maximize"]):
            self.put("objective", {"metric": metric, "goal": goal or "minimize"})
        pattern = rf"(?<![\w/.-]){re.escape(metric)}\W?\s*[=:]\s*([^\s,;]+)"
        self.put("payload", "result", {"stdout": pattern}, origin=f"the training prints {metric}=VALUE")
        return str(metric)

    def put_optimizer(self, path: FieldPath, name: Any) -> None:
        if str(name) not in _OPTIMIZERS:
            self.warn(path, f"{show(name)} has no counterpart here: bayesian instead")
        self.put("optimizer", _OPTIMIZERS.get(str(name), "bayesian"), origin=f"{path_text(path)}: {name}")

    def put_budget(self, path: FieldPath, names: Mapping[str, str], defaults: Mapping[str, int]) -> None:
        given = {**defaults, **self.at(*path)}
        for name in filter(given.get, names):
            self.put("budget", names[name], self.file.count((*path, name), given[name]), origin=name)

    def put_space(self, path: FieldPath, leaves: list[_Leaf], add: Callable[..., None]) -> None:
        """Sets the space, and the number of trials if the tool has none."""
        self.space.fill(path, leaves, add)
        self.draft.put_space(self.space)
        if "trials" in self.draft.values.get("budget", {}) or not self.space.dimensions or self.file.problems:
            return
        size = SearchSpace.from_dict(self.space.dimensions).size
        if self.draft.values["optimizer"] == "grid" and size <= MOST_TRIALS:
            self.put("budget", "trials", int(size), origin="all points of the grid")
        else:
            self.warn((), "has no number of trials: budget.trials is 64, a guess")
            self.put("budget", "trials", 64, origin="a guess: the file has no number of trials")

    def put_asha(self, path: FieldPath, eta: Any, most: Any, rungs: Any, least: Any) -> None:
        """Sets `early_stopping`; `most` and `least` are steps, 0 if not known."""
        eta = min(max(round(eta or 3), 2), 100)
        least = int(least or (most or 0) / eta ** min(rungs or 1, 99))
        steps = {"max_steps": math.ceil(most or 0), "min_steps": least if least < (most or math.inf) else 0}
        self.put("early_stopping", {"method": "asha", "eta": eta, **{k: v for k, v in steps.items() if v}})
        self.warn(path, "early stopping needs intermediate values: see payload.progress")

    def shell(self, path: FieldPath, word: str, values: Mapping[str, str]) -> str:
        """Returns a word of a command quoted for the shell, with the values of its macros, `${name}`."""
        parts = _MACRO.split(word)
        for index, part in enumerate(parts):
            if not index % 2:
                parts[index] = shlex.quote(part) if part or len(parts) == 1 else ""
            elif part in values:
                parts[index] = values[part]
            else:
                self.warn(path, f"${{{part}}} is not known here, and stays as text")
                parts[index] = shlex.quote(f"${{{part}}}")
        return "".join(parts)

    def put_payload(self, path: FieldPath, command: str, folder: FilePath | None, image: Any) -> None:
        if not command and self.options.command is None:
            self.warn(path, "there is no command: payload.command is a guess", "set it, or give --command")
        origin = path_text(path) if command else "a guess: the file has no command"
        self.put("payload", "command", command or "python train.py", origin=origin)
        if folder := self.options.payload or folder:
            self.put("payload", "files", self.options.relative(folder))
        if image:
            self.put("payload", "container", f"docker://{image}")

    def put_resource(self, key: str, amount: float, origin: str) -> None:
        self.put("resources", key, math.ceil(amount), origin=origin)
        if key == "gpus_per_node":
            self.put("site", "profile", "grid", origin="a guess: name your machine, `hpo-pilot sites` lists them")


def _leaves(given: dict[str, Any], path: FieldPath) -> Iterator[_Leaf]:
    """Yields all parameters, with dots in the names of nested ones, which an entry has under `parameters`."""
    for name, entry in given.items():
        if isinstance(entry, dict) and isinstance(inner := entry.get("parameters"), dict) and inner:
            for below, place, value in _leaves(inner, (*path, name, "parameters")):
                yield f"{name}.{below}", place, value
        else:
            yield name, (*path, name), entry


def _add_choices(space: ForeignSpace, name: str, path: FieldPath, choices: Any) -> None:
    """Adds choices; numbers are put in order."""
    ordered = isinstance(choices, list) and all(map(is_number, choices))
    space.add_choices(name, path, sorted(choices) if ordered else choices, "", ordered=ordered)


# --- sweeps of Weights & Biases ---


#: Macros of a command; 0 is the name of a parameter in the shell, 1 in the search file.
_ARGUMENTS = {
    "args": "--{0}={{{1}}}",
    "args_no_equals": "--{0} {{{1}}}",
    "args_no_hyphens": "{0}={{{1}}}",
    "args_no_boolean_flags": "{{--{1}=:{1}}}",
}


def _read_wandb(sweep: _Sweep) -> None:
    file, top, metric = sweep.file, sweep.file.value, sweep.at("metric")
    name = sweep.put_head(("name",), top.get("name"), ("metric",), metric.get("name"), metric.get("goal"))
    message = f"wandb.log does not print {name}: the training must, or set payload.result"
    sweep.warn(("metric",), message, f'as in print(f"{name}={{value}}")')
    sweep.put_optimizer(("method",), top.get("method"))
    sweep.put_budget((), {"run_cap": "trials"}, {})
    default = ["${env}", "${interpreter}", "${program}", "${args}"]
    words = [str(word) for word in sweep.at("command", kind=list) or default]
    leaves = list(_leaves(sweep.at("parameters"), ("parameters",)))
    for name, place, _ in leaves:
        if len(place) > 2:
            sweep.warn(place, f"is nested: the training gets it as {name}")
    as_words = any(f"${{{macro}}}" in word for word in words for macro in list(_ARGUMENTS)[:3])
    sweep.put_space(("parameters",), leaves, partial(_add_wandb, sweep, as_words))
    names = (*sweep.space.dimensions, *sweep.space.fixed)
    known = {macro: " ".join(form.format(shlex.quote(n), n) for n in names) for macro, form in _ARGUMENTS.items()}
    known |= {"env": "", "interpreter": "python", "args_json": '"$(cat input.json)"', "args_json_file": "input.json"}
    known |= {f"envvar:{name}": f'"${name}"' for name in re.findall(r"\{envvar:(\w+)\}", " ".join(words))}
    if program := top.get("program"):
        known["program"] = shlex.quote(str(program))
    has_program = program or not any("${program}" in word for word in words)
    command = " ".join(filter(None, (sweep.shell(("command",), word, known) for word in words if has_program)))
    if not any("${args" in word for word in words):
        sweep.warn(("command",), "the training gets its values from W&B only: it must read input.json, or get ${args}")
    # A job has no key of W&B; offline, wandb.init needs none.
    sweep.put_payload(("command",), command and f"WANDB_MODE=offline {command}", file.folder, None)
    if early := sweep.at("early_terminate"):
        place, defaults = ("early_terminate",), {"eta": 3, "max_iter": 0, "s": 1, "min_iter": 0}
        sweep.put_asha(place, *(sweep.number(early, (*place, key), default) for key, default in defaults.items()))
        sweep.warn_of_rest(place, "type", *defaults)
    sweep.warn_of_rest(("metric",), "name", "goal")
    used = ("name", "metric", "method", "parameters", "command", "program", "run_cap", "early_terminate")
    sweep.warn_of_rest((), *used)


def _add_wandb(sweep: _Sweep, as_words: bool, space: ForeignSpace, name: str, path: FieldPath, entry: Any) -> None:
    """Adds a parameter; `as_words`: true and false are True and False in the command, as W&B writes them."""
    file = sweep.file
    if file.mapping(path, entry) is None:
        return
    choices = [entry["value"]] if "value" in entry else entry.get("values")
    if choices is not None:
        if as_words and isinstance(choices, list):
            choices = [str(choice) if isinstance(choice, bool) else choice for choice in choices]
        _add_choices(space, name, (*path, "values"), choices)
        if "probabilities" in entry:
            sweep.warn((*path, "probabilities"), "the choices of a search file have equal weights")
        return
    whole = all(type(entry.get(key)) is int for key in ("min", "max"))
    kind = str(entry.get("distribution", "int_uniform" if whole else "uniform"))
    core = kind.removeprefix("q_").removeprefix("inv_").removesuffix("_values")
    if not file.one_of(
        (*path, "distribution"), core, ["uniform", "int_uniform", "log_uniform", "normal", "log_normal"]
    ):
        return
    normal, log = core.endswith("normal"), core.startswith("log")
    keys = {"mu": 0, "sigma": 1} if normal else {"min": None, "max": None}
    low, high = (sweep.number(entry, (*path, key), default) for key, default in keys.items())
    step = sweep.number(entry, (*path, "q"), 1) if kind.startswith("q_") else None
    if low is None or high is None:
        return
    if normal:
        space.add_normal(name, path, low, high, kind, q=step, base=math.e if log else None)
        return
    if log and not kind.endswith("_values"):  # the bounds are exponents of e
        ends = (-high, -low) if "inv_" in kind else (low, high)
        low, high = (float(f"{math.exp(min(end, 700)):.12g}") for end in ends)
    if step is None:
        space.add_range(name, path, low, high, kind, log=log, whole=core == "int_uniform")
    else:
        (space.add_log_multiples if log else space.add_multiples)(name, path, low, high, step, kind)


# --- Experiments of Katib ---

#: Suffixes of Kubernetes' quantities.
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(rf"(\d+(?:\.\d*)?)({'|'.join(_UNITS)})")


def _read_katib(sweep: _Sweep) -> None:
    path: FieldPath = ("spec", "objective")
    metadata, objective = sweep.at("metadata"), sweep.at(*path)
    name = metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-")
    metric, goal = objective.get("objectiveMetricName"), objective.get("type")
    metric = sweep.put_head(("metadata", "name"), name, path, metric, goal)
    if {"name": metric, "value": "latest"} not in sweep.each(*path, "metricStrategies"):
        sweep.warn(path, "the last value counts here; in Katib the best one, unless metricStrategies says latest")
    sweep.warn_of_rest(path, "type", "objectiveMetricName", "metricStrategies")
    path = ("spec", "algorithm")
    sweep.put_optimizer((*path, "algorithmName"), sweep.at(*path).get("algorithmName"))
    sweep.warn_of_rest(path, "algorithmName")
    counts = {"maxTrialCount": "trials", "parallelTrialCount": "parallel", "maxFailedTrialCount": "failures"}
    sweep.put_budget(("spec",), counts, {"parallelTrialCount": 3})
    path = ("spec", "parameters")
    leaves: list[_Leaf] = [(str(each.get("name")), (*path, n), each) for n, each in enumerate(sweep.each(*path))]
    sweep.put_space(path, leaves, partial(_add_katib, sweep))
    _put_trial(sweep, metric)
    path = ("spec", "earlyStopping")
    if sweep.at(*path):
        given = {str(each.get("name")): each.get("value") for each in sweep.each(*path, "algorithmSettings")}
        names = {"warmup_trials": ("min_trials_required", 3), "warmup_steps": ("start_step", 4)}
        median = {ours: sweep.number(given, (*path, name), default) for ours, (name, default) in names.items()}
        sweep.put("early_stopping", {"method": "median", **median})
        sweep.warn(path, "early stopping needs intermediate values: see payload.progress")
    used = ("objective", "algorithm", *counts, "parameters", "trialTemplate", "metricsCollectorSpec", "earlyStopping")
    sweep.warn_of_rest(("spec",), *used)


def _add_katib(sweep: _Sweep, space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    kind, place = str(entry.get("parameterType")), (*path, "feasibleSpace")
    feasible = sweep.at(*place)
    if not sweep.file.one_of((*path, "parameterType"), kind, ["double", "int", "discrete", "categorical"]):
        return
    if kind in ("discrete", "categorical"):
        choices = sweep.at(*place, "list", kind=list)
        if kind == "discrete":
            choices = [sweep.number({n: each}, (*place, "list", n)) for n, each in enumerate(choices)]
        _add_choices(space, name, (*place, "list"), choices)
        return
    low, high = sweep.number(feasible, (*place, "min")), sweep.number(feasible, (*place, "max"))
    step = sweep.number(feasible, (*place, "step"), 0)
    if low is None or high is None or step is None:
        return
    prior, whole = str(feasible.get("distribution", "uniform")), kind == "int"
    if prior.lower().endswith("normal"):
        sweep.warn((*place, "distribution"), f"a search file has no {prior} prior: {name} is searched evenly")
    low, high, step = (int(low), int(high), int(step)) if whole else (low, high, step)
    space.add_range(name, place, low, high, kind, log=prior.startswith("log"), whole=whole)
    if step and prior.startswith("log"):
        sweep.warn((*place, "step"), "a search file has no step on a logarithmic scale")
    elif step and name in space.dimensions:
        space.dimensions[name]["step"] = step


def _containers(value: Any, path: FieldPath) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    """Yields place and value of everything inside a Kubernetes resource that has a command."""
    if isinstance(value, dict) and {"command", "args"} & value.keys():
        yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from _containers(below, (*path, key))


def _put_trial(sweep: _Sweep, metric: str) -> None:
    """Sets payload and resources of a trial."""
    path: FieldPath = ("spec", "trialTemplate")
    trial, primary = sweep.at(*path, "trialSpec"), sweep.at(*path).get("primaryContainerName")
    found = list(_containers(trial, (*path, "trialSpec")))
    named = [each for each in found if each[1].get("name") == primary]
    place, container = next(iter([*named, *found]), ((*path, "trialSpec"), {}))
    references = {str(each.get("name")): str(each.get("reference")) for each in sweep.each(*path, "trialParameters")}
    values = {f"trialParameters.{k}": f"{{{v}}}" for k, v in references.items() if not v.startswith("$")}
    words = [str(word) for key in ("command", "args") for word in sweep.at(*place, key, kind=list)]
    command = " ".join(sweep.shell(place, word, values) for word in words)
    if len(words) > 2 and re.fullmatch(r"(.*/)?(ba)?sh -\w*c", " ".join(words[:2])):  # a script, with its own quotes
        command = _MACRO.sub(lambda macro: values.get(macro[1], macro[0]), words[2])
    command = command and _put_collector(sweep, metric, command)
    sweep.put_payload(place, command, None, container.get("image"))
    sweep.warn_of_rest(place, "name", "image", "imagePullPolicy", "command", "args", "resources")
    path = (*place, "resources", "limits")
    for key, value in sweep.at(*path).items():
        ours, unit = {"cpu": ("cores", 1), "memory": ("memory_mb", 1e6)}.get(key, ("gpus_per_node", 1))
        amount = _QUANTITY.fullmatch(str(value))
        if amount and key.endswith(("cpu", "memory", "/gpu")):
            sweep.put_resource(ours, float(amount[1]) * _UNITS[amount[2]] / unit, f"{key}: {value}")
        else:
            sweep.warn((*path, key), "has no counterpart in a search file")
    if trial.get("kind") not in (None, "Job"):
        message = f"the processes of a {trial['kind']} are not carried over"
        sweep.warn(("spec", "trialTemplate", "trialSpec"), message, "set resources.nodes and ranks_per_node")


def _put_collector(sweep: _Sweep, metric: str, command: str) -> str:
    """Sets `payload.result` from the metrics collector; returns the command, with what the collector needs."""
    path: FieldPath = ("spec", "metricsCollectorSpec")
    kind = sweep.at(*path, "collector").get("kind", "StdOut")
    if formats := sweep.at(*path, "source", "filter", "metricsFormat", kind=list):  # the groups are name and value
        pattern = re.sub(r"(?<!\\)\([^()]*\)", lambda _: re.escape(metric), str(formats[0]), count=1)
        pattern = re.sub(r"(?<!\\)\((?!\?)", "(?P<value>", pattern, count=1)
        sweep.put("payload", "result", {"stdout": pattern}, origin=f"metricsFormat, for {metric}")
    if kind == "File":
        source = sweep.at(*path, "source", "fileSystemPath")
        written = str(source.get("path", "/var/log/katib/metrics.log"))
        name = FilePath(written).name
        needs = "" if written in command else ": the training must write it there"
        sweep.warn(path, f"{written} becomes {name} in the job's folder{needs}")
        command = command.replace(written, name)
        if source.get("format") == "JSON":
            sweep.put("payload", "result", {"file": name, "key": metric}, origin="metricsCollectorSpec")
        else:
            command += f" && cat {shlex.quote(name)}"
    elif kind != "StdOut":
        sweep.warn(path, f"a {kind} collector has no counterpart: the training must print {metric}=VALUE")
    return command


#: For each tool: its document, and the function that reads it.
_READERS: dict[str, tuple[str, Callable[[_Sweep], None]]] = {
    "wandb": ("a sweep", _read_wandb),
    "katib": ("an Experiment", _read_katib),
}
SWEEPS = tuple(_READERS)


def import_sweep(tool: str, file: ForeignFile, options: ImportOptions) -> Draft:
    """Returns the search of a file of one of `SWEEPS`; mistakes are recorded in the file."""
    sweep, (what, read) = _Sweep(file, options), _READERS[tool]
    if not file.problems and file.mapping((), file.value, f"must be a mapping: {what}") is not None:
        read(sweep)
    return sweep.draft
