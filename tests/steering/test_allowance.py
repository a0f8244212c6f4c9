"""GPU-hours and core-hours as a hard budget: what runs counts, and nothing begins that would go beyond."""

from __future__ import annotations

import time

import pytest

from hpo_pilot.jobs import JobReport, JobState
from hpo_pilot.search import TrialState
from hpo_pilot.steering.budget import running_jobs
from hpo_pilot.steering.changes import extend
from hpo_pilot.store import SearchState
from hpo_pilot.store.queries import measured_runs, spent
from tests.made import made_attempt
from tests.steering.memory_panda import go

#: One job of 36 s on 2 nodes with 5 GPUs takes 0.1 GPU-hours.
RESOURCES = {"nodes": 2, "gpus_per_node": 5, "minutes": 0.6}
HALF = {"resources": {**RESOURCES, "minutes": 6}}


def runs(panda, task, number, seconds):
    """A heartbeat of a job that has run for so long."""
    panda_id = 100 * task + number
    panda.reports[task][panda_id] = JobReport(panda_id, JobState.RUNNING, 1, number, started=time.time() - seconds)


def out(panda):
    return sum(len(task.jobs) for task in panda.tasks.values())


@pytest.mark.parametrize(
    ("resources", "limit", "count"),
    [(RESOURCES, {}, 3), ({"cores": 4, "minutes": 15}, {"core_hours": 4}, 4)],
    ids=["GPU-hours", "without GPUs only core-hours are a limit"],
)
def test_until_one_has_ended_trials_are_taken_to_last_their_minutes(steer, panda, resources, limit, count):
    go(steer({"resources": resources}, trials=50, parallel=10, gpu_hours=0.35, **limit))
    assert out(panda) == count


def test_then_by_how_long_they_ran(steer, panda):
    steering = steer({"resources": RESOURCES}, trials=50, parallel=3, gpu_hours=0.35)
    go(steering)
    for number in (1, 2, 3):
        panda.finish(1, number, seconds=10.0)
    go(steering)
    # 126 s in all; 30 s are used, so nine of 10 s have room: three at once.
    assert out(panda) == 6
    runs(panda, 2, 1, 33.0)
    go(steering)
    assert steering._allowance.trials == 4  # 126 - 30 for those that ended - 3 x 10 - 23 for the late one: 43 s


def test_a_trial_to_a_high_level_is_expected_to_take_longer(steer, store, panda):
    """Epochs take ten seconds, and one trial of three goes on to the next level."""
    document = {"resources": RESOURCES, "fidelity": {"epochs": {"low": 1, "high": 9, "eta": 3}}}
    steering = steer(document, trials=7, parallel=3, gpu_hours=1)
    go(steering)
    for number in (1, 2, 3):
        panda.finish(1, number, seconds=10.0)
    go(steering)
    out = [trial for trial in store.trials(1) if not trial.state.is_over]
    assert [trial.level for trial in out] == [3, 1, 1]
    assert steering._allowance.trials == (360 - 3 * 10 - 20 - 2 * 10) // 10
    assert steer()._allowance.trials == steering._allowance.trials


@pytest.mark.parametrize("folds", [1, 2])
def test_it_ends_when_no_other_has_room(steer, store, panda, folds):
    steering = steer({"resources": RESOURCES, "folds": folds}, trials=50, parallel=1, gpu_hours=0.35)
    for task in range(1, 10):
        go(steering)
        if task in panda.tasks:
            for number in range(1, folds + 1):
                panda.finish(task, number, seconds=30.0)
    assert len(panda.tasks) == 4 // folds and steering.state is SearchState.DONE
    assert store.search(1).message == f"budget.gpu_hours was spent after {4 // folds} trials"
    assert not panda.killed
    assert spent(store.engine, 1).seconds == 120.0 <= 0.35 * 360


def test_confirmation_runs_have_no_other_budget(steer, panda):
    document = {"resources": RESOURCES, "confirm": {"top": 2, "repeats": 3}}
    steering = steer(document, trials=2, parallel=2, gpu_hours=0.35)
    go(steering)
    panda.finish(1, 1, seconds=30.0)
    panda.finish(1, 2, seconds=30.0)
    go(steering)
    assert [len(task.jobs) for task in panda.tasks.values()] == [2, 2]  # 66 s are left


def test_what_runs_is_stopped_when_the_budget_is_used_up(steer, store, panda):
    steering = steer(HALF, trials=50, parallel=6, gpu_hours=4.5)
    go(steering)
    assert out(panda) == 4
    panda.finish(1, 1, seconds=100.0)
    go(steering)
    assert out(panda) == 7
    for number in (2, 3, 4):
        runs(panda, 1, number, 300.0)
    for number in (1, 2, 3):
        runs(panda, 2, number, 200.0)
    go(steering, 2)
    assert steering.state is SearchState.RUNNING and not panda.killed  # 1,600 of 1,620 s
    assert steering._allowance.seconds_left() == pytest.approx(20 / 6, abs=1)
    runs(panda, 2, 3, 500.0)  # more than the 360 s of its limit are not believed
    go(steering, 2)
    assert panda.killed == [1, 2]
    assert steering.state is SearchState.DONE
    record = store.search(1)
    assert record.message == "the budget of 4.5 GPU-hours is used up; the 6 trials that were still out were stopped"
    trials = store.trials(1)
    assert [trial.state for trial in trials] == [TrialState.FINISHED] + [TrialState.STOPPED] * 6
    assert {trial.error for trial in trials[1:]} == {record.message}
    # What was killed is paid for as far as it came.
    assert spent(store.engine, 1).seconds == pytest.approx(100 + 3 * 300 + 2 * 200 + 360, abs=2)


def test_more_hours_let_it_go_on(steer, store, panda):
    steering = steer(HALF, trials=50, parallel=4, gpu_hours=4)
    go(steering)
    panda.finish(1, 1, seconds=100.0)
    for number in (2, 3, 4):
        runs(panda, 1, number, 1e6)
    go(steering, 3)
    for number in range(1, len(panda.tasks.get(2, panda.tasks[1]).jobs) + 1):
        runs(panda, 2, number, 1e6)
    go(steering, 3)
    assert steering.state is SearchState.DONE
    used = spent(store.engine, 1).seconds
    extend(store, store.search(1), "me", {"gpu_hours": 2.0})
    before = out(panda)
    again = steer()
    assert again._spent.job_seconds == used
    go(again)
    # Finished ones took 100 s: of 6 GPU-hours there is room for so many more.
    assert out(panda) - before == min(4, int((6 * 360 - used) // 100))


def test_it_is_reached_in_a_paused_search_too(steer, store, panda):
    steering = steer({"resources": RESOURCES}, trials=5, parallel=1, gpu_hours=0.1)
    go(steering)
    store.set_state(1, SearchState.PAUSED, "me")
    steering.state = SearchState.PAUSED
    runs(panda, 1, 1, 36.5)
    go(steering, 2)
    assert steering.state is SearchState.FAILED and panda.killed == [1]


def test_a_restart_knows_what_was_used(steer, store, panda):
    steering = steer({"resources": RESOURCES}, trials=50, parallel=3, gpu_hours=0.35)
    go(steering)
    panda.finish(1, 1, seconds=10.0)
    runs(panda, 1, 2, 20.0)
    go(steering)
    assert measured_runs(store.engine, 1) == (1, 10.0)
    again = steer()
    assert again._allowance.trials == steering._allowance.trials
    assert again._allowance.seconds_left() == pytest.approx(steering._allowance.seconds_left(), abs=1)


def outcome(trial, *, task=1, attempt=1, state=JobState.RUNNING, started=None, seconds=None, panda_id=1):
    return made_attempt(task, trial, 0, attempt, state, panda_id=panda_id, started=started, seconds=seconds)


def test_a_job_counts_once_however_many_points_it_runs():
    job, other = running_jobs(
        [outcome(1, started=100.0), outcome(2, started=130.0), outcome(3), outcome(4, panda_id=2, started=150.0)],
        now=160.0,
        limit=600.0,
    )
    assert (job.seconds, len(job.members), other.seconds) == (60.0, 3, 10.0)
    assert [each.seconds for each in job.cut_off(160.0)] == [20.0] * 3


def test_only_the_newest_attempt_of_a_fold_runs_and_no_longer_than_it_may():
    known = [
        outcome(1, started=100.0),
        outcome(1, attempt=2, panda_id=2, started=140.0),
        outcome(2, started=100.0, panda_id=3),
        outcome(2, task=2, panda_id=4, state=JobState.FAILED, started=110.0, seconds=5.0),
    ]
    assert [job.seconds for job in running_jobs(known, now=160.0, limit=600.0)] == [20.0]
    assert [job.seconds for job in running_jobs(known, now=1e9, limit=600.0)] == [600.0]
