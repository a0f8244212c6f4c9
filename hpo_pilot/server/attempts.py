"""Attempts of jobs: making, ending and repeating them, reports on them, loss of their pilot, their task's state."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any

from sqlalchemy import Column, Select, TextClause, bindparam, exists, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server import metrics
from hpo_pilot.server.brokerage import BROKERED
from hpo_pilot.server.database import (
    AT_PILOT,
    AT_PILOT_STATES,
    TASK_COLUMNS,
    AnyRow,
    Database,
    Transaction,
    cache_files,
    in_slices,
    jobs,
    last_attempts,
    moved_to,
    set_columns,
    set_columns_of,
    tasks,
    workers,
)
from hpo_pilot.server.replies import utc
from hpo_pilot.server.task_parameters import CHANGEABLE_PARAMETERS, SPLIT_RULES, TaskParameters, known_task
from hpo_pilot.server.tokens import PilotIdentity

log = logging.getLogger(__name__)


class NotThePilotsJob(Exception):
    """A pilot reports on a job that another pilot has; the message says so."""

    def __init__(self, panda_id: int) -> None:
        super().__init__(f"job {panda_id} was given to another pilot, or to this one under another token or key")


# The state in which a task ends, once none of its jobs can go on. After
# `pandajedi/jedipprocess/PostProcessorBase.py` of panda-server 1.0.4 (`getFinalTaskStatus`, `doPreCheck`): done if
# all jobs finished; failed if none did. If some finished and the task reached its ``goal`` (percent of its jobs,
# default 100): finished. If it missed the goal: exhausted with ``useExhausted``, failed with ``failGoalUnreached``,
# else finished.


def final_state(
    state: TaskState, params: Mapping[str, Any], n_finished: int, n_failed: int
) -> tuple[TaskState, str | None]:
    """Returns the final state of a task, and its error dialog.

    Args:
        state: the task's present one.
        params: its parameters.
        n_finished: number of its jobs that finished.
        n_failed: number of its jobs that were given up.
    """
    if state is TaskState.ABORTING:
        return TaskState.ABORTED, None
    if n_failed == 0:
        return TaskState.DONE, None
    if n_finished == 0:
        return TaskState.FAILED, "failed since no file was successfully processed"
    completeness, goal = 1000 * n_finished / (n_finished + n_failed), _goal(params)
    if completeness >= goal or state is TaskState.FINISHING:
        return TaskState.FINISHED, None
    if params.get("useExhausted"):
        return TaskState.EXHAUSTED, "exhausted since the task was incomplete and didn't reach the goal"
    if params.get("failGoalUnreached"):
        dialog = f"failed since the task completeness {completeness:.1f} is less than the goal {goal:.1f}"
        return TaskState.FAILED, dialog
    return TaskState.FINISHED, None


def _goal(params: Mapping[str, Any]) -> float:
    """Returns the goal in thousandths; a goal that is not a percentage is ignored, as in JEDI."""
    try:
        goal = 10 * float(params["goal"])
    except (KeyError, TypeError, ValueError):
        return 1000.0
    return goal if 0 <= goal <= 1000 else 1000.0


# Making and ending attempts. Every change to a job goes through here, so that the counts, cursors and state of its
# task always agree with it.

#: Error dialog of a task whose sandbox is missing, from `pandajedi/jediorder/JobGenerator.py`.
NO_SANDBOX = "user sandbox file unavailable. resubmit the task with --useNewCode"

# Locked, where several processes write: another may change the same row. SQLite has no such locks, and needs none.
_TASK = select(*TASK_COLUMNS).where(tasks.c.task_id == bindparam("id")).with_for_update()
_JOB = select(jobs).where(jobs.c.panda_id == bindparam("id")).with_for_update()


def _locked(query: Select[Any], key: Column[Any]) -> Select[Any]:
    """Returns the query of the rows with these `ids`, locked in this order."""
    return query.where(key.in_(bindparam("ids", expanding=True))).order_by(key).with_for_update()


_JOBS, _TASKS = _locked(select(jobs), jobs.c.panda_id), _locked(select(tasks.c.task_id), tasks.c.task_id)

#: Rows inserted by one statement; all rows of a task in one statement would take too much memory.
_ROWS_AT_ONCE = 1000

#: States in which a task starts no new attempt.
NO_RETRY = frozenset({TaskState.ABORTING, TaskState.FINISHING})


def task_row(tx: Transaction, task_id: int) -> AnyRow:
    """Returns the row of a task that must exist, without its parameters, for a change."""
    row = tx.connection.execute(_TASK, {"id": task_id}).one()
    tx.revisions[task_id] = row.revision
    return row


def job_row(tx: Transaction, panda_id: int) -> AnyRow | None:
    """Returns one attempt's row, for a change; None: there is no such job."""
    return tx.connection.execute(_JOB, {"id": panda_id}).one_or_none()


def _lock_rows(tx: Transaction, reports: Sequence[Report]) -> dict[int, AnyRow]:
    """Locks jobs, and tasks that change with them; returns the jobs' rows by PandaID."""
    # In the order of their numbers: two transactions must not wait for each other.
    ids = sorted({report.panda_id for report in reports})
    found = {row.panda_id: row for some in in_slices(ids) for row in tx.connection.execute(_JOBS, {"ids": some})}
    known = [(report, found[report.panda_id]) for report in reports if report.panda_id in found]
    if len(changed := {row.task_id for report, row in known if report.changes_task(row)}) > 1:
        tx.connection.execute(_TASKS, {"ids": list(changed)})
    return found


def change_task(tx: Transaction, task: AnyRow, *, outcome: bool = False, **values: Any) -> None:
    """Writes `values` and marks the task as changed; its `modified` is written with its cursor.

    Args:
        tx: a writing transaction.
        task: the task's row.
        outcome: whether an attempt of one of its jobs has ended.
        values: columns of the task.
    """
    if "status" in values and values["status"] != task.status:
        values["state_changed"] = tx.now
        outcome = outcome or TaskState(values["status"]).is_over
    tx.changed[task.task_id] = outcome or tx.changed.get(task.task_id, False)
    if "revision" in values:
        tx.revisions[task.task_id] = values["revision"]
    if values:
        set_columns(tx, tasks.c.task_id, task.task_id, values)
    tx.users.add(task.user_name)
    if not BROKERED.isdisjoint(values):
        tx.moved.add(task.task_id)


def make_jobs(tx: Transaction, task: AnyRow) -> None:
    """Makes the first attempt of every job of a task that has none; the task then runs."""
    _first_attempts(tx, task, range(1, task.n_jobs + 1))
    change_task(tx, task, status=TaskState.RUNNING.value, n_finished=0, n_failed=0, error_dialog=None, ended=None)


def _first_attempts(tx: Transaction, task: AnyRow, numbers: range) -> None:
    parameters = known_task(tx, task.task_id).parameters
    first = {"attempt_nr": 1, "max_attempt": parameters.max_attempt, "label": task.label}
    _insert(tx, task, [first | {"number": number} for number in numbers])


def add_attempts(tx: Transaction, task: AnyRow, jobs_and_limits: Sequence[tuple[AnyRow, int]]) -> None:
    """Makes the next attempt of jobs of the task, with the task's present resources.

    Args:
        tx: a writing transaction.
        task: the task's row.
        jobs_and_limits: the last attempt of each job, and the number of attempts that the job may have.
    """
    rows = [
        {"number": job.number, "attempt_nr": job.attempt_nr + 1, "max_attempt": max_attempt, "label": job.label}
        for job, max_attempt in jobs_and_limits
    ]
    _insert(tx, task, rows)


def _insert(tx: Transaction, task: AnyRow, rows: Sequence[dict[str, Any]]) -> None:
    parameters = known_task(tx, task.task_id).parameters
    is_paused = task.status == TaskState.PAUSED
    common = {
        "task_id": task.task_id,
        # Brokerage does not see the jobs of a paused task.
        **moved_to(tx, JobState.DEFINED if is_paused else JobState.ACTIVATED),
        "debug": False,
        "queue": task.queue,
        "priority": task.priority,
        "core_count": parameters.core_count,
        "ram_mb": parameters.ram_mb,
        "max_walltime": parameters.max_walltime,
        "created": tx.now,
    }
    for some in in_slices(rows, _ROWS_AT_ONCE):
        tx.connection.execute(insert(jobs), [common | row for row in some])
    if not is_paused:
        tx.activated[task.queue, task.task_id] += len(rows)


def end_attempt(tx: Transaction, job: AnyRow, status: JobState, **values: Any) -> None:
    """Ends an attempt that was not over, starts the next one where one is due, and settles the task.

    Args:
        tx: a writing transaction.
        job: the attempt, as `job_row` gave it in this transaction.
        status: its final state. A failed attempt of a job that was to be killed counts as cancelled.
        values: further columns of the job.
    """
    if status is JobState.FAILED and job.command == "tobekilled":
        status = JobState.CANCELLED
    set_columns(
        tx, jobs.c.panda_id, job.panda_id, {"ended": tx.now, **values, "heartbeat": tx.now, **moved_to(tx, status)}
    )
    task = task_row(tx, job.task_id)
    tx.counts.append(metrics.ATTEMPTS_ENDED.labels(status.value))
    if status is JobState.FINISHED:
        settle(tx, task, finished=1)
    elif status is JobState.FAILED and job.attempt_nr < job.max_attempt and task.status not in NO_RETRY:
        add_attempts(tx, task, [(job, job.max_attempt)])
        change_task(tx, task, outcome=True)
    else:
        settle(tx, task, failed=1)


def settle(tx: Transaction, task: AnyRow, *, finished: int = 0, failed: int = 0) -> None:
    """Counts jobs that are over for good, and ends the task with its last one."""
    n_finished, n_failed = task.n_finished + finished, task.n_failed + failed
    values: dict[str, Any] = {"n_finished": n_finished, "n_failed": n_failed}
    if n_finished + n_failed >= task.n_jobs:
        params = known_task(tx, task.task_id).parameters.params
        state, dialog = final_state(TaskState(task.status), params, n_finished, n_failed)
        values |= {"status": state.value, "old_status": None, "error_dialog": dialog, "ended": tx.now}
    change_task(tx, task, outcome=True, **values)


# New attempts for jobs that failed for good, when their owner asks. After `retryTask_JEDI` and the incremental
# execution of `insertTaskParamsPanda` in panda-server 1.0.4. Attempt numbers only grow, so a pilot that still has
# an old attempt cannot be taken for the pilot with the new one.

#: Number of retries after which a task is exhausted: JEDI's ``TASK_MAX_ATTEMPT``; see `retry_over`.
MAX_TASK_ATTEMPTS = 10

_GIVEN_UP = (JobState.FAILED, JobState.CANCELLED, JobState.CLOSED)


def _given_up(tx: Transaction, task_id: int) -> list[AnyRow]:
    """Returns the last attempts that ended without success, by job number."""
    ended = jobs.c.status.in_([state.value for state in _GIVEN_UP])
    query = select(jobs).where(jobs.c.panda_id.in_(last_attempts([task_id])), ended).order_by(jobs.c.number)
    return list(tx.connection.execute(query))


def retry_over(tx: Transaction, task: AnyRow, *, ignore_limit: bool = False) -> None:
    """Retries a task that is over.

    A task that was retried `MAX_TASK_ATTEMPTS` times becomes exhausted instead, unless it was submitted with
    ``skipScout`` or `ignore_limit` is set.
    """
    limited = not (ignore_limit or known_task(tx, task.task_id).parameters.params.get("skipScout"))
    if limited and task.attempt_nr >= MAX_TASK_ATTEMPTS:
        dialog = (
            "This task can no longer continue following the retry attempt because too many task attempts "
            f"more than {MAX_TASK_ATTEMPTS} are forbidden. No further retries are accepted."
        )
        change_task(tx, task, status=TaskState.EXHAUSTED.value, error_dialog=dialog)
        return
    change_task(tx, task, attempt_nr=task.attempt_nr + 1)
    retry_jobs(tx, task)


def retry_jobs(tx: Transaction, task: AnyRow) -> None:
    """Starts further attempts of every job of the task whose last attempt did not finish."""
    given_up = _given_up(tx, task.task_id)
    if not given_up:
        if task.status not in (TaskState.RUNNING, TaskState.PENDING) and not task.n_finished:
            _start_over(tx, task)
        return
    max_attempt = known_task(tx, task.task_id).parameters.max_attempt
    add_attempts(tx, task, [(job, job.attempt_nr + max_attempt) for job in given_up])
    values = {"n_failed": task.n_failed - len(given_up), "error_dialog": None, "ended": None}
    change_task(tx, task, status=TaskState.RUNNING.value, **values)


def in_cache(tx: Transaction, sandbox: str | None) -> bool:
    """Returns whether a task's sandbox is in the cache; True for a task without one."""
    return sandbox is None or bool(tx.connection.scalar(select(exists().where(cache_files.c.name == sandbox))))


def _start_over(tx: Transaction, task: AnyRow) -> None:
    """Starts a task again that ended before it had jobs."""
    if in_cache(tx, task.sandbox):
        make_jobs(tx, task)
    else:
        change_task(tx, task, status=TaskState.PENDING.value, n_failed=0, error_dialog=NO_SANDBOX, ended=None)


def changes_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that may change after submission, under the names that the task has for them."""
    names = CHANGEABLE_PARAMETERS.union(SPLIT_RULES)
    changes = {name: value for name, value in params.items() if name in names or name.startswith("dsFor")}
    if "priority" in changes:
        changes["currentPriority"] = changes.pop("priority")
    if "loopingCheck" in changes:
        changes["noLoopingCheck"] = not changes.pop("loopingCheck")
    return changes


def change_parameters(tx: Transaction, task: AnyRow, changes: Mapping[str, Any], brokered: Mapping[str, Any]) -> AnyRow:
    """Changes a task's parameters, and makes the further jobs that they ask for.

    Args:
        tx: a writing transaction.
        task: the task's row.
        changes: new parameters, from `changes_of`.
        brokered: columns of the task that follow from its parameters.

    Returns:
        The task's new row.

    Raises:
        TaskParametersError: they are not valid; nothing was changed.
    """
    old = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task.task_id))
    params = json.loads(old or "{}") | dict(changes)
    n_jobs = max(task.n_jobs, TaskParameters(params).n_jobs)
    change_task(tx, task, params=json.dumps(params), revision=task.revision + 1, n_jobs=n_jobs, **brokered)
    changed = task_row(tx, task.task_id)
    n_made = tx.connection.scalar(select(func.max(jobs.c.number)).where(jobs.c.task_id == task.task_id)) or 0
    if 0 < n_made < n_jobs:
        _first_attempts(tx, changed, range(n_made + 1, n_jobs + 1))
        if TaskState(changed.status).is_over:
            change_task(tx, changed, status=TaskState.RUNNING.value, error_dialog=None, ended=None)
        changed = task_row(tx, task.task_id)
    return changed


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

#: The shortest time between two notices of new values of a task's running jobs, in seconds. Waiting callers also look
#: from time to time without a notice.
_VALUES_PAUSE = 0.5
_DOCUMENT_LIMIT = 64 * 1024  # characters of a log that are kept


def _late(state: JobState, reported: JobState) -> str | None:
    if not reported.is_over:
        return "tobekilled"
    repeated = reported is state or (reported is JobState.FAILED and state is JobState.CANCELLED)
    return None if repeated else "alreadydone"


def _heartbeat(
    tx: Transaction, job: AnyRow, state: JobState, reported: JobState, columns: dict[str, Any], changes: _Changes
) -> str | None:
    status = max(state, reported, key=AT_PILOT_STATES.index)
    columns |= {"modified": tx.now, "heartbeat": tx.now + job.patience}
    changes[job.panda_id] = columns
    if status is not state:
        columns |= moved_to(tx, status)
        if job.started is None and status is not JobState.STARTING:
            columns.setdefault("started", tx.now)
        change_task(tx, task_row(tx, job.task_id))
    elif "hpoStep=" in (columns.get("job_metrics") or "") and columns["job_metrics"] != job.job_metrics:
        _announce_values(tx, job)
    return ",".join(word for word in ("debug" if job.debug else None, job.command) if word) or None


def _announce_values(tx: Transaction, job: AnyRow) -> None:
    """Announces a running job's new values, at most every `_VALUES_PAUSE` seconds for a task."""
    if known_task(tx, job.task_id).parameters.params.get("hpoValues") is not True:
        return
    task = task_row(tx, job.task_id)
    if tx.now - task.modified >= _VALUES_PAUSE:
        change_task(tx, task, outcome=True)


def _store_documents(tx: Transaction, panda_id: int, status: JobState, documents: dict[str, str]) -> None:
    if status is JobState.FAILED:
        documents.pop("meta_data", None)  # as on a real server
    for name in ("pilot_log", "stdout"):
        if name in documents:
            documents[name] = documents[name][-_DOCUMENT_LIMIT:]
    if documents:
        tx.connection.execute(_stored(tuple(documents)), {"panda_id": panda_id, **documents})


@lru_cache(maxsize=32)
def _stored(names: tuple[str, ...]) -> TextClause:
    """Returns the statement that stores documents of a job, which may have others."""
    values, new = ", ".join(f":{name}" for name in names), ", ".join(f"{name} = excluded.{name}" for name in names)
    row = f"(panda_id, {', '.join(names)}) VALUES (:panda_id, {values})"
    return text(f"INSERT INTO job_documents {row} ON CONFLICT (panda_id) DO UPDATE SET {new}")


# Fields of a report. Both APIs use this table; a report has the names of the new API.

_REPORTABLE = frozenset(
    {JobState.RUNNING, JobState.FAILED, JobState.FINISHED, JobState.HOLDING, JobState.STARTING, JobState.TRANSFERRING}
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


class Kept(Enum):
    """Where the server keeps an item of a report."""

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
        kept: where the server keeps it.
        target: its name there.
        convert: returns the value to keep, within its limits; ValueError or OverflowError: the value is not valid.
    """

    name: str
    legacy: str
    kind: type
    kept: Kept
    target: str
    convert: Callable[[Any], Any]


#: All items of a report besides job, state and attempt.
REPORT_FIELDS = (
    ReportField("node", "node", str, Kept.JOB, "node", _text(128)),
    ReportField("trans_exit_code", "transExitCode", int, Kept.JOB, "trans_exit_code", _whole),
    ReportField(
        "pilot_error_code", "pilotErrorCode", int, Kept.JOB, "pilot_error_code", lambda code: abs(_whole(code))
    ),
    ReportField("pilot_error_diag", "pilotErrorDiag", str, Kept.JOB, "pilot_error_diag", _text(500)),
    ReportField("exe_error_code", "exeErrorCode", int, Kept.JOB, "exe_error_code", _whole),
    ReportField("exe_error_diag", "exeErrorDiag", str, Kept.JOB, "exe_error_diag", _text(500)),
    ReportField("job_metrics", "jobMetrics", str, Kept.JOB, "job_metrics", _text(500)),
    ReportField("scheduler_id", "schedulerID", str, Kept.JOB, "scheduler_id", _text(128)),
    ReportField("pilot_id", "pilotID", str, Kept.JOB, "pilot_id", _text(200)),
    ReportField("batch_id", "batchID", str, Kept.JOB, "batch_id", _text(80)),
    ReportField("job_sub_status", "jobSubStatus", str, Kept.JOB, "sub_status", _text(80)),
    ReportField("start_time", "startTime", str, Kept.JOB, "started", _time),
    ReportField("end_time", "endTime", str, Kept.JOB, "ended", _time),
    ReportField("cpu_consumption_time", "cpuConsumptionTime", float, Kept.MEASURE, "cpuConsumptionTime", int),
    ReportField("cpu_consumption_unit", "cpuConsumptionUnit", str, Kept.MEASURE, "cpuConsumptionUnit", str),
    ReportField(
        "cpu_architecture_level", "cpu_architecture_level", str, Kept.MEASURE, "cpu_architecture_level", _text(20)
    ),
    ReportField("cpu_conversion_factor", "cpuConversionFactor", float, Kept.MEASURE, "cpuConversion", float),
    ReportField("pilot_timing", "pilotTiming", str, Kept.MEASURE, "pilotTiming", _text(100)),
    ReportField("n_events", "nEvents", int, Kept.MEASURE, "nEvents", int),
    ReportField("n_input_files", "nInputFiles", int, Kept.MEASURE, "nInputFiles", int),
    ReportField("core_count", "coreCount", int, Kept.MEASURE, "actualCoreCount", int),
    ReportField("mean_core_count", "meanCoreCount", float, Kept.MEASURE, "meanCoreCount", float),
    ReportField("grid", "grid", str, Kept.MEASURE, "grid", _text(50)),
    ReportField("source_site", "source_site", str, Kept.MEASURE, "sourceSite", _text(36)),
    ReportField("destination_site", "destination_site", str, Kept.MEASURE, "destinationSite", _text(36)),
    *(
        ReportField(f"{how}_{what.lower()}", f"{how}{what}", float, Kept.MEASURE, f"{how}{what}", convert)
        for hows, whats, convert in (
            (("max", "avg"), ("RSS", "VMEM", "SWAP", "PSS"), int),
            (("tot", "rate"), ("RCHAR", "WCHAR", "RBYTES", "WBYTES"), _kilobytes),
        )
        for how in hows
        for what in whats
    ),
    ReportField("meta_data", "metaData", str, Kept.DOCUMENT, "meta_data", str),
    ReportField("job_output_report", "xml", str, Kept.DOCUMENT, "output_report", str),
    ReportField("pilot_log", "pilotLog", str, Kept.DOCUMENT, "pilot_log", str),
    ReportField("stdout", "stdout", str, Kept.DOCUMENT, "stdout", str),
)


def reported_state(text: str) -> JobState | None:
    """Returns the state that a pilot reports; None: a pilot may not report this state."""
    try:
        status = JobState(text)
    except ValueError:
        return None
    return status if status in _REPORTABLE else None


@dataclass(frozen=True)
class Report:
    """A report on a job.

    Attributes:
        status: as `reported_state` gave it.
        arguments: as ``pilot/update_job`` declares them; other keys are ignored.
        pilot: the pilot that reports; None: the server itself.
    """

    status: JobState
    arguments: Mapping[str, Any]
    pilot: PilotIdentity | None

    @property
    def panda_id(self) -> int:
        """The job."""
        return int(self.arguments["job_id"])

    def changes_task(self, job: AnyRow) -> bool:
        """Returns whether it may change the job's task as well."""
        return self.status.value != job.status or "hpoStep=" in (self.arguments.get("job_metrics") or "")


#: Columns to write, by PandaID.
_Changes = dict[int, dict[str, Any]]


def record_report(
    tx: Transaction, status: JobState, arguments: Mapping[str, Any], pilot: PilotIdentity | None
) -> str | None:
    """Records a report, see `Report` for the arguments. A repeated report has no further effect.

    Returns:
        The command to the pilot.

    Raises:
        NotThePilotsJob: another pilot has the job.
    """
    (answer,) = record_reports(tx, [Report(status, arguments, pilot)])
    if isinstance(answer, NotThePilotsJob):
        raise answer
    return answer


def record_reports(tx: Transaction, reports: Sequence[Report]) -> list[str | NotThePilotsJob | None]:
    """Records several reports as `record_report`, and returns what that returns or raises for each."""
    rows, columns = _lock_rows(tx, reports), _Changes()
    answers: list[str | NotThePilotsJob | None] = []
    for report in reports:
        if report.panda_id in columns:  # its second report
            set_columns_of(tx, jobs.c.panda_id, columns)
            columns.clear()
        job = rows.pop(report.panda_id, None) or job_row(tx, report.panda_id)
        try:
            answers.append(_record(tx, report, job, columns))
        except NotThePilotsJob as error:
            answers.append(error)
    set_columns_of(tx, jobs.c.panda_id, columns)
    return answers


async def write_reports(database: Database, reports: Sequence[Report]) -> list[str | NotThePilotsJob | None]:
    """Records reports in one transaction; results are on the disk then, heartbeats may be lost in a power cut."""
    is_final = any(report.status.is_over for report in reports)
    return await database.write(lambda tx: record_reports(tx, reports), rows=True, durable=is_final)


def _record(tx: Transaction, report: Report, job: AnyRow | None, changes: _Changes) -> str | None:
    """Records a report, except for the columns that it adds to `changes`."""
    status, arguments, panda_id = report.status, report.arguments, report.panda_id
    if job is None or job.status in (JobState.DEFINED, JobState.ACTIVATED):
        return "tobekilled"
    if report.pilot is not None and not report.pilot.has(job, arguments.get("node") or ""):
        raise NotThePilotsJob(panda_id)
    attempt_nr = arguments.get("attempt_nr")
    if attempt_nr is not None and attempt_nr != job.attempt_nr:
        return "badattemptnr"
    state = JobState(job.status)
    if state.is_over:
        return _late(state, status)
    given: dict[Kept, dict[str, Any]] = {table: {} for table in Kept}
    for item in REPORT_FIELDS:
        value = arguments.get(item.name)
        if value is None or value == "":
            continue
        # The job's result must not be lost because of one invalid value; a real server leaves it out too.
        with suppress(ValueError, OverflowError):
            given[item.kept][item.target] = item.convert(value)
    columns = given[Kept.JOB]
    if given[Kept.MEASURE]:
        columns["report"] = json.dumps((json.loads(job.report) if job.report else {}) | given[Kept.MEASURE])
    _store_documents(tx, panda_id, status, given[Kept.DOCUMENT])
    if status.is_over:
        end_attempt(tx, job, status, **columns)
        return None
    return _heartbeat(tx, job, state, status, columns, changes)


# Jobs whose pilot is silent or has ended. Their attempt ends, and the next one may start. The error is PanDA's
# jobDispatcherErrorCode 100, "lost heartbeat" (`pandaserver/jobdispatcher/Watcher.py`).

LOST_HEARTBEAT = 100
_BATCH = 200  # jobs ended in one transaction, so that pilots' calls get in between

#: The states that may be reported for a worker; a real server has the first two.
WORKER_STATES = ("started", "finished", "failed", "cancelled")


def _lose(tx: Transaction, panda_id: int, diag: str) -> None:
    if (job := job_row(tx, panda_id)) is not None and not JobState(job.status).is_over:
        tx.counts.append(metrics.HEARTBEATS_LOST)
        error = {"dispatcher_error_code": LOST_HEARTBEAT, "dispatcher_error_diag": f"lost heartbeat : {diag}"}
        end_attempt(tx, job, JobState.FAILED, **error)


def end_silent_attempts(tx: Transaction, timeout: float) -> float | None:
    """Ends the attempts of jobs that have been silent for `timeout` seconds.

    Returns:
        Seconds until the next one could be due; None: no pilot has a job.
    """
    # The clock was set back: else a lost job would count as silent only when the clock has caught up.
    ahead = (jobs.c.heartbeat > tx.now) & (jobs.c.heartbeat > tx.now + jobs.c.patience)  # the first has an index
    tx.connection.execute(update(jobs).where(AT_PILOT, ahead).values(heartbeat=tx.now + jobs.c.patience))
    silent = select(jobs.c.panda_id, jobs.c.heartbeat).where(AT_PILOT, jobs.c.heartbeat <= tx.now - timeout)
    for panda_id, heartbeat in tx.connection.execute(silent.order_by(jobs.c.heartbeat).limit(_BATCH)).all():
        _lose(tx, panda_id, str(utc(heartbeat)))
    oldest = tx.connection.scalar(select(func.min(jobs.c.heartbeat)).where(AT_PILOT))
    return None if oldest is None else max(0.0, float(oldest) + timeout - tx.now)


def reset_silence(tx: Transaction) -> None:
    """Resets the silence of every job at a pilot: no pilot could report while the server was away."""
    tx.connection.execute(update(jobs).where(AT_PILOT).values(heartbeat=tx.now + jobs.c.patience))


def update_worker(
    tx: Transaction, pilot: PilotIdentity, harvester_id: str, worker_id: str, status: str, node_id: str
) -> None:
    """Records the state of a worker. If it has ended, the jobs that it still has are lost at once.

    Args:
        tx: a writing transaction.
        pilot: the pilot that reports. Other pilots' jobs are not lost, because anybody may use a worker's name.
        harvester_id: first part of the worker's name.
        worker_id: second part of the worker's name.
        status: one of `WORKER_STATES`, or Harvester's name of an end state.
        node_id: the worker's node; empty: not known.
    """
    harvester_id, worker_id = harvester_id[:128], worker_id[:128]
    values: dict[str, Any] = {"status": status, "node_id": node_id[:128] or None}
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
        """Makes the watch; `run` starts to watch.

        Args:
            database: the database with the jobs.
            timeout: seconds of silence that make a job lost.
        """
        self._database = database
        self.timeout = timeout
        self._jobs_out, self._sooner = asyncio.Event(), asyncio.Event()

    def job_sent(self, silence: float | None = None) -> None:
        """Notes that a pilot acquired a job, so that `run` watches it.

        Args:
            silence: seconds of silence that make this job lost; None: `timeout`, or more.
        """
        self._jobs_out.set()
        if silence is not None and silence < self.timeout:
            self._sooner.set()

    async def run(self) -> None:
        """Watches until cancelled. If the database fails for a while (a full disk), it is tried again."""
        absent = True  # no pilot could reach this server before it started
        while True:
            try:
                absent = await self._watch(absent)
            except Exception as error:  # without this watch no lost job would be noticed
                log.error(
                    "looking for lost jobs: %s",
                    getattr(error, "orig", error),
                    exc_info=not isinstance(error, DBAPIError),
                )
                absent = True  # no pilot could report either
                await asyncio.sleep(min(10.0, self.timeout))

    async def _watch(self, absent: bool) -> bool:
        """Looks once, then pauses.

        Args:
            absent: whether pilots could not report, so that their silence does not count.

        Returns:
            `absent` for the next look.
        """
        self._jobs_out.clear()
        self._sooner.clear()
        asked = time.monotonic()

        def look(tx: Transaction) -> float | None:
            if absent or time.monotonic() - asked > self.timeout / 2:  # no report was written meanwhile either
                reset_silence(tx)
            return end_silent_attempts(tx, self.timeout)

        due = await self._database.write(look)
        if due is None:
            await self._jobs_out.wait()
            due = 0.0
        # At least the shortest time between two looks at the jobs, for any number of jobs; at most that in which a job
        # can be lost that is sent meanwhile: others may be allowed a longer silence.
        least = min(1.0, self.timeout / 4)
        pause = max(min(due, self.timeout), least)
        before = time.monotonic(), time.time()
        await asyncio.sleep(least)
        if pause > least:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), pause - least)
        # If the pause was far too long, the machine slept or its clock jumped: then the pilots are not to blame.
        return max(time.monotonic() - before[0], time.time() - before[1]) - pause > self.timeout / 2
