"""Attempts of jobs: pilots' reports on them, silent pilots, jobs given back, and what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from hpo_pilot.server import attempts
from hpo_pilot.server.database import jobs
from hpo_pilot.server.database import tasks as tasks_table
from hpo_pilot.server.descriptions import metadata_of_finished
from hpo_pilot.server.dispatch import give_back
from hpo_pilot.server.job_records import job_reports
from hpo_pilot.server.pilot_calls import LegacyRequest, job_request
from hpo_pilot.server.tokens import PilotIdentity
from tests.server.conftest import Api
from tests.server.queue_driver import Queue
from tests.task_parameters import make_params

ME = {"harvester_id": "h", "worker_id": "w"}


def metadata(queue: Queue, task_id: int) -> dict[int, Any]:
    with queue.database.reading() as tx:
        return metadata_of_finished(tx, task_id)


# --- reports ---


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
        assert list(job_reports(tx)) == []


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
    queue.end_silent_attempts()
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
    assert metadata(queue, task_id) == {one["PandaID"]: {"a": 1}}


# --- silent pilots ---


class EnoughError(BaseException):
    """No further look is needed."""


def test_silent_jobs_are_lost(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=2)
    assert queue.end_silent_attempts() is None
    one, two = queue.acquire(2)
    queue.clock.now += 40
    queue.report(one["PandaID"], "running")
    queue.report(one["PandaID"], "starting")  # a job never goes back
    assert queue.end_silent_attempts() == pytest.approx(20)
    queue.clock.now += 30
    assert queue.end_silent_attempts() == pytest.approx(30)
    assert queue.jobs(task_id) == [(1, 1, "running"), (2, 1, "failed"), (2, 2, "activated")]
    described = queue.describe(two["PandaID"])
    assert described["jobDispatcherErrorCode"] == 100
    assert described["jobDispatcherErrorDiag"].startswith("lost heartbeat : ")


def test_a_restart_gives_every_job_a_fresh_grace_period(queue: Queue) -> None:
    queue.submit(1)
    queue.acquire()
    queue.clock.now += 3600
    with queue.database.writing() as tx:
        attempts.reset_silence(tx)
    assert queue.end_silent_attempts() == pytest.approx(60)


@pytest.mark.parametrize(("asleep", "state"), [(0.0, "failed"), (3600.0, "sent")])
def test_pilots_of_a_machine_that_slept_may_report_first(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, asleep: float, state: str
) -> None:
    queue.submit(2, maxAttempt=1)
    (job,) = queue.acquire()

    async def sleep(seconds: float) -> None:
        queue.clock.now += seconds + asleep
        if not queue.acquire():
            raise EnoughError

    async def wait_for(sooner: Coroutine[Any, Any, Any], seconds: float) -> None:
        sooner.close()
        queue.clock.now += seconds
        raise TimeoutError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio, "wait_for", wait_for)
    monkeypatch.setattr(attempts, "time", Mock(time=queue.clock, monotonic=lambda: 0.0))
    with pytest.raises(EnoughError):
        asyncio.run(attempts.HeartbeatWatch(queue.database, 60.0).run())
    assert queue.describe(job["PandaID"])["jobStatus"] == state


@pytest.mark.parametrize("error", [OperationalError("SELECT", None, Exception("no answer")), ValueError("a defect")])
def test_no_job_is_lost_by_an_outage_of_the_database(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    queue.submit(1, maxAttempt=1)
    (job,) = queue.acquire()
    write, looks = queue.database.write, []

    async def writing(work: Any, **more: Any) -> Any:
        looks.append(1)
        if len(looks) == 3:
            queue.clock.now += 3600
            raise error
        if len(looks) == 5:
            raise EnoughError
        return await write(work, **more)

    async def sleep(seconds: float) -> None:
        queue.clock.now += seconds

    async def wait_for(sooner: Coroutine[Any, Any, Any], seconds: float) -> None:
        sooner.close()
        queue.clock.now += seconds
        queue.report(job["PandaID"], "running")
        raise TimeoutError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio, "wait_for", wait_for)
    monkeypatch.setattr(queue.database, "write", writing)
    monkeypatch.setattr(attempts, "time", Mock(time=queue.clock, monotonic=lambda: 0.0))
    watch = attempts.HeartbeatWatch(queue.database, 60.0)
    monkeypatch.setattr(watch._jobs_out, "wait", Mock(side_effect=EnoughError))  # no pilot has a job
    with pytest.raises(EnoughError):
        asyncio.run(watch.run())
    assert queue.describe(job["PandaID"])["jobStatus"] == "running"


def test_a_job_is_lost_in_time_although_the_clock_was_set_back(queue: Queue) -> None:
    queue.submit(1, maxAttempt=2)
    (job,) = queue.acquire()
    queue.clock.now -= 40 * 86_400
    queue.end_silent_attempts(timeout=60)
    queue.clock.now += 61
    queue.end_silent_attempts(timeout=60)
    assert queue.describe(job["PandaID"])["jobStatus"] == "failed"


def test_a_worker_that_ended_takes_its_jobs_along(queue: Queue) -> None:
    task_id = queue.submit(3, maxAttempt=2)
    queue.acquire(harvester_id="h", worker_id="1")
    queue.acquire(harvester_id="h", worker_id="2")
    with queue.database.writing() as tx:
        attempts.update_worker(tx, PilotIdentity("pilot"), "h", "1", "started", "")
        attempts.update_worker(tx, PilotIdentity("pilot"), "h", "1", "finished", "node")
    assert queue.jobs(task_id) == [(1, 1, "failed"), (2, 1, "sent"), (3, 1, "activated"), (1, 2, "activated")]
    assert queue.describe(1)["jobDispatcherErrorDiag"] == "lost heartbeat : worker 1 of h finished"


def test_a_lost_job_that_was_to_be_killed_is_cancelled(queue: Queue) -> None:
    task_id = queue.submit(1)
    queue.acquire()
    queue.command(task_id, "kill")
    queue.clock.now += 61
    queue.end_silent_attempts()
    assert (queue.status(task_id), queue.jobs(task_id)) == ("aborted", [(1, 1, "cancelled")])


def test_a_released_pilot_may_be_silent_for_longer(queue: Queue) -> None:
    """A Pilot 3 reports every half hour by default."""
    request = LegacyRequest(Mock(), {"siteName": "LOCAL"}, as_json=True)
    patience = job_request(request, 0).patience
    assert patience > 3 * 1800
    queue.submit(2)
    theirs, ours = queue.acquire(patience=patience)[0], queue.acquire()[0]
    queue.clock.now += 100
    assert queue.end_silent_attempts() == pytest.approx(patience - 40)
    assert queue.describe(ours["PandaID"])["jobStatus"] == "failed"
    queue.report(theirs["PandaID"], "running")
    queue.clock.now += patience + 50
    assert queue.end_silent_attempts() == pytest.approx(10)
    queue.clock.now += 11
    queue.end_silent_attempts()
    assert queue.describe(theirs["PandaID"])["jobStatus"] == "failed"


# --- jobs given back, and every way in which it may come too late ---


def take(queue: Queue, count: int = 1, **more: Any) -> list[tuple[int, int]]:
    return [(job["PandaID"], job["attemptNr"]) for job in queue.acquire(count, **(ME | more))]


def give(queue: Queue, *attempts: tuple[int, int], harvester_id: str = "h", worker_id: str = "w") -> list[int]:
    with queue.database.writing() as tx:
        return give_back(tx, PilotIdentity("pilot"), attempts, harvester_id, worker_id)


def test_no_attempt_is_used_up(queue: Queue) -> None:
    task = queue.submit(1, maxAttempt=2)
    for attempt in range(1, 6):
        ((panda_id, number),) = take(queue)
        assert number == attempt
        if attempt % 2:
            queue.report(panda_id, "running")
        assert give(queue, (panda_id, attempt)) == [panda_id]
    assert [attempt[1:] for attempt in queue.jobs(task)] == [(n, "closed") for n in range(1, 6)] + [(6, "activated")]
    assert queue.status(task) == "running"
    # The two that it may have are still to come.
    for number in (6, 7):
        ((panda_id, attempt),) = take(queue)
        assert attempt == number
        queue.report(panda_id, "failed")
    assert queue.acquire() == []
    assert queue.status(task) == "failed"


def test_another_worker_takes_it_at_once(queue: Queue) -> None:
    queue.submit(3)
    mine = take(queue, 3)
    assert queue.acquire(worker_id="other") == []
    assert give(queue, *mine[:2]) == [mine[0][0], mine[1][0]]
    assert [number for _, number in take(queue, 3, worker_id="other")] == [2, 2]
    described = queue.describe(mine[0][0])
    assert (described["jobStatus"], described["jobSubStatus"]) == ("closed", "toreassign")
    assert "given back by worker w of h" in described["taskBufferErrorDiag"]


def test_late_reports_of_the_old_attempt_change_nothing(queue: Queue) -> None:
    task = queue.submit(1)
    ((panda_id, attempt),) = take(queue)
    give(queue, (panda_id, attempt))
    assert queue.report(panda_id, "running", attempt) == "tobekilled"
    for status in ("finished", "failed"):
        assert queue.report(panda_id, status, attempt) == "alreadydone"
    assert [job[1:] for job in queue.jobs(task)] == [(1, "closed"), (2, "activated")]
    ((again, number),) = take(queue, worker_id="other")
    assert again != panda_id
    assert number == 2
    queue.report(again, "finished", 2)
    assert queue.status(task) == "done"


def test_a_repeated_call_says_the_same_and_makes_no_second_attempt(queue: Queue) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    assert give(queue, held, held) == [held[0]]
    assert give(queue, held) == [held[0]]
    assert len(queue.jobs(task)) == 2
    take(queue)
    assert give(queue, held) == [held[0]], "its next attempt is another job"
    assert [job[1:] for job in queue.jobs(task)] == [(1, "closed"), (2, "sent")]


def test_what_is_not_this_workers_stays(queue: Queue) -> None:
    task = queue.submit(4)
    held = take(queue, 3)
    before = queue.jobs(task)
    assert give(queue, *held, worker_id="other") == []
    assert give(queue, *held, harvester_id="other") == []
    assert give(queue, (held[0][0], 2), (held[1][0], 0), (10**9, 1), (-1, 1)) == [], "wrong attempt, unknown job"
    waiting = held[2][0] + 1
    assert give(queue, (waiting, 1), harvester_id="", worker_id="") == [], "nobody has it"
    assert queue.jobs(task) == before


@pytest.mark.parametrize(
    ("end", "jobs", "state"),
    [
        (lambda queue, held: queue.report(held[0], "finished"), [(1, "finished")], "done"),
        (lambda queue, held: queue.report(held[0], "failed"), [(1, "failed"), (2, "activated")], "running"),
        (lambda queue, held: fall_silent(queue), [(1, "failed"), (2, "activated")], "running"),
        (lambda queue, held: queue.command(1, "kill"), [(1, "cancelled")], "aborted"),
        (lambda queue, held: queue.command(1, "finish"), [(1, "cancelled")], "failed"),
        # Softly: its running jobs may end, and no new attempt starts.
        (lambda queue, held: queue.command(1, "finish", soft=True), [(1, "failed")], "failed"),
    ],
    ids=["finished", "failed", "lost", "killed", "finishing", "finishing softly"],
)
def test_a_job_that_has_ended_or_is_to_end_does_not_come_back(
    queue: Queue, end: Any, jobs: list[tuple[int, str]], state: str
) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    end(queue, held)
    assert give(queue, held) == []
    queue.report(held[0], "failed", 1)  # the pilot reports on it instead
    assert [job[1:] for job in queue.jobs(task)] == jobs
    assert queue.status(task) == state


def fall_silent(queue: Queue) -> None:
    queue.clock.now += 61
    queue.end_silent_attempts(60)


def test_a_paused_tasks_job_waits_aside(queue: Queue) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    queue.command(task, "pause")
    assert give(queue, held) == [held[0]]
    assert queue.acquire() == []
    queue.command(task, "resume")
    assert [number for _, number in take(queue)] == [2]


def test_the_call(user: Api, pilot: Api) -> None:
    task = user.submit(make_params("user.me.given_back/", 2, site="GIVEN"))
    jobs = pilot.acquire(2, site_name="GIVEN", harvester_id="h", worker_id=7)
    pairs = [[job["PandaID"], job["attemptNr"]] for job in jobs]
    cursor = user.get("hpo_pilot/changes", cursor=-1)["data"]["cursor"]
    reply = pilot.post("hpo_pilot/give_back", jobs=pairs, harvester_id="h", worker_id=7)
    assert reply["data"] == {"given_back": [pair[0] for pair in pairs]}
    assert user.get("hpo_pilot/changes", cursor=cursor, outcomes=True)["data"]["task_ids"] == [task]
    assert pilot.post("hpo_pilot/give_back", jobs=pairs, harvester_id="h", worker_id="8")["data"] == {"given_back": []}
    for wrong in ([[1]], [[1, 2, 3]], [["1", 2]], [[True, 1]], [[1, 1]] * 1001):
        assert pilot.post("hpo_pilot/give_back", jobs=wrong)["success"] is False
    assert (
        user.session.post(f"{user.url}/api/v1/hpo_pilot/give_back", json={"jobs": []}, timeout=600).status_code != 200
    )
    assert [job["attemptNr"] for job in pilot.acquire(9, site_name="GIVEN")] == [2, 2]


# --- what is told ---


def test_the_description_carries_what_the_pilot_said(queue: Queue) -> None:
    queue.submit(1)
    (job,) = queue.acquire(node="n1", computing_element="ce")
    errors = {"pilot_error_code": 1305, "pilot_error_diag": "disk full", "node": "n2", "max_rss": 12}
    queue.report(job["PandaID"], "failed", 1, **errors)
    described = queue.describe(job["PandaID"])
    assert (described["pilotErrorCode"], described["pilotErrorDiag"], described["modificationHost"]) == (
        1305,
        "disk full",
        "n2",
    )
    assert (described["maxRSS"], described["computingElement"], described["exeErrorCode"]) == (12, "ce", 0)
    assert [file["type"] for file in described["Files"]] == ["pseudo_input", "output", "log"]
    assert described["jobParameters"] == job["jobPars"]


def test_metadata_needs_label_user(queue: Queue) -> None:
    task_id = queue.submit(1, prodSourceLabel="test")
    (job,) = queue.acquire(label="test")
    queue.report(job["PandaID"], "finished", meta_data="{}")
    assert metadata(queue, task_id) == {}


def test_ids_are_never_used_again(queue: Queue) -> None:
    first = queue.submit(1)
    with queue.database.writing() as tx:
        tx.connection.execute(tasks_table.delete())
        tx.connection.execute(jobs.delete())
    assert queue.submit(1) > first
    assert queue.acquire()[0]["PandaID"] == 2


def test_changes_have_growing_cursors(queue: Queue) -> None:
    task_id = queue.submit(1)
    seen = [cursor(queue, task_id)]
    (job,) = queue.acquire()
    seen.append(cursor(queue, task_id))
    for status in ("running", "finished"):
        queue.report(job["PandaID"], status)
        seen.append(cursor(queue, task_id))
        queue.report(job["PandaID"], status)
        assert cursor(queue, task_id) == seen[-1], "a report without news changes none"
    assert seen == sorted(set(seen))


def cursor(queue: Queue, task_id: int, column: str = "change") -> int:
    with queue.database.reading() as tx:
        return int(tx.connection.scalar(select(tasks_table.c[column]).where(tasks_table.c.task_id == task_id)))


def test_new_values_of_running_jobs_are_told_where_they_are_waited_for(queue: Queue, clock: Any) -> None:
    def outcome(task_id: int) -> int:
        return cursor(queue, task_id, "outcome")

    def beat(job: dict[str, Any], metrics: str | None = None) -> None:
        queue.report(job["PandaID"], "running", 1, **({} if metrics is None else {"job_metrics": metrics}))

    waited, other = queue.submit(2, hpoValues=True), queue.submit(1)
    seen = []
    jobs = queue.acquire(3)
    for job in jobs:
        beat(job, "nGPU=1")
    clock.now += 10
    beat(jobs[0], "hpoStep=1 hpoValue=0.5")
    seen.append(outcome(waited))
    beat(jobs[1], "hpoStep=1 hpoValue=0.7")  # too soon after the other
    clock.now += 10
    beat(jobs[0], "hpoStep=1 hpoValue=0.5")  # nothing new
    beat(jobs[0])
    seen.append(outcome(waited))
    beat(jobs[0], "hpoStep=2 hpoValue=0.4")
    seen.append(outcome(waited))
    assert 0 < seen[0] == seen[1] < seen[2]
    beat(jobs[2], "hpoStep=1 hpoValue=0.5")
    assert outcome(other) == 0
