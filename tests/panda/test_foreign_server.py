"""What real servers do that ours does not: met by the manager, through the real panda-client."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.panda import tasks
from hpo_pilot.panda.client_process import RefusedError
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.panda.server import PandaServer, environment_vo
from hpo_pilot.panda.workflow_manager import UnknownOutcomeError, UnknownTaskError
from tests.panda.foreign_panda import Quirks


@pytest.fixture
def quirks():
    return Quirks()


@pytest.fixture
def far(tmp_path, monkeypatch, quirks, kept_server):
    """A manager, and a server that is none of ours."""
    with kept_server.ground(tmp_path, monkeypatch, quirks) as found:
        yield found


def until(look, wanted, seconds=60.0):
    """Looks until it sees what is wanted."""
    end = time.monotonic() + seconds
    while (seen := look()) != wanted:
        assert time.monotonic() < end, seen
        time.sleep(0.1)


def test_a_foreign_server_gets_the_policy_for_shared_servers(far, monkeypatch, tmp_path):
    policy = far.manager.policy
    assert (policy.refill, policy.keeps_outputs, policy.jobs_per_task) == (0.25, True, None)
    monkeypatch.setenv("PANDA_AUTH_VO", "atlas")
    atlas = PandaManager(PandaServer(far.foreign.url, None, "me", environment_vo()), tmp_path / "atlas.log")
    assert atlas.policy.jobs_per_task == 10, "few scouts, for users cannot do without them"
    atlas.close()
    monkeypatch.setenv("PANDA_AUTH_VO", "hpo_pilot")
    far.manager.submit(far.task())
    assert far.foreign.calls["hpo_pilot/changes"] == 1, "asked once, never again"


def test_nothing_new_costs_one_call(far):
    ref = far.manager.submit(far.task())
    far.manager.results(ref, [1, 2])
    far.foreign.calls.clear()
    for _ in range(5):
        assert far.manager.results(ref, [1, 2]) == []
        assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.RUNNING}
    assert far.foreign.calls == {"task/get_detailed_info": 5}
    far.pilot.finish(far.pilot.acquire()[0], 1.0)
    assert [each.values for report in far.manager.results(ref, [1, 2]) for each in report.reports] == [(1.0,)]


def test_values_cost_two_calls_and_metadata_only_of_new_results(far):
    ref = far.manager.submit(far.task())
    first, second = far.pilot.acquire(2)
    far.pilot.finish(first, 1.0)
    assert sum(bool(report.reports) for report in far.manager.results(ref, [1, 2], values=True)) == 1
    far.foreign.calls.clear()
    for _ in range(3):
        (running,) = far.manager.results(ref, [2], values=True)
        assert running.panda_id == second["PandaID"]
    assert far.foreign.calls == {"task/get_detailed_info": 3, "task/get_job_descriptions": 3}
    far.pilot.finish(second, 2.0)
    assert [each.values for report in far.manager.results(ref, [2], values=True) for each in report.reports][-1] == (
        2.0,
    )


def test_a_task_with_all_its_results_is_watched_no_longer(far):
    """Its caller looks no more, and JEDI ends it later. Each watched task makes the looks at others rarer."""
    ref = far.manager.submit(far.task())
    far.pilot.finish(far.pilot.acquire(2)[0], 1.0)
    assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.RUNNING}
    far.manager.results(ref, [1])  # it has the result of the other job
    reader = far.manager._foreign
    assert not (reader._watches._tasks or reader._delivered or reader._looks)


def test_a_new_manager_learns_everything_that_the_old_one_knew(far, tmp_path):
    ref = far.manager.submit(far.task())
    for job in far.pilot.acquire(2):
        far.pilot.finish(job, 1.0)
    far.manager.results(ref, [1, 2])
    again = PandaManager(PandaServer(far.foreign.url, None, "me", environment_vo()), tmp_path / "again.log")
    assert len(again.results(ref, [1, 2])) == 2
    again.close()
    assert len(far.manager.results(ref, [2])) == 2, "whoever lacks what was told gets it again"


def test_a_task_that_jedi_has_not_looked_at_is_not_lost(far, quirks):
    quirks.hidden = 1.0
    ref = far.manager.submit(far.task())
    assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.REGISTERED}
    assert far.manager.results(ref, [1, 2]) == []
    assert far.manager.find(ref.name) is None
    assert far.manager.submit(far.task(), maybe_submitted=True) == ref, "the submission's database knows it"
    far.manager._foreign._looks.clear()
    until(lambda: (far.manager.results(ref, [1]), far.manager.status([ref]))[1], {ref.jedi_task_id: TaskState.RUNNING})


def test_a_task_that_waits_says_why_until_it_runs(far, quirks):
    quirks.brokerage, quirks.why = 2.0, 'no candidates. <a href="https://monitor/x">see here</a>'
    ref = far.manager.submit(far.task())
    far.foreign.calls.clear()
    assert far.manager.results(ref, [1, 2]) == []
    assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.PENDING}
    assert far.manager.why_waits(ref) == "no candidates. see here"
    asked = far.foreign.calls["task/get_detailed_info"]
    assert asked == 1, "it costs no call of its own"
    until(lambda: (far.manager.results(ref, [1, 2]), far.manager.why_waits(ref))[1], "")


def test_jobs_that_no_pilot_gets_are_told_of_until_they_are_released(far, quirks, monkeypatch):
    monkeypatch.setattr(tasks, "KEPT_BACK_SECONDS", 0.5)
    monkeypatch.setattr(tasks, "WHOLE_SECONDS", 0.2)
    quirks.kept_back = True
    ref = far.manager.submit(far.task())
    ids = [str(report.panda_id) for report in far.manager.results(ref, [1, 2])]

    def told():
        far.manager.results(ref, [1, 2])
        return far.manager.why_waits(ref)

    assert told() == "", "every job is pending for a moment"
    until(lambda: all(word in told() for word in [*ids, "pending", "operators"]), True)
    quirks.kept_back = False
    until(told, "")


def test_jobs_are_held_before_they_are_finished(far, quirks):
    quirks.holding = 1.0
    ref = far.manager.submit(far.task(jobs=[(1, 0)]))
    far.pilot.finish(*far.pilot.acquire(), 1.0)
    (report,) = far.manager.results(ref, [1])
    assert (report.state, report.reports) == (JobState.HOLDING, ())
    until(lambda: [len(report.reports) for report in far.manager.results(ref, [1])], [1])


def test_metadata_may_come_after_its_job(far, monkeypatch):
    ref = far.manager.submit(far.task(jobs=[(1, 0)]))
    far.pilot.end(*far.pilot.acquire(), "finished")
    (report,) = far.manager.results(ref, [1])
    assert report.state is JobState.HOLDING
    monkeypatch.setattr(tasks, "METADATA_SECONDS", 0.0)
    (report,) = far.manager.results(ref, [1])
    assert (report.state, report.reports) == (JobState.FINISHED, ()), "it never comes: a payload of somebody else's"


def test_a_retried_job_s_file_has_the_name_that_the_server_gave_it(far):
    ref = far.manager.submit(far.task(jobs=[(1, 0)]))
    far.pilot.end(*far.pilot.acquire(), "failed", pilot_error_code=1201, pilot_error_diag="node died")
    (job,) = far.pilot.acquire()
    far.pilot.finish(job, 1.0)
    reports = {report.attempt: report for report in far.manager.results(ref, [1])}
    name = f"{ref.name.rstrip('/')}.{ref.jedi_task_id}._{job['PandaID'] + 500:06d}.outputs.tar.gz"
    assert reports[2].output == f"user.me:{name}"
    assert "1201" in reports[1].error
    assert "node died" in reports[1].error


def test_a_throttled_submission_can_be_repeated(far, quirks):
    quirks.throttled = 1
    with pytest.raises(RefusedError, match="too many active tasks"):
        far.manager.submit(far.task())
    assert far.manager.submit(far.task())


def test_a_submission_whose_answer_is_lost_is_found(far, quirks):
    quirks.lost = 1
    with pytest.raises(UnknownOutcomeError):
        far.manager.submit(far.task())
    ref = far.manager.submit(far.task(), maybe_submitted=True)
    assert len(far.pilot.acquire(10)) == 2
    assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.RUNNING}


def test_an_exhausted_task_says_why(far, quirks):
    ref = far.manager.submit(far.task())
    quirks.exhausted[ref.name] = 'Too many scouts failed <a href="https://monitor/x">see here</a> &amp; there'
    far.manager.results(ref, [1, 2])
    state = far.manager.status([ref])[ref.jedi_task_id]
    assert state is TaskState.EXHAUSTED
    assert state.is_over
    assert far.manager.why_ended(ref) == "Too many scouts failed see here & there"


def test_a_task_that_is_gone_is_given_up_only_after_long(far, monkeypatch):
    ref = far.manager.submit(far.task())
    gone = type(ref)(ref.name, 4711)
    assert far.manager.results(gone, [1]) == []
    assert far.manager.status([gone]) == {4711: TaskState.REGISTERED}
    monkeypatch.setattr(tasks, "UNKNOWN_SECONDS", 0.0)
    with pytest.raises(UnknownTaskError):
        far.manager.results(gone, [1])


def test_outputs_are_rucio_s_to_delete(far):
    far.manager.discard("user.me:user.me.x.outputs.tar.gz")
    with pytest.raises(TryAgainError):
        far.manager.discard("of-no-scope.tar.gz")


def test_a_sandbox_is_registered_under_the_name_that_its_task_looks_for(far, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    build_sandbox(None, {"command": "false"}, tmp_path / "other")
    (relative,) = (path.relative_to(tmp_path) for path in (tmp_path / "other").iterdir())
    ref = far.manager.submit(dataclasses.replace(far.task(), sandbox=relative))
    assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.RUNNING}


def test_a_large_sandbox_is_taken(far, tmp_path):
    """Only what is called sources.* may be larger than 10 MB, and a path is not."""
    payload = tmp_path / "payload"
    payload.mkdir()
    (payload / "weights.bin").write_bytes(os.urandom(11_000_000))
    sandbox = build_sandbox(payload, {"command": "true"}, tmp_path / "other")
    ref = far.manager.submit(dataclasses.replace(far.task(), sandbox=sandbox))
    assert far.manager.status([ref]) == {ref.jedi_task_id: TaskState.RUNNING}
