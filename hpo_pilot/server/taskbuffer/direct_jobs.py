"""Jobs that a user submits without a task, as JobSpecs (``job/submit``).

Everything here hangs on tasks, so each such job becomes a task of one job, named after it. The list arrives as
panda-client's `MiscUtils.dump_jobs_json` writes it: a JSON text of lists that hold the attributes of a JobSpec in
their order, and last its files; "NULL" stands for nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.json_text import load
from hpo_pilot.server.taskbuffer.field_names import FILE_FIELDS, JOB_FIELDS
from hpo_pilot.server.taskbuffer.queues import Queues
from hpo_pilot.server.taskbuffer.tasks import submit

MOST = 5000  # jobs in one call; what is beyond is left out, as on a real server
_LABELS = frozenset({"user", "managed"})  # of job_label


class JobsRefusedError(Exception):
    """The jobs are not taken; the message says why."""


def read_jobs(text: str) -> list[dict[str, Any]]:
    """The JobSpecs in `text`, each with its ``Files``.

    Raises:
        JobsRefusedError: it is not such a list.
    """
    try:
        states = load(text)
    except ValueError as error:
        raise JobsRefusedError(f"Failed to deserialize jobs: {error}") from error
    if not isinstance(states, list) or not all(isinstance(state, list) and len(state) > 1 for state in states):
        raise JobsRefusedError("Failed to deserialize jobs: a list of lists is expected")
    if not states:
        raise JobsRefusedError("No jobs were submitted")
    return [_read(state) for state in states[:MOST]]


def _read(state: Sequence[Any]) -> dict[str, Any]:
    files = state[-1]
    if not isinstance(files, list) or not all(isinstance(file, list) for file in files):
        raise JobsRefusedError("Failed to deserialize jobs: the last item of each must be its list of files")
    job = _named(JOB_FIELDS, state[:-1])
    job["Files"] = [_named(FILE_FIELDS, file) for file in files]
    return job


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return {name: None if value == "NULL" else value for name, value in zip(names, values, strict=False)}


def submit_jobs(
    tx: Transaction, caller: Caller, text: str, queues: Queues | None = None
) -> list[tuple[int, int, dict[str, int]]]:
    """Registers the jobs in `text`.

    Args:
        tx: a writing transaction.
        caller: who submits.
        text: as `read_jobs` takes it.
        queues: those that there are; None: any name is one.

    Returns:
        For each its PandaID, job definition and job set.

    Raises:
        JobsRefusedError: they are no jobs, not the caller's to submit, or make no sense; the transaction must be
            rolled back.
    """
    specs = read_jobs(text)
    for spec in specs:
        label = spec.get("prodSourceLabel")
        if label == "managed" and not caller.is_operator:
            raise JobsRefusedError(f"{caller.name} is missing production for prodSourceLabel={label} submission")
        if spec.get("job_label") not in (None, "", *_LABELS):
            raise JobsRefusedError(f"job_label={spec['job_label']} is not valid")
    return [_submit(tx, caller, spec, queues) for spec in specs]


def _submit(
    tx: Transaction, caller: Caller, spec: Mapping[str, Any], queues: Queues | None
) -> tuple[int, int, dict[str, int]]:
    code, message = submit(tx, caller, task_of(spec), queues=queues)
    if code != 0:
        raise JobsRefusedError(f"Failed to submit jobs: {message}")
    task_id = int(message.rsplit("=", 1)[1])
    dialog = tx.connection.scalar(select(tasks.c.error_dialog).where(tasks.c.task_id == task_id))
    panda_id = tx.connection.scalar(select(jobs.c.panda_id).where(jobs.c.task_id == task_id))
    if panda_id is None:
        raise JobsRefusedError(f"Failed to submit jobs: {dialog or 'upload the sandbox first'}")
    return panda_id, 0, {"jobsetID": task_id}


def task_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the task that stands for a job."""
    files = [
        {
            "type": "template",
            "param_type": file["type"],
            "value": file.get("lfn"),
            "dataset": file.get("destinationDBlock") or file.get("dataset"),
            "hidden": True,
        }
        for file in spec["Files"]
        if file.get("type") in ("output", "log")
    ]
    return {
        "taskName": spec.get("jobName") or f"job.{uuid.uuid4()}",
        "vo": spec.get("VO") or "atlas",
        "prodSourceLabel": spec.get("prodSourceLabel") or "user",
        "userName": spec.get("prodUserName"),
        "processingType": spec.get("processingType"),
        "workingGroup": spec.get("workingGroup"),
        "site": spec.get("computingSite"),
        "architecture": spec.get("cmtConfig"),
        "transUses": spec.get("AtlasRelease"),
        "transHome": spec.get("homepackage"),
        "transPath": spec.get("transformation"),
        "container_name": spec.get("container_name"),
        "taskPriority": spec.get("currentPriority"),
        "nEvents": 1,
        "coreCount": spec.get("coreCount"),
        "ramCount": spec.get("minRamCount") or None,
        "hpoWalltime": spec.get("maxWalltime"),
        "maxAttempt": spec.get("maxAttempt") or 1,
        "skipScout": True,
        "jobParameters": [{"type": "constant", "value": spec.get("jobParameters") or " "}, *files],
    }
