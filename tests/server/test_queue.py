"""The queue core, without HTTP: the lives of tasks and jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server import lost_jobs, tasks
from hpo_pilot.server.auth import Caller, Role
from hpo_pilot.server.database import Database
from hpo_pilot.server.descriptions import describe_jobs, metadata_of_finished
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.tables import cache_files, jobs
from hpo_pilot.server.tables import tasks as tasks_table
from hpo_pilot.server.updates import JobReport, update_job

Params = Callable[..., dict[str, Any]]
OPERATOR = Caller("boss", Role.OPERATOR)


class Queue:
    """Short words for what the tests do."""

    def __init__(self, database: Database, clock: Any, params: Params) -> None:
        self.database = database
        self.clock = clock
        self.params = params
        self.me = Caller("me", Role.USER)
        self._names = 0

    def submit(self, n_jobs: int = 1, caller: Caller | None = None, **more: Any) -> int:
        self._names += 1
        name = more.pop("name", f"user.me.t{self._names}/")
        with self.database.writing() as tx:
            code, message = tasks.submit(tx, caller or self.me, self.params(name, n_jobs, **more))
        assert code == 0, message
        return int(message.rsplit("=", 1)[1])

    def acquire(self, n_jobs: int = 1, **more: Any) -> list[dict[str, Any]]:
        with self.database.writing() as tx:
            return acquire(tx, JobRequest(**{"site": "LOCAL", "label": "user", "n_jobs": n_jobs, **more}))

    def report(self, panda_id: int, status: str, attempt_nr: int | None = None, **documents: str) -> str | None:
        with self.database.writing() as tx:
            return update_job(tx, JobReport(panda_id, JobState(status), attempt_nr, documents=documents))

    def command(self, task_id: int, name: str, caller: Caller | None = None, **more: Any) -> tuple[int, str]:
        with self.database.writing() as tx:
            return tasks.command(tx, caller or self.me, task_id, name, **more)

    def status(self, task_id: int) -> str:
        with self.database.reading() as tx:
            return str(tx.connection.scalar(select(tasks_table.c.status).where(tasks_table.c.task_id == task_id)))

    def jobs(self, task_id: int) -> list[tuple[int, int, str]]:
        """(number, attempt, state) of every attempt, oldest first."""
        query = select(jobs.c.number, jobs.c.attempt_nr, jobs.c.status).where(jobs.c.task_id == task_id)
        with self.database.reading() as tx:
            return [tuple(row) for row in tx.connection.execute(query.order_by(jobs.c.panda_id))]  # type: ignore[misc]

    def describe(self, panda_id: int) -> dict[str, Any]:
        with self.database.reading() as tx:
            (found,) = describe_jobs(tx, [panda_id])
        assert found is not None
        return found

    def lose_silent(self, timeout: float = 60) -> float | None:
        with self.database.writing() as tx:
            return lost_jobs.lose_silent(tx, timeout)

    def upload(self, name: str) -> None:
        with self.database.writing() as tx:
            tx.connection.execute(
                insert(cache_files).values(name=name, user_name="me", size=1, created=tx.now, touched=tx.now)
            )
            tasks.sandbox_arrived(tx, name)


@pytest.fixture
def queue(database: Database, clock: Any, params: Params) -> Queue:
    return Queue(database, clock, params)


def test_a_task_from_beginning_to_end(queue: Queue) -> None:
    task_id = queue.submit(2)
    assert queue.status(task_id) == "running"
    first, second = queue.acquire()[0], queue.acquire()[0]
    assert queue.acquire() == []
    assert (first["attemptNr"], first["taskID"], first["logFile"]) == (
        1,
        task_id,
        f"user.me.t1.log.{task_id}.000001.log.tgz",
    )
    for job in (first, second):
        for status in ("starting", "running", "transferring", "holding"):
            assert queue.report(job["PandaID"], status, 1) is None
            assert queue.describe(job["PandaID"])["jobStatus"] == status
        assert queue.report(job["PandaID"], "finished", 1, meta_data='{"user_job_metadata": {"x": 0.0}}') is None
    assert queue.status(task_id) == "done"
    with queue.database.reading() as tx:
        assert metadata_of_finished(tx, task_id) == {
            job["PandaID"]: {"user_job_metadata": {"x": 0.0}} for job in (first, second)
        }


def test_order_is_priority_then_id(queue: Queue) -> None:
    low = queue.submit(2, taskPriority=100)
    high = queue.submit(2, taskPriority=900)
    capped = queue.submit(1, taskPriority=5000)  # a user's priority is capped …
    boss = queue.submit(1, caller=OPERATOR, taskPriority=5000)  # … an operator's is not
    got = [job["taskID"] for job in queue.acquire(10)]
    assert got == [boss, capped, high, high, low, low]


def test_a_failed_attempt_gets_the_next_one(queue: Queue) -> None:
    task_id = queue.submit(1, maxAttempt=3)
    lfns = set()
    for attempt in (1, 2, 3):
        assert queue.status(task_id) == "running"
        (job,) = queue.acquire()
        assert job["attemptNr"] == attempt
        lfns.update(job["outFiles"].split(","))
        assert 'number%201"' in job["jobPars"]
        queue.report(job["PandaID"], "failed", attempt, meta_data='{"lost": "as on a real server"}')
    assert queue.acquire() == []
    assert queue.status(task_id) == "failed"
    assert queue.jobs(task_id) == [(1, 1, "failed"), (1, 2, "failed"), (1, 3, "failed")]
    assert len(lfns) == 2  # an attempt's files take the place of those of the one before
    with queue.database.reading() as tx:
        assert metadata_of_finished(tx, task_id) == {}


def test_a_task_of_which_some_jobs_failed_is_finished(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=1)
    one, two = queue.acquire(2)
    queue.report(one["PandaID"], "failed")
    queue.report(two["PandaID"], "finished")
    assert queue.status(task_id) == "finished"


def test_exhausted_where_the_task_asks_for_it(queue: Queue) -> None:
    task_id = queue.submit(1, maxAttempt=1, useExhausted=True)
    queue.report(queue.acquire()[0]["PandaID"], "failed")
    assert queue.status(task_id) == "exhausted"
    assert queue.command(task_id, "retry")[0] == 4  # wants an operator
    assert queue.command(task_id, "retry", OPERATOR)[0] == 0
    assert queue.status(task_id) == "running"


@pytest.mark.parametrize("state", ["running", "done", "failed", "aborted", "broken"])
def test_a_name_is_never_used_twice(queue: Queue, state: str) -> None:
    """Whatever became of the first task: no reactivation, no second task, and the id in the message."""
    more: dict[str, Any] = {"nEvents": "?"} if state == "broken" else {"maxAttempt": 1}
    task_id = queue.submit(1, name="user.me.same/", **more)
    if state == "aborted":
        queue.command(task_id, "kill")
    elif state in ("done", "failed"):
        queue.report(queue.acquire()[0]["PandaID"], "finished" if state == "done" else "failed")
    assert queue.status(task_id) == state
    with queue.database.writing() as tx:
        code, message = tasks.submit(tx, queue.me, queue.params("user.me.same/", 1))
    assert code == 2
    assert message.startswith(f"jediTaskID={task_id} is in the {state} state for outDS=user.me.same/.")
    assert len(queue.acquire()) == (state == "running")
    # Another user's task, or one that does not ask to be unique, may bear the same name.
    assert queue.submit(1, caller=Caller("you", Role.USER), name="user.me.same/") > task_id
    assert queue.submit(1, name="user.me.same/", uniqueTaskName=False) > task_id


def test_parameters_that_make_no_sense_break_the_task(queue: Queue) -> None:
    task_id = queue.submit(1, jobParameters="none")
    assert queue.status(task_id) == "broken"
    with queue.database.reading() as tx:
        assert "jobParameters" in tx.connection.scalar(select(tasks_table.c.error_dialog))
    assert queue.command(task_id, "kill")[0] == 4


@pytest.mark.parametrize("missing", ["taskName", "vo", "prodSourceLabel"])
def test_a_task_without_a_name_is_not_registered(queue: Queue, missing: str) -> None:
    given = queue.params()
    del given[missing]
    with queue.database.writing() as tx:
        assert tasks.submit(tx, queue.me, given) == (4, f"failed to register task: {missing} is missing")


def test_a_task_waits_for_its_sandbox(queue: Queue) -> None:
    more = {"jobParameters": [{"type": "constant", "value": "-a sources.ab.tar.gz"}]}
    first, second = queue.submit(2, **more), queue.submit(1, **more)
    assert queue.status(first) == "pending"
    assert queue.acquire() == []
    queue.upload("sources.ab.tar.gz")
    assert queue.status(first) == queue.status(second) == "running"
    assert len(queue.acquire(9)) == 3
    assert queue.status(queue.submit(1, **more)) == "running"


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
    assert queue.command(12345, "kill") == (2, "jediTaskID=12345 not found")


def test_kill_before_the_sandbox_came(queue: Queue) -> None:
    task_id = queue.submit(2, jobParameters=[{"type": "constant", "value": "-a sources.never.tar.gz"}])
    queue.command(task_id, "kill")
    assert queue.status(task_id) == "aborted"
    queue.upload("sources.never.tar.gz")
    assert queue.acquire() == []


def test_a_job_that_finishes_while_it_is_killed_counts(queue: Queue) -> None:
    task_id = queue.submit(1)
    (job,) = queue.acquire()
    queue.command(task_id, "kill")
    assert queue.report(job["PandaID"], "finished", meta_data="{}") is None
    assert queue.jobs(task_id) == [(1, 1, "finished")]
    assert queue.status(task_id) == "aborted"


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


def test_retry_while_running(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=1)
    one, two = queue.acquire(2)
    queue.report(one["PandaID"], "failed")
    assert queue.command(task_id, "retry") == (
        0,
        "retry has been triggered for failed jobs while the task is still running",
    )
    (again,) = queue.acquire(9)
    queue.report(again["PandaID"], "finished")
    queue.report(two["PandaID"], "finished")
    assert queue.status(task_id) == "done"


def test_retry_with_other_resources(queue: Queue) -> None:
    task_id = queue.submit(1, maxAttempt=1)
    queue.report(queue.acquire()[0]["PandaID"], "failed")
    with queue.database.writing() as tx:
        assert tasks.retry_with(tx, task_id, {"nEvents": 9})[0] == 1
        assert tasks.retry_with(tx, task_id, {"ramCount": 8000, "coreCount": 2})[0] == 3
    (job,) = queue.acquire()
    assert (job["minRamCount"], job["coreCount"], job["resource_type"]) == (8000, 2, "MCORE_HIMEM")


def test_late_and_foreign_reports(queue: Queue) -> None:
    task_id = queue.submit(1, maxAttempt=2)
    assert queue.report(999, "running") == "tobekilled"
    assert queue.report(1, "running") == "tobekilled"  # it waits; nobody was given it
    (job,) = queue.acquire()
    assert queue.report(job["PandaID"], "running", 2) == "badattemptnr"
    assert queue.report(job["PandaID"], "finished", 2) == "badattemptnr"
    assert queue.describe(job["PandaID"])["jobStatus"] == "sent"
    queue.report(job["PandaID"], "running", 1)
    queue.clock.now += 61
    queue.lose_silent()
    assert queue.report(job["PandaID"], "running", 1) == "tobekilled"
    assert queue.report(job["PandaID"], "finished", 1, meta_data="{}") == "alreadydone"
    assert queue.jobs(task_id) == [(1, 1, "failed"), (1, 2, "activated")]


def test_a_final_report_is_recorded_once(queue: Queue) -> None:
    """Its answer may be lost, so it may come again."""
    task_id = queue.submit(2, maxAttempt=1)
    one, two = queue.acquire(2)
    for _ in range(3):
        assert queue.report(one["PandaID"], "finished", 1, meta_data='{"a": 1}') is None
        assert queue.report(two["PandaID"], "failed", 1) is None
    assert queue.report(one["PandaID"], "failed", 1) == "alreadydone"
    assert queue.status(task_id) == "finished"
    with queue.database.reading() as tx:
        assert metadata_of_finished(tx, task_id) == {one["PandaID"]: {"a": 1}}


def test_a_job_never_goes_back(queue: Queue) -> None:
    queue.submit(1)
    (job,) = queue.acquire()
    queue.report(job["PandaID"], "running")
    queue.report(job["PandaID"], "starting")
    assert queue.describe(job["PandaID"])["jobStatus"] == "running"


def test_silent_jobs_are_lost(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=2)
    assert queue.lose_silent() is None
    one, two = queue.acquire(2)
    queue.clock.now += 40
    queue.report(one["PandaID"], "running")
    assert queue.lose_silent() == pytest.approx(20)
    queue.clock.now += 30
    assert queue.lose_silent() == pytest.approx(30)
    assert queue.jobs(task_id) == [(1, 1, "running"), (2, 1, "failed"), (2, 2, "activated")]
    described = queue.describe(two["PandaID"])
    assert described["jobDispatcherErrorCode"] == 100
    assert described["jobDispatcherErrorDiag"].startswith("lost heartbeat : ")


def test_a_restart_gives_every_job_a_fresh_grace_period(queue: Queue) -> None:
    queue.submit(1)
    queue.acquire()
    queue.clock.now += 3600
    with queue.database.writing() as tx:
        lost_jobs.give_grace(tx)
    assert queue.lose_silent() == pytest.approx(60)


def test_a_worker_that_ended_takes_its_jobs_along(queue: Queue) -> None:
    task_id = queue.submit(3, maxAttempt=2)
    queue.acquire(harvester_id="h", worker_id="1")
    queue.acquire(harvester_id="h", worker_id="2")
    with queue.database.writing() as tx:
        lost_jobs.update_worker(tx, "h", "1", "started", None)
        lost_jobs.update_worker(tx, "h", "1", "finished", "node")
    assert queue.jobs(task_id) == [(1, 1, "failed"), (2, 1, "sent"), (3, 1, "activated"), (1, 2, "activated")]
    assert queue.describe(1)["jobDispatcherErrorDiag"] == "lost heartbeat : worker 1 of h finished"


def test_a_lost_job_that_was_to_be_killed_is_cancelled(queue: Queue) -> None:
    task_id = queue.submit(1)
    queue.acquire()
    queue.command(task_id, "kill")
    queue.clock.now += 61
    queue.lose_silent()
    assert (queue.status(task_id), queue.jobs(task_id)) == ("aborted", [(1, 1, "cancelled")])


def test_brokerage(queue: Queue) -> None:
    big = queue.submit(1, coreCount=4, ramCount=16000, maxWalltime=7200, taskPriority=900)
    small = queue.submit(1, taskPriority=100)
    fits = {"memory": 4000, "cores": 1, "remaining_time": 3600}
    for name, value in fits.items():
        assert queue.acquire(site="ELSEWHERE") == []
        (job,) = queue.acquire(**{name: value})
        assert job["taskID"] == small, name
        queue.report(job["PandaID"], "failed")
    assert queue.acquire(resource_type="SCORE_HIMEM") == []
    assert queue.acquire(label="managed") == []
    assert queue.acquire(task_id=777) == []
    assert queue.acquire(user_name="you") == []
    assert queue.acquire(resource_type="MCORE_HIMEM", label="unified", user_name="me", task_id=big)[0]["taskID"] == big


def test_tasks_for_several_queues(queue: Queue) -> None:
    anywhere = queue.submit(1, site=None)
    some = queue.submit(1, site=None, includedSite="A,B_1")
    most = queue.submit(1, site=None, excludedSite=["A"])
    single = queue.submit(1, site=None, includedSite=["C"], taskPriority=10)
    assert [job["taskID"] for job in queue.acquire(9, site="BX1")] == [anywhere, most]
    for task_id in (anywhere, most):
        queue.report(queue_id(queue, task_id), "failed")
    assert [job["taskID"] for job in queue.acquire(9, site="A")] == [some, anywhere]
    assert [job["taskID"] for job in queue.acquire(9, site="C")] == [most, single]


def queue_id(queue: Queue, task_id: int) -> int:
    with queue.database.reading() as tx:
        return int(tx.connection.scalar(select(jobs.c.panda_id).where(jobs.c.task_id == task_id).limit(1)))


def test_changes_have_growing_cursors(queue: Queue) -> None:
    def change(task_id: int) -> int:
        with queue.database.reading() as tx:
            return int(tx.connection.scalar(select(tasks_table.c.change).where(tasks_table.c.task_id == task_id)))

    task_id = queue.submit(1)
    seen = [change(task_id)]
    (job,) = queue.acquire()
    seen.append(change(task_id))
    for status in ("running", "finished"):
        queue.report(job["PandaID"], status)
        seen.append(change(task_id))
    assert seen == sorted(set(seen))
    queue.report(job["PandaID"], "finished")
    assert change(task_id) == seen[-1]


def test_a_heartbeat_without_news_changes_no_cursor(queue: Queue) -> None:
    queue.submit(1)
    (job,) = queue.acquire()
    queue.report(job["PandaID"], "running")
    before = queue.database.change
    queue.report(job["PandaID"], "running")
    assert queue.database.change == before


def test_the_description_carries_what_the_pilot_said(queue: Queue) -> None:
    queue.submit(1)
    (job,) = queue.acquire(node="n1", computing_element="ce")
    report = JobReport(
        job["PandaID"],
        JobState.FAILED,
        1,
        {"pilot_error_code": 1305, "pilot_error_diag": "disk full", "node": "n2"},
        {"maxRSS": 12},
    )
    with queue.database.writing() as tx:
        update_job(tx, report)
    described = queue.describe(job["PandaID"])
    assert (described["pilotErrorCode"], described["pilotErrorDiag"], described["modificationHost"]) == (
        1305,
        "disk full",
        "n2",
    )
    assert (described["maxRSS"], described["computingElement"], described["exeErrorCode"]) == (12, "ce", 0)
    assert [file["type"] for file in described["Files"]] == ["pseudo_input", "output", "log"]
    assert described["jobParameters"] == job["jobPars"]
    json.dumps(described, default=str)


def test_metadata_needs_label_user(queue: Queue) -> None:
    task_id = queue.submit(1, prodSourceLabel="test")
    (job,) = queue.acquire(label="test")
    queue.report(job["PandaID"], "finished", meta_data="{}")
    with queue.database.reading() as tx:
        assert metadata_of_finished(tx, task_id) == {}


def test_ids_are_never_used_again(queue: Queue) -> None:
    first = queue.submit(1)
    with queue.database.writing() as tx:
        tx.connection.execute(tasks_table.delete())
        tx.connection.execute(jobs.delete())
    assert queue.submit(1) > first
    assert queue.acquire()[0]["PandaID"] == 2
