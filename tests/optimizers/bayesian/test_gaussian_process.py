"""The Gaussian process: its fit, its posterior and its trend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from hpo_pilot.optimizers import gaussian_process
from hpo_pilot.optimizers.gaussian_process import (
    Basis,
    Hyperparameters,
    Pool,
    Posterior,
    QuickGaussianProcess,
    TrendKernel,
    best_fit,
    lower_factor,
    solved,
)
from hpo_pilot.optimizers.training_data import FeatureMap
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import check_slopes

RNG = np.random.default_rng(4)
X = RNG.random((30, 3))
Y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(30)
Y = (Y - Y.mean()) / Y.std()
FIT = Hyperparameters(1.3, np.array([0.4, 0.8, 3.0]), 0.01)


#: Three features, uniform in [0, 1].
BASIS = Basis(np.full(3, 0.5), np.full(3, 12.0**-0.5), np.full(3, 1 / 12))


def test_covariance_is_the_librarys_kernel() -> None:
    kernel = ConstantKernel(FIT.amplitude) * Matern(FIT.scales, nu=2.5)
    assert FIT.covariance(X, X[:5]) == pytest.approx(kernel(X, X[:5]))


def test_a_fit_finds_what_matters() -> None:
    fit = best_fit(X, Y).found
    assert fit.scales[0] < fit.scales[1] < fit.scales[2]
    again = best_fit(X.copy(), Y.copy()).found
    assert (fit.amplitude, fit.noise, fit.scales.tolist()) == (again.amplitude, again.noise, again.scales.tolist())


@pytest.mark.parametrize("values", [np.zeros(30), np.r_[np.zeros(29), 5.0]])
def test_a_fit_survives_dull_values(values: np.ndarray) -> None:
    fit = best_fit(X, values).found
    assert np.all(np.isfinite([fit.amplitude, fit.noise, *fit.scales]))


def test_points_too_near_for_rounding_are_no_obstacle() -> None:
    rng = np.random.default_rng(1)
    base = rng.random((30, 3))
    near = np.unique(np.concatenate([base, base + 1e-13 * rng.standard_normal(base.shape)]), axis=0)
    values = near.sum(axis=1)
    fit = best_fit(near, (values - values.mean()) / values.std(), basis=BASIS).found
    assert np.all(np.isfinite([fit.amplitude, fit.noise, *fit.scales]))
    assert np.all(np.isfinite(Posterior.of_data(fit, near, values).assuming(near[:4] + 1e-14).predict(near)[1]))


def reference(points: np.ndarray, values: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    covariance = FIT.covariance(points, points) + (FIT.noise + 1e-9 * FIT.amplitude) * np.eye(len(points))
    cross = FIT.covariance(points, at)
    mean = cross.T @ np.linalg.solve(covariance, values)
    return mean, FIT.amplitude - np.einsum("nm,nm->m", cross, np.linalg.solve(covariance, cross))


def test_posterior() -> None:
    at = RNG.random((7, 3))
    posterior = Posterior.of_data(FIT, X, Y)
    for ours, theirs in zip(posterior.predict(at), reference(X, Y, at), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert posterior.fitted() == pytest.approx(reference(X, Y, X)[0])


def test_believing_is_conditioning_on_the_own_prediction() -> None:
    at, out = RNG.random((7, 3)), RNG.random((4, 3))
    posterior = Posterior.of_data(FIT, X, Y)
    assuming = posterior.assuming(out[:1]).assuming(out[1:])
    mean, variance = reference(np.r_[X, out], np.r_[Y, posterior.predict(out)[0]], at)
    assert assuming.predict(at)[0] == pytest.approx(mean, rel=1e-6, abs=1e-7)
    assert assuming.predict(at)[1] == pytest.approx(variance, rel=1e-6, abs=1e-9)


def test_pool_follows_the_posterior() -> None:
    at, out = RNG.random((9, 3)), RNG.random(3)
    posterior = Posterior.of_data(FIT, X, Y)
    pool = Pool(posterior, at, room=3)
    posterior = posterior.assuming(out[None, :])
    pool.assume(out, posterior.factor[-1, :-1])
    posterior = posterior.assuming(at[2:3])
    pool.assume_candidate(2)
    mean, variance = posterior.predict(at)
    assert pool.mean == pytest.approx(mean)
    assert pool.variance == pytest.approx(variance, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("columns", [0, 1, 15, 40])
def test_done_in_parts_it_is_the_same_solution(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(gaussian_process, "_IN_ONE_GO", 1.0)  # sixteen columns at a time
    numbers = np.random.default_rng(1)
    root = numbers.standard_normal((12, 12))
    matrix = root @ root.T + np.eye(12)
    factor = lower_factor(matrix)
    assert np.allclose(factor @ factor.T, matrix)
    assert np.array_equal(factor, np.tril(factor))
    right = numbers.standard_normal((12, columns))
    assert np.allclose(factor @ solved(factor, right.copy()), right)
    assert np.allclose(factor.T @ solved(factor, right.copy(), transposed=True), right)


def test_what_has_no_factor_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        lower_factor(np.array([[1.0, 2.0], [2.0, 1.0]]))


# --- the trend ---


TREND_RNG = np.random.default_rng(6)
TREND_X = TREND_RNG.random((40, 3))
_A, _B = TREND_X[:, 0] - 0.3, TREND_X[:, 1] - 0.6
BOWL = 3.0 * _A**2 + _B**2 + 2.0 * _A * _B
TREND_Y = (BOWL - BOWL.mean()) / BOWL.std()


@pytest.mark.parametrize("trend", [False, True])
def test_likelihood_and_gradient_are_the_parents(trend: bool) -> None:
    kernel = ConstantKernel(1.0) * Matern([1.0] * 3, nu=2.5)
    kernel = (kernel + TrendKernel(BASIS, 0.3, 0.01) if trend else kernel) + WhiteKernel(1e-2)
    parent, child = (
        cls(kernel=kernel, optimizer=None, noise="gaussian", alpha=np.full(40, 0.02)).fit(TREND_X, TREND_Y)
        for cls in (GaussianProcessRegressor, QuickGaussianProcess)
    )
    for process in (parent, child):  # the fit sets the noise to 0 for predictions
        process.kernel_ = process.kernel
    theta = np.linspace(-2.0, 0.5, 7 if trend else 5)
    value, gradient = parent.log_marginal_likelihood(theta, eval_gradient=True)
    ours, our_gradient = child.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)
    assert ours == pytest.approx(value, rel=1e-9)
    assert our_gradient == pytest.approx(gradient, rel=1e-6, abs=1e-8)


def test_a_fit_ends_when_nothing_changes_and_sooner_from_a_similar_one(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    likelihood = QuickGaussianProcess.log_marginal_likelihood

    def counting(self: QuickGaussianProcess, *args: Any, **more: Any) -> Any:
        counted.append(len(self.y_train_))
        return likelihood(self, *args, **more)

    monkeypatch.setattr(QuickGaussianProcess, "log_marginal_likelihood", counting)
    fit = best_fit(TREND_X, TREND_Y, basis=BASIS)
    anew = len(counted)
    again = best_fit(TREND_X, TREND_Y, basis=BASIS, start=fit.found)
    near = len(counted) - anew
    monkeypatch.setattr(gaussian_process, "_ENOUGH", 1e-9)
    exact = best_fit(TREND_X, TREND_Y, basis=BASIS)
    assert fit.log_posterior == pytest.approx(exact.log_posterior, abs=0.1)
    assert again.log_posterior == pytest.approx(exact.log_posterior, abs=0.1)
    assert near < anew / 4 < (len(counted) - anew - near) / 4


def test_a_bowl_goes_on_beyond_the_data() -> None:
    """Told of the middle alone, a process with a trend knows that the corners are worse; one without does not."""
    middle = 0.3 + 0.4 * TREND_X
    bowl = ((middle - 0.5) ** 2).sum(axis=1)
    values = (bowl - bowl.mean()) / bowl.std()
    corners = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    with_trend, without = (
        Posterior.of_data(best_fit(middle, values, basis=basis).found, middle, values) for basis in (BASIS, None)
    )
    true = (0.75 - bowl.mean()) / bowl.std()
    assert with_trend.predict(corners)[0] == pytest.approx(np.full(3, true), rel=0.15)
    assert np.all(with_trend.predict(corners)[1] < without.predict(corners)[1])


def test_posterior_gradients_and_pool() -> None:
    fit = best_fit(TREND_X, TREND_Y, basis=BASIS).found
    assert fit.alone > 0.0
    assert fit.together > 0.0
    posterior = Posterior.of_data(fit, TREND_X, TREND_Y, np.full(40, 0.01)).assuming(TREND_RNG.random((2, 3)))
    at = TREND_RNG.random((4, 3))
    check_slopes(posterior, at)
    pool = Pool(posterior, at, room=1)
    assuming = posterior.assuming(at[1:2])
    pool.assume_candidate(1)
    assert pool.variance == pytest.approx(assuming.predict(at)[1], rel=1e-5, abs=1e-8)


def test_choices_and_conditional_dimensions() -> None:
    """Columns of 0 and 1 have no quadratic term, and what a point does not have adds nothing."""
    space = SearchSpace.from_dict(
        {
            "x": {"type": "real", "low": 0, "high": 1},
            "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
            "y": {"type": "real", "low": 0, "high": 1, "when": {"kind": "b"}},
        }
    )
    features = FeatureMap(space)
    rows = features.features(features.cube.snapped(np.array([[0.2, 0.1, 0.9], [0.2, 0.5, 0.9]])))
    terms = features.basis.terms(rows)
    assert terms.shape == (2, 5 + 2)  # x, three choices and y; the squares of x and y
    assert terms[0, 4] == terms[0, 6] == 0.0
    assert terms[1, 4] != 0.0 != terms[1, 6]
