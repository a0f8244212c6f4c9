from __future__ import annotations

import numpy as np
import pytest
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from hpo_pilot.optimizers.gaussian_process import (
    Basis,
    Pool,
    Posterior,
    QuickGaussianProcess,
    TrendKernel,
    best_fit,
)
from hpo_pilot.optimizers.training_data import FeatureMap
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import check_slopes

RNG = np.random.default_rng(6)
X = RNG.random((40, 3))
BOWL = 3.0 * (X[:, 0] - 0.3) ** 2 + (X[:, 1] - 0.6) ** 2 + 2.0 * (X[:, 0] - 0.3) * (X[:, 1] - 0.6)
Y = (BOWL - BOWL.mean()) / BOWL.std()
BASIS = Basis.of_numbers(3)


@pytest.mark.parametrize("trend", [False, True])
def test_likelihood_and_gradient_are_the_parents(trend: bool) -> None:
    kernel = ConstantKernel(1.0) * Matern([1.0] * 3, nu=2.5)
    kernel = (kernel + TrendKernel(BASIS, 0.3, 0.01) if trend else kernel) + WhiteKernel(1e-2)
    parent, child = (
        cls(kernel=kernel, optimizer=None, noise="gaussian", alpha=np.full(40, 0.02)).fit(X, Y)
        for cls in (GaussianProcessRegressor, QuickGaussianProcess)
    )
    for process in (parent, child):  # the fit sets the noise to 0 for predictions
        process.kernel_ = process.kernel
    theta = np.linspace(-2.0, 0.5, 7 if trend else 5)
    value, gradient = parent.log_marginal_likelihood(theta, eval_gradient=True)
    ours, our_gradient = child.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)
    assert ours == pytest.approx(value, rel=1e-9)
    assert our_gradient == pytest.approx(gradient, rel=1e-6, abs=1e-8)


def test_a_bowl_goes_on_beyond_the_data() -> None:
    """Told of the middle alone, a process with a trend knows that the corners are worse; one without does not."""
    middle = 0.3 + 0.4 * X
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
    fit = best_fit(X, Y, basis=BASIS).found
    assert fit.alone > 0.0
    assert fit.together > 0.0
    posterior = Posterior.of_data(fit, X, Y, np.full(40, 0.01)).believing(RNG.random((2, 3)))
    at = RNG.random((4, 3))
    check_slopes(posterior, at)
    pool = Pool(posterior, at, room=1)
    believing = posterior.believing(at[1:2])
    pool.believe_candidate(1)
    assert pool.variance == pytest.approx(believing.predict(at)[1], rel=1e-5, abs=1e-8)


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
