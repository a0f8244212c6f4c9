"""The distribution of CMA-ES where DEAP's knows nothing: cells, choices and inactive dimensions."""

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


def test_coordinates_and_choices() -> None:
    genotype = Genotype(SearchSpace.from_dict(SPACE))
    assert (genotype.ordered, genotype.categorical, genotype.choices) == ([0, 1, 2, 5], [3], [4])
    assert genotype.discrete == {1, 2}


def test_cells_are_what_decodes_to_the_value() -> None:
    space = SearchSpace.from_dict(SPACE)
    genotype = Genotype(space)
    for column, name in ((1, "n"), (2, "w")):
        dimension = space.dimensions[name]
        for value in range(1, 10):
            (low,), (high,) = genotype.cells(column, np.array([dimension.to_unit(value)]))
            assert dimension.from_unit(low + 1e-9) == dimension.from_unit(high - 1e-9) == value
            assert genotype.width(column, (low + high) / 2) == pytest.approx(high - low)


def test_coordinates_of_discrete_values_stay_in_their_cells() -> None:
    space, distribution = make()
    genotype = Genotype(space)
    points = [space.decode([i / 40 + 0.01] * 6) for i in range(40)]
    units = np.array([space.encode(point) for point in points])[:, genotype.ordered]
    for seed in range(5):
        vectors, has = distribution._vectors(units, np.ones(units.shape), np.random.default_rng(seed))
        assert has.all()
        for column in genotype.discrete:
            low, high = genotype.cells(column, units[:, column])
            assert np.all((vectors[:, column] >= low - 1e-12) & (vectors[:, column] <= high + 1e-12))
        np.testing.assert_array_equal(vectors[:, 0], units[:, 0])


def test_an_inactive_dimension_neither_drifts_nor_shrinks() -> None:
    space, distribution = make()
    rng = stream(1, "inactive")
    for seed in range(150):
        points = [space.decode([0.5 + 0.2 * rng.random(), rng.random(), rng.random(), 0.9, 0.5, 0.5]) for _ in range(8)]
        assert all("t" not in point for point in points)
        update(space, distribution, sorted(points, key=lambda point: abs(point["x"] - 0.3)), seed)
    assert distribution.centroid[3] == pytest.approx(0.5, abs=1e-12)
    assert distribution.spread[3] == pytest.approx(0.25)
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


def test_a_margin_keeps_every_value_alive() -> None:
    space = SearchSpace.from_dict({name: SPACE[name] for name in ("n", "w")})
    distribution = Distribution(Genotype(space), np.array([0.55, 0.55]), 1e-6, 4)
    normal, rng = np.random.default_rng(1), stream(1, "margin")
    points = [space.decode(distribution.sample(normal.standard_normal(2), normal.random(2), rng)) for _ in range(400)]
    assert {point["n"] for point in points} == {4, 5, 6}
    assert len({point["w"] for point in points}) == 3


def test_nothing_to_learn() -> None:
    space = SearchSpace.from_dict({"c": SPACE["c"], "only": SPACE["only"]})
    distribution = Distribution(Genotype(space), np.array([0.5]), 0.25, 4)
    update(space, distribution, [{"c": "a", "only": "one"}] * 4, 0)
    assert not distribution.is_spent()
    assert space.decode(distribution.sample(np.zeros(1), np.array([0.1, 0.1]), stream(0))) == {"c": "a", "only": "one"}
