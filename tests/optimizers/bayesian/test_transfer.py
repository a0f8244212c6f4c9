from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import Optimizer
from hpo_pilot.optimizers.gaussian_process import Posterior, best_fit
from hpo_pilot.optimizers.objective_models import Transfer
from hpo_pilot.optimizers.training_data import FeatureMap, Table, ToldTrials
from hpo_pilot.search import SearchSpace, point_key
from tests.optimizers.runs import REAL, best, check_slopes, run

Function = Callable[[dict[str, Any]], float]
SPACE = SearchSpace.from_dict({**{f"x{i}": REAL for i in range(4)}, "kind": {"type": "ordinal", "choices": [1, 2, 4]}})
BASIS = FeatureMap(SPACE).basis


def bowl(p: dict[str, Any], shift: float = 0.0) -> float:
    away = [p[f"x{i}"] - place - shift for i, place in enumerate((0.3, 0.7, 0.2, 0.6))]
    return sum((i + 1) * x * x for i, x in enumerate(away)) + away[0] * away[1] + abs(math.log2(p["kind"]) - 1) / 4


def some_points(count: int, seed: int) -> list[dict[str, Any]]:
    return create_optimizer("random", SPACE, seed=seed).ask(count, [])


def earlier_of(function: Function, count: int = 60, seed: int = 5) -> list[tuple[dict[str, Any], float]]:
    return [(point, function(point)) for point in some_points(count, seed)]


def best_after(trials: int, seed: int, earlier: list[tuple[dict[str, Any], float]] | None) -> float:
    optimizer = create_optimizer("bayesian", SPACE, seed=seed, trials=48)
    if earlier is not None:
        optimizer.tell_earlier("old", earlier)
    return best(run(optimizer, bowl, trials // 8))


def transfer_of(earlier: list[tuple[dict[str, Any], float]]) -> Transfer:
    return Transfer(FeatureMap(SPACE), {"old": table_of(earlier)}, 0, 0)


def table_of(trials: list[tuple[dict[str, Any], float]]) -> Table:
    optimizer, told = create_optimizer("random", SPACE), ToldTrials(len(SPACE.dimensions))
    optimizer.tell(trials)
    for observation in optimizer.history:
        told.add(observation)
    return told.table(len(told))


def own(function: Function, count: int, seed: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Features and standardised values of some trials of this search."""
    points = some_points(count, seed)
    values = np.array([function(point) for point in points])
    units = np.array([SPACE.encode(point) for point in points])
    return FeatureMap(SPACE).features(units), (values - values.mean()) / values.std()


def test_an_earlier_search_that_is_alike_saves_trials() -> None:
    earlier = earlier_of(lambda p: 1000 * bowl(p, 0.04) - 7)
    warm = [best_after(16, seed, earlier) for seed in range(3)]
    cold = [best_after(16, seed, None) for seed in range(3)]
    assert statistics.median(warm) < 0.03
    assert statistics.median(warm) < 0.3 * statistics.median(cold)


@pytest.mark.parametrize("count", [12, 30])
def test_the_evidence_tells_what_agrees_from_what_does_not(count: int) -> None:
    features, values = own(bowl, count)
    alone = best_fit(features, values, basis=BASIS, variances=np.zeros(count)).log_posterior

    def fit(function: Function) -> tuple[float, float]:
        found = transfer_of(earlier_of(function)).fit(features, values, basis=BASIS, variances=np.zeros(count))
        return float(found.weights[0]), found.log_evidence

    weight, evidence = fit(lambda p: 50 + 1e-3 * bowl(p, 0.04))
    assert weight > 0.6
    assert evidence > alone + 3
    opposite, evidence = fit(lambda p: -bowl(p))
    assert opposite < 0.15
    assert evidence < alone
    dice = random.Random(3)
    noise, evidence = fit(lambda p: dice.random())
    assert noise < 0.5
    assert evidence < alone + 3


def test_of_two_earlier_searches_the_one_that_agrees_counts() -> None:
    alike, unlike = (
        table_of(earlier_of(f)) for f in (lambda p: 9 * bowl(p), lambda p: (p["x0"] - 1) ** 2 - p["x1"] * p["x3"])
    )
    transfer = Transfer(FeatureMap(SPACE), {"alike": alike, "unlike": unlike}, 0, 0)
    features, values = own(bowl, 30)
    weights = transfer.fit(features, values, basis=BASIS, variances=np.zeros(30)).weights
    assert weights[0] > 0.6
    assert weights[1] < 0.2


def test_gradients_of_mean_and_variance_with_a_drift() -> None:
    transfer = transfer_of(earlier_of(bowl, 20))
    features, values = own(bowl, 9)
    found = transfer.fit(features, values, basis=BASIS, variances=np.zeros(9))
    drift = transfer.drift(found.weights, features)
    posterior = Posterior.of_data(found.found, features, values, None, drift).assuming(features[:2] + 0.05)
    at = np.array([[0.31, 0.55, 0.72, 0.4, 0.5], [0.9, 0.1, 0.35, 0.2, 1 / 6]])
    check_slopes(posterior, at)
    mean, _, slopes, _ = posterior.gradients(at)
    assert np.allclose(posterior.mean(at), mean)
    assert np.allclose(posterior.mean_slopes(at), slopes)


def test_half_of_the_start_points_lie_where_the_earlier_search_was_good() -> None:
    earlier = earlier_of(bowl)
    warm, cold = (create_optimizer("bayesian", SPACE, seed=1, trials=48) for _ in range(2))
    warm.tell_earlier("old", earlier)
    spread, asked = cold.ask(8, []), warm.ask(8, [])
    assert asked[:4] == spread[:4]
    typical = statistics.median(value for _, value in earlier)
    assert all(bowl(point) < typical for point in asked[4:])
    assert min(map(bowl, asked[4:])) < 0.1
    (next_one,) = warm.ask(1, asked[4:])  # nothing is told yet, and pending points are no place to go again
    places = [np.array(SPACE.encode(point)) for point in [next_one, *asked[4:]]]
    assert min(np.abs(place - places[0]).max() for place in places[1:]) > 0.01


def test_the_same_earlier_searches_give_the_same_points() -> None:
    one, other = earlier_of(bowl), earlier_of(lambda p: 5 * bowl(p, 0.1), 40, 6)
    grown, rebuilt = (create_optimizer("bayesian", SPACE, seed=2, trials=60) for _ in range(2))
    grown.tell_earlier("one", one)
    grown.tell_earlier("other", other)
    rebuilt.tell_earlier("other", other)
    rebuilt.tell_earlier("one", one)
    told = earlier_of(bowl, 23, 7)
    for count in (1, 2, 9, 11):
        first = len(grown.history)
        grown.ask(3, [])
        grown.tell(told[first : first + count])
    rebuilt.tell(told)
    pending = some_points(2, 9)
    assert grown.ask(6, pending) == rebuilt.ask(6, list(reversed(pending)))


def with_earlier(trials: list[Any]) -> Optimizer:
    optimizer = create_optimizer("bayesian", SPACE, seed=4, trials=48)
    optimizer.tell_earlier("old", trials)
    return optimizer


@pytest.mark.parametrize(
    "strange",
    [
        [],
        [(point, None) for point in some_points(20, 5)],
        [(point, 3.0) for point in some_points(20, 5)],
        [(point, bowl(point)) for point in some_points(2, 5)],
        [({**point, "kind": 9}, bowl(point)) for point in some_points(2, 5)] + [({"y": 1}, 0.1)] * 20,
        [({**point, "x0": 50.0}, 0.1 * i) for i, point in enumerate(some_points(20, 5))],
    ],
    ids=["none", "failed", "all the same", "too few", "other spaces", "far beyond"],
)
def test_what_teaches_nothing_changes_nothing(strange: list[Any]) -> None:
    plain = create_optimizer("bayesian", SPACE, seed=4, trials=48)
    told = earlier_of(bowl, 17, 7)
    optimizer = with_earlier(strange)
    assert optimizer.ask(5, []) == plain.ask(5, [])
    optimizer.tell(told)
    plain.tell(told)
    assert optimizer.ask(5, []) == plain.ask(5, [])


def test_odd_results_of_an_earlier_search_are_no_obstacle() -> None:
    points = some_points(60, 5)
    odd: list[Any] = [(point, bowl(point), 0.01, i % 5 == 0) for i, point in enumerate(points)]
    odd += [({**point, "x0": 1.3}, 1e300) for point in points[:4]]
    odd += [(point, math.nan) for point in points[:9]] + [(points[0], -1e300), (points[1], 5e-324), ({}, 0.0)]
    optimizer = with_earlier(odd)
    seen: list[dict[str, Any]] = []
    for _ in range(3):
        asked = optimizer.ask(5, [])
        assert len({point_key(point) for point in [*seen, *asked]}) == len(seen) + 5
        assert all(SPACE.canonical(point) == point for point in asked)
        seen += asked
        optimizer.tell([(point, 2.0) for point in asked])  # this search's own are all the same


def test_after_a_few_values_that_disagree_the_start_is_as_without() -> None:
    warm = with_earlier(earlier_of(lambda p: -bowl(p)))
    plain = create_optimizer("bayesian", SPACE, seed=4, trials=48)
    told = earlier_of(bowl, 7, 7)
    assert warm.ask(3, []) != plain.ask(3, [])
    warm.tell(told)
    plain.tell(told)
    assert warm.ask(3, []) == plain.ask(3, [])
