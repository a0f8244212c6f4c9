"""Runs a Hydra application as a search, for the plug-in hydra_plugins/hpo_pilot_sweeper.py; needs the extra `hydra`."""

from __future__ import annotations

import itertools
import logging
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.operations.client import SearchClient, connect
from hpo_pilot.operations.functions import check_results, run
from hpo_pilot.panda.sandbox import payload_files
from hpo_pilot.search.limits import MOST_CHOICES

log = logging.getLogger(__name__)

_PLUGIN = "hydra_plugins.hpo_pilot_sweeper"

#: Overrides for the sweep itself; its jobs do without them.
_OF_SWEEP = re.compile(r"[+~]*hydra([./](sweeper|launcher|sweep|run)\b|\.mode=)")

#: Hydra's default folders for the results of earlier runs; they are no part of the payload.
_RESULTS = ("multirun", "outputs")


def run_sweep(settings: Mapping[str, Any], config: DictConfig, arguments: Sequence[str], loader: ConfigLoader) -> None:
    """Runs the search of a sweep, and writes optimization_results.yaml as Hydra's other sweepers do.

    The search file and the payload are in the sweep's folder.

    Args:
        settings: `hydra.sweeper`.
        config: the application's configuration.
        arguments: the overrides of the command line, without Hydra's own.
        loader: lists the groups of the configuration.

    Raises:
        ConfigCompositionException: an override or a setting is wrong, or the search has no result; Hydra prints the
            message without a traceback.
    """
    plain: dict[str, Any] = {
        key: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for key, v in settings.items()
    }
    folder = Path(config.hydra.sweep.dir).resolve()
    try:
        given = [f"{key}={value}" for key, value in (plain["params"] or {}).items()]
        parsed = OverridesParser.create(config_loader=loader).parse_overrides([*given, *arguments])
        space, fixed = space_of(parsed)
        document = _document(plain, config, space, fixed)
        files = Path(document["payload"].pop("files"))
        _write_payload(files, folder, (folder, Path(plain["workdir"] or "hpo-pilot").resolve()))
        file = folder / "search.yaml"
        document["payload"] = {"files": "payload", **document["payload"]}
        file.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
        where: dict[str, Any] = {key: plain[key] for key in ("workdir", "server", "service", "token_file", "ca")}
        log.info("Search %s: %s", document["search"], file)
        run(file, **where)
        name, service = document["search"], where["service"]
        client = (
            connect(service, where["token_file"], ca=where["ca"]) if service else SearchClient.local(where["workdir"])
        )
        check_results(client, name)
        best = client.best(name)
    except HpoPilotError as error:
        raise ConfigCompositionException(f"hpo_pilot: {error}") from error
    if isinstance(best, list):
        found: dict[str, Any] = {"solutions": [{"params": one["point"], "values": one["value"]} for one in best]}
    else:
        found = {"best_params": best["point"], "best_value": best["value"]} if best else {}
    log.info("Result: %s", found)
    OmegaConf.save(OmegaConf.create({"name": "hpo_pilot", **found}), folder / "optimization_results.yaml")


def space_of(overrides: Iterable[Override]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Returns the search space of the swept overrides, and the other overrides, which each job gets.

    Of several overrides of one key the last counts.

    Raises:
        InputError: some cannot be searched, or none is swept; the message has all of them.
    """
    space: dict[str, dict[str, Any]] = {}
    fixed: dict[str, str] = {}
    mistakes = []
    for override in overrides:
        key = override.get_key_element()
        space.pop(key, None)
        fixed.pop(key, None)
        if not override.is_sweep_override():
            fixed[key] = override.input_line or key
            continue
        try:
            space[key] = _domain(override)
        except InputError as error:
            mistakes.append(f"{override.input_line}: {error}")
    if not space and not mistakes:
        mistakes.append("no override is swept: give one, such as 'lr=interval(1e-4,1e-1)' or solver=adam,sgd")
    if mistakes:
        raise InputError("\n".join(mistakes))
    return space, list(fixed.values())


def _domain(override: Override) -> dict[str, Any]:
    """Returns the domain of one override, as in a search file.

    Raises:
        InputError: there is none.
    """
    sweep: Any = override._value
    known = "log" if override.is_interval_sweep() else "ordered" if override.is_choice_sweep() else ""
    tags: set[str] = getattr(sweep, "tags", set())
    if tags - {known}:
        meaning = "interval has only the tag log" if known == "log" else "choice has only the tag ordered"
        raise InputError(f"the tag {min(tags - {known})} has no meaning here: {meaning if known else 'remove it'}")
    if override.is_interval_sweep():
        low, high = sweep.start, sweep.end
        kind = "integer" if isinstance(low, int) and isinstance(high, int) else "real"
        if not low < high:
            raise InputError(f"{low} is not below {high}: give the smaller bound first")
        if tags and low <= 0:
            raise InputError(f"a log scale needs bounds above 0, not {low}: raise the lower one, or remove the tag")
        return {"type": kind, "low": low, "high": high} | ({"scale": "log"} if tags else {})
    if override.is_range_sweep() and isinstance(numbers := sweep.range(), range) and len(numbers) > 1:
        return {"type": "integer", "low": min(numbers), "high": max(numbers), "step": abs(numbers.step)}
    values = list(itertools.islice(override.sweep_iterator(), MOST_CHOICES + 1))
    if not 0 < len(values) <= MOST_CHOICES:
        most = f"more than {MOST_CHOICES} values: give an interval or a larger step"
        raise InputError(f"it has {most if values else 'no value: a range ends before its stop, a glob names files'}")
    choices = [value.text if isinstance(value, QuotedString) else value for value in values]
    for choice in choices:
        if isinstance(choice, list | dict) or (isinstance(choice, str) and "${" in choice):
            kind = "an interpolation" if isinstance(choice, str) else "a list or a mapping"
            raise InputError(f"{kind} is no choice: make each a file of a config group, and sweep over their names")
    if len(set(map(repr, choices))) < len(choices):
        raise InputError("a choice is listed twice: remove one of the two")
    return {"type": "ordinal" if tags or override.is_range_sweep() else "categorical", "choices": choices}


def _document(settings: Mapping[str, Any], config: DictConfig, space: Any, fixed: Sequence[str]) -> dict[str, Any]:
    """Returns the search file; `payload.files` is the folder of the application.

    Raises:
        InputError: a direction is wrong, or the application's program cannot be found.
    """
    goals = settings["direction"] if isinstance(settings["direction"], list) else [settings["direction"]]
    goals = [str(getattr(goal, "name", goal)).lower() for goal in goals]
    if not goals or set(goals) - {"minimize", "maximize"}:
        raise InputError(f"hydra.sweeper.direction: must be minimize, maximize or a list of these, not {goals}")
    metrics = ["value"] if len(goals) == 1 else [f"value_{number}" for number in range(1, len(goals) + 1)]
    hydra, sections = config.hydra, settings["sections"]
    files, program = _program(settings, hydra.runtime.cwd)
    options = ["--config-name", hydra.job.config_name] if hydra.job.config_name else []
    for source in hydra.runtime.config_sources:
        options += ["--config-dir", source.path] if source.provider == "command-line" else []
    kept = [*(one for one in hydra.overrides.hydra if not _OF_SWEEP.match(one)), *fixed]
    kept += ["hydra.mode=RUN", "hydra.run.dir=.", f"++hydra.callbacks.hpo_pilot._target_={_PLUGIN}.ResultFile"]
    # A word in braces that is the name of a parameter would be its value.
    names = "|".join(map(re.escape, [*space, "hydra"]))
    pattern = rf"\{{((--?\w[\w.-]*=?:)?({names}))\}}"
    before, after = (re.sub(pattern, r"{{\1}}", shlex.join(words)) for words in (options, kept))
    budget = {"trials": settings["n_trials"], "parallel": settings["n_jobs"]}
    called = re.sub(r"[^A-Za-z0-9_-]", "-", hydra.job.name).strip("-_0123456789")[:30] or "sweep"
    elsewhere = settings["service"] or settings["server"] or sections.get("payload", {}).get("container")
    command = f"HYDRA_FULL_ERROR=1 PYTHONPATH=.${{PYTHONPATH:+:$PYTHONPATH}} {program} {before} {{hydra}} {after}"
    python = {} if elsewhere else {"python": sys.executable}
    return {
        "search": settings["name"] or f"{called}-{time.strftime('%Y%m%d-%H%M%S')}",
        "objective": [{"metric": metric, "goal": goal} for metric, goal in zip(metrics, goals, strict=True)],
        "space": space,
        "optimizer": settings["optimizer"],
        "seed": settings["seed"],
        **sections,
        "budget": {k: v for k, v in budget.items() if v is not None} | sections.get("budget", {}),
        "payload": {"files": files, "command": command, **python, **sections.get("payload", {})},
    }


def _program(settings: Mapping[str, Any], cwd: str) -> tuple[str, str]:
    """Returns the folder of the application's files, and the command that starts it there.

    Raises:
        InputError: the application was not started as a file or a module of the folder.
    """
    main = sys.modules["__main__"]
    script, module = Path(getattr(main, "__file__", None) or "-"), getattr(main, "__spec__", None)
    root = Path(settings["files"] or cwd).absolute()
    if not settings["files"] and not module and not script.is_relative_to(root):
        root = script.parent
    if not root.is_dir():
        raise InputError(f"hydra.sweeper.files: there is no folder {root}")
    if settings["command"]:
        return str(root), settings["command"]
    if module:
        return str(root), f"python -m {module.name.removesuffix('.__main__')}"
    if script.suffix != ".py" or not script.is_relative_to(root):
        remedy = "give hydra.sweeper.files and hydra.sweeper.command, such as 'python train.py'"
        raise InputError(f"the application {script} is no .py file of {root}: {remedy}")
    return str(root), f"python {shlex.quote(str(script.relative_to(root)))}"


def _write_payload(files: Path, folder: Path, left_out: Sequence[Path]) -> None:
    """Copies the application and the plug-in into the folder of the sweep.

    The results of other runs are left out, and so are these folders: a work folder has tokens.

    Raises:
        InputError: a file cannot be sent.
    """
    payload = folder / "payload"
    shutil.rmtree(payload, ignore_errors=True)
    for name, path in list(payload_files(files)):
        if name.split("/")[0] not in _RESULTS and not any(map(path.is_relative_to, left_out)):
            (payload / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, payload / name)
    (payload / "hydra_plugins").mkdir(parents=True, exist_ok=True)
    shutil.copy(sys.modules[_PLUGIN].__file__ or "", payload / "hydra_plugins")
