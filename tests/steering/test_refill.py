"""When free slots are filled."""

from __future__ import annotations

import pytest

from hpo_pilot.search import Budget
from hpo_pilot.steering.submissions import Refill


@pytest.mark.parametrize(
    ("refill", "polite", "first"),
    [("auto", 0.0, 1), ("auto", 0.25, 3), (0.5, 0.0, 6), (0.0, 0.25, 1), (1.0, 0.0, 12)],
)
def test_so_many_slots_must_be_free(refill, polite, first):
    refills = Refill(Budget(parallel=12, refill=refill))
    assert [free for free in range(13) if Refill(Budget(parallel=12, refill=refill)).is_due(free, 99, polite)] == list(
        range(first, 13)
    )
    assert not refills.is_due(0, 99, polite)


def test_once_it_begins_all_slots_are_filled_task_by_task():
    refills = Refill(Budget(parallel=40))
    assert not refills.is_due(9, 99, 0.25)
    assert [refills.is_due(free, 99, 0.25) for free in (10, 5, 1, 0, 1)] == [True, True, True, False, False]


def test_the_last_points_of_a_budget_do_not_wait_for_a_batch():
    assert Refill(Budget(parallel=40)).is_due(2, 2, 0.25)


def test_jobs_of_several_trials_are_filled_before_they_go_out():
    budget = Budget(parallel=12)
    assert [free for free in range(13) if Refill(budget, 4).is_due(free, 99, 0.0)] == list(range(4, 13))
    assert Refill(budget, 4).is_due(3, 3, 0.0), "the last of the budget"
    assert Refill(Budget(parallel=2), 4).is_due(2, 99, 0.0), "there are never more"
    assert not Refill(Budget(parallel=40), 4).is_due(9, 99, 0.25)


@pytest.mark.parametrize(("parallel", "per_job", "smallest"), [(6, 4, 3), (5, 4, 2), (9, 4, 3), (8, 4, 4), (3, 8, 3)])
def test_a_job_that_ends_is_followed_by_another_whatever_the_others_do(parallel, per_job, smallest):
    refills = Refill(Budget(parallel=parallel), per_job)
    assert not refills.is_due(smallest - 1, 99, 0.0)
    assert refills.is_due(smallest, 99, 0.0)


def test_shares_are_not_rounded_up_by_a_digit_that_is_not_there():
    assert Refill(Budget(parallel=100, refill=0.07)).is_due(7, 99, 0.0)
