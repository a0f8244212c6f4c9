"""Jobs as BigPanDA's JSON has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.bigpanda import metadata
from hpo_pilot.server.bigpanda.job_query import ERRORS
from hpo_pilot.server.bigpanda.moments import duration, moment
from hpo_pilot.server.data.database import AnyRow, Transaction, in_slices
from hpo_pilot.server.data.tables import jobs
from hpo_pilot.server.taskbuffer.descriptions import describe, scope
from hpo_pilot.server.taskbuffer.field_names import JOB_FIELDS, ZERO_FIELDS
from hpo_pilot.server.taskbuffer.job_pages import FindFile
from hpo_pilot.server.taskbuffer.known_tasks import KnownTask, known_task
from hpo_pilot.server.taskbuffer.resource_types import resource_type

#: What the list of jobs does not show: the text that every job has, and what has calls of its own.
_LEFT_OUT = frozenset({"jobparameters", "metadata"})
_EMPTY = {name.lower(): None for name in JOB_FIELDS} | dict.fromkeys((name.lower() for name in ZERO_FIELDS), 0)


class JobRecords:
    """Makes records; what all jobs of a task share is made once."""

    def __init__(self, fields: frozenset[str], *, with_metadata: bool) -> None:
        """Makes none yet.

        Args:
            fields: those that are wanted; empty: all.
            with_metadata: whether `metastruct`, a job's metadata, is.
        """
        self._fields, self._with_metadata = fields, with_metadata
        self._common: dict[int, dict[str, Any]] = {}

    def of(self, tx: Transaction, panda_ids: Sequence[int]) -> list[dict[str, Any]]:
        """The jobs with these ids, in this order; one that is gone is left out."""
        rows: dict[int, AnyRow] = {}
        for some in in_slices(panda_ids):
            rows |= {row.panda_id: row for row in tx.connection.execute(select(jobs).where(jobs.c.panda_id.in_(some)))}
        reports = metadata.of_jobs(tx, panda_ids) if self._with_metadata else {}
        records = []
        for panda_id in panda_ids:
            if panda_id in rows:
                record = self._record(tx, rows[panda_id])
                records.append(record | {"metastruct": reports[panda_id]} if panda_id in reports else record)
        return records

    def _record(self, tx: Transaction, job: AnyRow) -> dict[str, Any]:
        if job.task_id not in self._common:
            self._common[job.task_id] = _of_task(known_task(tx, job.task_id))
        common = self._common[job.task_id]
        record = common | _of_job(tx.now, job) | {"jobname": f"{common['taskname']}.{job.panda_id}"}
        if self._fields:
            return {name: value for name, value in record.items() if name in self._fields}
        return record


def _of_task(known: KnownTask) -> dict[str, Any]:
    """What all jobs of a task have."""
    parameters = known.parameters
    sample = parameters.job(task_id=known.task_id, number=1, attempt_nr=1)
    outputs = [file for file in sample.files if file.kind == "output"]
    common = {name: value for name, value in _EMPTY.items() if name not in _LEFT_OUT}
    return common | {
        "jeditaskid": known.task_id,
        "taskid": known.task_id,
        "reqid": known.task_id,
        "jobsetid": known.task_id,
        "taskname": known.name,
        "produsername": known.user_name,
        "produserid": known.user_name,
        "vo": known.vo,
        "atlasrelease": parameters.params.get("transUses"),
        "homepackage": parameters.params.get("transHome"),
        "transformation": parameters.transformation.rsplit("/", 1)[-1],
        "workinggroup": parameters.working_group or None,
        "processingtype": parameters.processing_type,
        "cmtconfig": parameters.architecture,
        "container_name": parameters.container or None,
        "destinationdblock": sample.files[0].dataset if sample.files else None,
        "nevents": parameters.n_events_per_job,
        "noutputdatafiles": len(outputs),
        "minramunit": "MB",
        "lockedby": "jedi",
        "category": "run",
        "eventservice": "ordinary",
    }


def _of_job(now: float, job: AnyRow) -> dict[str, Any]:
    over = JobState(job.status).is_over
    end = job.ended if over else now
    seconds = max(0.0, end - job.started) if job.started and end else 0.0
    wait = max(0.0, (job.started or end or now) - job.created)
    measured = json.loads(job.report) if job.report else {}
    return {
        **{low: value for name, value in measured.items() if (low := name.lower()) in _EMPTY},
        "pandaid": job.panda_id,
        "jobdefinitionid": 0,
        "attemptnr": job.attempt_nr,
        "maxattempt": job.max_attempt,
        "jobstatus": job.status,
        "jobsubstatus": job.sub_status or "",
        "commandtopilot": job.command,
        "specialhandling": "dm" if job.debug else "",
        "computingsite": job.site or job.queue or None,
        "computingelement": job.computing_element,
        "modificationhost": job.node or "",
        "schedulerid": job.scheduler_id or "",
        "pilotid": job.pilot_id or "",
        "batchid": job.batch_id or "",
        "prodsourcelabel": job.label,
        "assignedpriority": job.priority,
        "currentpriority": job.priority,
        "corecount": job.core_count,
        "minramcount": job.ram_mb,
        "maxwalltime": job.max_walltime,
        "resourcetype": resource_type(job.core_count, job.ram_mb),
        "resource_type": resource_type(job.core_count, job.ram_mb),
        "jobmetrics": job.job_metrics or "",
        "creationtime": moment(job.created),
        "modificationtime": moment(job.modified),
        "statechangetime": moment(job.state_changed),
        "starttime": moment(job.started),
        "endtime": moment(job.ended),
        "durationsec": int(seconds),
        "durationmin": round(seconds / 60),
        "duration": duration(seconds),
        "waittime": duration(wait),
        "errorinfo": _errors(job),
        "transexitcode": "" if job.trans_exit_code is None else str(job.trans_exit_code),
        "piloterrorcode": job.pilot_error_code or 0,
        "piloterrordiag": job.pilot_error_diag or "",
        "exeerrorcode": job.exe_error_code or 0,
        "exeerrordiag": job.exe_error_diag or "",
        "jobdispatchererrorcode": job.dispatcher_error_code or 0,
        "jobdispatchererrordiag": job.dispatcher_error_diag or "",
        "taskbuffererrorcode": job.buffer_error_code or 0,
        "taskbuffererrordiag": job.buffer_error_diag or "",
    }


def _errors(job: AnyRow) -> str:
    """The errors in one text, as BigPanDA shows them."""
    said = []
    for source, _, code_column, diag_column in ERRORS:
        code = getattr(job, code_column)
        if code:
            diag = getattr(job, diag_column) if diag_column else None
            said.append(f"{source} error {code}: {diag}" if diag else f"{source} error {code}")
    return "; ".join(said)


def files_of(tx: Transaction, job: AnyRow, find: FindFile) -> list[dict[str, Any]]:
    """A job's files, those that a storage has with their sizes."""
    known = known_task(tx, job.task_id)
    described = describe(tx, job)
    place = {dataset: number for number, dataset in enumerate(_datasets(known), start=1)}
    found = []
    for file in described["Files"]:
        path = find(file["lfn"]) if file["type"] != "pseudo_input" else None
        size = path.stat().st_size if path is not None and path.is_file() else 0
        found.append(
            {name.lower(): value for name, value in file.items()}
            | {
                "fsize": size,
                "fsizemb": f"{size / 1e6:.2f}",
                "datasetname": file["dataset"],
                "datasetid": job.task_id * 100 + place.get(file["dataset"], 0),
                "scope": file["scope"] or (scope(file["dataset"]) if file["type"] != "pseudo_input" else None),
                "creationdate": moment(job.created),
            }
        )
    return found


def _datasets(known: KnownTask) -> list[str]:
    parameters = known.parameters
    first = [parameters.sequence_dataset] if parameters.sequence_offset is not None else []
    return [*first, *parameters.output_datasets]


def parameters_of(tx: Transaction, job: AnyRow) -> str:
    """What the job's transformation is called with."""
    known = known_task(tx, job.task_id)
    return known.parameters.job(task_id=job.task_id, number=job.number, attempt_nr=job.attempt_nr).job_pars
