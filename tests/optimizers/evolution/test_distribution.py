"""The distribution of CMA-ES where DEAP's knows nothing: choices and inactive dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers.base import stream
from hpo_pilot.optimizers.cma import Distribution, Genotype
from hpo_pilot.search import SearchSpace

SPACE: dict[str, Any] = {
    "x": {"type": "real", "low": -1, "high": 1},
    "n": {"type": "integer", "low": 0, "high": 9},
    "w": {"type": "integer", "low": 1, "high": 100, "scale": "log"},
    "c": {"type": "categorical", "choices": ["a", "b", "c", "d"]},
    "only": {"type": "categorical", "choices": ["one"]},
    "t": {"type": "real", "low": 0, "high": 1, "when": {"c": "a"}},
}


def make(population: int = 8) -> tuple[SearchSpace, Distribution]:
    space = SearchSpace.from_dict(SPACE)
    genotype = Genotype(space)
    return space, Distribution(genotype, np.full(len(genotype.ordered), 0.5), 0.25, population)


def update(space: SearchSpace, distribution: Distribution, points: list[dict[str, Any]], seed: int) -> None:
    units = np.array([space.encode(point) for point in points])
    active = np.array([[name in point for name in space.names] for point in points])
    distribution.update(units, active, [float(i) for i in range(len(points))], np.random.default_rng(seed))


def test_an_inactive_dimension_does_not_drift() -> None:
    space, distribution = make()
    rng = stream(1, "inactive")
    for seed in range(150):
        points = [space.decode([0.5 + 0.2 * rng.random(), rng.random(), rng.random(), 0.9, 0.5, 0.5]) for _ in range(8)]
        assert all("t" not in point for point in points)
        update(space, distribution, sorted(points, key=lambda point: abs(point["x"] - 0.3)), seed)
    assert distribution.centroid[3] == pytest.approx(0.5, abs=1e-12)
    assert abs(distribution.centroid[0] - 0.65) < 0.05


def test_shares_follow_the_better_half_and_keep_a_margin() -> None:
    space, distribution = make()
    good = {"x": 0.0, "n": 5, "w": 10, "c": "b", "only": "one"}
    bad = {**good, "c": "d"}
    update(space, distribution, [good] * 4 + [bad] * 4, 0)
    assert distribution.shares[0].tolist() == pytest.approx([0.125, 0.625, 0.125, 0.125])  # half of the way
    for seed in range(60):
        update(space, distribution, [good] * 4 + [bad] * 4, seed)
    assert distribution.shares[0].min() == pytest.approx(1 / (8 * 6), rel=0.1)
    assert distribution.shares[0].sum() == pytest.approx(1.0)


def test_nothing_to_learn() -> None:
    space = SearchSpace.from_dict({"c": SPACE["c"], "only": SPACE["only"]})
    distribution = Distribution(Genotype(space), np.array([0.5]), 0.25, 4)
    update(space, distribution, [{"c": "a", "only": "one"}] * 4, 0)
    assert not distribution.is_spent()
    assert space.decode(distribution.sample(np.zeros(1), np.array([0.1, 0.1]))) == {"c": "a", "only": "one"}
