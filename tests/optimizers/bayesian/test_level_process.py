"""The process over points and levels, and the optimizer that chooses by it which point goes on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import Optimizer, Result
from hpo_pilot.optimizers.gaussian_process import Posterior
from hpo_pilot.optimizers.level_process import LevelFeatures, LevelHyperparameters, _Likelihood, best_level_fit
from hpo_pilot.search import Point, SearchSpace, point_key
from hpo_pilot.search.measured_limits import measured_limit
from tests.optimizers.runs import REAL

LEVELS = (1, 3, 9)
SPACE = SearchSpace.from_dict({"x": REAL, "y": REAL, "c": {"type": "categorical", "choices": ["a", "b", "c"]}})
FEATURES = LevelFeatures(SPACE, LEVELS)
RNG = np.random.default_rng(3)
UNITS = FEATURES.cube.snapped(RNG.random((24, 3)))
AT = np.arange(24) % 3


def told_at(levels: Any) -> np.ndarray:
    return FEATURES.at(UNITS[: len(levels)], np.array(levels))


@pytest.mark.parametrize("basis", [None, FEATURES.basis])
def test_the_gradient_of_the_likelihood_is_its_derivative(basis: Any) -> None:
    twice = np.concatenate([told_at(AT), FEATURES.at(UNITS[:6], (AT[:6] + 1) % 3)])  # six points at two levels
    values = RNG.standard_normal(len(twice))
    likelihood = _Likelihood(3, twice, values, basis, np.full(len(twice), 0.01))
    theta = likelihood.starts(None)[0]
    theta = theta + 0.2 * RNG.standard_normal(len(theta))
    _, gradient = likelihood.negative(theta)
    steps = 1e-5 * np.eye(len(theta))
    found = [(likelihood.negative(theta + s)[0] - likelihood.negative(theta - s)[0]) / 2e-5 for s in steps]
    assert gradient == pytest.approx(np.array(found), abs=1e-5)


def test_the_likelihood_is_that_of_the_covariance() -> None:
    features, values = told_at(AT), RNG.standard_normal(24)
    likelihood = _Likelihood(3, features, values, None, np.zeros(24))
    start, other = likelihood.starts(None)
    noisy = likelihood.hyperparameters(start).covariance(features, features) + (1e-3 + 1e-8) * np.eye(24)
    _, logarithm = np.linalg.slogdet(2 * np.pi * noisy)
    expected = 0.5 * (values @ np.linalg.solve(noisy, values) + logarithm)
    prior_apart = likelihood.negative(start)[0] - expected
    assert 0 < prior_apart < 20
    assert likelihood.negative(other)[0] > -np.inf


def test_a_fit_can_start_from_another_one() -> None:
    features, values = told_at(AT), np.sin(5 * UNITS[:, 0]) + AT
    values = (values - values.mean()) / values.std()
    first = best_level_fit(3, features, values, basis=None, variances=np.zeros(24))
    again = best_level_fit(3, features, values, basis=None, variances=np.zeros(24), start=first.found)
    assert isinstance(again.found, LevelHyperparameters)
    assert again.log_posterior >= first.log_posterior - 0.01


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_low_level_tells_of_the_highest_one_as_they_are_correlated(sign: float) -> None:
    """A bowl that is seen at the highest level in a few places only; the level below has it upside down, or not."""
    space = SearchSpace.from_dict({"x": REAL})
    features = LevelFeatures(space, (1, 9))
    units = np.linspace(0.02, 0.98, 25)[:, None]
    bowl = ((units[:, 0] - 0.3) / 0.3) ** 2
    seen = np.arange(25) % 6 == 0
    rows = np.concatenate([features.at(units, np.zeros(25, dtype=int)), features.features(units[seen])])
    values = np.concatenate([sign * bowl, bowl[seen]])
    values = (values - values.mean()) / values.std()
    fit = best_level_fit(2, rows, values, basis=None, variances=np.zeros(len(rows))).found
    assert isinstance(fit, LevelHyperparameters)
    assert np.sign(fit.shared[0, 1]) == sign
    mean = Posterior.of_data(fit, rows, values).mean(features.features(units))
    assert units[np.argmin(mean), 0] == pytest.approx(0.3, abs=0.07)


def test_the_posterior_has_exact_derivatives_at_the_highest_level() -> None:
    values = RNG.standard_normal(24)
    fit = best_level_fit(3, told_at(AT), values, basis=FEATURES.basis, variances=np.zeros(24)).found
    posterior = Posterior.of_data(fit, told_at(AT), values).assuming(FEATURES.at(RNG.random((2, 3)), np.array([0, 1])))
    places = FEATURES.features(FEATURES.cube.snapped(RNG.random((4, 3))))
    mean, variance, d_mean, d_variance = posterior.gradients(places)
    assert posterior.mean_slopes(places) == pytest.approx(d_mean)
    assert (d_mean[:, -1] == 0).all()
    for column in range(2):
        moved = places.copy()
        moved[:, column] += 1e-6
        means, variances = posterior.predict(moved)
        assert (means - mean) / 1e-6 == pytest.approx(d_mean[:, column], rel=1e-3, abs=1e-3)
        assert (variances - variance) / 1e-6 == pytest.approx(d_variance[:, column], rel=1e-3, abs=1e-3)


# --- the optimizer ---


def bowl(point: Point, level: float) -> float:
    """Lower levels are higher everywhere, and in the same order."""
    away = (point["x"] - 0.3) ** 2 + (point["y"] - 0.6) ** 2 + (point["c"] != "b")
    return float(away) + 1 / level


def an_optimizer(told: Iterable[Result] = (), space: SearchSpace = SPACE, name: str = "auto") -> Optimizer:
    optimizer = create_optimizer(name, space, seed=4, trials=40, levels=LEVELS)
    optimizer.tell(told)
    return optimizer


def searched(rounds: int, each: int = 4) -> list[Result]:
    """Results of a search that asks for some trials at a time."""
    optimizer, told, reached = an_optimizer(), list[Result](), dict[str, int]()
    for _ in range(rounds):
        results = []
        for point in optimizer.ask(each, []):
            key = point_key(point)
            reached[key] = reached.get(key, -1) + 1
            level = LEVELS[reached[key]]
            results.append(Result(point, bowl(point, level), level=level))
        optimizer.tell(results)
        told += results
    return told


TOLD = searched(10)


def test_good_points_go_on_level_by_level() -> None:
    by_level = {level: [one for one in TOLD if one.level == level] for level in LEVELS}
    assert len(by_level[1]) > len(by_level[9]) > 0
    first = sorted(bowl(one.point, 9) for one in by_level[1])
    assert min(bowl(one.point, 9) for one in by_level[9]) in first[:3]
    assert np.mean([bowl(one.point, 9) for one in by_level[9]]) < np.mean(first) / 2


def test_points_do_not_depend_on_the_process() -> None:
    whole, again = an_optimizer(), an_optimizer(TOLD)
    for one in TOLD:
        whole.tell([one])
    assert whole.ask(4, []) == again.ask(4, [])


def test_only_paused_points_are_proposed_again() -> None:
    whole = {point_key(one.point) for one in TOLD if one.level == 9}
    paused = {point_key(one.point): one.point for one in TOLD if point_key(one.point) not in whole}
    pending = list(paused.values())[::2]
    asked = {point_key(point) for point in an_optimizer(TOLD).ask(8, pending)}
    assert not asked & whole
    assert not asked & set(map(point_key, pending))


@pytest.mark.parametrize("name", ["auto", "bayesian"])
def test_no_new_point_goes_on(name: str) -> None:
    reached = {point_key(one.point): one.level for one in TOLD}
    paused = [key for key, level in reached.items() if level != 9]
    optimizer = an_optimizer(TOLD, name=name)
    some = optimizer.go_on(3, [])
    every = optimizer.go_on(len(TOLD), [])
    assert len({point_key(point) for point in some} & set(paused)) == 3
    assert sorted(map(point_key, every)) == sorted(paused)
    left = [point_key(point) for point in optimizer.go_on(len(TOLD), some)]
    assert sorted([*left, *map(point_key, some)]) == sorted(paused)
    assert an_optimizer(TOLD[:2], name=name).go_on(3, []) == [], "two results tell nothing"


def test_without_levels_nothing_goes_on() -> None:
    for name in ("auto", "random"):
        optimizer = create_optimizer(name, SPACE, seed=4)
        optimizer.tell([(one.point, 1.0) for one in TOLD])
        assert optimizer.go_on(3, []) == []


def test_a_point_that_failed_does_not_go_on() -> None:
    first = [one for one in TOLD if one.level == 1][:16]
    optimizer, keys = an_optimizer(first), {point_key(one.point) for one in first}
    again = [point for point in optimizer.ask(12, []) if point_key(point) in keys]
    assert again
    optimizer.tell([Result(point, None, level=3) for point in again])
    assert not {point_key(p) for p in optimizer.ask(12, [])} & set(map(point_key, again))


def test_when_all_points_are_known_the_paused_ones_are_left() -> None:
    space = SearchSpace.from_dict({"n": {"type": "integer", "low": 1, "high": 6}})
    told = [Result({"n": n}, (n - 2) ** 2 + 1, level=1) for n in range(1, 7)]
    optimizer = an_optimizer(told, space)
    assert {point["n"] for point in optimizer.ask(6, [])} == set(range(1, 7))
    assert {point["n"] for point in optimizer.go_on(6, [{"n": 2}])} == {1, 3, 4, 5, 6}
    optimizer.tell([Result({"n": n}, (n - 2) ** 2, level=9) for n in range(1, 7)])
    with pytest.raises(ExhaustedError):
        optimizer.ask(1, [])


@pytest.mark.parametrize("name", ["auto", "bayesian"])
def test_the_recommended_point_was_trained_to_the_end(name: str) -> None:
    whole = [point_key(one.point) for one in TOLD if one.level == 9]
    (found,) = an_optimizer(TOLD, name=name).recommend()
    assert point_key(found.point) in whole
    assert found.value == pytest.approx(bowl(found.point, 9), abs=0.05)


def test_earlier_searches_count_with_levels_too() -> None:
    optimizer = an_optimizer(TOLD[:8])
    optimizer.tell_earlier("before", [(one.point, bowl(one.point, 9)) for one in TOLD])
    assert len(optimizer.ask(4, [])) == 4


def test_several_objectives_and_limits_may_have_levels() -> None:
    optimizer = create_optimizer("auto", SPACE, seed=1, trials=40, objectives=2, levels=LEVELS)
    optimizer.tell([Result(o.point, (bowl(o.point, 9), o.point["x"]), level=o.level) for o in TOLD])
    assert len(optimizer.ask(4, [])) == 4
    limit = measured_limit("size", "<= 0.5")
    optimizer = create_optimizer("auto", SPACE, seed=1, trials=40, limits=[limit], levels=LEVELS)
    results = [Result(o.point, o.values, measured={"size": o.point["x"]}, level=o.level) for o in TOLD]
    optimizer.tell(results)
    assert statistics.median(point["x"] for point in optimizer.ask(8, [])) < 0.5
