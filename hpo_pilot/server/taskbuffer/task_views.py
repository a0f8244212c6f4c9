"""How tasks look from outside.

After `getJediTaskDetails`, `getJediTaskDigest` and `get_task_details_json` of panda-server 1.0.4.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.envelope import utc
from hpo_pilot.server.taskbuffer.descriptions import scope
from hpo_pilot.server.taskbuffer.field_names import SPLIT_RULES, TASK_FIELDS, TASK_FIELDS_FROM_PARAMETERS
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.task_parameters import TaskParameters, TaskParametersError

#: Columns behind the fields that a query may filter by.
FILTERS = {
    "jediTaskID": tasks.c.task_id,
    "reqID": tasks.c.task_id,
    "taskName": tasks.c.name,
    "status": tasks.c.status,
    "userName": tasks.c.user_name,
    "prodSourceLabel": tasks.c.label,
    "vo": tasks.c.vo,
    "site": tasks.c.queue,
    "parent_tid": tasks.c.parent_id,
}
_RULES = ("nEventsPerJob", "maxWalltime", "useExhausted", "failGoalUnreached", "respectSplitRule")

NUMBER_FILTERS = frozenset({"jediTaskID", "reqID", "parent_tid"})

_DONE = {
    JobState.FINISHED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
    JobState.CLOSED: "failed",
}


def task_fields(task: AnyRow) -> dict[str, Any]:
    """A task as PanDA's JediTaskSpec would give it; `task` is a whole row."""
    params = json.loads(task.params)
    over = TaskState(task.status).is_over
    done = task.n_finished + task.n_failed
    return (
        dict.fromkeys(TASK_FIELDS)
        | {name: params.get(name) for name in TASK_FIELDS_FROM_PARAMETERS}
        | {
            "jediTaskID": task.task_id,
            "taskName": task.name,
            "status": task.status,
            "oldStatus": task.old_status,
            "superStatus": task.status if over else "running",
            "userName": task.user_name,
            "creationDate": utc(task.created),
            "modificationTime": utc(task.modified),
            "stateChangeTime": utc(task.state_changed),
            "startTime": utc(task.started),
            "endTime": utc(task.ended),
            "prodSourceLabel": task.label,
            "vo": task.vo,
            "taskPriority": task.priority,
            "currentPriority": task.priority,
            "progress": round(100 * done / task.n_jobs) if task.n_jobs else 0,
            "failureRate": round(100 * task.n_failed / done) if done else 0,
            "errorDialog": task.error_dialog,
            "reqID": task.task_id,
            "site": task.queue or None,
            "parent_tid": task.parent_id,
            "ramUnit": params.get("ramUnit") or params.get("ramCountUnit"),
            "termCondition": params.get("osInfo"),
            "splitRule": _split_rule(params),
            "attemptNr": task.attempt_nr,
        }
    )


def _split_rule(params: Mapping[str, Any]) -> str | None:
    """How the task is cut into jobs, in the readable form of PanDA's split rules."""
    rules = {name: params.get(name) for name in (*_RULES, *SPLIT_RULES.values())}
    said = [f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in rules.items() if value]
    return ",".join(said) or None


def detailed(task: AnyRow) -> dict[str, Any]:
    """All about a task: its fields, its parameters, its progress."""
    params = json.loads(task.params)
    try:
        template = TaskParameters(params).template
    except TaskParametersError:
        template = None
    n_jobs = task.n_jobs
    return task_fields(task) | {
        "job_execution_params": template,
        "task_creation_arguments": params.get("cliParams"),
        "raw_task_params": params,
        "nFiles": n_jobs,
        "nFilesFinished": task.n_finished,
        "nFilesFailed": task.n_failed,
        "nFilesMissing": 0,
        "pctFinished": round(100 * task.n_finished / n_jobs) if n_jobs else 0,
        "pctFailed": round(100 * task.n_failed / n_jobs) if n_jobs else 0,
    }


def details(tx: Transaction, task: AnyRow, *, with_parameters: bool, with_status: bool) -> dict[str, Any]:
    """The short form: datasets, statistics, the present PandaID of every job."""
    found = {"inDS": "", "mergeStatus": None, "mergePandaID": []} | _datasets(json.loads(task.params))
    latest = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id == task.task_id).group_by(jobs.c.number)
    found["PandaID"] = sorted(tx.connection.scalars(latest))
    found["statistics"] = statistics(tx, [task])[task.task_id]
    if with_status:
        found["status"] = task.status
    if with_parameters:
        found["cliParams"] = json.loads(task.params).get("cliParams", "")
    return found


def digest(task: AnyRow, numbers: str) -> dict[str, Any]:
    """What a list of tasks shows beside their fields."""
    params = json.loads(task.params)
    return {
        "inDS": "",
        "statistics": numbers,
        "PandaID": [],
        "mergeStatus": None,
        "mergePandaID": [],
        "cliParams": params.get("cliParams", ""),
    } | _datasets(params)


def _datasets(params: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"outDS": ",".join(TaskParameters(params).output_datasets)}
    except TaskParametersError:
        return {"outDS": ""}


def statistics(tx: Transaction, some: Iterable[AnyRow]) -> dict[int, str]:
    """How many jobs of each task are in which state, as ``finished*2,running*1``."""
    rows = list(some)
    unfinished = {row.task_id for row in rows if row.n_finished + row.n_failed < row.n_jobs}
    active: dict[int, list[str]] = defaultdict(list)
    if unfinished:
        counts = (
            select(jobs.c.task_id, jobs.c.status, func.count())
            .where(jobs.c.task_id.in_(unfinished), jobs.c.status.not_in([state.value for state in _DONE]))
            .group_by(jobs.c.task_id, jobs.c.status)
            .order_by(jobs.c.status)
        )
        for task_id, status, count in tx.connection.execute(counts):
            active[task_id].append(f"{status}*{count}")
    return {
        row.task_id: ",".join(
            [f"{name}*{count}" for name, count in (("finished", row.n_finished), ("failed", row.n_failed)) if count]
            + active[row.task_id]
        )
        for row in rows
    }


def datasets_and_files(
    tx: Transaction, task_id: int, types: Sequence[str], *, dataset_only: bool
) -> list[dict[str, Any]]:
    """The task's datasets of these types, each with its files."""
    known = known_task(tx, task_id)
    parameters = known.parameters
    wanted: list[tuple[str, str]] = []
    if "pseudo_input" in types:
        wanted.append((parameters.sequence_dataset, "pseudo_input"))
    sample = parameters.job(task_id=task_id, number=1, attempt_nr=1)
    wanted += [(name, kind) for name, kind in dict.fromkeys((f.dataset, f.kind) for f in sample.files) if kind in types]
    rows: Sequence[AnyRow] = []
    if wanted and not dataset_only:
        latest = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id == task_id).group_by(jobs.c.number)
        columns = (jobs.c.number, jobs.c.attempt_nr, jobs.c.status)
        rows = tx.connection.execute(select(*columns).where(jobs.c.panda_id.in_(latest)).order_by(jobs.c.number)).all()
    found = []
    for place, (name, kind) in enumerate(wanted, start=1):
        # No such table here: the ids only have to be the same whenever they are asked for.
        dataset = {"name": name, "id": task_id * 100 + place}
        found.append({"dataset": dataset, "files": [_file(parameters, task_id, row, name, kind) for row in rows]})
    return found


def _file(parameters: TaskParameters, task_id: int, job: AnyRow, dataset: str, kind: str) -> dict[str, Any]:
    status = _DONE.get(JobState(job.status), "ready" if job.status in ("defined", "activated") else "running")
    if kind == "pseudo_input":
        offset = parameters.sequence_offset
        lfn = "pseudo_lfn" if offset is None else str(offset + job.number)
        return {"lfn": lfn, "scope": None, "id": job.number, "status": status}
    texts = parameters.job(task_id=task_id, number=job.number, attempt_nr=job.attempt_nr)
    lfn = next(file.lfn for file in texts.files if file.dataset == dataset and file.kind == kind)
    return {"lfn": lfn, "scope": scope(dataset), "id": job.number, "status": status}
