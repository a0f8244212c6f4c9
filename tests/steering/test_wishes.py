"""Points that users ask for: ahead of the optimizer's, on top of the budget, never lost and never twice."""

from __future__ import annotations

import csv

import pytest

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.report.exports import as_csv, as_json
from hpo_pilot.search import Search, TrialState
from hpo_pilot.search.earlier_results import read_results
from hpo_pilot.steering.changes import add_point, pause, resume, retry, set_parallel, stop
from hpo_pilot.steering.registration import _refiled
from hpo_pilot.store import SearchState
from tests.replay import replayed
from tests.steering.memory_panda import finish_all, go


def fail(panda, task_id, number=1):
    """The payload of one job fails."""
    panda.finish(task_id, number, failed="no such file")


def now(store):
    return store.search("demo")


def test_a_point_goes_out_before_what_the_optimizer_proposes(steer, store, panda):
    steering = steer(trials=4, parallel=1)
    go(steering, 2)
    assert add_point(store, now(store), "alice", {"x": 0.5}) == 1
    assert now(store).search.budget.trials == 5
    assert "asked for the point" in store.events(1)[-1].what
    assert "budget trials 4 -> 5" in store.events(1)[-1].what
    steering = steer()
    go(steering, 2)
    assert len(store.trials(1)) == 1, "one at a time"
    finish_all(steering, panda)
    trials = store.trials(1)
    assert trials[1].point == {"x": 0.5}
    assert [trial.state for trial in trials] == [TrialState.FINISHED] * 5
    assert now(store).state is SearchState.DONE
    assert not store.requested_points(1)


def test_a_failed_trial_is_tried_again_once(steer, store, panda):
    steering = steer(trials=3, parallel=1, failures=5)
    go(steering, 2)
    fail(panda, 1)
    finish_all(steering, panda)
    assert now(store).state is SearchState.DONE
    assert retry(store, now(store), "alice") == 1
    assert now(store).state is SearchState.RUNNING
    with pytest.raises(InputError, match="all of its failed trials were tried again"):
        retry(store, now(store), "alice")
    with pytest.raises(InputError, match="its point waits to go out; alice asked for it"):
        retry(store, now(store), "bob", [1])
    steering = steer()
    finish_all(steering, panda)
    first, *_, last = store.trials(1)
    assert (first.state, last.state) == (TrialState.FAILED, TrialState.FINISHED)
    assert (last.point, last.retries, last.number) == (first.point, 1, 4)
    assert last.seed != first.seed
    assert now(store).state is SearchState.DONE
    assert now(store).search.budget.trials == 4
    with pytest.raises(InputError, match="trial 4 has its point and is finished"):
        retry(store, now(store), "alice", [1])
    for generation in store.generations(1):
        if generation.asked is not None:
            assert replayed(store, now(store), generation)[0] == store.trials(1)[generation.trials[0] - 1].point


def test_requested_points_that_a_stop_ended_go_out_again(steer, store, panda):
    steering = steer(trials=3, parallel=1, failures=5)
    go(steering, 2)
    fail(panda, 1)
    finish_all(steering, panda)
    assert retry(store, now(store), "alice") == 1
    steering = steer()
    go(steering)
    steering.advance(None, SearchState.STOPPING)
    assert store.trials(1)[3].state is TrialState.STOPPED
    store.reopen(1, "alice", "resumed", only_from=[SearchState.STOPPED])
    finish_all(steer(), panda)
    last = store.trials(1)[-1]
    assert (last.number, last.retries, last.point, last.state) == (5, 1, store.trials(1)[0].point, TrialState.FINISHED)
    assert not store.requested_points(1) and now(store).state is SearchState.DONE


def test_a_retry_that_fails_may_be_tried_again(steer, store, panda):
    steering = steer(trials=2, parallel=2, failures=9)
    go(steering, 2)
    fail(panda, 1, 1)
    fail(panda, 1, 2)
    go(steering, 3)
    assert now(store).state is SearchState.FAILED
    assert retry(store, now(store), "me") == 2
    steering = steer()
    go(steering, 2)
    fail(panda, 2, 1)
    panda.finish(2, 2)
    go(steering, 3)
    assert retry(store, now(store), "me") == 1
    go(steering := steer(), 2)
    assert store.trials(1)[-1].retries == 3
    assert {trial.retries for trial in store.trials(1)} == {None, 1, 2, 3}


@pytest.mark.parametrize("step", ["submit", "after"])
def test_a_kill_between_any_two_steps_loses_nothing_and_runs_nothing_twice(steer, store, panda, step):
    steering = steer({"start": [{"x": 0.25}]}, trials=3, parallel=2)
    add_point(store, now(store), "me", {"x": 0.5})
    if step == "submit":
        panda.broken["submit"] = TryAgainError("away")
    go(steer(), 1)
    del steering
    panda.broken.clear()
    finish_all(steer(), panda)
    points = [trial.point["x"] for trial in store.trials(1)]
    assert points[:2] == [0.5, 0.25]
    assert len(points) == len(set(points)) == 4


def test_start_points_are_not_tried_twice_where_the_server_was_away(steer, store, panda):
    steering = steer({"start": [{"x": 0.25}, {"x": 0.75}]}, trials=4, parallel=2)
    panda.broken["submit"] = TryAgainError("away")
    go(steering, 2)
    del panda.broken["submit"]
    finish_all(steering, panda)
    points = [trial.point["x"] for trial in store.trials(1)]
    assert points[:2] == [0.25, 0.75]
    assert len(set(points)) == 4


def test_a_wished_start_point_is_tried_once(steer, store, panda):
    steer({"start": [{"x": 0.25}]}, trials=2, parallel=2)
    add_point(store, now(store), "me", {"x": 0.25})
    finish_all(steer(), panda)
    assert [trial.point["x"] for trial in store.trials(1)].count(0.25) == 1


def test_a_point_that_the_optimizer_came_upon_meanwhile_is_not_tried_twice(steer, store, panda):
    steering = steer(trials=3, parallel=1)
    go(steering, 1)  # the optimizer was asked; its point is not registered yet
    point = steering._proposer._asking.result()[0]
    add_point(store, now(store), "me", point)
    go(steering, 1)  # this steering has not heard of the wish
    finish_all(steer(), panda)
    trials = store.trials(1)
    assert [trial.point for trial in trials].count(point) == 1
    assert len(trials) == 4
    assert not store.requested_points(1)


def test_a_paused_search_stays_paused_and_keeps_what_is_asked_for(steer, store, panda):
    go(steer(trials=4, parallel=1), 2)
    pause(store, now(store), "me")
    add_point(store, now(store), "me", {"x": 0.5})
    assert now(store).state is SearchState.PAUSED
    steering = steer()
    for _ in range(3):
        steering.advance(None, SearchState.PAUSED)
    assert [wish.point for wish in store.requested_points(1)] == [{"x": 0.5}]
    resume(store, now(store), "me")
    finish_all(steer(), panda)
    assert store.trials(1)[1].point == {"x": 0.5}


def test_a_stopped_search_goes_on_with_what_is_asked_for(steer, store, panda):
    go(steer(trials=1, parallel=1), 2)
    stop(store, now(store), "me")
    with pytest.raises(InputError, match="is stopping"):
        add_point(store, now(store), "me", {"x": 0.5})
    go(steer(), 1)
    assert now(store).state is SearchState.STOPPED
    add_point(store, now(store), "me", {"x": 0.5})
    finish_all(steer(), panda)
    assert store.trials(1)[1].point == {"x": 0.5}
    assert now(store).state is SearchState.DONE


def test_a_grid_that_is_used_up_still_tries_what_is_asked_for(steer, store, panda):
    grid = {"optimizer": {"name": "grid", "points_per_dimension": 3}}
    finish_all(steer(grid, trials=9, parallel=4), panda)
    assert now(store).state is SearchState.DONE
    assert len(store.trials(1)) == 3
    add_point(store, now(store), "me", {"x": 0.3})
    finish_all(steer(), panda)
    assert store.trials(1)[-1].point == {"x": 0.3}
    assert (now(store).state, len(store.trials(1))) == (SearchState.DONE, 4)


def test_points_that_are_out_are_refused(steer, store):
    """Others that the search has: tests/contracts/search_clients/test_asking.py."""
    go(steer(trials=3, parallel=2), 2)
    with pytest.raises(InputError, match="trial 1 has its point and is pending"):
        add_point(store, now(store), "me", store.trials(1)[0].point)
    with pytest.raises(InputError, match="none of its trials failed"):
        retry(store, now(store), "me")
    assert now(store).search.budget.trials == 3


def test_the_same_call_again_adds_nothing(steer, store):
    steer(trials=3)
    assert add_point(store, now(store), "me", {"x": 0.5}, key="k") == 1
    assert add_point(store, now(store), "me", {"x": 0.5}, key="k") == 1
    assert len(store.requested_points(1)) == 1
    assert now(store).search.budget.trials == 4


def test_nothing_is_asked_for_where_time_or_gpu_hours_are_spent(steer, store, panda):
    finish_all(steer({"resources": {"cores": 1}}, trials=2, parallel=1, hours=1e-9, core_hours=1.0), panda)
    assert now(store).state.is_over
    with pytest.raises(InputError, match="--hours"):
        add_point(store, now(store), "me", {"x": 0.5})


def test_what_waits_when_the_budget_is_spent_is_said(steer, store, panda):
    steering = steer(trials=2, parallel=1, hours=100.0)
    go(steering, 2)
    add_point(store, now(store), "me", {"x": 0.5})
    steering = steer()
    search = steering.record.search
    steering._spent._search = search.model_copy(update={"budget": search.budget.model_copy(update={"hours": 1e-9})})
    panda.finish(1, 1)
    go(steering, 3)
    assert now(store).state is SearchState.DONE
    assert now(store).message.endswith(
        "a point that was asked for waits: `hpo-pilot extend demo --hours +H` gives more of what was spent"
    )


def test_more_at_once_from_now_on(steer, store, panda):
    go(steer(trials=9, parallel=1), 3)
    for parallel, out in ((4, 4), (1, 4)):
        set_parallel(store, now(store), "alice", parallel)
        go(steer(), 3)
        assert len(store.trials(1)) == out
    finish_all(steer(), panda)
    set_parallel(store, now(store), "me", 7)
    assert now(store).state is SearchState.DONE, "it stays over where only its width changes"
    assert now(store).search.budget.parallel == 7


def test_a_larger_budget_in_the_file_keeps_the_width_that_a_command_set(steer, store):
    steer(trials=4, parallel=2)
    set_parallel(store, now(store), "me", 6)
    record = now(store)
    filed = Search.model_validate(
        {**record.filed.to_dict(), "budget": {**record.filed.to_dict()["budget"], "trials": 8}}
    )
    changed, _ = _refiled(record, filed, "demo.yaml")
    assert (changed.budget.trials, changed.budget.parallel) == (8, 6)


def test_failures_in_a_row_count_retries_too(steer, store, panda):
    steering = steer(trials=2, parallel=1, failures=2)
    go(steering, 2)
    fail(panda, 1)
    go(steering, 2)
    fail(panda, 2)
    go(steering, 2)
    assert now(store).state is SearchState.FAILED
    retry(store, now(store), "me", [2])
    steering = steer()
    go(steering, 2)
    fail(panda, 3)
    go(steering, 3)
    assert now(store).state is SearchState.FAILED
    assert "none of its 3 trials" in now(store).message
    assert not isinstance(steering._ending, GiveUpError)


def test_exports_say_what_a_trial_repeats_and_a_warm_start_reads_them(steer, store, panda, tmp_path):
    steering = steer(trials=3, parallel=1, failures=5)
    go(steering, 2)
    fail(panda, 1)
    finish_all(steering, panda)
    assert "retries" not in next(as_csv(now(store).search, store.trials(1)))
    retry(store, now(store), "me")
    finish_all(steer(), panda)
    text = "".join(as_csv(now(store).search, store.trials(1)))
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["retries"] for row in rows] == ["", "", "", "1"]
    (tmp_path / "before.csv").write_text(text)
    (tmp_path / "before.json").write_text("".join(as_json(now(store).search, store.trials(1))))
    search = now(store).search
    read = [
        read_results(tmp_path / name, name, search.space, search.objectives) for name in ("before.csv", "before.json")
    ]
    assert [len(earlier.trials) for earlier in read] == [4, 4]
