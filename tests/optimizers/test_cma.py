from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.cma import CmaOptimizer
from hpo_pilot.optimizers.genotype import Genotype
from hpo_pilot.optimizers.streams import stream
from hpo_pilot.search import SearchSpace

CUBE = SearchSpace.from_dict({f"x{i}": {"type": "real", "low": -1, "high": 1} for i in range(5)})
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


def best_of(optimizer: Any, function: Any, batches: int) -> float:
    best = float("inf")
    for _ in range(batches):
        told = [(point, function(point)) for point in optimizer.ask(8, [])]
        best = min(best, *(value for _, value in told))
        optimizer.tell(told)
    return best


def sphere(point: dict[str, Any]) -> float:
    return sum((value - 0.3) ** 2 for value in point.values())


def mixed(point: dict[str, Any]) -> float:
    value = (point["x"] - 0.3) ** 2 + (point["n"] - 7) ** 2 / 9 + (np.log(point["w"]) - 3) ** 2 / 4
    return float(value + 0.5 * "cabd".index(point["c"]) + ((point["t"] - 0.8) ** 2 if point["yes"] else 0.3))


def test_it_converges_on_a_sphere() -> None:
    assert statistics.median(best_of(make(CUBE, seed), sphere, 40) for seed in range(5)) < 1e-4


def test_it_finds_integers_and_choices() -> None:
    found = [best_of(make(MIXED, seed), mixed, 50) for seed in range(5)]
    plain = [best_of(create_optimizer("random", MIXED, seed=seed), mixed, 50) for seed in range(5)]
    assert statistics.median(found) < 0.05 < statistics.median(plain)


def test_updates_wait_for_enough_good_values() -> None:
    optimizer = make(CUBE, population=6)
    points = optimizer.ask(20, [])
    optimizer.tell([(point, None) for point in points[:10]])
    optimizer.tell([(points[10], 1.0), (points[11], 2.0)])
    assert optimizer._strategy.update_count == 0
    optimizer.tell([(points[12], 3.0)])  # three parents, at last
    assert optimizer._strategy.update_count == 1
    assert optimizer._chunk == []


def test_it_starts_over_when_nothing_changes() -> None:
    optimizer = make(CUBE, population=4)
    for _ in range(60):
        optimizer.tell([(point, 1.0) for point in optimizer.ask(4, [])])
    assert optimizer._restarts >= 1
    assert optimizer._strategy.lambda_ >= 8
    assert np.all(np.isfinite(optimizer._strategy.C))


def test_points_outside_the_space_teach_nothing() -> None:
    optimizer = make(CUBE)
    optimizer.tell([({f"x{i}": 2.0 for i in range(5)}, 0.0)] * 30)
    assert optimizer._strategy.update_count == 0


def test_vectors_stand_for_their_points() -> None:
    genotype = Genotype(MIXED)
    assert genotype.size == 1 + 1 + 1 + 4 + 1 + 1
    for seed in range(200):
        rng = stream(seed, "test")
        unit = [rng.random() for _ in MIXED.dimensions]
        point = MIXED.decode(unit)
        encoded = tuple(MIXED.encode(point))
        vector = genotype.vector(point, encoded, stream(seed, "cell"), np.full(genotype.size, 0.5))
        assert MIXED.decode(genotype.unit(vector, rng, margin=0.0)).keys() == point.keys()
        for name, value in MIXED.decode(genotype.unit(vector, rng, margin=0.0)).items():
            assert value == pytest.approx(point[name])


def test_a_margin_keeps_every_value_alive() -> None:
    genotype = Genotype(MIXED)
    vector = np.full(genotype.size, 0.55)
    units = [genotype.unit(vector, stream(seed, "margin"), margin=0.3) for seed in range(300)]
    points = [MIXED.decode(unit) for unit in units]
    assert {point["n"] for point in points} == {4, 5, 6}
    assert {point["c"] for point in points} == {"a", "b", "c", "d"}
    assert {point["yes"] for point in points} == {False, True}
