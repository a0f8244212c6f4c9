"""Limits on measured figures: what each optimizer makes of points beyond them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.acquisition import Threshold
from hpo_pilot.optimizers.base import Observation, Result
from hpo_pilot.optimizers.gaussian_process import Hyperparameters, Posterior
from hpo_pilot.optimizers.training_data import scaled_values
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.measured_limits import measured_limit
from tests.optimizers.runs import REAL

SPACE = SearchSpace.from_dict(dict.fromkeys("xy", REAL))
LIMITS = (measured_limit("size", "<= -0.2"), measured_limit("rate", "<= 1"))


def result(point: Point, objectives: int) -> Result:
    """Least at (0, 0), which the limit on the size forbids: 0.04 at (0.2, 0), or the front from there to (0, 1)."""
    x, y = point["x"], point["y"]
    values = (x * x + y * y, (1 - y) ** 2 + x * x)[:objectives]
    if y > 0.9:
        return Result(point, None, measured={"rate": math.inf} if x > 0.5 else {})
    return Result(point, values, measured={"size": -x, **({"rate": y} if x < 0.9 else {})})


def proposed(optimizer: Any, objectives: int, batches: int) -> list[Result]:
    found: list[Result] = []
    for _ in range(batches):
        told = [result(point, objectives) for point in optimizer.ask(4, [])]
        optimizer.tell(told)
        found += told
    return found


@pytest.mark.parametrize(
    ("name", "objectives", "most"),
    [("auto", 1, 0.042), ("auto", 2, 0.1), ("cma", 1, 0.1), ("evolutionary", 1, 0.15), ("optuna", 1, 0.15)],
)
def test_the_best_point_on_a_limit_is_found(name, objectives, most):
    def made():
        return create_optimizer(name, SPACE, seed=2, trials=48, objectives=objectives, limits=LIMITS)

    first = made()
    told = proposed(first, objectives, 12 if name != "auto" else 6)
    good = [one.values[0] for one in told if one.values and one.measured["size"] <= -0.2 and "rate" in one.measured]
    assert 0.04 <= min(good) < most
    again = made()
    again.tell(told)
    assert again.ask(4, []) == first.ask(4, [])


def test_many_points_equally_far_beyond_a_limit_are_learned():
    """As sizes of networks are by their kind; the largest has the best values."""
    sizes = {"small": 1.0, "medium": 1.1, "large": 50.0}
    space = SearchSpace.from_dict({"x": REAL, "kind": {"type": "categorical", "choices": list(sizes)}})
    optimizer = create_optimizer("auto", space, seed=1, limits=(measured_limit("size", "<= 5"),))
    points = [{"x": x, "kind": kind} for x in (0.1, 0.5, 0.9) for kind in sizes]
    costs = {"small": 2.0, "medium": 1.0, "large": 0.0}
    optimizer.tell(Result(p, p["x"] ** 2 + costs[p["kind"]], measured={"size": sizes[p["kind"]]}) for p in points)
    assert {point["kind"] for point in optimizer.ask(4, [])} <= {"small", "medium"}


def test_a_retried_point_and_a_figure_of_minus_infinity():
    optimizer = create_optimizer("auto", SPACE, seed=1, limits=LIMITS[1:])
    optimizer.tell([Result({"x": 0.1, "y": 0.1}, None), Result({"x": 0.1, "y": 0.1}, 1.0, measured={"rate": 0.5})])
    optimizer.tell(Result({"x": 0.3, "y": y}, 2.0 + y, measured={"rate": -math.inf}) for y in np.linspace(0, 0.9, 8))
    assert optimizer.recommend()[0].point == {"x": 0.1, "y": 0.1}
    assert len(optimizer.ask(2, [])) == 2


def test_without_a_feasible_point_the_nearest_lead():
    limits = (measured_limit("far", "<= 0"),)
    optimizer = create_optimizer("bayesian", SPACE, seed=1, trials=64, limits=limits)
    for _ in range(6):  # feasible where x is above 0.97 and y is below 0.03
        points = optimizer.ask(4, [])
        far = [max(0.97 - point["x"], point["y"] - 0.03) for point in points]
        optimizer.tell([Result(p, p["y"] - p["x"], measured={"far": one}) for p, one in zip(points, far, strict=True)])
    assert min(far) <= 0


def test_the_order_of_points_is_debs():
    def observed(values, *excesses):
        return Observation({}, values, None, "", None, excesses=excesses).ranked.values

    order = [(1.0, -1.0, 0.0), (1e300, 0.0, 0.0), (2.0, math.nan, 0.0), (0.0, 0.5, math.nan), (0.0, 0.5, 0.25)]
    order += [(0.0, 1e9, 0.0), (0.0, math.inf, 0.0)]
    ranked = [observed((value,), *excesses) for value, *excesses in order]
    assert ranked == sorted(ranked)
    assert len(set(ranked)) == len(order)
    assert observed(None, 1.0) is None
    assert observed((1.0, 2.0), 1.0)[0] == observed((3.0, 0.0), 1.0)[1] > 2.0


def test_the_slopes_of_the_probability_are_those_of_differences():
    rng = np.random.default_rng(1)
    units, at = rng.random((12, 3)), rng.random((5, 3))
    threshold = Threshold(Posterior.of_data(Hyperparameters(1.0, np.full(3, 0.4), 1e-3), units, units[:, 0]), 0.4)
    value, slopes = threshold.log_gradient(at)
    assert value == pytest.approx(threshold.log_probability(at))
    for column, shift in enumerate(1e-6 * np.eye(3)):
        up, down = threshold.log_probability(at + shift), threshold.log_probability(at - shift)
        assert slopes[:, column] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-5)


def test_a_bound_has_its_place_on_every_scale():
    values = np.array([3.0, 1.0, 1e6, 2.0, 5.0, 4.0, 0.5])
    for scaled in scaled_values(values).values():
        order = np.argsort(values)
        places = [scaled.placed(bound) for bound in (0.0, 0.5, 0.75, 3.0, 4.5, 1e6, 2e6)]
        assert places == sorted(set(places))
        assert places[1] == scaled.values[order[0]]
        assert places[3] == scaled.values[0]
