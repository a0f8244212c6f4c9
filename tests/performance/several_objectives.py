"""How large a hypervolume optimizers reach with few trials, beside optuna's samplers for several objectives.

96 trials in batches of 8 on four problems: ZDT1 and ZDT2 (Zitzler, Deb, Thiele 2000; here with 6 parameters), DTLZ2
with three objectives (Deb, Thiele, Laumanns, Zitzler 2002; 6 parameters), and a made-up training with real, integer,
categorical and conditional parameters whose loss and size pull apart. optuna's GPSampler wants PyTorch, and takes two
CPU-minutes a run: it runs where PyTorch is installed, with two seeds, and never with --quick.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.nondominated import costs_of, hypervolume

Costs = tuple[float, ...]

TRIALS, BATCH = 96, 8


@dataclass(frozen=True)
class Problem:
    space: dict[str, dict[str, Any]]
    costs: Callable[[Mapping[str, Any]], Costs]
    reference: Costs


def _plane(count: int) -> dict[str, dict[str, Any]]:
    return {f"x{index}": {"type": "real", "low": 0.0, "high": 1.0} for index in range(count)}


def _zdt(shape: float) -> Callable[[Mapping[str, Any]], Costs]:
    def costs(point: Mapping[str, Any]) -> Costs:
        first, *others = point.values()
        g = 1 + 9 * sum(others) / len(others)
        return first, g * (1 - (first / g) ** shape)

    return costs


def _dtlz2(point: Mapping[str, Any]) -> Costs:
    first, second, *others = point.values()
    size = 1 + sum((x - 0.5) ** 2 for x in others)
    a, b = first * math.pi / 2, second * math.pi / 2
    return size * math.cos(a) * math.cos(b), size * math.cos(a) * math.sin(b), size * math.sin(a)


_TRAINING: dict[str, dict[str, Any]] = {
    "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log"},
    "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
    "layers": {"type": "integer", "low": 1, "high": 6},
    "solver": {"type": "categorical", "choices": ["adam", "sgd", "rmsprop"]},
    "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"solver": "sgd"}},
    "dropout": {"type": "real", "low": 0, "high": 0.5, "step": 0.05},
}


def _training(point: Mapping[str, Any]) -> Costs:
    best = {"adam": -3.0, "sgd": -1.7, "rmsprop": -3.5}[point["solver"]]
    size = point["layers"] * point["width"]
    loss = 0.3 * (math.log10(point["lr"]) - best) ** 2 + 0.05 * (point["solver"] == "rmsprop")
    loss += 0.6 / math.log(2 + size / 20) + (point["dropout"] - 0.03 * math.log(size)) ** 2
    if "momentum" in point:
        loss += 2 * (point["momentum"] - 0.9) ** 2 - 0.03
    return loss, math.log10(point["layers"] * point["width"] ** 1.5) + 0.1 * (point["solver"] != "sgd")


PROBLEMS = {
    "ZDT1": Problem(_plane(6), _zdt(0.5), (1.1, 2.0)),
    "ZDT2": Problem(_plane(6), _zdt(2.0), (1.1, 2.0)),
    "DTLZ2": Problem(_plane(6), _dtlz2, (1.1, 1.1, 1.1)),
    "training": Problem(_TRAINING, _training, (1.0, 5.0)),
}


def ours(name: str, problem: Problem, seed: int) -> list[Costs]:
    space = SearchSpace.from_dict(problem.space)
    optimizer = create_optimizer(name, space, seed=seed, trials=TRIALS, objectives=len(problem.reference))
    found: list[Costs] = []
    while len(found) < TRIALS:
        points = optimizer.ask(BATCH, [])
        results = [(point, problem.costs(point)) for point in points]
        optimizer.tell(results)
        found += [costs for _, costs in results]
    return found


def optunas(name: str, problem: Problem, seed: int) -> list[Costs]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers: dict[str, Callable[[], Any]] = {
        "NSGAIISampler": lambda: optuna.samplers.NSGAIISampler(seed=seed, population_size=16),  # best of 8, 16, 24, 50
        "TPESampler": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "GPSampler": lambda: optuna.samplers.GPSampler(seed=seed, deterministic_objective=True),
    }
    study = optuna.create_study(directions=["minimize"] * len(problem.reference), sampler=samplers[name]())
    found: list[Costs] = []
    while len(found) < TRIALS:
        asked = [study.ask() for _ in range(BATCH)]
        results = [(trial, problem.costs(_suggested(trial, problem.space))) for trial in asked]
        for trial, costs in results:
            study.tell(trial, costs)
            found.append(costs)
    return found


def _suggested(trial: Any, space: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, domain in space.items():
        if any(point.get(parent) != value for parent, value in domain.get("when", {}).items()):
            continue
        if domain["type"] == "categorical":
            point[name] = trial.suggest_categorical(name, domain["choices"])
            continue
        is_log = domain.get("scale") == "log"
        if domain["type"] == "integer":
            point[name] = trial.suggest_int(name, domain["low"], domain["high"], log=is_log)
        else:
            step = domain.get("step")
            point[name] = trial.suggest_float(name, domain["low"], domain["high"], log=is_log, step=step)
    return point


def measure(*, quick: bool) -> dict[str, Any]:
    """Prints and returns median hypervolumes and CPU-seconds a run."""
    seeds = 3 if quick else 10
    runners: dict[str, tuple[Callable[[str, Problem, int], list[Costs]], int]] = {}
    runners |= dict.fromkeys(("bayesian", "evolutionary", "random"), (ours, seeds))
    if importlib.util.find_spec("optuna"):
        runners |= dict.fromkeys(("NSGAIISampler", "TPESampler"), (optunas, seeds))
        if importlib.util.find_spec("torch") and not quick:
            runners["GPSampler"] = (optunas, 2)
    print(f"median hypervolume after {TRIALS} trials in batches of {BATCH}, and CPU-seconds a run; {seeds} seeds")
    print(f"{'':14}" + "".join(f"{name:>16}" for name in PROBLEMS))
    figures: dict[str, Any] = {}
    for name, (runner, runs) in runners.items():
        row = figures[name] = {}
        for title, problem in PROBLEMS.items():
            begun = time.process_time()
            volumes = [hypervolume(costs_of(runner(name, problem, seed)), problem.reference) for seed in range(runs)]
            seconds = (time.process_time() - begun) / runs
            row[title] = {"hypervolumes": volumes, "median": statistics.median(volumes), "cpu_seconds": seconds}
        cells = (f"{cell['median']:.3f} ({cell['cpu_seconds']:.1f} s)" for cell in row.values())
        print(f"{name:14}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    return figures
