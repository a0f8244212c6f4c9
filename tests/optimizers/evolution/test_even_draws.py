from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.cma import mirrored_steps
from hpo_pilot.search import SearchSpace


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
    space = SearchSpace.from_dict(
        {"x": {"type": "real", "low": 0, "high": 1}, "c": {"type": "categorical", "choices": [*"abcd"]}}
    )
    settings = {"population": 8, "sigma": 0.05}  # so narrow that no step leads out of the bounds
    batch = create_optimizer("cma", space, seed=3, settings=settings).ask(8, [])
    single = create_optimizer("cma", space, seed=3, settings=settings)
    points: list[dict[str, object]] = []
    for _ in range(8):
        points += single.ask(1, points)
    assert points == batch
    assert sum(point["x"] for point in points) == pytest.approx(8 * 0.5)
