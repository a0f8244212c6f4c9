"""``python -m tests.performance ablation``: what each rule of `auto` is worth, by switching it off.

Runs `auto` as it is, and without one rule at a time, on the development problems with the same seeds. `rank` is the
mean rank among all of these; `worse` counts the runs that are worse without the rule, of those that differ, and `p` is
Wilcoxon's over them. A rule that is worth nothing anywhere should go. Rules are switched off by replacing parts of the
optimizer's modules here: the product has no switches.

Runs are stored as they end, in build/bench/optimizers/ablation; those of the same sources are not done again.
`--problem`, `--setting` and `--seeds` choose, `--runner` names rules, `--show` runs nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

from hpo_pilot.optimizers import bayesian, objective_models, training_data
from tests.performance.optimizers.problem import SETTINGS
from tests.performance.optimizers.problems import SUITES, problem
from tests.performance.optimizers.run import run
from tests.performance.optimizers.store import FRESH, Store, environment, runner_version
from tests.performance.optimizers.tables import mean_ranks, p_over_runs, regrets

FOLDER = FRESH.parent / "ablation"
_WHOLE = "auto"
_QUICK = ("dev:mixed:0", "dev:valley:0")


def _one_model(trend: bool) -> Any:
    """`ValuesLearner.models` with one of the two processes only."""
    wanted = objective_models.ValuesLearner.models

    def models(self: Any, known: int) -> list[Any]:
        return wanted(self, known)[:1] if trend else wanted(self, 0)[1:]

    return models


_near = bayesian.Candidates._near
_scaled_values = training_data.scaled_values

#: Rule -> the parts of hpo_pilot.optimizers that are replaced to switch it off.
RULES: dict[str, dict[str, Any]] = {
    "process with a trend": {"objective_models.ValuesLearner.models": _one_model(False)},
    "process without a trend": {"objective_models.ValuesLearner.models": _one_model(True)},
    "scale of the values": {"objective_models.scaled_values": lambda values: _scaled_values(values)[:1]},
    "priors of the hyper-parameters": {
        "gaussian_process._log_prior": lambda theta, scales: (0.0, np.zeros_like(theta)),
    },
    "evenly distributed start": {"bayesian.BayesianOptimizer._start": lambda self, proposals, count: None},
    "candidates near the best": {
        "bayesian.Candidates._near": lambda self, best, count, numbers: _near(self, best[:1], 1, numbers),
    },
    "gradient ascent": {"bayesian._MOST_CLIMBS": 0, "bayesian._LEAST_CLIMBS": 0},
    "spacing of pending points": {"bayesian._SHARE": 0.0},
    "model of failures": {
        "objective_models.SuccessLearner.caution": lambda self, *_: objective_models.Caution(None, 0.0),
    },
    "penalties are failures": {"training_data.penalties": lambda values, rows: np.zeros(len(values), dtype=bool)},
    "narrow dimensions are stretched": {"training_data._NARROW": 0.0},
}


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Switches a rule off."""
    with ExitStack() as stack:
        for name, part in RULES[rule].items():
            stack.enter_context(mock.patch(f"hpo_pilot.optimizers.{name}", part))
        yield


def measure(*, quick: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing, and prints the table."""
    problems = options.problem or (_QUICK if quick else SUITES["dev"])
    setting = (options.setting or ["8x12"])[0]
    rules = [rule for rule in RULES if not options.runner or rule in options.runner]
    seeds = range(options.seeds or (1 if quick else 5))
    store, version = Store([FOLDER]), runner_version("auto")
    names = [_WHOLE, *(f"without {rule}" for rule in rules)]
    for seed in seeds:
        for name in problems if not options.show else ():
            for variant in names:
                if (variant, version, name, problem(name).digest, setting, seed) in store.runs:
                    continue
                with ExitStack() as stack:
                    if variant != _WHOLE:
                        stack.enter_context(without(variant.removeprefix("without ")))
                    result = run("auto", name, setting, seed)
                stored = result.__class__(**{**result.__dict__, "runner": variant})
                store.add(stored, version, problem(name).digest, SETTINGS[setting].slots, environment("auto"))
    wanted = [
        stored
        for stored in store.runs.values()
        if stored.version == version
        and stored.runner in names
        and stored.problem in problems
        and stored.setting == setting
        and stored.digest == problem(stored.problem).digest
        and stored.seed in seeds
    ]
    return _print(wanted, [name for name in problems if any(stored.problem == name for stored in wanted)])


def _print(runs: list[Any], problems: list[str]) -> dict[str, Any]:
    found = regrets(runs)
    full = mean_ranks(found, problems)
    table = Table("", "rank", "worse", "p", "CPU-s", "runs", title_justify="left", title=f"{len(problems)} problems")
    figures: dict[str, Any] = {}
    whole = {(stored.problem, stored.seed): stored.regret for stored in runs if stored.runner == _WHOLE}
    for name in sorted(found, key=lambda name: full.get(name, 99.0)):
        mine = [stored for stored in runs if stored.runner == name]
        pairs = [(stored.regret, whole[key]) for stored in mine if (key := (stored.problem, stored.seed)) in whole]
        worse, differ = sum(a > b for a, b in pairs), sum(a != b for a, b in pairs)
        p = None if name == _WHOLE else p_over_runs(found[name], found[_WHOLE])
        cpu = statistics.median(stored.cpu for stored in mine)
        figures[name] = {"rank": full.get(name), "worse": worse, "differ": differ, "p": p, "cpu_seconds": cpu}
        rank = f"{full[name]:.2f}" if name in full else "–"
        of = "" if name == _WHOLE else f"{worse} of {differ}"
        table.add_row(name, rank, of, "" if p is None else f"{p:.2g}", f"{cpu:.1f}", str(len(mine)))
    Console(width=110, highlight=False).print(table)
    return figures
