"""Results at several levels, as one result a point."""

from __future__ import annotations

import numpy as np
import pytest

from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.early_stopping import Projection
from hpo_pilot.optimizers.level_results import LevelResults


@pytest.fixture
def told():
    """90 points at level 1; the first 30 went on to 3, and the first 3 of them to 9."""
    results = LevelResults()
    for level, count in ((1, 90), (3, 30), (9, 3)):
        for point in range(count):
            results.tell(point, level, Result({"x": point}, (point + point % 3 / level, -point / level)))
    return results


def test_points_are_projected_level_by_level(told):
    found = told.results()
    assert [one.stopped for one in found] == [False] * 3 + [True] * 87
    steps = [[(p + p % 3 / low, p + p % 3 / high) for p in range(n)] for low, high, n in ((1, 3, 30), (3, 9, 3))]
    assert [one.values[0] for one in found[3:30]] == [Projection(steps[1])(p + p % 3 / 3) for p in range(3, 30)]
    assert [one.values[0] for one in found[30:]] == [
        Projection(steps[1])(Projection(steps[0])(p + p % 3)) for p in range(30, 90)
    ]


@pytest.mark.parametrize(("last", "believed"), [((1, 2, 3), 1.0), ((1, 2, 3, 4), 0.5), ((4, 3, 2, 1), 0.0)])
def test_a_level_whose_ranks_disagree_is_believed_less(last, believed):
    results = LevelResults()
    for point in range(1, 6):
        results.tell(point, 1, Result({"x": point}, (float(point),)))
    for point, value in enumerate(last, 1):
        results.tell(point, 3, Result({"x": point}, (float(value),)))
    told, projection = results.results()[4].values[0], Projection(list(enumerate(map(float, last), 1)))(5.0)
    median = sum(last) / len(last)
    assert told == pytest.approx(median + believed * (projection - median))


def test_slopes_are_computed_once_for_each_step_and_objective(told, monkeypatch):
    """Most points that were left behind are worse than all that went on, and so need a slope."""
    calls, corrcoef = [], np.corrcoef
    monkeypatch.setattr(np, "corrcoef", lambda *args: calls.append(args) or corrcoef(*args))
    told.results()
    assert len(calls) == 4


def test_run_times_are_those_of_whole_trainings_also_of_points_at_lower_levels():
    """Epochs take longer at higher levels, and mostly dear points go on."""
    results, epoch = LevelResults(), {1: 5.0, 3: 6.0, 9: 12.0}
    for level, points in ((1, range(9)), (3, (8, 7, 6, 0)), (9, (8, 0))):
        for point in points:
            results.tell(point, level, Result({"x": point}, (1.0,), seconds=9 * epoch[level] * (point + 1)))
    assert [one.seconds for one in results.results()] == pytest.approx([9 * 12 * (point + 1) for point in range(9)])


def test_run_times_that_are_not_known():
    results = LevelResults()
    for level, point, seconds in ((1, 0, None), (1, 1, 6.0), (1, 2, 9.0), (3, 1, None), (3, 2, 27.0), (9, 2, 90.0)):
        results.tell(point, level, Result({"x": point}, None if level == 9 else (1.0,), seconds=seconds))
    assert [one.seconds for one in results.results()] == [None, 6.0 * 3, 27.0]
