"""``python -m tests.performance prior``: what a right and a wrong belief (`prior`) do to the regret of `auto`.

A right belief is a tenth of each range beside the optimum, at random; a wrong one is half a range away from it. Both
say `within` a tenth of the range. Median regret over seeds, in batches of 8; the peer is the same search without one.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import Integer, Real, SearchSpace
from hpo_pilot.search.prior import Prior
from tests.performance.optimizers.problem import Problem
from tests.performance.optimizers.problems import problem

_PROBLEMS = ("branin", "hartmann6", "rosenbrock5", "ackley10", "mixed7")
_BATCH, _AFTER = 8, (16, 32, 96)
_BELIEFS = ("none", "right", "wrong")


def measure(*, quick: bool) -> dict[str, Any]:
    """Prints and returns the median regrets by problem and belief."""
    table = Table(*["problem", "belief", *(f"after {count}" for count in _AFTER)])
    figures: dict[str, Any] = {}
    for name in _PROBLEMS[:2] if quick else _PROBLEMS:
        figures[name] = {}
        for belief in _BELIEFS:
            runs = [_regrets(problem(name), belief, seed) for seed in range(3 if quick else 10)]
            figures[name][belief] = [statistics.median(column) for column in zip(*runs, strict=True)]
            table.add_row(name, belief, *(f"{regret:.3g}" for regret in figures[name][belief]))
    Console(width=100, highlight=False).print(table)
    return figures


def _regrets(one: Problem, belief: str, seed: int) -> list[float]:
    numbers, dice = np.random.default_rng(seed), random.Random(seed)
    prior = {}
    for name, dimension in one.space.dimensions.items() if belief != "none" else ():
        place = dimension.to_unit(one.best[name])
        if not isinstance(dimension, Real | Integer):
            place += 1 / dimension.size if belief == "wrong" else 0.0
            prior[name] = Prior(around=dimension.from_unit(place % 1.0))
            continue
        place += 0.1 * numbers.standard_normal() if belief == "right" else 0.5 if place < 0.5 else -0.5
        around = dimension.from_unit(min(0.95, max(0.05, place)))
        is_log, span = dimension.scale == "log", dimension.high - dimension.low
        within = (dimension.high / dimension.low) ** 0.1 if is_log else 0.1 * span
        prior[name] = Prior(around=around, within=within)
    space = SearchSpace(dimensions=one.space.dimensions, constraints=one.space.constraints, prior=prior)
    optimizer = create_optimizer("auto", space, seed=seed, trials=_AFTER[-1])
    values: list[float] = []
    while len(values) < _AFTER[-1]:
        told = [(point, one.evaluate(point, dice).value) for point in optimizer.ask(_BATCH)]
        values += [value for _, value in told]
        optimizer.tell(told)
    return [min(values[:count]) - one.minimum for count in _AFTER]
