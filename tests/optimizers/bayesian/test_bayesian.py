"""Bayesian optimization: what it finds and avoids."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import create_optimizer, objective_models
from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.beliefs import Beliefs
from hpo_pilot.optimizers.feasible_region import UnitCube
from hpo_pilot.optimizers.gaussian_process import Hyperparameters
from hpo_pilot.optimizers.phase import default_start_points
from hpo_pilot.search import Point, SearchSpace, point_key
from hpo_pilot.search.measured_limits import measured_limit
from tests.optimizers.runs import REAL, best, run, sphere

SQUARE = SearchSpace.from_dict({"x": REAL, "y": REAL})
VALLEY = SearchSpace.from_dict(
    {"x": {"type": "real", "low": -5, "high": 10}, "y": {"type": "real", "low": 0, "high": 15}}
)


def valley(p: dict[str, Any]) -> float:
    """A curved valley with three equal minima, near 0.4."""
    x, y = p["x"], p["y"]
    return (y - 0.129 * x * x + 1.59 * x - 6) ** 2 + 9.6 * math.cos(x) + 10


def searched(name: str, space: SearchSpace, function: Any, seed: int, batches: int) -> list[Any]:
    return run(create_optimizer(name, space, seed=seed, trials=4 * batches), function, batches, batch=4)


def test_it_beats_random_search_with_few_evaluations() -> None:
    def median_best(name: str) -> float:
        return statistics.median(best(searched(name, VALLEY, valley, seed, 8)) for seed in range(3))

    bayesian, plain = median_best("bayesian"), median_best("random")
    assert bayesian < 0.6
    assert bayesian < plain - 0.5


def test_points_beside_pending_ones_are_avoided() -> None:
    """What is out is not sought again right beside it, though nothing was told about it."""
    optimizer = create_optimizer("bayesian", VALLEY, seed=2, trials=40)
    points = create_optimizer("random", VALLEY, seed=8).ask(16, [])
    optimizer.tell([(p, valley(p)) for p in points])
    (first,) = optimizer.ask(1, [])
    (second,) = optimizer.ask(1, [first])
    distance = math.hypot((first["x"] - second["x"]) / 15, (first["y"] - second["y"]) / 15)
    assert distance > 0.02


def test_a_region_that_fails_is_avoided() -> None:
    # The values pull towards the region in which every trial fails.
    def function(p: dict[str, Any]) -> float | None:
        return None if p["x"] > 0.6 else 1 - p["x"] + (p["y"] - 0.5) ** 2

    for seed in range(3):
        results = searched("bayesian", SQUARE, function, seed, 12)
        late = [value for _, value in results[24:]]
        assert sum(value is None for value in late) <= 20  # of 24, all of them aimed at the very edge
        assert best(results) < 0.43


@pytest.mark.parametrize("penalty", [1e4, 1e300])
@pytest.mark.parametrize("name", ["bayesian", "auto"])
@pytest.mark.parametrize("objectives", [1, 2])
def test_a_penalty_for_failures_is_a_failure(name: str, penalty: float, objectives: int) -> None:
    def points(told: float | None) -> list[Point]:
        def function(p: dict[str, Any]) -> Any:
            values = [told if p["x"] > 0.4 else (p["x"] - at) ** 2 + (p["y"] - 0.7) ** 2 for at in (0.3, 0.2)]
            return values[0] if objectives == 1 else values

        optimizer = create_optimizer(name, SQUARE, seed=1, trials=40, objectives=objectives)
        return [point for point, _ in run(optimizer, function, 4)]

    assert points(penalty) == points(None)


def test_it_converges_in_a_millionth_of_the_space() -> None:
    at = {"x": 0.301, "y": 0.699, "z": 0.5}
    space = SearchSpace.from_dict(dict.fromkeys(at, REAL), [f"abs({n} - {v:.1f}) <= 0.005" for n, v in at.items()])
    results = searched("bayesian", space, lambda p: sum((p[n] - v) ** 2 for n, v in at.items()), 1, 12)
    assert best(results) < 1e-14


def test_starts_spread_evenly() -> None:
    optimizer = create_optimizer("bayesian", SQUARE, seed=1)
    points = [*optimizer.ask(3), *optimizer.ask(5)]
    cells = {(int(p["x"] * 4), int(p["y"] * 2)) for p in points}
    assert len(cells) == 8  # eight Sobol points: one in each cell of a 4 x 2 grid


def test_start_points_by_space_and_budget() -> None:
    assert [default_start_points(d, None) for d in (1, 6, 50)] == [8, 12, 40]
    assert [default_start_points(6, trials) for trials in (1, 12, 96)] == [1, 4, 12]


def test_rebuilt_between_two_fits_it_proposes_the_same() -> None:
    points = create_optimizer("random", VALLEY, seed=8).ask(70, [])
    told = [(p, valley(p)) for p in points]
    grown, rebuilt = (create_optimizer("bayesian", VALLEY, seed=2, trials=100) for _ in range(2))
    for start in range(0, 70, 7):
        grown.ask(2, [])
        grown.tell(told[start : start + 7])
    rebuilt.tell(told)
    assert grown.ask(6, points[:3]) == rebuilt.ask(6, points[:3])


def test_only_a_fit_that_chooses_the_scale_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Hyperparameters | None] = []
    fit = objective_models.best_fit

    def noting(*args: Any, start: Hyperparameters | None = None, **more: Any) -> Any:
        starts.append(start)
        return fit(*args, start=start, **more)

    monkeypatch.setattr(objective_models, "best_fit", noting)
    optimizer = create_optimizer("bayesian", VALLEY, seed=1)
    results = [(point, valley(point)) for point in create_optimizer("random", VALLEY, seed=1).ask(32, [])]
    optimizer.tell(results[:29])
    optimizer.ask(1, [])
    assert [start is None for start in starts].count(True) == 2  # with a trend and without one, after 27 results
    starts.clear()
    optimizer.tell(results[29:])
    optimizer.ask(1, [])
    assert [start is None for start in starts] == [False, False]


def test_wide_batches_and_a_long_history() -> None:
    space = SearchSpace.from_dict(
        {**{f"x{i}": REAL for i in range(4)}, "n": {"type": "integer", "low": 1, "high": 64, "scale": "log"}}
    )
    points = create_optimizer("random", space, seed=8).ask(2300, [])
    optimizer = create_optimizer("bayesian", space, seed=2)
    optimizer.tell([(p, sum((p[f"x{i}"] - 0.2) ** 2 for i in range(4)) + p["n"] / 64) for p in points])
    asked = optimizer.ask(100, [])
    assert len({point_key(p) for p in [*points, *asked]}) == 2400
    assert statistics.median(sum((p[f"x{i}"] - 0.2) ** 2 for i in range(4)) for p in asked) < 0.3


def noisy_best(with_std: bool, seed: int) -> float:
    """How far right it looks where lucky values lie on the right, perhaps told to be hardly measured at all."""
    optimizer = create_optimizer("bayesian", SQUARE, seed=seed, trials=60)
    points = create_optimizer("random", SQUARE, seed=seed).ask(20, [])
    for point in points:
        lucky = point["x"] > 0.7
        value = (point["x"] - 0.2) ** 2 + (point["y"] - 0.2) ** 2 - (0.9 if lucky else 0.0)
        optimizer.tell([(point, value, (2.0 if lucky else 0.01) if with_std else None)])
    return statistics.mean(p["x"] for p in optimizer.ask(8, []))


def test_values_with_large_standard_errors_count_less() -> None:
    for seed in range(2):
        assert noisy_best(with_std=True, seed=seed) < noisy_best(with_std=False, seed=seed) - 0.1


def test_a_stopped_trial_informs_and_is_never_the_best() -> None:
    """Its projected value draws the search no further down than the best full one."""
    space = SearchSpace.from_dict({"x": REAL})
    full = [({"x": x / 10}, (x / 10 - 0.3) ** 2) for x in range(8)]
    optimizer = create_optimizer("bayesian", space, seed=1, trials=40)
    optimizer.tell(full)
    optimizer.tell([({"x": 0.95}, 0.2, None, True)])
    informed = optimizer.ask(4, [])
    assert all(point["x"] < 0.8 for point in informed)
    only_stopped = create_optimizer("bayesian", space, seed=1, trials=40)
    only_stopped.tell([(point, value, None, True) for point, value in full])
    assert len(only_stopped.ask(4, [])) == 4


# --- batches ---


SPACE = SearchSpace.from_dict(dict.fromkeys("ab", REAL))


def test_a_batch_has_no_point_twice() -> None:
    """Four values that a bowl explains without a rest: a model so sure would go to one place only."""
    optimizer = create_optimizer("bayesian", SPACE, seed=0, trials=16)
    points = create_optimizer("random", SPACE, seed=4).ask(4)
    optimizer.tell([(point, (point["a"] - 0.4) ** 2) for point in points])
    asked = np.array([list(point.values()) for point in optimizer.ask(6, points[:1])])
    distances = np.abs(asked[:, None] - asked[None]).max(axis=2) + np.eye(len(asked))
    assert distances.min() > 2e-3


MIXED: dict[str, Any] = {
    "lr": {"type": "real", "low": 1e-6, "high": 1, "scale": "log"},
    "n": {"type": "integer", "low": 1, "high": 64},
    "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
    "size": {"type": "ordinal", "choices": [1, 2, 4, 8]},
    "momentum": {"type": "real", "low": 0, "high": 1, "when": {"kind": "b"}},
}
BELIEF: dict[str, Any] = {
    "lr": {"around": 1e-3, "within": 10},
    "n": {"around": 20, "within": 8},
    "kind": {"around": "b"},
    "size": {"around": 4, "within": 1},
    "momentum": {"around": 0.9, "within": 0.05},
}


def test_the_density_of_beliefs() -> None:
    space = SearchSpace.from_dict(MIXED, prior=BELIEF)
    beliefs = Beliefs(space, UnitCube(space))
    centre = {name: prior["around"] for name, prior in BELIEF.items()}
    named, *others = (
        beliefs.log_density(np.array([space.encode(centre | change)]))[0]
        for change in ({}, {"lr": 1e-2}, {"lr": 1}, {"n": 60}, {"kind": "a"}, {"size": 1}, {"momentum": 0.2})
    )
    assert all(named > other for other in others)
    # A deviation away, a normal density is lower by 0.5; the even share makes that a little less.
    assert others[0] == pytest.approx(named - 0.5, abs=0.05)
    units = beliefs.placed(np.random.default_rng(1).random((4000, 5)))
    assert space.decode(beliefs.placed(np.full((1, 5), 0.5))[0]) == pytest.approx(centre)
    points = [space.decode(unit) for unit in units]
    assert np.mean([1e-4 < point["lr"] < 1e-2 for point in points]) == pytest.approx(0.68, abs=0.03)
    kinds = [sum(point["kind"] == kind for point in points) / 4000 for kind in "abc"]
    assert kinds == pytest.approx([0.125, 0.75, 0.125], abs=0.03)


def test_a_right_belief_helps_and_a_wrong_one_is_overcome() -> None:
    def found(prior: dict[str, Any] | None, trials: int) -> float:
        space = SearchSpace.from_dict({f"x{i}": {"type": "real", "low": -1, "high": 1} for i in range(5)}, prior=prior)
        results = [searched("auto", space, sphere, seed, trials // 4) for seed in range(3)]
        return statistics.median(map(best, results))

    def at(place: float) -> dict[str, Any]:
        return {f"x{i}": {"around": place, "within": 0.2} for i in range(5)}

    assert found(at(0.35), 8) < 0.2 * found(None, 8)
    assert found(at(-0.8), 48) < 1e-3


def test_the_first_point_is_the_belief() -> None:
    space = SearchSpace.from_dict(MIXED, prior=BELIEF)
    assert create_optimizer("auto", space, seed=3).ask(1, [])[0] == pytest.approx(
        {n: p["around"] for n, p in BELIEF.items()}
    )


def noisy_results(noise: float, seed: int, count: int = 50) -> list[tuple[Point, float]]:
    dice = np.random.default_rng(seed)
    points = create_optimizer("random", SQUARE, seed=seed).ask(count, [])
    return [(point, centre(point) + noise * dice.standard_normal()) for point in points]


def centre(point: Point) -> float:
    return (point["x"] - 0.4) ** 2 + (point["y"] - 0.6) ** 2  # type: ignore[operator]


@pytest.mark.parametrize("name", ["auto", "bayesian", "random"])
def test_with_noise_the_model_recommends_better_points_than_the_lowest_values(name: str) -> None:
    recommended, lowest = [], []
    for seed in range(4):
        optimizer, results = create_optimizer(name, SQUARE, seed=seed), noisy_results(0.1, seed)
        optimizer.tell(results)
        first, second = optimizer.recommend(2)
        assert first.value <= second.value
        assert first.error is not None
        assert abs(first.value - centre(first.point)) < 4 * first.error
        recommended.append(centre(first.point))
        lowest.append(centre(min(results, key=lambda result: result[1])[0]))
    assert sum(recommended) < 0.7 * sum(lowest)


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (noisy_results(0.1, 1, 8), "too few"),
        (noisy_results(0.0, 1), "noise is small"),
        ([(point, 1.0) for point, _ in noisy_results(0.0, 1)], "equal"),
        ([(point, 1e300 * value) for point, value in noisy_results(0.0, 1)], "noise is small"),
    ],
)
def test_without_noise_the_lowest_value_is_recommended_and_why(results: list[tuple[Point, float]], reason: str) -> None:
    optimizer = create_optimizer("auto", SQUARE)
    assert optimizer.recommend() == []
    optimizer.tell(results)
    [found] = optimizer.recommend()
    point, value = min(results, key=lambda result: result[1])
    assert (found.point, found.value, found.error) == (point, value, None)
    assert reason in found.reason


def test_only_finished_feasible_points_within_the_bounds_are_recommended() -> None:
    space = SearchSpace.from_dict({"x": REAL, "y": REAL}, ["x + y <= 1.5"])
    optimizer = create_optimizer("bayesian", space)
    inside = {"x": 0.5, "y": 0.5}
    bad: list[Any] = [({"x": 0.1, "y": 0.1}, 0.1, None, True), ({"x": 0.9, "y": 0.9}, 0.2), ({"x": 1.2, "y": 0.1}, 0.3)]
    optimizer.tell([*bad, ({"x": 0.2, "y": 0.2}, None), (inside, 0.4)])
    assert [each.point for each in optimizer.recommend(9)] == [inside]
    limited = create_optimizer("random", SQUARE, limits=[measured_limit("gb", "<= 8")])
    limited.tell([Result({"x": 0.1, "y": 0.1}, 0.1, measured={"gb": 9}), Result(inside, 0.4, measured={"gb": 7})])
    assert [each.point for each in limited.recommend(9)] == [inside]
    with pytest.raises(InputError, match="several objectives"):
        create_optimizer("auto", SQUARE, objectives=2).recommend()
