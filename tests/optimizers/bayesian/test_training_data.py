"""Told trials as arrays: features, tables, and scales of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.objective_models import refit_cut
from hpo_pilot.optimizers.training_data import NORMAL, PLAIN, TAMED, FeatureMap, Table, ToldTrials, scaled_values
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict(
    {
        "child": {"type": "real", "low": 0, "high": 1, "when": {"kind": ["b", "c"]}},
        "kind": {"type": "categorical", "choices": ["a", "b", "c"], "when": {"flag": True}},
        "flag": {"type": "categorical", "choices": [1, True, "1"]},
        "yes": {"type": "categorical", "choices": [False, True]},
        "only": {"type": "categorical", "choices": ["one"]},
        "lr": {"type": "real", "low": 1e-4, "high": 1.0, "scale": "log"},
        "step": {"type": "real", "low": 0, "high": 0.5, "step": 0.05},
        "width": {"type": "integer", "low": 1, "high": 200, "scale": "log"},
        "layers": {"type": "integer", "low": 1, "high": 4},
        "of_layers": {"type": "ordinal", "choices": [8, 16], "when": {"layers": 2}},
    }
)


def test_snapped_is_what_the_space_makes_of_a_unit_vector() -> None:
    units = np.random.default_rng(1).random((400, len(SPACE.dimensions)))
    units[0], units[1] = 0.0, 1.0
    features = FeatureMap(SPACE)
    expected = np.array([SPACE.encode(SPACE.decode(unit)) for unit in units.tolist()])
    assert features.cube.snapped(units) == pytest.approx(expected)
    assert np.array_equal(features.cube.snapped(features.cube.snapped(units)), features.cube.snapped(units))


def test_features_have_a_column_per_choice() -> None:
    features = FeatureMap(SPACE)
    units = features.cube.snapped(np.random.default_rng(1).random((50, len(SPACE.dimensions))))
    rows = features.features(units)
    assert rows.shape == (50, features.size)
    assert features.size == 1 + 3 + 3 + 1 + 1 + 5  # child, kind, flag, yes, only, and five ordered ones
    assert np.array_equal(rows[:, features.columns], units[:, features.ordered])
    flags = rows[:, 4:7]
    assert np.array_equal(np.argmax(flags, axis=1), np.floor(units[:, 2] * 3))
    assert np.all(flags.sum(axis=1) == 1)
    assert features.features(units[:0]).shape == (0, features.size)


def test_inactive_dimensions_have_no_influence() -> None:
    features = FeatureMap(SPACE)
    units = np.full((2, len(SPACE.dimensions)), 0.3)
    units[:, 2] = 0.1  # flag is 1, so neither kind nor child is there
    units[1, :2] = 0.9
    first, second = features.features(features.cube.snapped(units))
    assert np.array_equal(first, second)


def test_a_narrow_feasible_part_is_stretched() -> None:
    dimensions = {name: {"type": "real", "low": 0, "high": 10} for name in ("narrow", "wide")}
    kind = {"kind": {"type": "categorical", "choices": ["a", "b", "c"]}}
    space = SearchSpace.from_dict({**kind, **dimensions}, ["abs(narrow - 3) <= 0.01", "wide <= 5"])
    features = FeatureMap(space)
    units = np.array([space.encode({"kind": "b", "narrow": narrow, "wide": 1.0}) for narrow in (2.99, 3.0, 3.01)])
    rows = features.features(units)
    assert rows[:, 3] == pytest.approx([0.1, 0.5, 0.9], abs=0.05)
    assert rows[:, 4] == pytest.approx(0.1)
    assert features.moved(units[::-1], rows) == pytest.approx(units)
    assert features.bounds[4].tolist() == [0.0, 1.0]
    rows[:2, 3] = features.bounds[3]
    assert features.moved(units[:2], rows[:2])[:, 1] == pytest.approx([0.0, 1.0])


def test_neighbours_differ_in_one_stepwise_dimension() -> None:
    features = FeatureMap(SPACE)
    unit = features.cube.snapped(np.full((1, len(SPACE.dimensions)), 0.5))[0]
    points = [SPACE.decode(u) for u in features.neighbours(unit).tolist()]
    here = SPACE.decode(unit.tolist())
    assert {p["layers"] for p in points} == {1, 2, 3, 4}
    assert {p["step"] for p in points} == set(SPACE.dimensions["step"].grid(11))
    assert {p["lr"] for p in points} == {here["lr"]}


# --- told trials ---


def observation(key: str, *values: float, place: float = 0.5, **more: Any) -> Observation:
    return Observation({"x": place}, values or None, key=key, unit=(place,), **{"stds": None, **more})


def test_it_reads_any_earlier_state_back() -> None:
    told = ToldTrials(1)
    for key, values in (("a", [1.0]), ("b", []), ("a", [3.0]), ("c", [2.0]), ("b", [5.0])):
        told.add(observation(key, *values))
    told.add(Observation({}, (1.0,), None, "nowhere", None))
    told.add(observation("far", 1.0, place=1.6))
    assert len(told) == 5
    assert told.table(5).values.tolist() == [[2.0], [5.0], [2.0]]
    table = told.table(2)
    assert table.units.shape == (2, 1)
    assert table.values[0] == 1.0
    assert table.failed.tolist() == [False, True]
    assert table.good.tolist() == [0]
    assert told.table(0).units.shape == (0, 1)
    assert told.table(0).values.shape == (0, 1)


def test_a_stopped_trial_of_which_nothing_is_known_is_no_failure() -> None:
    told = ToldTrials(1)
    told.add(observation("a", stopped=True))
    assert len(told) == 0
    assert told.failing(16) == 0.0
    told.add(observation("a"))
    assert told.failing(16) == 1.0


GOOD = [(0.3,), (0.1,), (0.7,)]


@pytest.mark.parametrize(
    ("values", "failures"),
    [
        ([*GOOD, *3 * [(1e4,)]], 3),
        ([*GOOD, *3 * [(1e300,)]], 3),
        ([*GOOD, *3 * [(1e300,)], *4 * [(1e4,)]], 7),  # two kinds of failures
        ([*GOOD, *3 * [(6.7,)]], 0),  # not ten times their range beyond them: a clipped loss
        ([*GOOD, *2 * [(1e4,)]], 0),  # may be chance
        ([*GOOD[:2], *9 * [(1e4,)]], 0),  # nothing would be left to model
        ([*3 * [(0.0,)], *3 * [(1.0,)]], 0),  # two levels have no range
        ([*GOOD, *3 * [(-1e4,)]], 0),  # the best
        ([*GOOD, (1e5,), *3 * [(1e4,)]], 0),  # not the worst
        ([(-1.7e308,), *GOOD, *3 * [(1.7e308,)]], 0),
        ([(0.3, 5.0), (0.1, 7.0), (0.7, 6.0), *3 * [(1e4, 1e4)]], 3),
        ([(0.3, 5.0), (0.1, 7.0), (0.7, 6.0), *3 * [(1e4, 1.0)]], 0),  # best in the other objective
    ],
)
def test_failures_told_as_a_number(values: list[tuple[float, ...]], failures: int) -> None:
    told = ToldTrials(1, len(values[0]))
    for number, one in enumerate(values):
        told.add(observation(str(number), *one, place=number / 20))
    table = told.table(len(values))
    assert np.flatnonzero(table.failed).tolist() == list(range(len(values)))[len(values) - failures :]
    assert told.failing(1) == (failures > 0)
    assert not told.table(4).failed.any()  # an earlier state is not changed by what comes later


def test_a_point_that_is_told_again_is_one_point() -> None:
    told = ToldTrials(1)
    for number, value in enumerate([0.3, 0.1, 0.7, 1e4]):
        for _ in range(3):
            told.add(observation(str(number), value, place=number / 20))
    assert not told.table(12).failed.any()


def test_the_mean_of_huge_values_is_finite() -> None:
    told = ToldTrials(1)
    for _ in range(4):
        told.add(observation("a", 1.7e308))
    assert told.table(4).values == pytest.approx(np.array([[1.7e308]]))


def test_how_sure_the_values_are() -> None:
    told = ToldTrials(1)
    told.add(observation("a", 1.0, place=0.1, stds=(0.4,)))
    told.add(observation("a", 2.0, place=0.1, stds=(0.3,)))
    told.add(observation("b", 3.0, place=0.2, stopped=True))
    told.add(observation("c", place=0.3))
    table = told.table(4)
    assert table.stds[:, 0] == pytest.approx([0.25, 0.0, 0.0])  # of the mean: sqrt(0.4^2 + 0.3^2) / 2
    assert table.stopped.tolist() == [False, True, False]
    told.add(observation("b", 3.5, place=0.2))
    assert not told.table(5).stopped.any()
    assert told.table(4).stopped.tolist() == [False, True, False]


def a_table(values: np.ndarray) -> Table:
    count = len(values)
    stopped, violations, levels = np.zeros(count, dtype=bool), np.zeros(count), np.zeros(count, dtype=int)
    return Table(np.zeros((count, 1)), values, np.zeros(values.shape), stopped, violations, levels)


def test_the_better_half_and_others_at_random() -> None:
    values = np.arange(40.0)[:, None]
    values[3] = np.nan
    rows = a_table(values).most_telling(10, np.random.default_rng(1))
    assert rows[:5].tolist() == [0, 1, 2, 4, 5]
    assert len(set(rows.tolist())) == 10
    assert a_table(values).most_telling(39, np.random.default_rng(1)).tolist() == [0, 1, 2, *range(4, 40)]


def test_of_several_objectives_the_better_half_is_on_the_first_fronts() -> None:
    place = np.linspace(0, 1, 10)
    first = np.stack([place, 1 - place], axis=1)
    rows = a_table(np.concatenate([first + 2.0, first, first + 1.0])).most_telling(20, np.random.default_rng(1))
    assert set(range(10, 20)) <= set(rows.tolist())


def test_failures_and_successes_are_both_seen() -> None:
    values = np.full((100, 1), np.nan)
    values[:3] = 1.0
    rows = a_table(values).some_of_both(20, np.random.default_rng(1))
    assert rows[:3].tolist() == [0, 1, 2]
    assert len(rows) == 20
    assert a_table(values).some_of_both(100, np.random.default_rng(1)).tolist() == list(range(100))


def test_cuts_of_the_history_do_not_depend_on_the_way_there() -> None:
    assert [refit_cut(n) for n in (0, 5, 20, 21, 22, 41)] == [0, 5, 20, 21, 22, 40]
    assert refit_cut(10_000) > 9_400
    assert all(refit_cut(refit_cut(n)) == refit_cut(n) <= n for n in range(1, 500))


# --- scales of values ---


def test_a_diverged_training_does_not_flatten_the_good_ones() -> None:
    good = np.linspace(0.1, 0.2, 20)
    assert np.ptp(scaled_values(np.r_[good, 1e12])[NORMAL].values[:20]) > 1.5


ODD = [
    [1.7e308, -1.7e308, 0.0, 1.0, 3.0],
    [5e-324, 1e-323, 2e-323, 0.0],
    [0.1, 0.2, 0.3, 0.4, 1e300],
    [-1e300, 0.1, 0.2, 0.3, 0.4],
    [0.0] * 20 + [1.0],
    np.random.default_rng(1).standard_normal(50).tolist(),
    np.exp(3 * np.random.default_rng(1).standard_normal(50)).tolist(),
]


@pytest.mark.parametrize("values", ODD)
def test_every_scale_is_standard_and_in_the_same_order(values: list[float]) -> None:
    found = scaled_values(np.array(values))
    assert next(iter(found)) == PLAIN
    for scaled in found.values():
        assert scaled.values.mean() == pytest.approx(0.0, abs=1e-9)
        assert scaled.values.std() == pytest.approx(1.0)
        assert np.all(np.diff(scaled.values[np.argsort(values, kind="stable")]) >= -1e-12)
        assert np.isfinite(scaled.log_volume)
        assert np.all(np.isfinite(scaled.variances(np.full(len(values), 0.1), np.zeros(len(values), dtype=bool))))


@pytest.mark.parametrize("values", [[], [3.0], [1e300] * 4, [0.0] * 5, [1.0, 1.0, 1.0, 1.0 + 1e-16]])
def test_equal_values_have_no_scale(values: list[float]) -> None:
    assert scaled_values(np.array(values)) == {}


def test_slopes_and_volume_are_those_of_the_scale() -> None:
    values = np.exp(2 * np.random.default_rng(1).standard_normal(60))
    step = 1e-7 * values.max()
    found = scaled_values(values)
    for scaled in found.values():
        for index in (0, 7, int(np.argmax(values)), int(np.argmin(values))):
            # Moved against its neighbours' distances a little: the scale itself stays as it is, to first order.
            other = np.searchsorted(np.sort(values), values[index])
            nearest = np.sort(values)[other - 1 if other else 1]
            at = scaled_values(values)[scaled.name]
            slope = (at.values[index] - at.values[values == nearest][0]) / (values[index] - nearest)
            assert scaled.slopes[index] / scaled.unit == pytest.approx(slope, rel=0.5)
        stds = np.full(60, step)
        known = (step * scaled.slopes / scaled.unit) ** 2
        assert scaled.variances(stds, np.zeros(60, dtype=bool)) == pytest.approx(known)
        assert scaled.variances(stds, np.ones(60, dtype=bool)) == pytest.approx(known + 0.1)
        # The volume leaves out the robust spread that all scales begin with.
        assert np.log(scaled.slopes * _spread(values)).sum() == pytest.approx(scaled.log_volume)
    assert list(found) == [PLAIN, TAMED, NORMAL]


def _spread(values: np.ndarray) -> float:
    """What all scales divide by first, in units of the largest value: the plain one's slope and volume say so."""
    plain = scaled_values(values)[PLAIN]
    return float(np.exp(plain.log_volume / len(values)) / plain.slopes[0])
