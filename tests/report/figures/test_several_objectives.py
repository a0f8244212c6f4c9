"""Fronts and hypervolumes of a search with several objectives."""

from __future__ import annotations

import math

import pytest

from hpo_pilot.report.figure import FigureData
from hpo_pilot.report.result_figures import convergence_figures
from hpo_pilot.report.summary import convergence, front_of, front_volume, ranking, reference_of, top_trials
from hpo_pilot.search import TrialState
from tests.report.figures.made_up import make_search, make_trial

TWO = [{"metric": "loss"}, {"metric": "speed", "goal": "maximize"}]


def search_of(objective=TWO, **changes):
    return make_search(objective=objective, **changes)


def trials_of(*rows, **changes):
    return [
        make_trial(n, None if row is None else row[0], values=row, **changes) for n, row in enumerate(rows, start=1)
    ]


ROWS = [(3.0, 9.0), (1.0, 1.0), (2.0, 5.0), None, (2.5, 4.0), (2.0, 5.0), (9.0, 0.5)]


def test_the_front_is_in_the_order_of_the_first_objective():
    front = front_of(search_of(), trials_of(*ROWS))
    assert [standing.trial.number for standing in front] == [2, 3, 6, 1]
    ranked = [standing.trial.number for standing in ranking(search_of(), trials_of(*ROWS))]
    assert set(ranked[:4]) == {1, 2, 3, 6}
    assert ranked[4:] == [5, 7]
    assert {trial.number for trial in top_trials(search_of(), trials_of(*ROWS), 2)} == {1, 2}  # the ends of the front
    assert front_of(search_of(), []) == []


def test_stopped_and_incomplete_trials_are_not_on_it():
    trials = [*trials_of(*ROWS), make_trial(8, 0.1, values=(0.1, 99.0), state=TrialState.STOPPED), make_trial(9, 0.0)]
    assert [standing.trial.number for standing in front_of(search_of(), trials)] == [2, 3, 6, 1]


def test_confirmed_trials_leave_the_front_only_for_confirmed_ones():
    trials = trials_of((1.0, 5.0), (2.0, 6.0), (1.5, 5.5), (3.0, 1.0))
    again = [make_trial(10, 2.2, values=(2.2, 4.0), confirms=1), make_trial(11, 2.1, values=(2.1, 6.5), confirms=2)]
    front = front_of(search_of(), [*trials, *again])
    # 1 came out as (2.2, 4): worse than 2, which was confirmed as (2.1, 6.5). 3 is behind neither.
    assert [standing.trial.number for standing in front] == [3, 2]
    assert front[1].figures == (2.1, 6.5)
    only_first = front_of(search_of(), [*trials, again[0]])
    assert 1 in [standing.trial.number for standing in only_first], "unconfirmed luck does not push it out"


def test_reference_and_volume_by_hand():
    given = [{**TWO[0], "reference": 4.0}, {**TWO[1], "reference": 0.0}]
    # Slabs: 1 to 2 at 1, 2 to 3 at 5, 3 to 4 at 9.
    assert front_volume(search_of(given), trials_of(*ROWS)) == pytest.approx(1 + 5 + 9)
    assert reference_of(search_of(given), trials_of(*ROWS)) == (4.0, 0.0)
    found = reference_of(search_of(), trials_of((0.0, 10.0), (10.0, 0.0)))
    assert found == pytest.approx((11.0, -1.0))
    assert reference_of(search_of(), trials_of(None)) is None
    assert front_volume(search_of(), trials_of(None)) is None


def test_the_reference_stays_and_far_outliers_do_not_count():
    rows = [(float(n), float(n)) for n in range(10)] + [(1e30, 0.0)] + [(5.0, 5.0)] * 9
    early = reference_of(search_of(), trials_of(*rows))
    assert early == reference_of(search_of(), trials_of(*rows, (99.0, -99.0)))
    assert early is not None
    assert early[0] < 100


def test_the_volume_only_grows_once_the_reference_stands():
    steps = convergence(search_of(), trials_of(None, (3.0, 3.0), None, (2.0, 4.0), (9.0, 0.0), (1.0, 2.0)))
    assert [place for place, _ in steps] == [2, 3, 4, 5, 6]
    volumes = [volume for _, volume in steps]
    assert volumes == sorted(volumes)
    assert volumes[0] == volumes[1] < volumes[2] == volumes[3] < volumes[4]


def test_figures_near_the_largest_float_have_a_reference_and_a_volume():
    search = search_of()
    trials = trials_of(*[(n / 9, (-1e308, 1e308)[n % 2]) for n in range(9)])
    reference = reference_of(search, trials)
    assert all(map(math.isfinite, reference))
    assert reference[1] < -1e308
    assert 0 < front_volume(search, trials) < math.inf
    assert "drawn there" in convergence_figures(FigureData(search, trials))[0].note
