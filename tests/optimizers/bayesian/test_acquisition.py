"""Expected improvement, of one objective and of several."""

from __future__ import annotations

import math

import moocore
import numpy as np
import pytest
from scipy.integrate import quad

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.acquisition import HypervolumeImprovement, Surrogate, log_h, open_boxes
from hpo_pilot.optimizers.bayesian import BatchChooser, Candidates, Climber, Paused
from hpo_pilot.optimizers.gaussian_process import Hyperparameters, Posterior
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.optimizers.training_data import FeatureMap
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.nondominated import costs_of, front, hypervolume
from tests.optimizers.runs import REAL, run


@pytest.mark.parametrize("z", [-8.0, -3.0, -1.0, -0.999, 0.0, 2.0, 10.0])
def test_against_the_integral(z: float) -> None:
    # E[max(z + N, 0)], integrated with the peak factored out
    value, _ = quad(lambda t: t * math.exp(-0.5 * (t * t - 2 * t * z)), 0, 60 if z < 0 else 30, limit=200)
    expected = math.log(value) - 0.5 * z * z - 0.5 * math.log(2 * math.pi)
    assert log_h(np.array([z]))[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_no_jumps_and_no_infinities_far_out() -> None:
    z = -np.logspace(-1, 8, 2000)
    values = log_h(z)
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) < 0)
    for border in (-1.0, -1e4):
        below, above = log_h(np.array([border * (1 + 1e-9), border * (1 - 1e-9)]))
        assert below == pytest.approx(above, rel=1e-6)


def a_front(count: int, objectives: int, seed: int = 0) -> np.ndarray:
    points = np.abs(np.random.default_rng(seed).standard_normal((count, objectives)))
    return 1.0 - points / np.linalg.norm(points, axis=1)[:, None]


@pytest.mark.parametrize("objectives", [1, 2, 3, 5])
@pytest.mark.parametrize("grid", [False, True])
def test_boxes_hold_exactly_what_a_point_adds(objectives: int, grid: bool) -> None:
    rng = np.random.default_rng(1)
    points = rng.integers(0, 4, (12, objectives)) / 4.0 if grid else a_front(12, objectives)  # a grid has many ties
    front, reference = points[moocore.is_nondominated(points)], np.full(objectives, 1.1)
    lower, upper = open_boxes(front, reference)
    for point in rng.uniform(-0.3, 1.3, (30, objectives)):
        adds = moocore.hypervolume(np.vstack([front, point]), ref=reference)
        adds -= moocore.hypervolume(front, ref=reference)
        inside = np.maximum(0.0, upper - np.maximum(lower, point)).prod(axis=1).sum()
        assert inside == pytest.approx(adds, abs=1e-12)


def test_one_point_of_two_objectives_by_hand() -> None:
    # Without uncertainty: (0.2, 0.3) before a front of (0.5, 0.5) adds 0.8 x 0.7 - 0.5 x 0.5.
    improvement = HypervolumeImprovement(np.array([[0.5, 0.5]]), np.ones(2))
    value = improvement.log_value(np.array([[0.2, 0.3]]), np.full((1, 2), 1e-12))
    assert np.exp(value[0]) == pytest.approx(0.8 * 0.7 - 0.5 * 0.5)


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_expectation_against_sampling(objectives: int) -> None:
    front, reference = a_front(6, objectives), np.full(objectives, 1.1)
    rng = np.random.default_rng(2)
    mean, variance = np.full(objectives, 0.4), np.full(objectives, 0.04)
    lower, upper = open_boxes(front, reference)
    draws = mean + np.sqrt(variance) * rng.standard_normal((100_000, 1, objectives))
    sampled = np.maximum(0.0, upper - np.maximum(lower, draws)).prod(axis=2).sum(axis=1).mean()
    exact = np.exp(HypervolumeImprovement(front, reference).log_value(mean[None, :], variance[None, :])[0])
    assert exact == pytest.approx(sampled, rel=0.02)


@pytest.mark.parametrize("objectives", [1, 3])
def test_gradients_and_far_points(objectives: int) -> None:
    front, reference = a_front(8, objectives), np.full(objectives, 1.1)
    front = front[moocore.is_nondominated(front)]
    improvement = HypervolumeImprovement(front, reference)
    rng = np.random.default_rng(3)
    means, variances = rng.uniform(0, 1, (4, objectives)), rng.uniform(0.01, 0.3, (4, objectives))
    value, by_mean, by_variance = improvement.log_gradient(means, variances)
    assert value == pytest.approx(improvement.log_value(means, variances))
    for j in range(objectives):
        step = np.zeros((1, objectives))
        step[0, j] = 1e-6
        up, down = improvement.log_value(means + step, variances), improvement.log_value(means - step, variances)
        assert by_mean[:, j] == pytest.approx((up - down) / 2e-6, rel=1e-5)
        up, down = improvement.log_value(means, variances + step), improvement.log_value(means, variances - step)
        assert by_variance[:, j] == pytest.approx((up - down) / 2e-6, rel=1e-5)
    far = improvement.log_gradient(np.full((1, objectives), 30.0), np.full((1, objectives), 1e-2))
    assert all(np.isfinite(part).all() for part in far)


def test_too_many_boxes_are_not_made() -> None:
    assert HypervolumeImprovement(a_front(400, 6), np.full(6, 1.1)).boxes < 5_000


# --- several objectives ---


SPACE = SearchSpace.from_dict(dict.fromkeys("abc", REAL))


def test_the_lazy_choice_is_the_greedy_one() -> None:
    """Without climbs: each point is the best of all candidates, had all of them been computed again."""
    rng = np.random.default_rng(1)
    units, candidates = rng.random((12, 3)), rng.random((300, 3))
    costs = np.stack([units[:, 0] + units[:, 2], 1 - units[:, 0] + units[:, 1]], axis=1)
    fit = Hyperparameters(1.0, np.full(3, 0.4), 1e-4)
    posteriors = [Posterior.of_data(fit, units, column - column.mean()) for column in costs.T]
    reached = np.stack([posterior.fitted() for posterior in posteriors], axis=1)
    reference = reached.max(axis=0)

    features, proposals = FeatureMap(SPACE), Proposals(SPACE, 12, [], [])
    surrogate = Surrogate(posteriors, reached, reference, np.arange(0), ())
    batch = BatchChooser(
        Climber(features, Candidates(SPACE, features).feasible),
        [surrogate],
        0,
        lambda units, _: np.zeros(len(units)),
    )
    batch._climber.climb = lambda *_: None  # type: ignore[method-assign]
    batch.fill(proposals, candidates, Paused([], [], units[:0], units[:0, 0]))

    known, believed, left = reached, posteriors, list(range(len(candidates)))
    for point in proposals.points:
        moments = [posterior.predict(candidates[left]) for posterior in believed]
        means, variances = (np.stack(columns, axis=1) for columns in zip(*moments, strict=True))
        scores = HypervolumeImprovement(known[front(known)], reference).log_value(means, variances)
        index = int(np.argmax(scores))
        chosen = candidates[left.pop(index)]
        assert list(point.values()) == chosen.tolist()
        known = np.concatenate([known, means[index][None, :]])
        believed = [posterior.assuming(chosen[None, :]) for posterior in believed]


def costs(point: dict[str, float]) -> tuple[float, float]:
    off = (point["b"] - 0.7) ** 2 + (point["c"] - 0.2) ** 2
    return point["a"] ** 2 + off, (1 - point["a"]) ** 2 + off


def test_it_finds_a_front_that_random_points_do_not() -> None:
    found = {}
    for name in ("random", "bayesian"):
        told = run(create_optimizer(name, SPACE, seed=1, trials=32, objectives=2), costs, 4)
        found[name] = hypervolume(costs_of([values for _, values in told]), (1.0, 1.0))
    assert found["bayesian"] > 0.80  # of 0.8333 that there are
    assert found["random"] < 0.75


def test_no_guess_of_a_stopped_trial_leads() -> None:
    units = np.random.default_rng(1).random((12, 3))
    fit = Hyperparameters(1.0, np.full(3, 0.4), 1e-4)
    posteriors = [Posterior.of_data(fit, units, units[:, 0] - 0.5), Posterior.of_data(fit, units, units[:, 1] - 0.5)]
    none, within = np.empty((0, 3)), np.zeros(12)
    leaders = Surrogate.of_data(posteriors, (), np.zeros(12, dtype=bool), within, 12, none, none).leaders
    stopped = np.isin(np.arange(12), leaders[:1])
    others = Surrogate.of_data(posteriors, (), stopped, within, 12, none, none).leaders
    assert leaders[0] not in others
    assert len(others)
    assert set(Surrogate.of_data(posteriors, (), within == 0, within, 12, none, none).leaders) == set(leaders)
    stopped = np.arange(12) % 2 == 0
    beyond = np.where(stopped, 1e-300, 1.0 + np.arange(12))  # stopped trials have no measured figures
    nearest = Surrogate.of_data(posteriors, (), stopped, beyond, 12, none, none).leaders
    assert nearest[:6].tolist() == [1, 3, 5, 7, 9, 11]
