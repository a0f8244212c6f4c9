"""Tasks and jobs as PanDA describes them to clients and pilots."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.brokerage import campaign_of
from hpo_pilot.server.database import AnyRow, Transaction, in_slices, job_documents, jobs, last_attempts, tasks
from hpo_pilot.server.replies import utc
from hpo_pilot.server.task_parameters import (
    FILE_FIELDS,
    INPUT_FIELDS,
    JOB_FIELDS,
    SPLIT_RULES,
    TASK_FIELDS,
    TASK_FIELDS_FROM_PARAMETERS,
    ZERO_FIELDS,
    JobTexts,
    KnownTask,
    OutputFile,
    TaskParameters,
    TaskParametersError,
    known_task,
    resource_type,
)

# Jobs. The answer to a pilot follows `pandaserver/jobdispatcher/Protocol.py` of panda-server 1.0.4, descriptions follow
# its JobSpec and FileSpec.

#: The most jobs in one answer, as on a real server.
MAX_DESCRIBED = 5500

#: PanDA's name for the transformation of analysis jobs, which this server offers; also that of tasks that name none.
TRANSFORMATION = "runGen-00-00-02"
#: Its address in jobs, for Pilot 3. Without an experiment's plugin a Pilot 3 accepts only certain addresses
#: (`get_valid_base_urls` of `pilot/user/generic/setup.py`; else error 1149). Releases 3.2 to 3.11 have this one in
#: common. Nothing is fetched from there: the pilot takes the file of this name in HARVESTER_WORKDIR.
_PILOTS_PLACE = "https://storage.googleapis.com/drp-us-central1-containers/"

#: JobSpec without a value.
NO_JOB = dict.fromkeys(JOB_FIELDS) | dict.fromkeys(ZERO_FIELDS, 0)
_NO_FILE = dict.fromkeys(FILE_FIELDS) | {"fsize": 0}

#: Sources of errors, in BigPanDA's order: its name, JobSpec's name of the code, the columns of code and text. All but
#: the last have a text, under the name of the code with Diag instead of Code.
ERRORS = (
    ("executor", "exeErrorCode", "exe_error_code", "exe_error_diag"),
    ("jobdispatcher", "jobDispatcherErrorCode", "dispatcher_error_code", "dispatcher_error_diag"),
    ("pilot", "pilotErrorCode", "pilot_error_code", "pilot_error_diag"),
    ("taskbuffer", "taskBufferErrorCode", "buffer_error_code", "buffer_error_diag"),
    ("transform", "transExitCode", "trans_exit_code", ""),
)

_FILE_STATES = {JobState.FINISHED: "ready", JobState.FAILED: "failed", JobState.CANCELLED: "cancelled"}


def scope(dataset: str) -> str:
    """Returns the scope of a dataset's files: ``user.me`` of ``user.me.x/``, or the text before a colon."""
    if ":" in dataset:
        return dataset.split(":", maxsplit=1)[0]
    fields = dataset.split(".")
    return ".".join(fields[:2]) if fields[0] in ("user", "group") else fields[0]


def texts_of(known: KnownTask, job: AnyRow) -> JobTexts:
    """Returns the parameters and files of a job."""
    return known.parameters.job(task_id=known.task_id, number=job.number, attempt_nr=job.attempt_nr)


def _transformation(named: str) -> str:
    """Returns the transformation that a pilot starts."""
    name = named.rsplit("/", 1)[-1] or TRANSFORMATION
    return _PILOTS_PLACE + name if name == TRANSFORMATION else named


def pilot_job(known: KnownTask, job: AnyRow) -> dict[str, Any]:
    """Returns a job as pilots get it."""
    parameters, texts = known.parameters, texts_of(known, job)
    log = next((file for file in texts.files if file.kind == "log"), None)
    outputs = [file for file in texts.files if file.kind == "output"]
    answer = {
        "PandaID": job.panda_id,
        "prodSourceLabel": job.label,
        "swRelease": parameters.params.get("transUses"),
        "homepackage": parameters.params.get("transHome"),
        "transformation": _transformation(parameters.transformation),
        "jobName": f"{known.name}.{job.panda_id}",
        "jobDefinitionID": 0,
        "cloud": parameters.params.get("cloud"),
        **_NO_INPUT,
        "outFiles": _joined(file.lfn for file in texts.files),
        "destinationDblock": _joined(file.dataset for file in texts.files),
        "destinationDBlockToken": _joined("" for _ in texts.files),
        "realDatasets": _joined(file.dataset for file in texts.files),
        "fileDestinationSE": _joined("" for _ in texts.files),
        "ddmEndPointOut": _joined("" for _ in texts.files),
        "hpoPilotStorage": True,  # our pilot may then store outputs at /storage, which a real server does not have
        "hpoCampaign": campaign_of(parameters.params, known.user_name, known.name),  # its name for the job's search
        "logFile": log.lfn if log else "",
        "logGUID": _guid(job.panda_id, log) if log else "",
        "scopeOut": _joined(scope(file.dataset) for file in outputs),
        "scopeLog": scope(log.dataset) if log else "",
        "jobPars": texts.job_pars,
        "attemptNr": job.attempt_nr,
        "destinationSE": "local",
        "prodUserID": known.user_name,
        "maxCpuCount": 0,
        "minRamCount": job.ram_mb,
        "maxDiskCount": 0,
        "cmtConfig": parameters.architecture,
        "processingType": parameters.processing_type,
        "transferType": None,
        "sourceSite": None,
        "currentPriority": job.priority,
        "taskID": known.task_id,
        "coreCount": job.core_count,
        "jobsetID": known.task_id,
        "reqID": known.task_id,
        "nucleus": None,
        "maxWalltime": job.max_walltime,
        "resource_type": resource_type(job.core_count, job.ram_mb),
        "ioIntensity": None,
        "ioIntensityUnit": None,
        "nSent": 0,
    }
    if texts.steps:
        answer |= texts.steps
    if parameters.container:
        answer["container_name"] = parameters.container
    if job.debug:
        answer["debug"] = "True"
    return answer


_NO_INPUT = dict.fromkeys(INPUT_FIELDS, "")


def _joined(items: Any) -> str:
    return ",".join(items)


def _guid(panda_id: int, file: OutputFile) -> str:
    # Always the same, so it needs no column.
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{panda_id}/{file.lfn}"))


def describe_jobs(tx: Transaction, panda_ids: Sequence[int]) -> list[dict[str, Any] | None]:
    """Returns the full description of each job, in the order of the ids; None for a job that does not exist."""
    wanted = list(panda_ids[:MAX_DESCRIBED])
    found: dict[int, dict[str, Any]] = {}
    for some in in_slices(wanted):
        rows = tx.connection.execute(_ROWS.where(jobs.c.panda_id.in_(some))).all()
        finished = job_reports(tx, jobs.c.panda_id.in_(some), jobs.c.status == JobState.FINISHED.value)
        reports = {row.panda_id: row.meta_data for row in finished}
        found |= {row.panda_id: describe(tx, row) | {"metadata": reports.get(row.panda_id)} for row in rows}
    return [found.get(panda_id) for panda_id in wanted]


def job_reports(tx: Transaction, *conditions: ColumnElement[bool]) -> Iterator[AnyRow]:
    """Yields task_id, panda_id and meta_data of jobs that have a report, as their pilots sent it; by PandaID."""
    yield from tx.connection.execute(
        select(jobs.c.task_id, jobs.c.panda_id, job_documents.c.meta_data)
        .join(job_documents, job_documents.c.panda_id == jobs.c.panda_id)
        .where(job_documents.c.meta_data.is_not(None), *conditions)
        .order_by(jobs.c.panda_id)
    )


def describe_task_jobs(tx: Transaction, task_id: int, *, unsuccessful_only: bool) -> list[dict[str, Any]]:
    """Returns the descriptions of a task's jobs, oldest first, without the large job reports."""
    query = _ROWS.where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id).limit(MAX_DESCRIBED)
    if unsuccessful_only:
        query = query.where(jobs.c.status.in_(("failed", "cancelled", "closed")))
    descriptions = []
    for row in tx.connection.execute(query).all():
        duration = row.ended - row.started if row.started and row.ended else None
        extra = {"jobDuration": duration, "extendedProdSourceLabel": f"{row.label}_normal"}
        descriptions.append(describe(tx, row) | extra)
    return descriptions


_ROWS = select(jobs)


def describe(tx: Transaction, job: AnyRow) -> dict[str, Any]:
    """Returns a job with the fields of PanDA's JobSpec, and its files."""
    known = known_task(tx, job.task_id)
    texts = texts_of(known, job)
    return job_fields(known, job) | {
        "jobParameters": texts.job_pars,
        "destinationDBlock": texts.files[0].dataset if texts.files else None,
        "job_label": "user" if job.label in ("user", "panda") else "managed",
        "nOutputDataFiles": sum(file.kind == "output" for file in texts.files),
        "Files": _files(known, job, texts),
    }


def job_fields(known: KnownTask, job: AnyRow) -> dict[str, Any]:
    """Returns the fields of JobSpec that do not depend on the job's parameters."""
    return NO_JOB | own_fields(known, job) | task_part(known)


def task_part(known: KnownTask) -> dict[str, Any]:
    """Returns the fields of JobSpec that all jobs of a task share."""
    parameters = known.parameters
    return {
        "AtlasRelease": parameters.params.get("transUses"),
        "homepackage": parameters.params.get("transHome"),
        "transformation": parameters.transformation,
        "prodUserID": known.user_name,
        "prodUserName": known.user_name,
        "minRamUnit": "MB",
        "nEvents": parameters.n_events_per_job,
        "taskID": known.task_id,
        "jediTaskID": known.task_id,
        "reqID": known.task_id,
        "jobsetID": known.task_id,
        "lockedby": "jedi",
        "VO": known.vo,
        "workingGroup": parameters.working_group or None,
        "processingType": parameters.processing_type,
        "cmtConfig": parameters.architecture,
        "container_name": parameters.container or None,
    }


def own_fields(known: KnownTask, job: AnyRow) -> dict[str, Any]:
    """Returns the fields of JobSpec in which the jobs of a task differ."""
    reported = json.loads(job.report) if job.report else {}
    return (
        {name: value for name, value in reported.items() if name in NO_JOB}
        | error_fields(job)
        | {
            "PandaID": job.panda_id,
            "schedulerID": job.scheduler_id,
            "pilotID": job.pilot_id,
            "batchID": job.batch_id,
            "creationTime": utc(job.created),
            "modificationTime": utc(job.modified),
            "stateChangeTime": utc(job.state_changed),
            "startTime": utc(job.started),
            "endTime": utc(job.ended),
            "modificationHost": job.node,
            "prodSourceLabel": job.label,
            "assignedPriority": job.priority,
            "currentPriority": job.priority,
            "attemptNr": job.attempt_nr,
            "maxAttempt": job.max_attempt,
            "jobStatus": job.status,
            "jobSubStatus": job.sub_status,
            "jobName": f"{known.name}.{job.panda_id}",
            "minRamCount": job.ram_mb,
            "commandToPilot": job.command,
            "computingSite": job.site or job.queue or None,
            "computingElement": job.computing_element,
            "specialHandling": "dm" if job.debug else None,
            "coreCount": job.core_count,
            "resource_type": resource_type(job.core_count, job.ram_mb),
            "jobMetrics": job.job_metrics,
            "maxWalltime": job.max_walltime,
        }
    )


def error_fields(job: AnyRow) -> dict[str, Any]:
    """Returns JobSpec's fields of a job's errors. The exit code of the transformation is a text, or None."""
    fields: dict[str, Any] = {"transExitCode": None if job.trans_exit_code is None else str(job.trans_exit_code)}
    for _, name, code, diag in ERRORS[:-1]:
        fields[name] = getattr(job, code) or 0
        fields[name.replace("Code", "Diag")] = getattr(job, diag)
    return fields


def _files(known: KnownTask, job: AnyRow, texts: JobTexts) -> list[dict[str, Any]]:
    common = {"PandaID": job.panda_id, "jediTaskID": known.task_id, "attemptNr": job.attempt_nr, "fileID": job.number}
    files = []
    if texts.sequence is not None:
        dataset = known.parameters.sequence_dataset
        files.append(
            _NO_FILE
            | common
            | {"lfn": str(texts.sequence), "type": "pseudo_input", "dataset": dataset, "status": "ready"}
        )
    status = _FILE_STATES.get(JobState(job.status), "unknown")
    for file in texts.files:
        files.append(
            _NO_FILE
            | common
            | {
                "GUID": _guid(job.panda_id, file),
                "lfn": file.lfn,
                "type": file.kind,
                "dataset": file.dataset,
                "destinationDBlock": file.dataset,
                "scope": scope(file.dataset),
                "status": status,
            }
        )
    return files


def metadata_of_finished(tx: Transaction, task_id: int) -> dict[int, Any]:
    """Returns the job reports of a task's finished jobs with the label ``user``, by PandaID. PanDA has no others."""
    finished = (jobs.c.status == JobState.FINISHED.value, jobs.c.label == "user")
    found = {}
    for row in job_reports(tx, jobs.c.task_id == task_id, *finished):
        try:
            found[row.panda_id] = json.loads(row.meta_data)
        except ValueError:
            continue  # PanDA leaves it out too
    return found


# Tasks. After `getJediTaskDetails`, `getJediTaskDigest` and `get_task_details_json` of panda-server 1.0.4.

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
    """Returns a task with the fields of PanDA's JediTaskSpec; `task` is a whole row."""
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
    """Returns the rules by which the task is split into jobs, in PanDA's readable form."""
    rules = {name: params.get(name) for name in (*_RULES, *SPLIT_RULES)}
    said = [f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in rules.items() if value]
    return ",".join(said) or None


def detailed(task: AnyRow) -> dict[str, Any]:
    """Returns a task's fields, parameters and progress."""
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
    """Returns a task's datasets, statistics and the current PandaID of every job."""
    found = digest(task, statistics(tx, [task])[task.task_id])
    found["PandaID"] = sorted(tx.connection.scalars(last_attempts([task.task_id])))
    if with_status:
        found["status"] = task.status
    if not with_parameters:
        del found["cliParams"]
    return found


def digest(task: AnyRow, numbers: str) -> dict[str, Any]:
    """Returns the data that a list of tasks shows in addition to their fields; `numbers`: from `statistics`."""
    params = json.loads(task.params)
    try:
        datasets = ",".join(TaskParameters(params).output_datasets)
    except TaskParametersError:
        datasets = ""
    return {
        "inDS": "",
        "outDS": datasets,
        "statistics": numbers,
        "PandaID": [],
        "mergeStatus": None,
        "mergePandaID": [],
        "cliParams": params.get("cliParams", ""),
    }


def statistics(tx: Transaction, some: Iterable[AnyRow]) -> dict[int, str]:
    """Returns the number of jobs in each state, by task, as ``finished*2,running*1``."""
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


def dataset_id(task_id: int, place: int) -> int:
    """Returns the id of the dataset at this place (from 1) in `TaskParameters.datasets`: datasets have no table."""
    return task_id * 100 + place


def datasets_and_files(
    tx: Transaction, task_id: int, types: Sequence[str], *, dataset_only: bool
) -> list[dict[str, Any]]:
    """Returns the task's datasets of these types, each with its files."""
    parameters = known_task(tx, task_id).parameters
    wanted = [(place, *one) for place, one in enumerate(parameters.datasets, start=1) if one[1] in types]
    rows: Sequence[AnyRow] = []
    if wanted and not dataset_only:
        latest = last_attempts([task_id])
        columns = (jobs.c.number, jobs.c.attempt_nr, jobs.c.status)
        rows = tx.connection.execute(select(*columns).where(jobs.c.panda_id.in_(latest)).order_by(jobs.c.number)).all()
    found = []
    for place, name, kind in wanted:
        dataset = {"name": name, "id": dataset_id(task_id, place)}
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
