"""The steering of one search against a workflow manager that fails on demand: nothing is lost, doubled or stuck."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from dataclasses import replace

import pytest

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import JobReport, JobState, TaskRef, TaskState, Verdict
from hpo_pilot.panda.workflow_manager import EAGER
from hpo_pilot.search import Search, TrialState
from hpo_pilot.service.steering import SearchSteering
from hpo_pilot.store import SearchState, SteeringStore


class AtOnce(Executor):
    """Works where it is asked to."""

    def submit(self, function, /, *arguments, **options):
        future = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - what an executor does
            future.set_exception(error)
        return future


class Panda:
    """Tasks in memory: each job is as the test says, and calls fail where it says so."""

    owner = "me"
    manners = EAGER

    def __init__(self):
        self.tasks = {}
        self.reports = {}
        self.states = {}
        self.killed = []
        self.discarded = []
        self.asked = []
        self.broken = {}

    def _call(self, name, number=None):
        error = self.broken.get((name, number)) or self.broken.get(name)
        if error is not None:
            raise error

    def submit(self, task, *, maybe_submitted=False):
        self._call("submit")
        number = len(self.tasks) + 1
        self.tasks[number] = task
        self.states[number] = TaskState.RUNNING
        self.reports[number] = {}
        return TaskRef(task.name, number)

    def find(self, name):
        return next((TaskRef(name, n) for n, task in self.tasks.items() if task.name == name), None)

    def keep(self, sandbox):
        self._call("keep")

    def status(self, refs):
        return {ref.jedi_task_id: self.states[ref.jedi_task_id] for ref in refs}

    def results(self, ref, missing):
        self.asked.append(ref.jedi_task_id)
        self._call("results", ref.jedi_task_id)
        return list(self.reports[ref.jedi_task_id].values())

    def why_ended(self, ref):
        return ""

    def kill(self, ref):
        self._call("kill")
        self.killed.append(ref.jedi_task_id)

    def discard(self, output):
        self._call("discard")
        self.discarded.append(output)

    # --- what the pilots do ---

    def finish(self, task_id, number=1, *, outputs=False, ran=99):
        """The job ends; its time was enough for the first `ran` of its members."""
        task = self.tasks[task_id]
        panda_id = 100 * task_id + number
        verdicts = []
        for place, (trial, fold, _seed) in enumerate(task.jobs[number - 1]):
            who = (task.uid, task.generation, trial, fold, number, 1)
            if place < ran:
                folder = f"t{trial}f{fold}" if outputs else ""
                verdicts.append(Verdict(*who, 0.1 * trial, "", seconds=2.0, has_outputs=outputs, folder=folder))
            else:
                verdicts.append(Verdict(*who, None, "no time left", was_run=False))
        self.reports[task_id][panda_id] = JobReport(panda_id, JobState.FINISHED, 1, number, tuple(verdicts))
        if len(self.reports[task_id]) == len(task.jobs):
            self.states[task_id] = TaskState.DONE


@pytest.fixture
def store(tmp_path):
    opened = SteeringStore.open(f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
    yield opened
    opened.close()


@pytest.fixture
def panda():
    return Panda()


@pytest.fixture
def steer(store, panda):
    """Makes the steering of a search; called again, of the same search after a restart."""

    def make(document=None, **budget):
        record = store.find_search("demo")
        if record is None:
            search = Search.model_validate(
                {
                    "search": "demo",
                    "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
                    "optimizer": "random",
                    "budget": {"queued": 0, **budget},
                    "payload": {"command": "true"},
                    **(document or {}),
                }
            )
            record = store.create_search(search, source="demo.yaml", sandbox="/sandbox.tar.gz", owner="me")
        return SearchSteering(record, store, panda, AtOnce(), lambda: None)

    return make


def go(steering, times=6):
    """Looks at everything a few times, whatever the pauses."""
    for _ in range(times):
        steering._not_before = 0.0
        steering.advance(None, steering.state)


def test_a_search_to_its_end(steer, store, panda):
    steering = steer(trials=4, parallel=2)
    for _ in range(6):
        go(steering, 3)
        for number, task in panda.tasks.items():
            for job in range(1, len(task.jobs) + 1):
                panda.finish(number, job)
    assert steering.state is SearchState.DONE
    assert [trial.state for trial in store.trials(1)] == [TrialState.FINISHED] * 4


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
    assert store.counts(1)[TrialState.FINISHED] == 5


def test_while_a_search_cannot_be_ended_it_is_not_tried_all_the_time(steer, panda):
    steering = steer(trials=2, parallel=2)
    go(steering, 2)
    panda.broken["kill"] = GiveUpError("no")
    steering.advance(None, SearchState.STOPPING)
    assert steering.advance(None, SearchState.STOPPING) >= 1.0


def test_what_runs_in_an_exhausted_task_is_not_sent_out_beside_itself(steer, panda, monkeypatch):
    monkeypatch.setattr(Panda, "manners", replace(EAGER, status_comes_along=True))
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


def test_what_has_finished_counts_although_the_search_is_stopped(steer, store, panda):
    steering = steer(trials=4, parallel=2)
    go(steering, 2)
    panda.finish(1, 1)
    steering.advance(set(), SearchState.STOPPING)
    assert steering.state is SearchState.STOPPED
    assert [trial.state for trial in store.trials(1)] == [TrialState.FINISHED, TrialState.STOPPED]
    assert panda.killed == [1]


def test_a_server_that_does_not_answer_does_not_keep_a_search_from_being_stopped(steer, store, panda):
    steering = steer(trials=4, parallel=2)
    go(steering, 2)
    panda.broken["results"] = TryAgainError("away")
    steering.advance(set(), SearchState.STOPPING)
    assert steering.state is SearchState.STOPPED
    assert panda.killed == [1]


def test_a_stopped_search_sends_nothing_out_again(steer, store, panda):
    steering = steer({"resources": {"trials_per_job": 2}}, trials=2, parallel=2)
    go(steering, 2)
    panda.finish(1, 1, ran=1)
    steering.advance(set(), SearchState.STOPPING)
    assert steering.state is SearchState.STOPPED
    assert len(panda.tasks) == 1
    assert not store.open_tasks(1)
    assert [trial.state for trial in store.trials(1)] == [TrialState.FINISHED, TrialState.STOPPED]


def test_the_time_that_a_server_is_away_is_no_hand_over(steer, panda):
    steering = steer(trials=40, parallel=2, queued="auto")
    go(steering, 2)
    panda.finish(1, 1)
    panda.broken["submit"] = TryAgainError("away")
    go(steering, 3)
    time.sleep(0.5)
    del panda.broken["submit"]
    go(steering, 2)
    assert (steering._lookahead._hand_over or 0.0) < 0.4


def test_no_more_is_asked_for_than_a_task_may_have(steer, panda, monkeypatch):
    monkeypatch.setattr(Panda, "manners", replace(EAGER, jobs_per_task=3))
    steering = steer({"folds": 2, "resources": {"trials_per_job": 2}}, trials=8, parallel=8)
    asked = []
    start = steering._proposer.start
    monkeypatch.setattr(
        steering._proposer, "start", lambda count, pending: (asked.append(count), start(count, pending))
    )
    go(steering, 12)
    assert sum(asked) == 8
    assert {len(task.jobs) for task in panda.tasks.values()} == {2}
