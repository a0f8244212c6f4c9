"""Pilots' reports: attempts, and what late, foreign and repeated reports get."""

from __future__ import annotations

from hpo_pilot.server.descriptions import metadata_of_finished
from tests.server.queue_driver import Queue


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
