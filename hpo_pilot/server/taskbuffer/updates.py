"""What pilots report about their jobs.

After `updateJobStatus` of panda-server 1.0.4: a job never goes back a step, and an answer may carry a command. What a
late or foreign report gets:

========================================  ==============  =====================================================
report                                    command         effect
========================================  ==============  =====================================================
on a job that nobody was given            ``tobekilled``  none
on a job of another pilot                 (refused)       none
with another attempt's number             badattemptnr    none
heartbeat on a job that is over           ``tobekilled``  none
final, as the job already ended           (none)          none: a repeat of a report whose answer was lost
final, otherwise than the job ended       alreadydone     none
========================================  ==============  =====================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert

from hpo_pilot.jobs import JobState
from hpo_pilot.server.access.ownership import NotThePilotsJob, PilotIdentity
from hpo_pilot.server.data.database import AnyRow, Transaction, set_columns
from hpo_pilot.server.data.tables import job_documents, jobs
from hpo_pilot.server.taskbuffer.attempts import change_task, end_attempt, job_row, task_row
from hpo_pilot.server.taskbuffer.known_tasks import known_task

#: How far a job is; a report never takes it back.
_STEPS = [JobState.SENT, JobState.STARTING, JobState.RUNNING, JobState.TRANSFERRING, JobState.HOLDING]
#: Of the values of a task's running jobs is told at most this often, in seconds. Who waits looks now and then anyway.
_VALUES_PAUSE = 0.5
_DOCUMENT_LIMIT = 64 * 1024  # characters of a log that are kept


@dataclass(frozen=True)
class JobReport:
    """A pilot's report.

    Attributes:
        columns: of the table `jobs`.
        measures: JobSpec fields that only descriptions show.
        documents: of the table `job_documents`.
        pilot: who reports; None: the server itself.
        node: from where.
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
    """Records a report; once, however often it comes.

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
    """Announces a running job's new values to who waits for them; not of each at once, where a task has many jobs."""
    if known_task(tx, job.task_id).parameters.params.get("hpoValues") is not True:
        return
    task = task_row(tx, job.task_id)
    if task is not None and tx.now - task.modified >= _VALUES_PAUSE:
        change_task(tx, task, outcome=True)


def _store_documents(tx: Transaction, report: JobReport) -> None:
    documents = dict(report.documents)
    if report.status is JobState.FAILED:
        documents.pop("meta_data", None)  # as on a real server, so that nobody comes to rely on it
    for name in ("pilot_log", "stdout"):
        if name in documents:
            documents[name] = documents[name][-_DOCUMENT_LIMIT:]
    if not documents:
        return
    if not set_columns(tx, job_documents.c.panda_id, report.panda_id, documents):
        tx.connection.execute(insert(job_documents).values(panda_id=report.panda_id, **documents))
