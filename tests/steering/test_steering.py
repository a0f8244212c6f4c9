"""The steering of one search against a workflow manager that fails on demand: nothing is lost, doubled or stuck."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from sqlalchemy import event, select

from hpo_pilot.databases import WRITES
from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import JobReport, JobState, TaskState
from hpo_pilot.optimizers import base
from hpo_pilot.panda.workflow_manager import EAGER, TaskNameTakenError, UnknownTaskError
from hpo_pilot.search import TrialState
from hpo_pilot.steering.status import search_notes
from hpo_pilot.store import SearchState
from hpo_pilot.store.database import reading, writing
from hpo_pilot.store.progress import progress_of, write_progress
from hpo_pilot.store.tables import jobs
from tests.clock import Clock
from tests.postgresql import BASE
from tests.replay import replayed
from tests.steering.memory_panda import Panda, finish_all, go


def test_a_search_to_its_end(steer, store, panda):
    steering = steer(trials=4, parallel=2)
    finish_all(steering, panda)
    assert steering.state is SearchState.DONE
    assert [trial.state for trial in store.trials(1)] == [TrialState.FINISHED] * 4


def test_known_results_are_learnt_from_and_are_there_again_after_a_restart(steer, store, panda):
    """They cost no trial, and no point is tried again."""
    known = [{"point": {"x": x / 20}, "value": (x / 20 - 0.3) ** 2} for x in range(0, 21, 2)]
    document = {"optimizer": "bayesian", "known": known}
    for _ in range(5):  # a restart after each result
        finish_all(steer(document, trials=5, parallel=1), panda, rounds=1)
    go(steer())
    tried = [trial.point["x"] for trial in store.trials(1)]
    assert store.search(1).state is SearchState.DONE and len(tried) == 5
    assert not {one["point"]["x"] for one in known} & set(tried)
    assert abs(tried[0] - 0.3) < 0.1, "near the best of what is known, from the first trial on"
    record = store.search(1)
    for generation in store.generations(1):
        assert replayed(store, record, generation) == [store.trials(1)[generation.trials[0] - 1].point]


def test_only_open_trials_and_confirmation_runs_stay_in_memory(steer, store, panda):
    steering = steer({"confirm": {"top": 1, "repeats": 2}}, trials=6, parallel=2)
    finish_all(steering, panda, rounds=2)
    over = {trial.number for trial in store.trials(1) if trial.state.is_over}
    for each in (steering, steer()):
        assert over and set(each._trials) == {trial.number for trial in store.trials(1)} - over
        assert each._trials[min(over)].value == store.trials(1)[min(over) - 1].value, "read again"
    finish_all(steer(), panda)
    assert {trial.number for trial in store.trials(1) if trial.confirms} == set(steer()._trials)


def test_the_optimizer_gets_the_run_time_of_a_fold_also_after_a_restart(steer, panda):
    steering = steer({"folds": 2, "optimizer": "bayesian"}, trials=3, parallel=1)
    for task, (first, second) in enumerate([(2.0, 4.0), (10.0, 30.0)], start=1):
        go(steering, 2)
        panda.finish(task, 1, seconds=first)
        panda.finish(task, 2, seconds=second)
    go(steering, 2)
    assert [o.seconds for o in steering._proposer._optimizer.history] == [3.0, 20.0]
    again = steer()._proposer
    again._ask([], 1, [])
    assert [o.seconds for o in again._optimizer.history] == [3.0, 20.0]


def test_results_of_the_store_are_kept_and_forgotten_as_those_that_were_told(steer, panda, monkeypatch):
    for limit, value in (("_MOST", 8), ("_NEWEST", 4), ("_BEST", 2)):
        monkeypatch.setattr(base, limit, value)
    steering = steer({"objective": {"metric": "auc", "goal": "maximize"}}, trials=16, parallel=2)
    finish_all(steering, panda, rounds=7)
    told, again = steering._proposer._optimizer, steer()._proposer
    told.tell([])
    again._ask([], 1, [])
    assert (again._optimizer.history, again._optimizer.forgotten) == (told.history, told.forgotten)
    assert told.forgotten


@pytest.mark.skipif(BASE is not None, reason="with PostgreSQL each commit is on the disk")
def test_a_task_is_on_the_disk_before_the_server_gets_it(steer, store, panda):
    """The server keeps submitted tasks in a power cut; what steering has collected, it collects again."""
    commits = []

    @event.listens_for(store.engine, "commit")
    def _note(connection):
        ask = connection.connection.driver_connection.execute
        if connection.get_execution_options().get(WRITES):
            (level,), (tasks,) = ask("PRAGMA synchronous").fetchone(), ask("SELECT count(*) FROM tasks").fetchone()
            commits.append((tasks, level))

    steering = steer(trials=3, parallel=2)
    go(steering, 2)
    panda.finish(1, 1)
    panda.finish(1, 2, ran=0)  # it goes out again
    go(steering, 3)
    levels = {True: set(), False: set()}
    for (before, _), (tasks, level) in pairwise([(0, 0), *commits]):
        levels[tasks > before].add(level)
    assert len(panda.tasks) == 3
    assert levels == {True: {2}, False: {1}}, commits


@pytest.mark.parametrize("false", [{"finished": 9}, {"finished": 1, "failed": 1}, {"told": 1}, {"job_seconds": 7e9}])
def test_a_false_row_of_progress_is_corrected_when_the_search_is_loaded(steer, store, panda, false):
    finish_all(steer(trials=4, parallel=2), panda, rounds=1)
    true = progress_of(store.engine, 1)
    with writing(store.engine) as connection:
        write_progress(connection, 1, replace(true, **false))
    steer()
    assert progress_of(store.engine, 1).agrees(true)


def test_a_batch_is_no_more_than_one_ask_brings(steer, panda):
    steering = steer({"optimizer": "random"}, trials=1200, parallel=1200, refill=1.0)
    go(steering, 9)
    assert sum(len(task.jobs) for task in panda.tasks.values()) == 1200


def test_changes_of_other_searches_are_not_kept(steer, panda):
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    for number in range(100, 200):
        steering.advance({number}, SearchState.PAUSED)
    assert len(steering._tasks._unclaimed) < 2


def test_failures_in_a_row_count_over_a_restart(steer, panda):
    steering = steer(trials=9, parallel=1, failures=3)
    for task in (1, 2, 3):
        go(steering)
        assert steering.state is SearchState.RUNNING
        panda.finish(task, 1, failed="no data")
        go(steering, 1)
        steering = steer() if task == 2 else steering
    go(steering)
    assert steering.state is SearchState.FAILED and "3 trials failed in a row" in steering.record.message


def test_why_a_task_waits_is_told_while_it_waits(steer, store, panda, tmp_path):
    steering = steer(trials=2, parallel=2)
    panda.waiting[1] = "no candidates at any site"
    go(steering)
    told = search_notes(store, store.search(1), progress_of(store.engine, 1), tmp_path)
    assert [remark for remark in told if "task 1 " in remark and "no candidates at any site" in remark], told
    del panda.waiting[1]
    panda.report(1, 1)
    go(steering)
    told = search_notes(store, store.search(1), progress_of(store.engine, 1), tmp_path)
    assert not [remark for remark in told if "candidates" in remark]


def test_what_goes_again_is_not_forgotten_while_outputs_cannot_be_deleted(steer, panda):
    document = {"payload": {"command": "true", "outputs": ["m"]}, "resources": {"trials_per_job": 5}}
    steering = steer(document, trials=5, parallel=5)
    go(steering)
    panda.finish(1, 1, outputs=True, ran=4)
    panda.broken["discard"] = TryAgainError("away")
    go(steering)
    del panda.broken["discard"]
    go(steering)
    assert [[member.trial for job in task.jobs for member in job] for task in panda.tasks.values()][1:] == [[5]]
    panda.finish(2, 1)
    go(steering)
    assert steering.state is SearchState.DONE


def test_results_are_collected_while_the_sandbox_cannot_be_kept(steer, store, panda):
    """The file cache of a real server is a host of its own."""
    steering = steer(parallel=1)
    go(steering)
    panda.broken["keep"] = TryAgainError("the file cache does not answer")
    panda.finish(1)
    go(steering)
    assert store.trials(1)[0].state is TrialState.FINISHED


def test_one_task_that_the_server_does_not_tell_of_holds_up_no_other(steer, store, panda):
    steering = steer(trials=6, parallel=2, refill=0.0)
    go(steering, 2)
    assert len(panda.tasks) == 1
    panda.finish(1, 2)
    go(steering, 3)
    assert len(panda.tasks) == 2
    panda.broken["results", 1] = TryAgainError("the server does not describe the jobs of task 1")
    for number in range(2, 6):
        panda.finish(number, 1)
        go(steering, 4)
    assert len(panda.tasks) == 6 - 1
    assert progress_of(store.engine, 1).finished == 5


def test_while_a_search_cannot_be_ended_it_is_not_tried_all_the_time(steer, panda):
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    panda.broken["kill"] = GiveUpError("no")
    steering.advance(None, SearchState.STOPPING)
    assert steering.advance(None, SearchState.STOPPING) >= 1.0


def test_what_runs_in_an_exhausted_task_is_not_sent_out_beside_itself(steer, panda, monkeypatch):
    monkeypatch.setattr(Panda, "policy", replace(EAGER, status_comes_along=True))
    steering = steer(trials=3, parallel=3)
    go(steering, 2)
    panda.finish(1, 1)
    panda.states[1] = TaskState.EXHAUSTED
    panda.reports[1][102] = JobReport(102, JobState.RUNNING, 1, 2)
    panda.reports[1][103] = JobReport(103, JobState.ACTIVATED, 1, 3)
    go(steering, 3)
    assert (len(panda.tasks), panda.killed) == (1, [])
    panda.finish(1, 2)
    panda.states[1] = TaskState.EXHAUSTED
    go(steering, 3)
    assert panda.killed == [1]
    assert [[member.trial for job in task.jobs for member in job] for task in panda.tasks.values()][1:] == [[3]]


@pytest.mark.parametrize("is_away", [False, True])
def test_what_has_finished_counts_although_the_search_is_stopped(steer, store, panda, is_away):
    """And a server that does not answer does not keep it from being stopped."""
    steering = steer(trials=4, parallel=2)
    go(steering, 2)
    panda.finish(1, 1)
    if is_away:
        panda.broken["results"] = TryAgainError("away")
    steering.advance(set(), SearchState.STOPPING)
    assert steering.state is SearchState.STOPPED
    first = TrialState.STOPPED if is_away else TrialState.FINISHED
    assert [trial.state for trial in store.trials(1)] == [first, TrialState.STOPPED]
    assert panda.killed == [1]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_task_whose_answer_was_lost_is_sent_once(steer, panda, is_restarted):
    panda.lost_answers = 1
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    steering = steer() if is_restarted else steering
    finish_all(steering, panda)
    assert (len(panda.tasks), steering.state) == (1, SearchState.DONE)


def test_a_stop_kills_a_task_whose_answer_was_lost(steer, panda):
    panda.lost_answers = 1
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    steering.advance(None, SearchState.STOPPING)
    assert (panda.killed, steering.state) == ([1], SearchState.STOPPED)


@pytest.mark.parametrize(("changed", "asked"), [({1}, [1]), (set(), [])])
def test_a_change_that_comes_before_the_answer_to_a_submission_counts(steer, panda, changed, asked):
    steering = steer(trials=2, parallel=2)
    steering.advance(None, steering.state)
    steering.advance(changed, steering.state)  # submits task 1
    steering.advance(set(), steering.state)
    assert (len(panda.tasks), panda.asked) == (1, asked)


def test_a_job_that_ends_between_the_two_calls_of_a_look_is_not_lost(steer, panda, monkeypatch):
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    panda.finish(1, 1)
    states = panda.status

    def status(refs):
        panda.finish(1, 2)
        return states(refs)

    monkeypatch.setattr(panda, "status", status)
    go(steering, 4)
    assert (len(panda.tasks), steering.state) == (1, SearchState.DONE)


def test_a_task_whose_name_is_taken_gets_another(steer, panda, monkeypatch):
    tried = []

    def refuse(task, **_options):
        tried.append(task.name)
        raise TaskNameTakenError("another task has this name")

    steering = steer(trials=2, parallel=2)
    with monkeypatch.context() as patched:
        patched.setattr(panda, "submit", refuse)
        go(steering, 3)
    finish_all(steering, panda)
    assert len({*tried, panda.tasks[1].name}) == 3
    assert steering.state is SearchState.DONE


def test_a_search_is_not_stopped_while_its_jobs_cannot_be_killed(steer, store, panda):
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    panda.broken["kill"] = TryAgainError("away")
    steering.advance(set(), SearchState.STOPPING)
    assert (steering.state, panda.killed) == (SearchState.STOPPING, [])
    assert store.open_tasks(1)
    del panda.broken["kill"]
    go(steering, 1)
    assert (steering.state, panda.killed) == (SearchState.STOPPED, [1])


def test_folds_that_no_task_holds_go_out_when_the_search_is_loaded(steer, store, panda):
    go(steer({"folds": {"k": 2}}, trials=2, parallel=2), 2)
    panda.finish(1, 1)
    (task,) = store.open_tasks(1)
    store.record(1, [], [], ended_tasks=[task.id])
    steering = steer()
    go(steering, 2)
    members = [member[:2] for job in panda.tasks[2].jobs for member in job]
    assert members == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for number in range(1, len(panda.tasks[2].jobs) + 1):
        panda.finish(2, number)
    go(steering)
    assert steering.state is SearchState.DONE


def test_confirmation_runs_that_were_stopped_are_run_when_the_search_goes_on(steer, store, panda):
    steering = steer({"confirm": {"top": 1, "repeats": 2}}, trials=2, parallel=2)
    go(steering, 2)
    for number in (1, 2):
        panda.finish(1, number)
    go(steering, 2)
    panda.finish(2, 1)
    steering.advance(set(), SearchState.STOPPING)
    store.reopen(1, "me", "resumed", only_from=[SearchState.STOPPED])
    steering = steer()
    go(steering, 2)
    assert [trial.confirms for trial in store.trials(1)] == [None, None, 1, 1, 1]
    panda.finish(3, 1)
    go(steering)
    assert steering.state is SearchState.DONE


def test_a_stopped_search_sends_nothing_out_again(steer, store, panda):
    steering = steer({"resources": {"trials_per_job": 2}}, trials=2, parallel=2)
    go(steering, 2)
    panda.finish(1, 1, ran=1)
    steering.advance(set(), SearchState.STOPPING)
    assert steering.state is SearchState.STOPPED
    assert len(panda.tasks) == 1
    assert not store.open_tasks(1)
    assert [trial.state for trial in store.trials(1)] == [TrialState.FINISHED, TrialState.STOPPED]


def test_the_time_that_a_server_is_away_is_no_hand_over(steer, panda, monkeypatch):
    now = Clock()
    monkeypatch.setattr(time, "monotonic", now)
    steering = steer(trials=40, parallel=2, queued="auto")
    go(steering, 2)
    panda.finish(1, 1)
    panda.broken["submit"] = TryAgainError("away")
    go(steering, 3)
    now.now += 2.0
    del panda.broken["submit"]
    go(steering, 2)
    assert (steering._lookahead._hand_over or 0.0) < 1.5


def test_no_attempt_of_a_lost_server_runs_on_in_a_search_that_is_done(steer, store, panda):
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    panda.report(1, 1)
    panda.report(1, 2)
    go(steering, 1)
    panda.broken["results", 1] = UnknownTaskError("gone")
    finish_all(steering, panda)
    assert steering.state is SearchState.DONE
    with reading(store.engine) as connection:
        states = Counter(connection.execute(select(jobs.c.state)).scalars())
    assert states == {JobState.CLOSED: 2, JobState.FINISHED: 2}


@pytest.mark.parametrize(("early_stopping", "longest"), [("none", 60.0), ("asha", 15.0)])
@pytest.mark.parametrize("seconds", [1.0, 5.0])
def test_slow_looks_are_far_apart_but_not_too_far(steer, panda, monkeypatch, early_stopping, longest, seconds):
    now = Clock()
    monkeypatch.setattr(time, "monotonic", now)
    looks = []

    def slow(ref, missing, *, values=False):
        looks.append(now())
        now.now += seconds
        return list(panda.reports[ref.jedi_task_id].values())

    steering = steer({"early_stopping": early_stopping}, trials=2, parallel=2)
    go(steering, 2)
    monkeypatch.setattr(panda, "results", slow)
    for _ in range(600):
        panda.report(1, 1, (1, now()))  # a new value each second
        steering.advance({1}, steering.state)
        now.now += 1.0
    pauses = [later - earlier for earlier, later in pairwise(looks[1:])]
    assert 2 * seconds <= min(pauses) and max(pauses) <= longest


def test_no_more_is_asked_for_than_a_task_may_have(steer, panda, monkeypatch):
    monkeypatch.setattr(Panda, "policy", replace(EAGER, jobs_per_task=3))
    steering = steer({"folds": 2, "resources": {"trials_per_job": 2}}, trials=8, parallel=8)
    asked = []
    start = steering._proposer.start
    monkeypatch.setattr(
        steering._proposer,
        "start",
        lambda count, *more, **options: (asked.append(count), start(count, *more, **options)),
    )
    go(steering, 12)
    assert sum(asked) == 8
    assert {len(task.jobs) for task in panda.tasks.values()} == {2}
