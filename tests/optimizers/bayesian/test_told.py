from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.objective_models import refit_cut
from hpo_pilot.optimizers.training_data import Table, Told


def observation(key: str, *values: float, place: float = 0.5, **more: Any) -> Observation:
    return Observation({"x": place}, values or None, key=key, unit=(place,), **{"stds": None, **more})


def test_it_reads_any_earlier_state_back() -> None:
    told = Told(1)
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
    told = Told(1)
    told.add(observation("a", stopped=True))
    assert len(told) == 0
    assert told.failing(16) == 0.0
    told.add(observation("a"))
    assert told.failing(16) == 1.0


def test_the_mean_of_huge_values_is_finite() -> None:
    told = Told(1)
    for _ in range(4):
        told.add(observation("a", 1.7e308))
    assert told.table(4).values == pytest.approx(np.array([[1.7e308]]))


def test_how_sure_the_values_are() -> None:
    told = Told(1)
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
    shape = values.shape
    return Table(np.zeros((shape[0], 1)), values, np.zeros(shape), np.zeros(shape[0], dtype=bool))


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
