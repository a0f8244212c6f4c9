from __future__ import annotations

from hpo_pilot.steering.submissions import Lookahead


def test_nothing_waits_before_anything_is_measured():
    assert Lookahead(8, "auto").waiting == 0


def test_long_trials_need_no_waiting_points():
    look = Lookahead(8, "auto")
    look.handed_over(0.5)
    look.ran(600.0)
    assert look.waiting == 0


def test_short_trials_get_as_many_as_their_hand_over_costs():
    look = Lookahead(8, "auto")
    look.handed_over(0.2)
    look.ran(1.0)
    assert look.waiting == 2
    look.ran(1e-4)
    for _ in range(50):
        look.ran(1e-4)
    assert look.waiting == 8


def test_one_trial_at_a_time_stays_sequential():
    look = Lookahead(1, "auto")
    look.handed_over(1.0)
    look.ran(0.001)
    assert look.waiting == 0


def test_a_number_is_taken_as_it_is():
    look = Lookahead(1, 3)
    look.ran(1000.0)
    assert look.waiting == 3


def test_with_several_trials_a_job_hand_overs_are_rarer_and_whole_jobs_wait():
    look = Lookahead(16, "auto", trials_per_job=4)
    look.handed_over(0.2)
    look.ran(1.0)
    assert look.waiting == 4
    single = Lookahead(16, "auto")
    single.handed_over(0.2)
    single.ran(4.0)
    assert single.waiting == 1
