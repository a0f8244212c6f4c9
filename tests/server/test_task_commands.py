"""Commands to tasks: kill, finish, pause, resume, retry."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.server import tasks
from hpo_pilot.server.attempts import MAX_TASK_ATTEMPTS
from hpo_pilot.server.tokens import Caller, Role
from tests.server.queue_driver import OPERATOR, Queue


def test_kill(queue: Queue) -> None:
    task_id = queue.submit(3)
    (job,) = queue.acquire()
    assert queue.command(task_id, "kill") == (0, f"command=kill is registered for task ID {task_id}")
    assert queue.status(task_id) == "aborting"
    assert queue.acquire() == []
    assert queue.report(job["PandaID"], "running") == "tobekilled"
    queue.report(job["PandaID"], "failed")
    assert queue.status(task_id) == "aborted"
    assert queue.jobs(task_id) == [(1, 1, "cancelled"), (2, 1, "cancelled"), (3, 1, "cancelled")]
    described = queue.describe(job["PandaID"] + 1)
    assert (described["taskBufferErrorCode"], described["taskBufferErrorDiag"]) == (100, "killed by me")
    code, message = queue.command(task_id, "kill")
    assert (code, message) == (4, "Command rejected: the kill command is not accepted if the task is in aborted status")


def test_kill_of_a_task_that_waits_for_its_sandbox(queue: Queue) -> None:
    task_id = queue.submit(2, jobParameters=[{"type": "constant", "value": "-a sources.never.tar.gz"}])
    queue.command(task_id, "kill")
    assert queue.status(task_id) == "aborted"
    queue.upload("sources.never.tar.gz")
    assert queue.acquire() == []


@pytest.mark.parametrize("soft", [True, False])
def test_finish(queue: Queue, soft: bool) -> None:
    task_id = queue.submit(3)
    one, two = queue.acquire(2)
    queue.report(one["PandaID"], "finished")
    assert queue.command(task_id, "finish", soft=soft)[0] == 0
    assert queue.status(task_id) == "finishing"
    assert queue.report(two["PandaID"], "running") == (None if soft else "tobekilled")
    queue.report(two["PandaID"], "failed")
    assert queue.status(task_id) == "finished"
    assert queue.jobs(task_id) == [(1, 1, "finished"), (2, 1, "failed" if soft else "cancelled"), (3, 1, "closed")]


def test_pause_and_resume(queue: Queue) -> None:
    task_id = queue.submit(3, maxAttempt=2)
    (job,) = queue.acquire()
    assert queue.command(task_id, "pause")[0] == 0
    assert queue.status(task_id) == "paused"
    assert queue.acquire() == []
    queue.report(job["PandaID"], "failed")  # its next attempt waits aside as well
    assert queue.acquire() == []
    assert queue.command(task_id, "pause")[0] == 4
    assert queue.command(task_id, "resume")[0] == 0
    assert queue.command(task_id, "resume")[0] == 4
    assert queue.status(task_id) == "running"
    assert len(queue.acquire(9)) == 3


def test_retry(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=1)
    one, two = queue.acquire(2)
    queue.report(one["PandaID"], "finished")
    queue.report(two["PandaID"], "failed")
    assert queue.command(task_id, "retry")[0] == 0
    (again,) = queue.acquire(9)
    assert (again["attemptNr"], 'number%202"' in again["jobPars"]) == (2, True)
    assert queue.status(task_id) == "running"
    queue.report(again["PandaID"], "finished")
    assert queue.status(task_id) == "done"
    assert queue.command(task_id, "retry")[0] == 4


def test_retry_with_other_resources(queue: Queue) -> None:
    task_id = queue.submit(1, maxAttempt=1)
    queue.report(queue.acquire()[0]["PandaID"], "failed")
    with queue.database.writing() as tx:
        assert tasks.incremental_execution(tx, task_id, {"coreCount": "many"})[0] == 1
        assert tasks.incremental_execution(tx, task_id, {"ramCount": 8000, "coreCount": 2})[0] == 3
    (job,) = queue.acquire()
    assert (job["minRamCount"], job["coreCount"], job["resource_type"]) == (8000, 2, "MCORE_HIMEM")


def test_retry_with_other_parameters_while_running(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=1)
    one, _ = queue.acquire(2)
    queue.report(one["PandaID"], "failed")
    with queue.database.writing() as tx:
        code, message = tasks.incremental_execution(tx, task_id, {"ramCount": 4000})
    assert (code, message) == (5, f"running. new tasks params have been set to jediTaskID={task_id}. ")
    (again,) = queue.acquire(9)
    assert (again["attemptNr"], again["minRamCount"]) == (2, 4000)


def fail_all(queue: Queue) -> None:
    for job in queue.acquire(99):
        queue.report(job["PandaID"], "failed")


@pytest.mark.parametrize("skip_scout", [False, True])
def test_a_task_retried_too_often_is_exhausted(queue: Queue, skip_scout: bool) -> None:
    task_id = queue.submit(1, maxAttempt=1, skipScout=skip_scout)
    fail_all(queue)
    for _ in range(MAX_TASK_ATTEMPTS - 1):
        assert queue.command(task_id, "retry")[0] == 0
        fail_all(queue)
    assert queue.status(task_id) == "failed"
    assert queue.command(task_id, "retry")[0] == 0
    if skip_scout:
        assert queue.status(task_id) == "running"
        return
    assert (queue.status(task_id), queue.acquire()) == ("exhausted", [])
    assert "No further retries are accepted" in str(queue.dialog(task_id))
    assert queue.command(task_id, "retry", ignore_limit=True)[0] == 4
    assert queue.command(task_id, "incexec", ignore_limit=True)[0] == 0
    assert queue.status(task_id) == "exhausted", "the limit is lifted for operators alone"
    assert queue.command(task_id, "retry", OPERATOR, ignore_limit=True)[0] == 0
    assert (queue.status(task_id), len(queue.acquire())) == ("running", 1)


@pytest.mark.parametrize(
    ("command", "accepted"),
    [
        ("incexec", {"done", "failed", "aborted"}),
        ("resume", {"paused"}),
        ("retry", {"failed", "running", "pending"}),
        ("pause", {"running", "pending"}),
        ("kill", {"running", "pending", "paused", "finishing"}),
        ("finish", {"running", "pending", "paused", "finishing"}),
    ],
)
def test_states_in_which_a_command_is_accepted(queue: Queue, command: str, accepted: set[str]) -> None:
    waiting = {"jobParameters": [{"type": "constant", "value": "-a sources.never.tar.gz"}]}
    for state in ("running", "pending", "paused", "finishing", "done", "failed", "aborted", "broken"):
        more: dict[str, Any] = {"broken": {"nEvents": "?"}, "pending": waiting}.get(state, {"maxAttempt": 1})
        task_id = queue.submit(1, site=state, **more)
        if state in ("done", "failed", "finishing"):
            (job,) = queue.acquire(site=state)
            if state == "finishing":
                queue.command(task_id, "finish", soft=True)
            else:
                queue.report(job["PandaID"], "finished" if state == "done" else "failed")
        elif state in ("paused", "aborted"):
            queue.command(task_id, "pause" if state == "paused" else "kill")
        assert queue.status(task_id) == state
        code, message = queue.command(task_id, command)
        assert (code == 0) is (state in accepted), (state, message)
        assert code in (0, 4)


def test_kill_of_one_job(queue: Queue) -> None:
    task_id = queue.submit(3)
    one, two = queue.acquire(2)
    ids = [one["PandaID"], two["PandaID"], two["PandaID"] + 1]

    def kill(caller: Caller, panda_id: int, *more: Any) -> bool:
        with queue.database.writing() as tx:
            return tasks.kill_job(tx, caller, panda_id, *more)

    assert [kill(Caller("you", Role.USER), panda_id) for panda_id in [*ids, 999]] == [False] * 4
    assert kill(queue.me, ids[2])
    assert queue.describe(ids[2])["jobStatus"] == "cancelled"
    assert kill(queue.me, ids[0], 99, ["jobSubStatus=toolong", "keepUnmerged"])
    assert queue.report(ids[0], "running") == "tobekilled"
    assert queue.describe(ids[0])["jobSubStatus"] == "toolong"
    assert kill(OPERATOR, ids[1], 99), "an operator's 99 does not wait for the pilot"
    assert queue.describe(ids[1])["jobStatus"] == "cancelled"
    queue.report(ids[0], "failed")
    assert queue.status(task_id) == "failed"
    assert not kill(queue.me, ids[0])
