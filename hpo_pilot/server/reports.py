"""Reports of pilots on their jobs, and jobs whose pilot is silent or gone."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import DBAPIError

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import NotThePilotsJob, PilotIdentity, change_task, end_attempt, job_row, task_row
from hpo_pilot.server.database import (
    AT_PILOT,
    AT_PILOT_STATES,
    AnyRow,
    Database,
    Transaction,
    job_documents,
    jobs,
    set_columns,
    workers,
)
from hpo_pilot.server.envelope import utc
from hpo_pilot.server.metrics import HEARTBEATS_LOST
from hpo_pilot.server.task_parameters import known_task

# Reports. After `updateJobStatus` of panda-server 1.0.4: a job never goes back a step, and an answer may carry a
# command. Answers to late reports and to reports of other pilots:
#
# ========================================  ==============  =====================================================
# report                                    command         effect
# ========================================  ==============  =====================================================
# on a job that no pilot was given          ``tobekilled``  none
# on a job of another pilot                 (refused)       none
# with another attempt's number             badattemptnr    none
# heartbeat on a job that is over           ``tobekilled``  none
# final, same end as recorded               (none)          none: the answer to the first report was lost
# final, another end than recorded          alreadydone     none
# ========================================  ==============  =====================================================

#: The states of a job in their order; a report never sets a job back to an earlier one.
_STEPS = AT_PILOT_STATES
#: The shortest time between two notices of new values of a task's running jobs, in seconds. Waiting callers also look
#: from time to time without a notice.
_VALUES_PAUSE = 0.5
_DOCUMENT_LIMIT = 64 * 1024  # characters of a log that are kept


@dataclass(frozen=True)
class JobReport:
    """A pilot's report on a job.

    Attributes:
        columns: new values of columns of the table `jobs`.
        measures: JobSpec fields that only descriptions show.
        documents: new values of columns of the table `job_documents`.
        pilot: the pilot that reports; None: the server itself.
        node: the node of the pilot.
    """

    panda_id: int
    status: JobState
    attempt_nr: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    pilot: PilotIdentity | None = None
    node: str = ""


def update_job(tx: Transaction, report: JobReport) -> str | None:
    """Records a report. A repeated report has no further effect.

    Returns:
        The command to the pilot.

    Raises:
        NotThePilotsJob: another pilot has the job.
    """
    job = job_row(tx, report.panda_id)
    if job is None or job.status in (JobState.DEFINED, JobState.ACTIVATED):
        return "tobekilled"
    if report.pilot is not None and not report.pilot.has(job, report.node):
        raise NotThePilotsJob(report.panda_id)
    if report.attempt_nr is not None and report.attempt_nr != job.attempt_nr:
        return "badattemptnr"
    state = JobState(job.status)
    if state.is_over:
        return _late(state, report)
    columns = dict(report.columns)
    if report.measures:
        columns["report"] = json.dumps((json.loads(job.report) if job.report else {}) | dict(report.measures))
    if report.status.is_over:
        _store_documents(tx, report)
        end_attempt(tx, job, report.status, **columns)
        return None
    return _heartbeat(tx, job, state, report, columns)


def _late(state: JobState, report: JobReport) -> str | None:
    if not report.status.is_over:
        return "tobekilled"
    repeated = report.status is state or (report.status is JobState.FAILED and state is JobState.CANCELLED)
    return None if repeated else "alreadydone"


def _heartbeat(tx: Transaction, job: AnyRow, state: JobState, report: JobReport, columns: dict[str, Any]) -> str | None:
    status = max(state, report.status, key=_STEPS.index)
    if status is not state:
        columns["state_changed"] = tx.now
        if job.started is None and status is not JobState.STARTING:
            columns.setdefault("started", tx.now)
    columns |= {"status": status.value, "modified": tx.now, "heartbeat": tx.now + job.patience}
    set_columns(tx, jobs.c.panda_id, job.panda_id, columns)
    _store_documents(tx, report)
    if status is not state and (task := task_row(tx, job.task_id)) is not None:
        change_task(tx, task)
    elif "hpoStep=" in (columns.get("job_metrics") or "") and columns["job_metrics"] != job.job_metrics:
        _tell_of_values(tx, job)
    return ",".join(word for word in ("debug" if job.debug else None, job.command) if word) or None


def _tell_of_values(tx: Transaction, job: AnyRow) -> None:
    """Announces a running job's new values, at most every `_VALUES_PAUSE` seconds for a task."""
    if known_task(tx, job.task_id).parameters.params.get("hpoValues") is not True:
        return
    task = task_row(tx, job.task_id)
    if task is not None and tx.now - task.modified >= _VALUES_PAUSE:
        change_task(tx, task, outcome=True)


def _store_documents(tx: Transaction, report: JobReport) -> None:
    documents = dict(report.documents)
    if report.status is JobState.FAILED:
        documents.pop("meta_data", None)  # as on a real server
    for name in ("pilot_log", "stdout"):
        if name in documents:
            documents[name] = documents[name][-_DOCUMENT_LIMIT:]
    if not documents:
        return
    if not set_columns(tx, job_documents.c.panda_id, report.panda_id, documents):
        tx.connection.execute(insert(job_documents).values(panda_id=report.panda_id, **documents))


# Fields of a report. Both APIs use this table; a report has the names of the new API.

_REPORTABLE = frozenset(
    {
        JobState.RUNNING,
        JobState.FAILED,
        JobState.FINISHED,
        JobState.HOLDING,
        JobState.STARTING,
        JobState.TRANSFERRING,
    }
)
_INTEGER = 2**31 - 1


def _text(limit: int) -> Callable[[Any], str]:
    return lambda value: str(value)[:limit]


def _whole(value: Any) -> int:
    return max(-_INTEGER, min(int(value), _INTEGER))


def _time(value: str) -> float:
    return datetime.strptime(value, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _kilobytes(value: float) -> float:
    return min(10**10 - 1, int(value) / 1024)


class Place(Enum):
    """The place where an item of a report is kept."""

    JOB = "job"  #: a column of `jobs`
    MEASURE = "measure"  #: a field of descriptions only, in the column `jobs.report`
    DOCUMENT = "document"  #: a column of `job_documents`


@dataclass(frozen=True)
class ReportField:
    """One item of a report.

    Attributes:
        name: the argument of ``pilot/update_job``.
        legacy: the argument of ``updateJob``.
        kind: the type of the argument.
        place: the place where it is kept.
        target: its name in that place.
        convert: returns the value to keep, within its limits; ValueError or OverflowError: the value is not valid.
    """

    name: str
    legacy: str
    kind: type
    place: Place
    target: str
    convert: Callable[[Any], Any]


#: All items of a report besides job, state and attempt.
REPORT_FIELDS = (
    ReportField("node", "node", str, Place.JOB, "node", _text(128)),
    ReportField("trans_exit_code", "transExitCode", int, Place.JOB, "trans_exit_code", _whole),
    ReportField(
        "pilot_error_code", "pilotErrorCode", int, Place.JOB, "pilot_error_code", lambda code: abs(_whole(code))
    ),
    ReportField("pilot_error_diag", "pilotErrorDiag", str, Place.JOB, "pilot_error_diag", _text(500)),
    ReportField("exe_error_code", "exeErrorCode", int, Place.JOB, "exe_error_code", _whole),
    ReportField("exe_error_diag", "exeErrorDiag", str, Place.JOB, "exe_error_diag", _text(500)),
    ReportField("job_metrics", "jobMetrics", str, Place.JOB, "job_metrics", _text(500)),
    ReportField("scheduler_id", "schedulerID", str, Place.JOB, "scheduler_id", _text(128)),
    ReportField("pilot_id", "pilotID", str, Place.JOB, "pilot_id", _text(200)),
    ReportField("batch_id", "batchID", str, Place.JOB, "batch_id", _text(80)),
    ReportField("job_sub_status", "jobSubStatus", str, Place.JOB, "sub_status", _text(80)),
    ReportField("start_time", "startTime", str, Place.JOB, "started", _time),
    ReportField("end_time", "endTime", str, Place.JOB, "ended", _time),
    ReportField("cpu_consumption_time", "cpuConsumptionTime", float, Place.MEASURE, "cpuConsumptionTime", int),
    ReportField("cpu_consumption_unit", "cpuConsumptionUnit", str, Place.MEASURE, "cpuConsumptionUnit", str),
    ReportField(
        "cpu_architecture_level", "cpu_architecture_level", str, Place.MEASURE, "cpu_architecture_level", _text(20)
    ),
    ReportField("cpu_conversion_factor", "cpuConversionFactor", float, Place.MEASURE, "cpuConversion", float),
    ReportField("pilot_timing", "pilotTiming", str, Place.MEASURE, "pilotTiming", _text(100)),
    ReportField("n_events", "nEvents", int, Place.MEASURE, "nEvents", int),
    ReportField("n_input_files", "nInputFiles", int, Place.MEASURE, "nInputFiles", int),
    ReportField("core_count", "coreCount", int, Place.MEASURE, "actualCoreCount", int),
    ReportField("mean_core_count", "meanCoreCount", float, Place.MEASURE, "meanCoreCount", float),
    ReportField("grid", "grid", str, Place.MEASURE, "grid", _text(50)),
    ReportField("source_site", "source_site", str, Place.MEASURE, "sourceSite", _text(36)),
    ReportField("destination_site", "destination_site", str, Place.MEASURE, "destinationSite", _text(36)),
    *(
        ReportField(f"{how}_{what.lower()}", f"{how}{what}", float, Place.MEASURE, f"{how}{what}", convert)
        for hows, whats, convert in (
            (("max", "avg"), ("RSS", "VMEM", "SWAP", "PSS"), int),
            (("tot", "rate"), ("RCHAR", "WCHAR", "RBYTES", "WBYTES"), _kilobytes),
        )
        for how in hows
        for what in whats
    ),
    ReportField("meta_data", "metaData", str, Place.DOCUMENT, "meta_data", str),
    ReportField("job_output_report", "xml", str, Place.DOCUMENT, "output_report", str),
    ReportField("pilot_log", "pilotLog", str, Place.DOCUMENT, "pilot_log", str),
    ReportField("stdout", "stdout", str, Place.DOCUMENT, "stdout", str),
)


def reported_state(text: str) -> JobState | None:
    """Returns the state that a pilot reports; None: a pilot may not report this state."""
    try:
        status = JobState(text)
    except ValueError:
        return None
    return status if status in _REPORTABLE else None


def record_report(tx: Transaction, status: JobState, arguments: Mapping[str, Any], pilot: PilotIdentity) -> str | None:
    """Records a report.

    Args:
        tx: a writing transaction.
        status: as `reported_state` gave it.
        arguments: as ``pilot/update_job`` declares them; other keys are ignored.
        pilot: the pilot that reports.

    Returns:
        The command to the pilot.

    Raises:
        NotThePilotsJob: another pilot has the job.
    """
    taken: dict[Place, dict[str, Any]] = {place: {} for place in Place}
    for item in REPORT_FIELDS:
        value = arguments.get(item.name)
        if value is None or value == "":
            continue
        # The job's result must not be lost because of one invalid value; a real server leaves it out too.
        with suppress(ValueError, OverflowError):
            taken[item.place][item.target] = item.convert(value)
    report = JobReport(
        panda_id=arguments["job_id"],
        status=status,
        attempt_nr=arguments.get("attempt_nr"),
        columns=taken[Place.JOB],
        measures=taken[Place.MEASURE],
        documents=taken[Place.DOCUMENT],
        pilot=pilot,
        node=arguments.get("node") or "",
    )
    return update_job(tx, report)


# Jobs whose pilot is silent or gone. Their attempt ends, and the next one may start. The error is PanDA's
# jobDispatcherErrorCode 100, "lost heartbeat" (`pandaserver/jobdispatcher/Watcher.py`).

log = logging.getLogger(__name__)

LOST_HEARTBEAT = 100
_BATCH = 200  # jobs ended in one transaction, so that pilots' calls get in between

#: The states that may be reported for a worker; the real server knows the first two.
WORKER_STATES = ("started", "finished", "failed", "cancelled")


def _lose(tx: Transaction, panda_id: int, diag: str) -> None:
    if (job := job_row(tx, panda_id)) is not None and not JobState(job.status).is_over:
        HEARTBEATS_LOST.inc()
        end_attempt(
            tx,
            job,
            JobState.FAILED,
            dispatcher_error_code=LOST_HEARTBEAT,
            dispatcher_error_diag=f"lost heartbeat : {diag}",
        )


def lose_silent(tx: Transaction, timeout: float) -> float | None:
    """Ends the attempts of jobs that have been silent for `timeout` seconds.

    Returns:
        Seconds until the next one could be due; None: no pilot has a job.
    """
    silent = select(jobs.c.panda_id, jobs.c.heartbeat).where(AT_PILOT, jobs.c.heartbeat <= tx.now - timeout)
    for panda_id, heartbeat in tx.connection.execute(silent.order_by(jobs.c.heartbeat).limit(_BATCH)).all():
        _lose(tx, panda_id, str(utc(heartbeat)))
    oldest = tx.connection.scalar(select(func.min(jobs.c.heartbeat)).where(AT_PILOT))
    return None if oldest is None else max(0.0, float(oldest) + timeout - tx.now)


def give_grace(tx: Transaction) -> None:
    """Resets the silence of every job at a pilot: no pilot could report while the server was away."""
    tx.connection.execute(update(jobs).where(AT_PILOT).values(heartbeat=tx.now + jobs.c.patience))


def update_worker(
    tx: Transaction, pilot: PilotIdentity, harvester_id: str, worker_id: str, status: str, node_id: str | None
) -> None:
    """Records the state of a worker. If it has ended, the jobs that it still has are lost at once.

    Args:
        tx: a writing transaction.
        pilot: the pilot that reports. Other pilots' jobs are not lost, because anybody may use a worker's name.
        harvester_id: first part of the worker's name.
        worker_id: second part of the worker's name.
        status: one of `WORKER_STATES`, or Harvester's name of an end state.
        node_id: the worker's node; None: not known.
    """
    values: dict[str, Any] = {"status": status, "node_id": node_id}
    values["started" if status == "started" else "ended"] = tx.now
    same = (workers.c.harvester_id == harvester_id) & (workers.c.worker_id == worker_id)
    if not tx.connection.execute(update(workers).where(same).values(values)).rowcount:
        tx.connection.execute(insert(workers).values(harvester_id=harvester_id, worker_id=worker_id, **values))
    if status == "started":
        return
    columns = (jobs.c.panda_id, jobs.c.holder, jobs.c.holder_node, jobs.c.holder_key)
    left = select(*columns).where(AT_PILOT, jobs.c.harvester_id == harvester_id, jobs.c.worker_id == worker_id)
    for job in tx.connection.execute(left.order_by(jobs.c.panda_id)).all():
        if pilot.has(job):
            _lose(tx, job.panda_id, f"worker {worker_id} of {harvester_id} {status}")


class HeartbeatWatch:
    """Looks for lost jobs at the time when one can be due; never wakes up while no pilot has a job."""

    def __init__(self, database: Database, timeout: float) -> None:
        """Prepares; `run` starts to watch.

        Args:
            database: the database with the jobs.
            timeout: seconds of silence that make a job lost.
        """
        self._database = database
        self._timeout = timeout
        self._jobs_out = asyncio.Event()

    def job_went_out(self) -> None:
        """Notes that a pilot acquired a job, so that `run` watches it."""
        self._jobs_out.set()

    async def run(self) -> None:
        """Watches until cancelled. If the database fails for a while (a full disk), it is tried again."""
        absent = True  # no pilot could reach this server before it started
        while True:
            try:
                absent = await self._watch(absent)
            except DBAPIError as error:
                log.error("looking for lost jobs: %s", error.orig)
                await asyncio.sleep(min(10.0, self._timeout))

    async def _watch(self, absent: bool) -> bool:
        """Looks once, then pauses.

        Args:
            absent: whether pilots could not report, so that their silence does not count.

        Returns:
            `absent` for the next look.
        """
        if absent:
            await self._database.write(give_grace)
        self._jobs_out.clear()
        due = await self._database.write(lambda tx: lose_silent(tx, self._timeout))
        if due is None:
            await self._jobs_out.wait()
            due = self._timeout
        # The shortest time between two looks at the jobs, for any number of jobs.
        pause = max(due, min(1.0, self._timeout / 4))
        before = time.monotonic(), time.time()
        await asyncio.sleep(pause)
        # If the pause was far too long, the machine slept or its clock jumped: then the pilots are not to blame.
        return max(time.monotonic() - before[0], time.time() - before[1]) - pause > self._timeout / 2
