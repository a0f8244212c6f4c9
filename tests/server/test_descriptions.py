"""What descriptions and cursors tell of jobs."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select

from hpo_pilot.server.database import jobs
from hpo_pilot.server.database import tasks as tasks_table
from hpo_pilot.server.descriptions import metadata_of_finished
from tests.server.queue_driver import Queue


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


def test_new_values_of_running_jobs_are_told_where_they_are_waited_for(queue: Queue, clock: Any) -> None:
    def outcome(task_id: int) -> int:
        with queue.database.reading() as tx:
            return int(tx.connection.scalar(select(tasks_table.c.outcome).where(tasks_table.c.task_id == task_id)))

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


def test_a_heartbeat_without_news_changes_no_cursor(queue: Queue) -> None:
    queue.submit(1)
    (job,) = queue.acquire()
    queue.report(job["PandaID"], "running")
    before = queue.database.change
    queue.report(job["PandaID"], "running")
    assert queue.database.change == before
