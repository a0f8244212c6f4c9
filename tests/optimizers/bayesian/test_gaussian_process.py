from __future__ import annotations

import numpy as np
import pytest
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern

from hpo_pilot.optimizers import gaussian_process
from hpo_pilot.optimizers.gaussian_process import (
    Basis,
    Hyperparameters,
    Pool,
    Posterior,
    best_fit,
    lower_factor,
    solved,
)

RNG = np.random.default_rng(4)
X = RNG.random((30, 3))
Y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(30)
Y = (Y - Y.mean()) / Y.std()
FIT = Hyperparameters(1.3, np.array([0.4, 0.8, 3.0]), 0.01)


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
