from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import stream
from hpo_pilot.optimizers.cma import CmaOptimizer
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import CUBE, REAL, best, run, sphere

MIXED = SearchSpace.from_dict(
    {
        "x": {"type": "real", "low": -1, "high": 1},
        "n": {"type": "integer", "low": 0, "high": 9},
        "w": {"type": "integer", "low": 1, "high": 100, "scale": "log"},
        "c": {"type": "categorical", "choices": ["a", "b", "c", "d"]},
        "yes": {"type": "categorical", "choices": [False, True]},
        "t": {"type": "real", "low": 0, "high": 1, "when": {"yes": True}},
    }
)


def make(space: SearchSpace, seed: int = 1, **settings: Any) -> CmaOptimizer:
    optimizer = create_optimizer("cma", space, seed=seed, settings=settings)
    assert isinstance(optimizer, CmaOptimizer)
    return optimizer


def mixed(point: dict[str, Any]) -> float:
    value = (point["x"] - 0.3) ** 2 + (point["n"] - 7) ** 2 / 9 + (np.log(point["w"]) - 3) ** 2 / 4
    return float(value + 0.5 * "cabd".index(point["c"]) + ((point["t"] - 0.8) ** 2 if point["yes"] else 0.3))


def test_it_finds_integers_and_choices() -> None:
    found = [best(run(make(MIXED, seed), mixed, 50)) for seed in range(5)]
    plain = [best(run(create_optimizer("random", MIXED, seed=seed), mixed, 50)) for seed in range(5)]
    assert statistics.median(found) < 0.05 < statistics.median(plain)


def test_updates_wait_for_enough_good_values() -> None:
    optimizer = make(CUBE, population=6)
    points = optimizer.ask(20, [])
    optimizer.tell([(point, None) for point in points[:10]])
    optimizer.tell([(points[10], 1.0), (points[11], 2.0)])
    assert optimizer.run(6).distribution.updates == 0
    optimizer.tell([(points[12], 3.0)])  # three parents, at last
    assert optimizer.run(6).distribution.updates == 1


def test_it_starts_over_when_nothing_changes() -> None:
    optimizer = make(CUBE, population=4)
    run(optimizer, lambda _: 1.0, 60, batch=4)
    state = optimizer.run(4)
    assert state.restarts >= 1
    assert state.distribution.population >= 8
    assert np.all(np.isfinite(state.distribution.spread))


@pytest.mark.parametrize(
    ("n", "pending", "population"),
    [
        (1, 0, 7),  # 4 + 2 ln 5
        (1, 7, 7),
        (8, 0, 8),  # whole batches
        (16, 0, 8),
        (32, 0, 12),
        (64, 0, 16),  # a quarter of the width
        (1, 63, 16),
        (60, 0, 16),
        (128, 0, 32),
        (1000, 0, 256),
        (5000, 0, 256),
    ],
)
def test_the_population_follows_the_width(n: int, pending: int, population: int) -> None:
    assert make(CUBE).population(n, pending) == population
    assert make(CUBE, population=5).population(n, pending) == 5


def test_another_width_in_between_changes_nothing() -> None:
    steady, changing = make(MIXED), make(MIXED)
    for number in range(12):
        points = steady.ask(8, [])
        told = [(point, mixed(point)) for point in points]
        steady.tell(told)
        changing.tell(told)
        changing.ask((1, 40, 100, 200, 400)[number % 5], [])  # more populations than runs are kept
    assert steady.ask(8, []) == changing.ask(8, [])


def test_a_stopped_trial_is_never_ahead_of_the_best_finished_one() -> None:
    optimizer = make(CUBE, population=4)
    points = optimizer.ask(4, [])
    optimizer.tell([(points[0], 1.0, None, False), (points[1], -5.0, None, True), (points[2], 2.0, None, False)])
    assert [value for value, _, _ in optimizer.run(4).best] == [1.0, 2.0]
    assert [value for _, value in optimizer.run(4)._chunk] == [1.0, 1.0, 2.0]


def test_where_little_is_feasible_it_looks_near_the_best() -> None:
    box = {f"x{i}": REAL for i in range(3)}
    space = SearchSpace.from_dict(box, ["x0 + x1 <= 0.1", "x2 > 0.9"])  # 0.05% of the box

    def value(point: dict[str, Any]) -> float:
        return float((point["x0"] - 0.03) ** 2 + (point["x1"] - 0.05) ** 2 + (point["x2"] - 0.95) ** 2)

    for name, limit in (("cma", 1e-5), ("random", 1e-2)):
        assert best(run(create_optimizer(name, space, seed=3), value, 12)) < limit


def test_it_starts_where_the_best_of_earlier_searches_lie() -> None:
    rng = stream(5, "earlier")
    earlier = [{f"x{i}": rng.uniform(-1, 1) for i in range(5)} for _ in range(200)]
    warm, cold = make(CUBE, seed=2), make(CUBE, seed=2)
    warm.tell_earlier("old", [(point, sphere(point) * 7 - 3) for point in earlier])
    assert statistics.median(map(sphere, warm.ask(8, []))) < 0.8 * statistics.median(map(sphere, cold.ask(8, [])))
    twin = make(CUBE, seed=2)
    twin.ask(3, [])
    twin.tell_earlier("old", [(point, sphere(point) * 7 - 3) for point in earlier])
    assert twin.ask(8, []) == warm.ask(8, [])


def test_too_little_of_an_earlier_search_changes_nothing() -> None:
    warm, cold = make(MIXED), make(MIXED)
    points = cold.ask(8, [])
    warm.tell_earlier("old", [(point, 1.0) for point in points] + [({"x": 9.0}, 0.0)])
    warm.tell_earlier("older", [(point, float(i)) for i, point in enumerate(points[:4])])
    assert warm.ask(4, []) == cold.ask(4, [])
    warm.tell_earlier("small", [(point, float(i)) for i, point in enumerate(points)])
    assert warm.ask(4, []) != cold.ask(4, [])
