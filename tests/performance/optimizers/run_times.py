"""``python -m tests.performance run-times``: `auto`, which learns run times, beside its `acquisition: plain`.

Eight workers train in simulated time; points are asked for by four, while those of the others are pending. The run
time of a training is a formula of its point, or the one recorded in a table, times normal noise of a tenth on its
logarithm. `ratio` is the time until the figure that plain `auto` has after 64 trials, as a share of plain's own time to
it: the geometric mean over seeds; a search that has not reached it by 1.25 times that time counts with 1.25. `at the
end` says in how many seeds the best value is better, and worse, when plain's 64 trials are over.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import Result
from hpo_pilot.search import Point, SearchSpace
from tests.performance.optimizers.problems import hpolib, problem, train_times

_WORKERS, _TRIALS, _MOST, _LATEST = 8, 64, 160, 1.25

#: Points are asked for by this number; they wait for free workers.
_ASKED = 4
_NOISE = 0.1

Function = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True)
class Timed:
    """A function to minimise, and the seconds that a point takes."""

    space: SearchSpace
    value: Function
    seconds: Function
    noise: float = _NOISE


# A network of `layers` layers of `units` units, trained on 60,000 samples for 20 epochs.

_NETWORK = SearchSpace.from_dict(
    {
        "learning_rate": {"type": "real", "low": 1e-4, "high": 1e-1, "scale": "log"},
        "layers": {"type": "integer", "low": 1, "high": 8},
        "units": {"type": "integer", "low": 16, "high": 1024, "scale": "log"},
        "batch": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
        "dropout": {"type": "real", "low": 0.0, "high": 0.6},
        "weight_decay": {"type": "real", "low": 1e-6, "high": 1e-2, "scale": "log"},
    }
)


def _network_seconds(point: Mapping[str, Any]) -> float:
    """20 seconds to start, a millisecond a step, and layers × units² operations a sample at 20 GFLOP/s: 22 to 620 s."""
    steps, operations = 60_000 / point["batch"], 60_000 * point["layers"] * point["units"] ** 2
    return float(20 + 20 * (0.001 * steps + operations / 2e10))


def _network(layers: int, units: int, batch: int) -> Function:
    """A loss that is 0 at this network; the best learning rate depends on units and batch."""

    def value(point: Mapping[str, Any]) -> float:
        wider, more = math.log2(point["units"] / units), math.log2(point["batch"] / batch)
        off = math.log10(point["learning_rate"]) + 2.6 + 0.12 * wider - 0.15 * more
        bowl = 0.3 * off * off / (1 + 0.2 * abs(off)) + 0.03 * (1 - math.cos(3 * off))
        bowl += 0.03 * wider * wider + 0.02 * (point["layers"] - layers) ** 2 + 0.02 * more * more
        bowl += 2 * (point["dropout"] - 0.15 - 0.03 * wider) ** 2 + 0.02 * (math.log10(point["weight_decay"]) + 5) ** 2
        return float(bowl)

    return value


def _table(name: str) -> Timed:
    one, seconds = hpolib(name), train_times(name)
    return Timed(one.space, _known(one.function), seconds)


def _known(function: Callable[[Mapping[str, Any]], float | None]) -> Function:
    def value(point: Mapping[str, Any]) -> float:
        found = function(point)
        assert found is not None
        return found

    return value


def _hartmann() -> Timed:
    one = problem("hartmann6")
    return Timed(one.space, _known(one.function), lambda point: 60 * math.exp(2 * (point["x0"] + point["x3"])))


#: The problems by name. The best point is of medium cost, cheap, or the dearest; run times are constant, random, or
#: differ by no more than a factor of two; a known function; recorded run times of 62,208 trainings.
PROBLEMS: dict[str, Callable[[], Timed]] = {
    "medium": lambda: Timed(_NETWORK, _network(4, 256, 64), _network_seconds),
    "cheap": lambda: Timed(_NETWORK, _network(1, 24, 400), _network_seconds),
    "dearest": lambda: Timed(_NETWORK, _network(8, 1024, 16), _network_seconds),
    "constant": lambda: Timed(_NETWORK, _network(4, 256, 64), lambda _: 100.0),
    "random": lambda: Timed(_NETWORK, _network(4, 256, 64), lambda _: 100.0, noise=1.0),
    "by two": lambda: Timed(_NETWORK, _network(4, 256, 64), lambda point: 60 * (1 + point["layers"] / 8)),
    "hartmann6": _hartmann,
    "naval_propulsion": lambda: _table("naval_propulsion"),
    "protein_structure": lambda: _table("protein_structure"),
}


def measure(*, quick: bool) -> dict[str, Any]:
    """Prints and returns the figures of each problem."""
    table = Table("problem", "ratio", "at the end", "worst", "seconds a trial")
    figures: dict[str, Any] = {}
    for name in list(PROBLEMS)[:3] if quick else PROBLEMS:
        figures[name] = compared(PROBLEMS[name](), range(3 if quick else 10))
        row = figures[name]
        table.add_row(
            name,
            f"{row['ratio']:.2f}",
            f"{row['better']} better, {row['worse']} worse",
            f"{max(row['ratios']):.2f}",
            f"{row['seconds'][0]:.0f} → {row['seconds'][1]:.0f}",
        )
    Console(width=100, highlight=False).print(table)
    return figures


def compared(one: Timed, seeds: range) -> dict[str, Any]:
    """Returns the figures of the default beside the plain acquisition."""
    ratios, ends, seconds = [], [], []
    for seed in seeds:
        plain = search(one, {"acquisition": "plain"}, seed)
        goal, end = plain[-1][1], plain[-1][0]
        reached = _reached(plain, goal)
        other = search(one, {}, seed, until=max(end, _LATEST * reached))
        ratios.append(min(_LATEST, _reached(other, goal) / reached))
        ends.append(min((value for at, value, _ in other if at <= end), default=math.inf) - goal)
        seconds.append([statistics.fmean(took for _, _, took in run) for run in (plain, other)])
    return {
        "ratio": statistics.geometric_mean(ratios),
        "ratios": ratios,
        "better": sum(end < 0 for end in ends),
        "worse": sum(end > 0 for end in ends),
        "seconds": [statistics.fmean(column) for column in zip(*seconds, strict=True)],
    }


def _reached(run: list[tuple[float, float, float]], goal: float) -> float:
    return next((at for at, best, _ in run if best <= goal), math.inf)


def search(
    one: Timed, settings: Mapping[str, Any], seed: int, until: float | None = None
) -> list[tuple[float, float, float]]:
    """Returns (time, best value so far, run time) at each result; until 64 trials, or the time `until`."""
    optimizer = create_optimizer("auto", one.space, seed=seed, trials=_TRIALS, settings=settings)
    dice = random.Random(f"run times {seed}")
    out: list[tuple[float, int, Point, float]] = []
    found: list[tuple[float, float, float]] = []
    started, now, best = 0, 0.0, math.inf
    most, latest = (_TRIALS, math.inf) if until is None else (_MOST, until)
    waiting: list[Point] = []
    while (started < most and now < latest) or out:
        while len(out) < _WORKERS and started < most and now < latest:
            waiting = waiting or optimizer.ask(_WORKERS if not started else _ASKED)
            point = waiting.pop(0)
            took = one.seconds(point) * math.exp(dice.gauss(0.0, one.noise))
            heapq.heappush(out, (now + took, started, point, took))
            started += 1
        now, _, point, took = heapq.heappop(out)
        value = one.value(point)
        best = min(best, value)
        found.append((now, best, took))
        optimizer.tell([Result(point, value, seconds=took)])
    return found
