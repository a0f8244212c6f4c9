"""Jobs that come without a task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpo_pilot.server.access.auth import Caller, Role
from hpo_pilot.server.taskbuffer.direct_jobs import JobsRefusedError, read_jobs, submit_jobs
from hpo_pilot.server.taskbuffer.field_names import FILE_FIELDS, JOB_FIELDS
from tests.server.queue_driver import OPERATOR, Queue


def spec(**given: Any) -> list[Any]:
    """A JobSpec as panda-client dumps it."""
    fields = {"prodSourceLabel": "user", "computingSite": "LOCAL", "jobParameters": "-p ls", "VO": "x", **given}
    files = [["NULL"] * len(FILE_FIELDS) for _ in range(2)]
    for file, kind in zip(files, ("output", "log"), strict=True):
        for name, value in {"lfn": f"my.{kind}", "type": kind, "destinationDBlock": f"user.me.{kind}/"}.items():
            file[FILE_FIELDS.index(name)] = value
    return [fields.get(name, "NULL") for name in JOB_FIELDS] + [files]


def send(queue: Queue, *specs: list[Any], caller: Caller | None = None) -> Any:
    with queue.database.writing() as tx:
        return submit_jobs(tx, caller or queue.me, json.dumps(specs))


def test_each_runs_and_keeps_what_it_was_given(queue: Queue) -> None:
    (one, two) = send(
        queue,
        spec(jobName="first", coreCount=4, minRamCount=9000, maxAttempt=2, transformation="runGen-00-00-02"),
        spec(jobName="second", currentPriority=5000),
    )
    jobs = queue.acquire(9)
    assert [job["PandaID"] for job in jobs] == [one[0], two[0]]
    assert (jobs[0]["coreCount"], jobs[0]["minRamCount"], jobs[0]["outFiles"]) == (4, 9000, "my.output,my.log")
    assert (jobs[0]["jobPars"], jobs[1]["currentPriority"]) == ("-p ls", 1000)
    assert (one[1:], queue.describe(one[0])["maxAttempt"]) == ((0, {"jobsetID": jobs[0]["taskID"]}), 2)
    queue.report(one[0], "finished")
    assert queue.status(jobs[0]["taskID"]) == "done"
    assert [file["lfn"] for file in queue.describe(two[0])["Files"]] == ["my.output", "my.log"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Failed to deserialize jobs"),
        ("{}", "a list of lists"),
        ("[[1]]", "a list of lists"),
        ('[["NULL", "files"]]', "list of files"),
        ("[]", "No jobs were submitted"),
        ("[" * 100_000, "Failed to deserialize jobs"),
    ],
)
def test_what_is_no_job(text: str, message: str) -> None:
    with pytest.raises(JobsRefusedError, match=message):
        read_jobs(text)


def test_who_may_submit_what(queue: Queue) -> None:
    with pytest.raises(JobsRefusedError, match="me is missing production for prodSourceLabel=managed submission"):
        send(queue, spec(prodSourceLabel="managed"))
    assert len(send(queue, spec(prodSourceLabel="managed"), caller=OPERATOR)) == 1
    with pytest.raises(JobsRefusedError, match="job_label=odd is not valid"):
        send(queue, spec(job_label="odd"))
    with pytest.raises(JobsRefusedError, match=r"Failed to submit jobs: .*IN"):
        send(queue, spec(), spec(jobParameters="--input ${IN}"), caller=Caller("you", Role.USER))
    assert queue.acquire(9) == [], "all or none"
