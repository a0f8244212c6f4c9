"""What every workflow manager promises, kept by `panda` through the real panda-client on the real server."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from dataclasses import replace

import pytest
import requests

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import JobState, Member, TaskOptions, TaskRef, TaskState, TrialLevel
from hpo_pilot.panda import tasks
from hpo_pilot.panda.manager import CachedSandbox, SandboxUploads
from hpo_pilot.panda.workflow_manager import TaskNameTakenError, UnknownTaskError
from hpo_pilot.server.tokens import Role
from tests.bearer import token


def test_a_name_is_submitted_once_ever(ground):
    task = ground.task()
    ref = ground.manager.submit(task)
    assert ground.manager.submit(task) == ref
    assert ground.manager.submit(task, maybe_submitted=True) == ref
    one, two = ground.pilot.acquire(10)
    for job in (one, two):
        ground.pilot.finish(job, 1.0)
    assert ground.manager.status([ref]) == {ref.jedi_task_id: TaskState.DONE}
    assert ground.manager.submit(task) == ref, "not even when the first one is over"
    assert ground.pilot.acquire(10) == []


def test_a_task_of_unknown_outcome_is_submitted_if_it_is_not_there(ground):
    ref = ground.manager.submit(ground.task(), maybe_submitted=True)
    assert ground.manager.status([ref]) == {ref.jedi_task_id: TaskState.RUNNING}


def test_results_come_with_their_identity(ground):
    ref = ground.manager.submit(ground.task())
    one, two = ground.pilot.acquire(2)
    ground.pilot.finish(two, 0.0)
    reports = {report.number: report for report in ground.manager.results(ref, [1, 2])}
    assert reports[1].state is JobState.SENT
    assert reports[2].state is JobState.FINISHED
    (report,) = reports[2].reports
    assert (report.trial, report.fold, report.values) == (2, 0, (0.0,))
    ground.pilot.finish(one, None, "diverged")
    reports = {report.number: report for report in ground.manager.results(ref, [1])}
    (report,) = reports[1].reports
    assert (report.status, report.message) == ("failed", "diverged")


def test_a_job_of_several_points_brings_a_report_on_each(ground):
    members = tuple(Member(trial, 0, 7) for trial in (1, 2, 3))
    ref = ground.manager.submit(replace(ground.task(jobs=[(1, 0), (2, 0), (3, 0)]), jobs=(members,)))
    (job,) = ground.pilot.acquire(10)
    who = {"uid": ground.uid, "generation": 1, "number": 1, "attempt": 1, "fold": 0, "message": ""}
    said = [
        {**who, "trial": 1, "status": 0, "value": 0.5},
        {**who, "trial": 2, "status": 1, "value": None, "message": "diverged"},
        {**who, "trial": 3, "status": 2, "value": None, "message": "no time"},
    ]
    metadata = {"user_job_metadata": {"hpo_pilot": {**who, "version": 2, "members": said}}}
    ground.pilot.end(job, "finished", meta_data=json.dumps(metadata))
    (report,) = ground.manager.results(ref, [1])
    found = [(each.trial, each.status, each.values) for each in report.reports]
    assert (report.number, found) == (1, [(1, "ok", (0.5,)), (2, "failed", ()), (3, "not run", ())])


def test_a_lost_attempt_is_reported_beside_the_next_one(ground):
    ref = ground.manager.submit(ground.task(jobs=[(1, 0)]))
    (job,) = ground.pilot.acquire()
    ground.pilot.end(job, "failed", pilot_error_code=1201, pilot_error_diag="node died")
    lost, again = sorted(ground.manager.results(ref, [1]), key=lambda report: report.attempt)
    assert (lost.state, lost.number, "node died" in lost.error) == (JobState.FAILED, 1, True)
    assert (again.state, again.attempt, again.number) == (JobState.ACTIVATED, 2, 1)
    ground.pilot.finish(*ground.pilot.acquire(), 0.5)
    lost, again = sorted(ground.manager.results(ref, [1]), key=lambda report: report.attempt)
    assert (lost.state, lost.number, "node died" in lost.error) == (JobState.FAILED, 1, True)
    assert (again.state, again.attempt, again.reports[0].values) == (JobState.FINISHED, 2, (0.5,))


def test_a_task_ends_failed_after_its_last_attempt(ground):
    ref = ground.manager.submit(ground.task(jobs=[(1, 0)]))
    while jobs := ground.pilot.acquire():
        ground.pilot.end(jobs[0], "failed", pilot_error_code=1201, pilot_error_diag="node died")
    assert ground.manager.status([ref]) == {ref.jedi_task_id: TaskState.FAILED}
    assert len(ground.manager.results(ref, [1])) == 3


def test_kill_ends_a_task_and_is_harmless_again(ground):
    ref = ground.manager.submit(ground.task())
    ground.manager.kill(ref)
    assert ground.pilot.acquire() == []
    assert ground.manager.status([ref])[ref.jedi_task_id].is_over
    ground.manager.kill(ref)


def test_kill_jobs_ends_them_and_no_others(ground):
    ref = ground.manager.submit(ground.task(jobs=[(1, 0), (2, 0), (3, 0)]))
    one, two = ground.pilot.acquire(2)
    waiting = next(report for report in ground.manager.results(ref, [1, 2, 3]) if report.number == 3)
    ground.manager.kill_jobs([one["PandaID"], waiting.panda_id, 987654321])
    assert ground.pilot.end(one, "running")["data"]["command"] == "tobekilled"
    assert ground.pilot.end(two, "running")["data"]["command"] is None
    ground.pilot.end(one, "failed", pilot_error_code=1144)
    ground.manager.kill_jobs([one["PandaID"]])
    ground.pilot.finish(two, 0.5)
    states = {report.number: report.state for report in ground.manager.results(ref, [1, 2, 3])}
    assert states == {1: JobState.CANCELLED, 2: JobState.FINISHED, 3: JobState.CANCELLED}
    assert ground.manager.status([ref])[ref.jedi_task_id].is_over
    ground.manager.kill_jobs([])


def test_a_task_without_its_sandbox_waits_and_says_so(ground, monkeypatch):
    never_sent = CachedSandbox(ground.server.url, "sources.never.tar.gz")
    monkeypatch.setattr(SandboxUploads, "keep", lambda *_, **__: never_sent)
    ref = ground.manager.submit(ground.task())
    assert ground.manager.results(ref, [1, 2]) == []
    assert ground.manager.status([ref]) == {ref.jedi_task_id: TaskState.PENDING}
    assert "user sandbox file unavailable" in ground.manager.why_waits(ref)


def test_values_of_running_jobs_are_told_as_they_come(ground):
    ref = ground.manager.submit(replace(ground.task(), wants_values=True))
    one, two = ground.pilot.acquire(2)
    ground.pilot.end(one, "running")
    ground.manager.wait(2.0)
    ground.manager.wait(0.1)
    assert {report.progress for report in ground.manager.results(ref, [1, 2], values=True)} == {()}
    time.sleep(0.6)  # new values of one task are told of twice a second at most
    ground.pilot.end(one, "running", job_metrics="hpoStep=3 hpoValue=0.25 hpoPast=1:0.5")
    if not ground.foreign:
        assert ground.manager.wait(30.0) == {ref.jedi_task_id}
    ground.pilot.finish(two, 0.5)
    reports = {report.number: report for report in ground.manager.results(ref, [1, 2], values=True)}
    assert reports[1].progress == ((1, 0.5), (3, 0.25)) and reports[2].reports[0].values == (0.5,)
    # What the caller has is not read again.
    numbers = [report.number for report in ground.manager.results(ref, [1], values=True)]
    assert numbers == [1] or ground.foreign


def test_an_unknown_task_is_known_as_such(ground):
    ref = TaskRef("user.me.demo.cafecafe.g9/", 4711)
    assert ground.manager.status([ref]) == {}
    for values in (False, True):
        with contextlib.suppress(UnknownTaskError):
            assert ground.manager.results(ref, [1], values=values) == []


def test_wait_leads_to_results_wherever_they_are(ground):
    refs = [ground.manager.submit(ground.task(1)), ground.manager.submit(ground.task(2))]
    for number, job in enumerate(ground.pilot.acquire(4)):
        ground.pilot.finish(job, float(number))
    found = {}
    for _ in range(40):
        changed = ground.manager.wait(1.0)
        for ref in refs:
            if changed is None or ref.jedi_task_id in changed:
                missing = {1, 2} - found.keys() if ref == refs[0] else {1, 2}
                for report in ground.manager.results(ref, missing):
                    found |= {(ref.name, each.job): each.values for each in report.reports}
        if len(found) == 4:
            break
    assert sorted(found.values()) == [(0.0,), (1.0,), (2.0,), (3.0,)]


def test_a_server_of_ours_tells_which_tasks_have_results(ground):
    if ground.foreign:
        pytest.skip("a real server cannot tell")
    first, second = ground.manager.submit(ground.task(1)), ground.manager.submit(ground.task(2))
    assert ground.manager.wait(60) is None, "the first answer may hold anything"
    assert ground.manager.wait(0.1) == set()
    jobs = ground.pilot.acquire(4)
    ground.pilot.finish(jobs[-1], 1.0)
    assert ground.manager.wait(30.0) == {second.jedi_task_id}
    ground.pilot.finish(jobs[0], 1.0)
    assert ground.manager.wait(30.0) == {first.jedi_task_id}


def test_a_task_that_is_over_and_read_stays_in_no_memory(ground):
    def kept() -> int:
        gc.collect()
        return sum(type(each).__module__ == tasks.__name__ for each in gc.get_objects())

    before = kept()
    ref = ground.manager.submit(ground.task(jobs=[(1, 0)]))
    (job,) = ground.pilot.acquire()
    ground.pilot.finish(job, 1.0)
    assert [report.state for report in ground.manager.results(ref, [1])] == [JobState.FINISHED]
    assert kept() <= before


def test_a_server_that_is_gone_is_a_reason_to_try_again(ground):
    ref = ground.manager.submit(ground.task())
    ground.server.stop()
    for call in (
        lambda: ground.manager.submit(ground.task(2)),
        lambda: ground.manager.status([ref]),
        lambda: ground.manager.results(ref, [1]),
        lambda: ground.manager.kill(ref),
        lambda: ground.manager.discard("x"),
    ):
        with pytest.raises(TryAgainError):
            call()
    assert not (ground.manager.wait(0.1) or set()) - {ref.jedi_task_id}


def test_the_checkpoints_of_a_search_that_is_done_are_deleted(ground, tmp_path):
    local = tmp_path / "checkpoints" / ground.uid
    after = tmp_path / "checkpoints" / "restored.7" / ground.uid
    for folder in (*(local / name for name in ("t1f0", "t1f0.4", "t11f0", "series-1")), after / "t12f0"):
        folder.mkdir(parents=True)
    task = replace(ground.task(jobs=[(1, 0)]), levels={1: TrialLevel(1, None, keep_checkpoint=True)})
    ref = ground.manager.submit(task)
    assert ground.pilot.acquire()
    assert ground.pilot.upload(f"{ref.jedi_task_id}_1.t1f0", b"level 1", "upload_hpo_checkpoint")["success"]

    def stored():
        return len(list(ground.files.glob("cache/hpo_cp_of_*")))

    before = stored()
    ground.manager.forget("another")
    assert (stored(), len(list(local.iterdir()))) == (before, 4)
    ground.manager.forget(ground.uid, {1})
    assert (stored(), {path.name for path in local.iterdir()}) == (before, {"t1f0", "t1f0.4"})
    assert not after.parent.exists()
    ground.manager.forget(ground.uid)
    assert (stored(), local.exists()) == (before - (ground.foreign is None), False)
    ground.server.stop()
    ground.manager.forget(ground.uid)


def test_outputs_are_fetched_whole_and_discarded(ground, tmp_path):
    if ground.foreign:
        pytest.skip("a real server's outputs are in Rucio: tests/panda/test_rucio.py")
    name = "user.me.77._000001.outputs.tar.gz"
    url = f"{ground.server.url}/storage/{name}"
    operator = {"Authorization": f"Bearer {token('boss', Role.OPERATOR)}"}
    requests.put(url, data=b"content", headers=operator, timeout=10).raise_for_status()
    ground.manager.fetch(name, tmp_path / "got" / "file")
    assert (tmp_path / "got" / "file").read_bytes() == b"content"
    ground.manager.discard(name)
    ground.manager.discard(name)
    with pytest.raises(GiveUpError, match="no longer has"):
        ground.manager.fetch(name, tmp_path / "again")
    assert not list(tmp_path.glob("*again*"))


def test_a_task_that_makes_no_sense_is_not_retried_for_ever(ground):
    broken = replace(ground.task(), queue="no such queue at all")
    ref = ground.manager.submit(broken)
    assert ground.pilot.acquire() == []
    assert ref.jedi_task_id in ground.manager.status([ref])


@pytest.mark.parametrize("over", [False, True])
def test_another_task_of_that_name_is_not_taken_for_this_one(ground, over):
    ground.manager.submit(ground.task(jobs=[(1, 0)]))
    if over:
        ground.pilot.finish(*ground.pilot.acquire(), 0.5)
    other = replace(ground.task(jobs=[(1, 0)]), points={1: {"x": 0.77}})
    for doubtful in (False, True):
        with pytest.raises(TaskNameTakenError):
            ground.manager.submit(other, maybe_submitted=doubtful)
    assert ground.manager.submit(replace(other, name=f"user.me.demo.d{ground.uid[1:]}.g1/")).jedi_task_id > 1


def test_a_task_that_the_server_refuses_says_why(ground):
    ref = ground.manager.submit(ground.task())
    assert ground.manager.why_ended(ref) == ""
    with pytest.raises(GiveUpError, match=r"panda\.label"):
        ground.manager.submit(replace(ground.task(2), options=TaskOptions(label="managed")))


def test_a_sandbox_is_kept_and_comes_back_when_it_was_forgotten(ground):
    ground.manager.keep(ground.sandbox)
    (kept,) = ground.files.rglob(ground.sandbox.name)
    kept.unlink()
    ground.manager.submit(ground.task(), maybe_submitted=True)
    assert kept.read_bytes() == ground.sandbox.read_bytes()
    ground.sandbox.unlink()
    ground.manager.keep(ground.sandbox)
