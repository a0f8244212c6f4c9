"""Tasks and jobs as PanDA describes them to clients and pilots."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.brokerage import campaign_of
from hpo_pilot.server.database import AnyRow, Transaction, in_slices, jobs, last_attempts, tasks
from hpo_pilot.server.job_records import ERRORS, JobRecord, job_counts, job_records, job_reports, scope
from hpo_pilot.server.replies import utc
from hpo_pilot.server.task_parameters import (
    SPLIT_RULES,
    KnownTask,
    TaskParameters,
    TaskParametersError,
    known_task,
    words,
)

# PanDA's names of fields, from `JobSpec.py`, `FileSpec.py` and `JediTaskSpec.py` in `pandaserver/taskbuffer/` of
# panda-server 1.0.4.

#: Of a job's description.
JOB_FIELDS = words(
    """
    PandaID jobDefinitionID schedulerID pilotID creationTime creationHost modificationTime modificationHost
    AtlasRelease transformation homepackage prodSeriesLabel prodSourceLabel prodUserID assignedPriority
    currentPriority attemptNr maxAttempt jobStatus jobName maxCpuCount maxCpuUnit maxDiskCount maxDiskUnit
    ipConnectivity minRamCount minRamUnit startTime endTime cpuConsumptionTime cpuConsumptionUnit commandToPilot
    transExitCode pilotErrorCode pilotErrorDiag exeErrorCode exeErrorDiag supErrorCode supErrorDiag ddmErrorCode
    ddmErrorDiag brokerageErrorCode brokerageErrorDiag jobDispatcherErrorCode jobDispatcherErrorDiag
    taskBufferErrorCode taskBufferErrorDiag computingSite computingElement jobParameters metadata prodDBlock
    dispatchDBlock destinationDBlock destinationSE nEvents grid cloud cpuConversion sourceSite destinationSite
    transferType taskID cmtConfig stateChangeTime prodDBUpdateTime lockedby relocationFlag jobExecutionID VO
    pilotTiming workingGroup processingType prodUserName nInputFiles countryGroup batchID parentID
    specialHandling jobsetID coreCount nInputDataFiles inputFileType inputFileProject inputFileBytes
    nOutputDataFiles outputFileBytes jobMetrics workQueue_ID jediTaskID jobSubStatus actualCoreCount reqID
    maxRSS maxVMEM maxSWAP maxPSS avgRSS avgVMEM avgSWAP avgPSS maxWalltime nucleus eventService failedAttempt
    hs06sec gshare hs06 totRCHAR totWCHAR totRBYTES totWBYTES rateRCHAR rateWCHAR rateRBYTES rateWBYTES
    resource_type diskIO memory_leak memory_leak_x2 container_name job_label gco2_regional gco2_global
    cpu_architecture_level outputFileType
    """
)

#: Of each of its files.
FILE_FIELDS = words(
    """
    row_ID PandaID GUID lfn type dataset status prodDBlock prodDBlockToken dispatchDBlock dispatchDBlockToken
    destinationDBlock destinationDBlockToken destinationSE fsize md5sum checksum scope jediTaskID datasetID
    fileID attemptNr
    """
)

#: Fields of a job that are 0, not null, where nothing is known.
ZERO_FIELDS = words(
    """
    maxCpuCount maxDiskCount cpuConsumptionTime pilotErrorCode exeErrorCode supErrorCode ddmErrorCode
    brokerageErrorCode jobDispatcherErrorCode taskBufferErrorCode relocationFlag jobExecutionID jobDefinitionID
    outputFileBytes
    """
)

#: Fields about input files in the answer to a pilot.
INPUT_FIELDS = words(
    """
    inFiles dispatchDblock dispatchDBlockToken dispatchDBlockTokenForOut prodDBlocks prodDBlockToken
    realDatasetsIn GUID checksum fsize scopeIn ddmEndPointIn
    """
)

#: Of a task.
TASK_FIELDS = words(
    """
    jediTaskID taskName status userName creationDate modificationTime startTime endTime frozenTime
    prodSourceLabel workingGroup vo coreCount taskType processingType taskPriority currentPriority architecture
    transUses transHome transPath lockedBy lockedTime termCondition splitRule walltime walltimeUnit outDiskCount
    outDiskUnit workDiskCount workDiskUnit ramCount ramUnit ioIntensity ioIntensityUnit workQueue_ID progress
    failureRate errorDialog reqID oldStatus cloud site countryGroup parent_tid eventService ticketID
    ticketSystemType stateChangeTime superStatus campaign mergeRamCount mergeRamUnit mergeWalltime
    mergeWalltimeUnit throttledTime numThrottled mergeCoreCount goal assessmentTime cpuTime cpuTimeUnit
    cpuEfficiency baseWalltime nucleus baseRamCount ttcRequested ttcPredicted ttcPredictionDate rescueTime
    requestType gshare resource_type useJumbo diskIO diskIOUnit memory_leak_core memory_leak_x2 attemptNr
    container_name framework activatedTime queuedTime actionTime
    """
)

#: Fields of a task that its parameters have under the same name.
TASK_FIELDS_FROM_PARAMETERS = words(
    """
    workingGroup coreCount taskType processingType architecture transUses transHome transPath walltime
    walltimeUnit ramCount cloud countryGroup ticketID ticketSystemType campaign cpuTime cpuTimeUnit
    container_name framework goal
    """
)

#: Fields of a task in lists.
LISTED_TASK_FIELDS = words(
    """
    jediTaskID modificationTime status processingType transUses transHome architecture reqID creationDate site
    cloud taskName
    """
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


def _transformation(named: str) -> str:
    """Returns the transformation that a pilot starts."""
    name = named.rsplit("/", 1)[-1] or TRANSFORMATION
    return _PILOTS_PLACE + name if name == TRANSFORMATION else named


def pilot_job(job: JobRecord) -> dict[str, Any]:
    """Returns a job as pilots get it."""
    known, parameters, texts = job.known, job.parameters, job.texts
    files = job.outputs
    log = next((file for file in files if file.kind == "log"), None)
    datasets, blanks = ",".join(file.dataset for file in files), "," * max(0, len(files) - 1)
    answer = {
        "PandaID": job.row.panda_id,
        "prodSourceLabel": job.row.label,
        "swRelease": parameters.params.get("transUses"),
        "homepackage": parameters.params.get("transHome"),
        "transformation": _transformation(parameters.transformation),
        "jobName": job.name,
        "cloud": parameters.params.get("cloud"),
        **dict.fromkeys(INPUT_FIELDS, ""),
        "outFiles": ",".join(file.lfn for file in files),
        **dict.fromkeys(("destinationDblock", "realDatasets"), datasets),
        **dict.fromkeys(("destinationDBlockToken", "fileDestinationSE", "ddmEndPointOut"), blanks),
        "hpoPilotStorage": True,  # our pilot may then store outputs at /storage, which a real server does not have
        "hpoCampaign": campaign_of(parameters.params, known.user_name, known.name),  # its name for the job's search
        "logFile": log.lfn if log else "",
        "logGUID": log.guid if log else "",
        "scopeOut": ",".join(scope(file.dataset) for file in files if file.kind == "output"),
        "scopeLog": scope(log.dataset) if log else "",
        "jobPars": texts.job_pars,
        "attemptNr": job.row.attempt_nr,
        "destinationSE": "local",
        "prodUserID": known.user_name,
        "minRamCount": job.row.ram_mb,
        "cmtConfig": parameters.architecture,
        "processingType": parameters.processing_type,
        "currentPriority": job.row.priority,
        "coreCount": job.row.core_count,
        **dict.fromkeys(("taskID", "jobsetID", "reqID"), known.task_id),
        "maxWalltime": job.row.max_walltime,
        "resource_type": job.resource_type,
        **dict.fromkeys(("jobDefinitionID", "maxCpuCount", "maxDiskCount", "nSent"), 0),
        **dict.fromkeys(("transferType", "sourceSite", "nucleus", "ioIntensity", "ioIntensityUnit")),
        **(texts.steps or {}),
    }
    if parameters.container:
        answer["container_name"] = parameters.container
    if job.row.debug:
        answer["debug"] = "True"
    return answer


def describe_jobs(tx: Transaction, panda_ids: Sequence[int]) -> list[dict[str, Any] | None]:
    """Returns the full description of each job, in the order of the ids; None for a job that does not exist."""
    wanted = list(panda_ids[:MAX_DESCRIBED])
    found: dict[int, dict[str, Any]] = {}
    for some in in_slices(wanted):
        finished = job_reports(tx, jobs.c.panda_id.in_(some), jobs.c.status == JobState.FINISHED.value)
        reports = {row.panda_id: row.meta_data for row in finished}
        rows = tx.connection.execute(select(jobs).where(jobs.c.panda_id.in_(some))).all()
        for job in job_records(tx, rows):
            panda_id = job.row.panda_id
            found[panda_id] = _described(job) | {"metadata": reports.get(panda_id)}
    return [found.get(panda_id) for panda_id in wanted]


def describe_task_jobs(tx: Transaction, task_id: int, *, unsuccessful_only: bool) -> list[dict[str, Any]]:
    """Returns the descriptions of a task's jobs, oldest first, without the large job reports."""
    query = select(jobs).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id).limit(MAX_DESCRIBED)
    if unsuccessful_only:
        query = query.where(jobs.c.status.in_(("failed", "cancelled", "closed")))
    descriptions = []
    for job in job_records(tx, tx.connection.execute(query).all()):
        row = job.row
        duration = row.ended - row.started if row.started and row.ended else None
        extra = {"jobDuration": duration, "extendedProdSourceLabel": f"{row.label}_normal"}
        descriptions.append(_described(job) | extra)
    return descriptions


#: JobSpec's names of columns, and of times; utc() makes PanDA's form of the latter.
_COLUMNS = {
    **{"PandaID": "panda_id", "jobStatus": "status", "jobSubStatus": "sub_status"},
    **{"attemptNr": "attempt_nr", "maxAttempt": "max_attempt", "commandToPilot": "command"},
    **{"schedulerID": "scheduler_id", "pilotID": "pilot_id", "batchID": "batch_id", "jobMetrics": "job_metrics"},
    **{"modificationHost": "node", "computingElement": "computing_element", "prodSourceLabel": "label"},
    **{"assignedPriority": "priority", "currentPriority": "priority", "coreCount": "core_count"},
    **{"minRamCount": "ram_mb", "maxWalltime": "max_walltime"},
}
_TIMES = {
    **{"creationTime": "created", "modificationTime": "modified", "stateChangeTime": "state_changed"},
    **{"startTime": "started", "endTime": "ended"},
}
#: JobSpec without a value.
NO_JOB = dict.fromkeys(JOB_FIELDS) | dict.fromkeys(ZERO_FIELDS, 0)
_NO_FILE = dict.fromkeys(FILE_FIELDS) | {"fsize": 0}


def job_fields(job: JobRecord) -> dict[str, Any]:
    """Returns the fields of JobSpec in which the jobs of a task differ; no field that depends on its parameters."""
    return (
        {name: value for name, value in job.reported.items() if name in NO_JOB}
        | error_fields(job)
        | {name: getattr(job.row, column) for name, column in _COLUMNS.items()}
        | {name: utc(getattr(job.row, column)) for name, column in _TIMES.items()}
        | {
            "jobName": job.name,
            "computingSite": job.queue or None,
            "resource_type": job.resource_type,
            "specialHandling": "dm" if job.row.debug else None,
        }
    )


def error_fields(job: JobRecord) -> dict[str, Any]:
    """Returns JobSpec's fields of a job's errors. The exit code of the transformation is a text, or None."""
    status = job.row.trans_exit_code
    fields: dict[str, Any] = {"transExitCode": None if status is None else str(status)}
    for _, name, code, diag in ERRORS[:-1]:
        fields[name] = getattr(job.row, code) or 0
        fields[name.replace("Code", "Diag")] = getattr(job.row, diag)
    return fields


def task_part(known: KnownTask) -> dict[str, Any]:
    """Returns the fields of JobSpec that all jobs of a task share."""
    parameters = known.parameters
    return {
        "AtlasRelease": parameters.params.get("transUses"),
        "homepackage": parameters.params.get("transHome"),
        "transformation": parameters.transformation,
        **dict.fromkeys(("prodUserID", "prodUserName"), known.user_name),
        "minRamUnit": "MB",
        "nEvents": parameters.n_events_per_job,
        **dict.fromkeys(("taskID", "jediTaskID", "reqID", "jobsetID"), known.task_id),
        "lockedby": "jedi",
        "VO": known.vo,
        "workingGroup": parameters.working_group or None,
        "processingType": parameters.processing_type,
        "cmtConfig": parameters.architecture,
        "container_name": parameters.container or None,
    }


def _described(job: JobRecord) -> dict[str, Any]:
    """Returns a job with the fields of PanDA's JobSpec, and its files."""
    written = job.outputs
    return (
        NO_JOB
        | job_fields(job)
        | task_part(job.known)
        | {
            "jobParameters": job.texts.job_pars,
            "destinationDBlock": written[0].dataset if written else None,
            "job_label": "user" if job.row.label in ("user", "panda") else "managed",
            "nOutputDataFiles": sum(file.kind == "output" for file in written),
            "Files": file_fields(job),
        }
    )


def file_fields(job: JobRecord) -> list[dict[str, Any]]:
    """Returns a job's files with the fields of PanDA's FileSpec."""
    row = job.row
    common = {"PandaID": row.panda_id, "jediTaskID": row.task_id, "attemptNr": row.attempt_nr, "fileID": row.number}
    found = []
    for file in job.files:
        fields = {"lfn": file.lfn, "type": file.kind, "dataset": file.dataset, "status": file.status}
        if file.kind != "pseudo_input":
            fields |= {"GUID": file.guid, "destinationDBlock": file.dataset, "scope": scope(file.dataset)}
        found.append(_NO_FILE | common | fields)
    return found


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

_DONE = {JobState.FINISHED: "finished"} | dict.fromkeys(
    (JobState.FAILED, JobState.CANCELLED, JobState.CLOSED), "failed"
)

#: JediTaskSpec's names of columns, and of times.
_TASK_COLUMNS = {
    **{"jediTaskID": "task_id", "reqID": "task_id", "parent_tid": "parent_id", "taskName": "name", "vo": "vo"},
    **{"status": "status", "oldStatus": "old_status", "userName": "user_name", "prodSourceLabel": "label"},
    **{"taskPriority": "priority", "currentPriority": "priority", "attemptNr": "attempt_nr"},
    **{"errorDialog": "error_dialog"},
}
_TASK_TIMES = {
    **{"creationDate": "created", "modificationTime": "modified", "stateChangeTime": "state_changed"},
    **{"startTime": "started", "endTime": "ended"},
}


def task_fields(task: AnyRow) -> dict[str, Any]:
    """Returns a task with the fields of PanDA's JediTaskSpec; `task` is a whole row."""
    params = json.loads(task.params)
    done = task.n_finished + task.n_failed
    return (
        dict.fromkeys(TASK_FIELDS)
        | {name: params.get(name) for name in TASK_FIELDS_FROM_PARAMETERS}
        | {name: getattr(task, column) for name, column in _TASK_COLUMNS.items()}
        | {name: utc(getattr(task, column)) for name, column in _TASK_TIMES.items()}
        | {
            "superStatus": task.status if TaskState(task.status).is_over else "running",
            "progress": _percent(done, task.n_jobs),
            "failureRate": _percent(task.n_failed, done),
            "site": task.queue or None,
            "ramUnit": params.get("ramUnit") or params.get("ramCountUnit"),
            "termCondition": params.get("osInfo"),
            "splitRule": _split_rule(params),
        }
    )


def _percent(part: int, whole: int) -> int:
    return round(100 * part / whole) if whole else 0


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
    return task_fields(task) | {
        "job_execution_params": template,
        "task_creation_arguments": params.get("cliParams"),
        "raw_task_params": params,
        "nFiles": task.n_jobs,
        "nFilesFinished": task.n_finished,
        "nFilesFailed": task.n_failed,
        "nFilesMissing": 0,
        "pctFinished": _percent(task.n_finished, task.n_jobs),
        "pctFailed": _percent(task.n_failed, task.n_jobs),
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
    unfinished = [row.task_id for row in rows if row.n_finished + row.n_failed < row.n_jobs]
    going_on = (jobs.c.task_id.in_(unfinished), jobs.c.status.not_in([state.value for state in _DONE]))
    active: dict[int, list[str]] = defaultdict(list)
    for (task_id, status), count in sorted(job_counts(tx, *going_on).items()) if unfinished else ():
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
    known = known_task(tx, task_id)
    wanted = [(place, *one) for place, one in enumerate(known.parameters.datasets, start=1) if one[1] in types]
    rows: Sequence[AnyRow] = []
    if wanted and not dataset_only:
        columns = (jobs.c.panda_id, jobs.c.number, jobs.c.attempt_nr, jobs.c.status)
        query = select(*columns).where(jobs.c.panda_id.in_(last_attempts([task_id]))).order_by(jobs.c.number)
        rows = tx.connection.execute(query).all()
    records = [JobRecord(known, row) for row in rows]
    return [
        {
            "dataset": {"name": name, "id": dataset_id(task_id, place)},
            "files": [_file_in_dataset(job, place) for job in records],
        }
        for place, name, kind in wanted
    ]


def _file_in_dataset(job: JobRecord, place: int) -> dict[str, Any]:
    status = _DONE.get(JobState(job.row.status), "ready" if job.row.status in ("defined", "activated") else "running")
    file = next((file for file in job.files if file.place == place), None)
    return {
        "lfn": file.lfn if file else "pseudo_lfn",
        "scope": scope(file.dataset) if file and file.kind != "pseudo_input" else None,
        "id": job.row.number,
        "status": status,
    }
