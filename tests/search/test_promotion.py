"""Levels, and which points go on to the next."""

from __future__ import annotations

import pytest

from hpo_pilot.search.fidelity import Levels
from hpo_pilot.search.promotion import (
    LEAST_PAIRS,
    Promotion,
    first_points,
    levels_between,
    mean_share,
    planned_counts,
)


@pytest.mark.parametrize(
    ("low", "high", "eta", "levels"),
    [
        (1, 81, 3, (1, 3, 9, 27, 81)),
        (1, 100, 3, (1, 3, 9, 27, 100)),
        (2, 3, 4, (2, 3)),
        (0.05, 1.0, 3, (0.05, 0.15, 0.45, 1.0)),
    ],
)
def test_levels(low, high, eta, levels):
    assert levels_between(low, high, eta) == levels


def told(levels, *results, on=()):
    """A promotion told of (number, level, cost or costs or None), and the trials that went on."""
    promotion = Promotion(levels, 3)
    for number, level, cost in results:
        promotion.tell(number, level, cost if cost is None or isinstance(cost, tuple) else (cost,))
    for number in on:
        promotion.go_on(number)
    return promotion


@pytest.mark.parametrize(
    ("results", "on", "due"),
    [
        ([(1, 1, 0.5), (2, 1, 0.4)], (), []),  # of two the best third is none
        ([(1, 1, 0.5), (2, 1, 0.4), (3, 1, 0.6)], (), [(2, 3)]),
        ([(1, 1, 0.5), (2, 1, 0.4), (3, 1, 0.6)], (2,), []),  # it went on before
        ([(1, 1, 0.5), (2, 1, 0.4), (3, 1, 0.3)], (2,), [(3, 3)]),  # better than the one that went on
        ([(1, 1, 0.5), (2, 1, None), (3, 1, None)], (), [(1, 3)]),  # failed ones count as results
        ([(n, 1, n) for n in range(1, 7)] + [(n, 3, n) for n in (7, 8, 9)], (1,), [(7, 9), (2, 3)]),  # higher first
        ([(n, 9, n) for n in range(1, 4)], (), []),  # the last level
        ([(n, 4, n) for n in range(1, 4)], (), [(1, 9)]),  # a level from before `extend`
        ([(1, 1, (1, 9)), (2, 1, (9, 1)), (3, 1, (9, 9))], (), [(1, 3)]),  # the front, its least crowded first
    ],
)
def test_who_goes_on(results, on, due):
    assert list(told((1, 3, 9), *results, on=on).due()) == due


@pytest.mark.parametrize(
    ("last", "due"),
    [
        ((1, 2, 3, 4), []),
        ((4, 3, 2, 1), [(5, 3), (6, 3)]),
        ((1, 2, 3, None), []),  # too few points are known at both levels
        (((1, 1), (2, 2), (3, 3), (4, 4)), []),
        (((1, 4), (2, 3), (3, 2), (4, 1)), [(5, 3), (6, 3)]),  # of one objective only
    ],
)
def test_a_level_whose_ranks_disagree_with_the_last_selects_none(last, due):
    promotion = Promotion((1, 3), 3, 2)
    objectives = 2 if isinstance(last[0], tuple) else 1
    for point in range(4, 0, -1):
        promotion.tell(point, 1, (point,) * objectives, point)
    assert {number for number, _ in promotion.due()} >= {4, 3}  # the first ones, whatever their results
    for point, cost in enumerate(last, 1):
        promotion.go_on(point)
        promotion.tell(10 + point, 3, cost if isinstance(cost, tuple) or cost is None else (cost,), point)
    for point in (5, 6):
        promotion.tell(point, 1, (point,) * objectives, point)
    assert list(promotion.due()) == due


@pytest.mark.parametrize(
    ("results", "on", "first"),
    [
        ([(1, 1, 0.5), (2, 1, 0.4)], (), [2]),
        ([(n, 1, n) for n in range(1, 10)] + [(10, 3, 5), (11, 3, 4), (12, 9, 1)], (1, 2, 3, 11), [4, 5, 6, 10, 12]),
        ([(1, 1, 0.5), (2, 1, None)], (1,), []),
    ],
)
def test_who_would_go_on_if_there_were_more_budget(results, on, first):
    assert list(told((1, 3, 9), *results, on=on).waiting()) == first


@pytest.mark.parametrize(
    ("results", "on", "last"),
    [
        ([], (), None),
        ([(1, 1, 0.5), (2, 1, 0.4)], (), (2, 3)),
        ([(1, 1, 0.5), (2, 1, 0.4), (3, 3, 0.6)], (2,), (3, 9)),  # the highest level, whatever its figure
        ([(1, 1, 0.5), (2, 1, 0.4), (3, 3, None)], (2,), (1, 3)),  # it failed there: the next one
        ([(1, 1, 0.5), (2, 1, 0.4), (3, 9, 0.6)], (2,), None),  # one is trained to the end
    ],
)
def test_one_point_is_trained_to_the_end(results, on, last):
    assert told((1, 3, 9), *results, on=on).last() == last


@pytest.mark.parametrize(
    ("points", "limit", "first"),
    [(64, None, 8), (24, None, 3), (7, None, 0), (64, 9999, 8), (64, 300, 2), (64, 107, 1), (8, 300, 1)],
)
def test_first_points_take_at_most_a_quarter_of_a_limited_sum_of_levels(points, limit, first):
    assert first_points(points, 27, limit) == first
    assert min(Levels(low=1, high=27, eta=3).planned(points, limit)) >= first


@pytest.mark.parametrize(("limit", "counts"), [(20, [8, 3, 1]), (1, [1, 0, 0]), (26, [12, 4, 1]), (999, [12, 4, 2])])
def test_expected_trials_where_the_sum_of_levels_is_limited(limit, counts):
    assert list(Levels(low=1, high=9, eta=3).planned(12, limit)) == counts


def test_whether_levels_agree_is_known_from_some_points_on():
    promotion = Promotion((1, 3, 9), 3)
    for point in range(LEAST_PAIRS):
        assert not promotion.levels_agree
        for level in (1, 3, 9):
            promotion.tell(10 * point + level, level, (float(point),), point)
    assert promotion.levels_agree
    for point in range(LEAST_PAIRS):  # the ranks at 3 are those at 9; those at 1 are turned around
        for level, cost in ((1, -point), (3, point), (9, point)):
            promotion.tell(100 + 10 * point + level, level, (float(cost),), 100 + point)
    assert not promotion.levels_agree


def test_expected_trials_and_the_mean_length_of_their_jobs():
    counts = planned_counts(64, 5, 3, 8)
    assert counts == [64, 26, 14, 10, 8]
    assert mean_share(counts, (1, 3, 9, 27, 81)) == (64 * 1 + 26 * 2 + 14 * 6 + 10 * 18 + 8 * 54) / 122 / 54
