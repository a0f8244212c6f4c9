"""Results at several levels, as one result a point."""

from __future__ import annotations

import numpy as np
import pytest

from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.early_stopping import projected
from hpo_pilot.optimizers.level_results import LevelResults


@pytest.fixture
def told():
    """90 points at level 1; the first 30 went on to 3, and the first 10 of them to 9."""
    results = LevelResults()
    for level, count in ((1, 90), (3, 30), (9, 10)):
        for point in range(count):
            results.tell(point, level, Result({"x": point}, (point + point % 3 / level, -point / level)))
    return results


def test_points_are_projected_level_by_level(told):
    found = told.results()
    assert [one.stopped for one in found] == [False] * 10 + [True] * 80
    steps = [[(p + p % 3 / low, p + p % 3 / high) for p in range(n)] for low, high, n in ((1, 3, 30), (3, 9, 10))]
    assert [one.values[0] for one in found[10:30]] == [projected(p + p % 3 / 3, steps[1]) for p in range(10, 30)]
    assert [one.values[0] for one in found[30:]] == [
        projected(projected(p + p % 3, steps[0]), steps[1]) for p in range(30, 90)
    ]


def test_slopes_are_computed_once_for_each_step_and_objective(told, monkeypatch):
    """Most points that were left behind are worse than all that went on, and so need a slope."""
    calls, corrcoef = [], np.corrcoef
    monkeypatch.setattr(np, "corrcoef", lambda *args: calls.append(args) or corrcoef(*args))
    told.results()
    assert len(calls) == 4
