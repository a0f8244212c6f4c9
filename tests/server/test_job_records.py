"""What the server shows of a job: its last report, its log and its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import select

from hpo_pilot.server import task_parameters
from hpo_pilot.server.database import jobs
from hpo_pilot.server.job_records import JobRecord, job_records
from tests.server.queue_driver import Queue


def record(queue: Queue, panda_id: int) -> JobRecord:
    with queue.database.reading() as tx:
        (found,) = job_records(tx, tx.connection.execute(select(jobs).where(jobs.c.panda_id == panda_id)))
    return found


def test_the_time_of_the_last_report_is_without_patience(queue: Queue) -> None:
    queue.submit(2)
    ours, theirs = queue.acquire()[0]["PandaID"], queue.acquire(patience=7200.0)[0]["PandaID"]
    assert record(queue, ours).heard == record(queue, theirs).heard == queue.clock.now
    queue.clock.now += 10
    for panda_id, status in ((ours, "running"), (theirs, "failed")):
        queue.report(panda_id, status)
        assert record(queue, panda_id).heard == queue.clock.now


def test_a_log_of_another_attempt_is_not_the_jobs_log(queue: Queue, tmp_path: Path) -> None:
    queue.submit(1)
    (job,) = queue.acquire()
    created, log = queue.clock.now, tmp_path / job["logFile"]
    log.write_text("log")
    find = {log.name: log}.get
    os.utime(log, (created + 5, created + 5))
    assert record(queue, job["PandaID"]).log_file(find) is None, "the job runs"
    queue.clock.now += 10
    queue.report(job["PandaID"], "failed")
    for stored, expected in ((created - 1, None), (created + 5, log), (created + 11, None)):
        os.utime(log, (stored, stored))
        assert record(queue, job["PandaID"]).log_file(find) == expected


def test_the_queue_is_that_of_its_pilot(queue: Queue) -> None:
    queue.submit(2, site=None)
    (job,) = queue.acquire(site="A")
    assert (record(queue, job["PandaID"]).queue, record(queue, job["PandaID"] + 1).queue) == ("A", "")


def test_files(queue: Queue, tmp_path: Path) -> None:
    queue.submit(1)
    (job,) = queue.acquire()
    number, output, log = record(queue, job["PandaID"]).files
    assert [(file.kind, file.place) for file in (number, output, log)] == [
        ("pseudo_input", 1),
        ("output", 2),
        ("log", 3),
    ]
    assert (number.lfn, f"{output.lfn},{log.lfn}", log.guid) == ("1", job["outFiles"], job["logGUID"])
    (tmp_path / "stored").write_bytes(b"12345")
    assert output.size({output.lfn: tmp_path / "stored"}.get) == 5 and log.size({}.get) is None


def test_tasks_are_kept_in_memory_by_the_length_of_their_parameters(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_parameters, "_LIMIT_BYTES", 300_000)
    every = [queue.submit(1, comment="x" * 100_000) for n in range(8)]
    with queue.database.reading() as tx:
        for task_id in every:
            known = task_parameters.known_task(tx, task_id)
            assert known.size > 100_000 and (task_id, known) in [(key[0], one) for key, one in tx.cache.items()]
            assert sum(one.size for one in tx.cache.values()) <= 300_000
