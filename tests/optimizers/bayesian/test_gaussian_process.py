from __future__ import annotations

import numpy as np
import pytest
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from hpo_pilot.optimizers.gaussian_process import (
    Basis,
    Hyperparameters,
    Pool,
    Posterior,
    QuickGaussianProcess,
    best_fit,
)

RNG = np.random.default_rng(4)
X = RNG.random((30, 3))
Y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(30)
Y = (Y - Y.mean()) / Y.std()
FIT = Hyperparameters(1.3, np.array([0.4, 0.8, 3.0]), 0.01)


def parent_and_child(features: np.ndarray, values: np.ndarray) -> list[GaussianProcessRegressor]:
    scales = [1.0] * features.shape[1]
    kernel = ConstantKernel(1.0) * Matern(scales, nu=2.5) + WhiteKernel(1e-2)
    return [
        cls(kernel=kernel, optimizer=None, noise="gaussian", alpha=1e-9).fit(features, values)
        for cls in (GaussianProcessRegressor, QuickGaussianProcess)
    ]


@pytest.mark.parametrize("dims", [1, 3])
def test_likelihood_and_gradient_are_the_parents(dims: int) -> None:
    parent, child = parent_and_child(X[:, :dims], Y)
    for process in (parent, child):  # the fit sets the noise to 0 for predictions
        process.kernel_ = process.kernel
    for theta in (np.zeros(dims + 2), np.linspace(-2.0, 0.5, dims + 2)):
        value, gradient = parent.log_marginal_likelihood(theta, eval_gradient=True)
        ours, our_gradient = child.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)
        assert ours == pytest.approx(value, rel=1e-9)
        assert our_gradient == pytest.approx(gradient, rel=1e-6, abs=1e-8)


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
    fit = best_fit(near, (values - values.mean()) / values.std(), basis=Basis.of_numbers(3)).found
    assert np.all(np.isfinite([fit.amplitude, fit.noise, *fit.scales]))
    assert np.all(np.isfinite(Posterior.of_data(fit, near, values).believing(near[:4] + 1e-14).predict(near)[1]))


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
    believing = posterior.believing(out[:1]).believing(out[1:])
    mean, variance = reference(np.r_[X, out], np.r_[Y, posterior.predict(out)[0]], at)
    assert believing.predict(at)[0] == pytest.approx(mean, rel=1e-6, abs=1e-7)
    assert believing.predict(at)[1] == pytest.approx(variance, rel=1e-6, abs=1e-9)


def test_pool_follows_the_posterior() -> None:
    at, out = RNG.random((9, 3)), RNG.random(3)
    posterior = Posterior.of_data(FIT, X, Y)
    pool = Pool(posterior, at, room=3)
    posterior = posterior.believing(out[None, :])
    pool.believe(out, posterior.factor[-1, :-1])
    posterior = posterior.believing(at[2:3])
    pool.believe_candidate(2)
    mean, variance = posterior.predict(at)
    assert pool.mean == pytest.approx(mean)
    assert pool.variance == pytest.approx(variance, rel=1e-6, abs=1e-9)


def test_gradients() -> None:
    posterior = Posterior.of_data(FIT, X, Y).believing(RNG.random((2, 3)))
    at, step = RNG.random((4, 3)), 1e-6
    mean, variance, d_mean, d_variance = posterior.gradients(at)
    assert mean == pytest.approx(posterior.predict(at)[0])
    assert variance == pytest.approx(posterior.predict(at)[1])
    for column in range(3):
        shift = np.eye(3)[column] * step
        up, down = posterior.predict(at + shift), posterior.predict(at - shift)
        assert d_mean[:, column] == pytest.approx((up[0] - down[0]) / (2 * step), rel=1e-4, abs=1e-6)
        assert d_variance[:, column] == pytest.approx((up[1] - down[1]) / (2 * step), rel=1e-4, abs=1e-6)


def test_points_too_close_for_rounding() -> None:
    fit = Hyperparameters(1.0, np.array([50.0]), 1e-6)
    close = np.linspace(0.5, 0.5 + 1e-12, 40)[:, None]
    mean, variance = Posterior.of_data(fit, close, np.ones(40)).predict(np.array([[0.5], [0.6]]))
    assert np.all(np.isfinite(mean))
    assert np.all(variance > 0)
