"""One measurement of speed, in a process of its own: `-m tests.performance.optimizers.speed_probe NAME TOLD ASK`.

Prints a JSON object: CPU seconds (without imports) to make the optimizer and tell it everything (`build`), of the one
`ask`, and the peak memory in MB, which before the optimizer is made was `before`.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import Point, SearchSpace, point_key
from tests.performance.optimizers.problems import problem
from tests.performance.optimizers.runners import OURS

_WARM = 20


def _space() -> SearchSpace:
    """Eight mixed dimensions: those of `mixed7` and one more."""
    seven = problem("mixed7").space.model_dump()["dimensions"]
    return SearchSpace.from_dict({**seven, "momentum": {"type": "real", "low": 0.0, "high": 1.0}})


def _told(space: SearchSpace, count: int) -> list[tuple[Point, float]]:
    """Distinct random points with their values, a little noise on them."""
    dice, seven = random.Random(1), problem("mixed7")
    points: dict[str, Point] = {}
    while len(points) < count:
        point = space.decode([dice.random() for _ in space.names])
        points[point_key(point)] = point
    return [
        (p, (seven.function(p) or 0.0) + 0.1 * (p["momentum"] - 0.8) ** 2 + dice.gauss(0.0, 0.01))
        for p in points.values()
    ]


def _ours(name: str, space: SearchSpace, told: list[tuple[Point, float]]) -> Callable[[int], int]:
    optimizer = create_optimizer(name, space, seed=1, trials=2 * len(told))
    optimizer.tell(told)
    return lambda n: len(optimizer.ask(n, []))


def _optuna(name: str, space: SearchSpace, told: list[tuple[Point, float]]) -> Callable[[int], int]:
    import optuna

    from tests.performance.optimizers.runners.optuna_samplers import distribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    makers: dict[str, Any] = {"optuna-tpe": optuna.samplers.TPESampler, "optuna-gp": optuna.samplers.GPSampler}
    study = optuna.create_study(sampler=makers[name](seed=1))
    distributions = {n: distribution(dimension) for n, dimension in space.dimensions.items()}
    study.add_trials(
        [optuna.create_trial(params=point, distributions=distributions, value=value) for point, value in told]
    )
    return lambda n: len([study.ask(distributions) for _ in range(n)])


def main() -> None:
    name, told_count, asked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    space = _space()
    told = _told(space, told_count)
    make = _ours if name in OURS else _optuna
    make(name, space, told[:_WARM])(1)  # what is imported on first use is no cost of this ask
    before = _peak()
    begun = time.process_time()
    ask = make(name, space, told)
    built = time.process_time()
    proposed = ask(asked)
    ended = time.process_time()
    assert proposed == asked
    figures = {"build": built - begun, "ask": ended - built, "peak_mb": _peak(), "before_mb": before}
    print(json.dumps(figures))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


main()
