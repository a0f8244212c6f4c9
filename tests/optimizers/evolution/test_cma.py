"""CMA-ES: what it finds, its distribution and its draws."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import stream
from hpo_pilot.optimizers.cma import CmaOptimizer, Distribution, Genotype, mirrored_steps
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
    assert state.distribution.population == 4
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


# --- the distribution: choices and inactive dimensions, of which DEAP's knows nothing ---


EVERY_KIND: dict[str, Any] = {
    "x": {"type": "real", "low": -1, "high": 1},
    "n": {"type": "integer", "low": 0, "high": 9},
    "w": {"type": "integer", "low": 1, "high": 100, "scale": "log"},
    "c": {"type": "categorical", "choices": ["a", "b", "c", "d"]},
    "only": {"type": "categorical", "choices": ["one"]},
    "t": {"type": "real", "low": 0, "high": 1, "when": {"c": "a"}},
}


def fresh(population: int = 8) -> tuple[SearchSpace, Distribution]:
    space = SearchSpace.from_dict(EVERY_KIND)
    genotype = Genotype(space)
    return space, Distribution(genotype, np.full(len(genotype.ordered), 0.5), 0.25, population)


def update(space: SearchSpace, distribution: Distribution, points: list[dict[str, Any]], seed: int) -> None:
    units = np.array([space.encode(point) for point in points])
    active = np.array([[name in point for name in space.names] for point in points])
    distribution.update(units, active, [float(seed + i) for i in range(len(points))], np.random.default_rng(seed))


def test_an_inactive_dimension_does_not_drift() -> None:
    space, distribution = fresh()
    rng = stream(1, "inactive")
    for seed in range(150):
        points = [space.decode([0.5 + 0.2 * rng.random(), rng.random(), rng.random(), 0.9, 0.5, 0.5]) for _ in range(8)]
        assert all("t" not in point for point in points)
        update(space, distribution, sorted(points, key=lambda point: abs(point["x"] - 0.3)), seed)
    assert distribution.centroid[3] == pytest.approx(0.5, abs=1e-12)
    assert abs(distribution.centroid[0] - 0.65) < 0.05


def test_shares_follow_the_better_half_and_keep_a_margin() -> None:
    space, distribution = fresh()
    good = {"x": 0.0, "n": 5, "w": 10, "c": "b", "only": "one"}
    bad = {**good, "c": "d"}
    update(space, distribution, [good] * 4 + [bad] * 4, 0)
    assert distribution.shares[0].tolist() == pytest.approx([0.125, 0.625, 0.125, 0.125])  # half of the way
    for seed in range(60):
        update(space, distribution, [good] * 4 + [bad] * 4, seed)
    assert distribution.shares[0].min() == pytest.approx(1 / (8 * 6), rel=0.1)
    assert distribution.shares[0].sum() == pytest.approx(1.0)


def test_shares_are_kept_where_no_dimension_is_ordered() -> None:
    space = SearchSpace.from_dict({"c": EVERY_KIND["c"], "only": EVERY_KIND["only"]})
    distribution = Distribution(Genotype(space), np.array([0.5]), 0.25, 4)
    for seed in range(1000):
        update(space, distribution, [{"c": choice, "only": "one"} for choice in "abcd"], seed)
    assert not distribution.is_spent()
    assert int(np.argmax(distribution.shares[0])) == 0
    assert space.decode(distribution.sample(np.zeros(1), np.array([0.1, 0.1]))) == {"c": "a", "only": "one"}


# --- even draws ---


def test_steps_come_in_mirrored_pairs_at_right_angles() -> None:
    steps = mirrored_steps(np.random.default_rng(1), 14, 3)
    assert steps.shape == (14, 3)
    np.testing.assert_array_equal(steps[0::2], -steps[1::2])
    for first in (0, 6):
        products = steps[first : first + 6 : 2] @ steps[first : first + 6 : 2].T
        np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-12)
    assert mirrored_steps(np.random.default_rng(1), 7, 3).shape == (7, 3)


@pytest.mark.parametrize("coordinates", [1, 2, 5])
def test_each_step_by_itself_is_normal(coordinates: int) -> None:
    rng = np.random.default_rng(2)
    steps = np.concatenate([mirrored_steps(rng, 4, coordinates)[::2] for _ in range(1000)])
    for column in (0, coordinates - 1):
        assert kstest(steps[:, column], "norm").pvalue > 1e-3
    np.testing.assert_allclose(np.cov(steps.T), np.eye(coordinates), atol=0.12)


def test_points_asked_for_one_by_one_are_those_of_a_batch() -> None:
    space = SearchSpace.from_dict({"x": REAL, "c": {"type": "categorical", "choices": [*"abcd"]}})
    settings = {"population": 8, "sigma": 0.05}  # so narrow that no step leads out of the bounds
    batch = create_optimizer("cma", space, seed=3, settings=settings).ask(8, [])
    single = create_optimizer("cma", space, seed=3, settings=settings)
    points: list[dict[str, object]] = []
    for _ in range(8):
        points += single.ask(1, points)
    assert points == batch
    assert sum(point["x"] for point in points) == pytest.approx(8 * 0.5)
