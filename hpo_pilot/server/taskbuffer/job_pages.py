"""Jobs as pages show them: lists, newest first, and one with its attempts and files.

What can be asked of all jobs without an index (a queue's, a pilot's, those in some state) is looked for among the
newest `SCANNED` attempts alone, so that the cost does not grow with all that ever ran; of a task or search all count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Select, TextClause, and_, func, or_, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.brokerage.needs import Needs, parse_needs
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, WAITS, job_documents, jobs, tasks
from hpo_pilot.server.taskbuffer.descriptions import texts_of
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.pilot_book import key_of
from hpo_pilot.server.taskbuffer.points import assignment_of
from hpo_pilot.server.taskbuffer.verdicts import failure_of

#: Attempts that a question without a task or search looks through, newest first.
SCANNED = 100_000

#: Seconds by which the clocks of server and storage may differ.
_CLOCKS = 0.5

#: Finds the file of a name in the storages; None: it is not there.
FindFile = Callable[[str], Path | None]

_COLUMNS = [column for column in jobs.c if column.name != "report"]
_ROWS = select(*_COLUMNS, tasks.c.name.label("task"), tasks.c.user_name, tasks.c.needs).join(
    tasks, tasks.c.task_id == jobs.c.task_id
)
#: What a payload said last, as the runner's verdict has it; without the empty ones.
_SAID = func.replace(job_documents.c.meta_data, '"log_tail": ""', "").contains('"log_tail": "', autoescape=True)
#: Where a payload may have failed: few of all metadata are read then.
_MAY_HAVE_FAILED = job_documents.c.meta_data.contains('"status": 1', autoescape=True)


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are meant; what is empty or None is any.

    Attributes:
        search: its uid or name.
        pilot: what `pilot_book.key_of` calls it.
    """

    task_ids: tuple[int, ...] = ()
    search: str | None = None
    states: tuple[str, ...] = ()
    queue: str | None = None
    pilot: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all jobs are meant, whatever their state."""
        return not self.task_ids and self.search is None and self.queue is None and self.pilot is None

    def conditions(self, tx: Transaction) -> list[ColumnElement[bool]]:
        """What a row must be like, but for its state."""
        found: list[ColumnElement[bool]] = []
        if self.task_ids:
            found.append(jobs.c.task_id.in_(self.task_ids))
        if self.search is not None:
            found.append(jobs.c.task_id.in_(_tasks_of(tx, self.search)))
        if not found:
            newest = tx.connection.scalar(select(func.max(jobs.c.panda_id))) or 0
            found.append(jobs.c.panda_id > newest - SCANNED)
        if self.queue is not None:
            found.append(func.coalesce(jobs.c.site, jobs.c.queue) == self.queue)
        if self.pilot is not None:
            found.append(_of_pilot(self.pilot))
        return found


def _tasks_of(tx: Transaction, search: str) -> list[int]:
    """The tasks of a search, by its uid or name; `campaign` is ``user/name.uid`` of ours."""
    like = or_(
        tasks.c.campaign.endswith(f".{search}", autoescape=True),
        tasks.c.campaign.contains(f"/{search}.", autoescape=True),
    )
    found = []
    for row in tx.connection.execute(select(tasks.c.task_id, tasks.c.campaign).where(like)):
        name, _, uid = row.campaign.partition("/")[2].rpartition(".")
        if search in (name, uid):
            found.append(row.task_id)
    return found


def _of_pilot(key: str) -> ColumnElement[bool]:
    host, at, queue = key.rpartition(" at ")
    if at:
        named = or_(jobs.c.node == host, jobs.c.node.endswith(f"@{host}", autoescape=True))
        return and_(jobs.c.harvester_id.is_(None), jobs.c.site == queue, named)
    harvester, _, worker = key.rpartition("/")
    return and_(jobs.c.harvester_id == (harvester or None), jobs.c.worker_id == (worker or None))


def job_list(tx: Transaction, wanted: JobFilter, limit: int, before: int | None, find: FindFile) -> dict[str, Any]:
    """A page of jobs, newest first.

    Args:
        tx: a transaction.
        wanted: which jobs.
        limit: how many at most.
        before: only those with a lower PandaID.
        find: finds files.

    Returns:
        ``{"jobs": […], "before": what to ask for next or None, "counts": {state: how many}}``.
    """
    conditions = wanted.conditions(tx)
    query = _ROWS.where(*conditions).order_by(jobs.c.panda_id.desc()).limit(limit + 1)
    if wanted.states:
        query = query.where(jobs.c.status.in_(wanted.states))
    if before is not None:
        query = query.where(jobs.c.panda_id < before)
    rows = tx.connection.execute(query).all()
    page, more = rows[:limit], len(rows) > limit
    return {
        "jobs": shown(tx, page, find),
        "before": page[-1].panda_id if more else None,
        "counts": _all_counts(tx) if wanted.is_empty else _counts(tx, conditions),
    }


def _counts(tx: Transaction, conditions: Sequence[ColumnElement[bool] | TextClause]) -> dict[str, int]:
    query = select(jobs.c.status, func.count().label("n_jobs")).where(*conditions).group_by(jobs.c.status)
    return {row.status: row.n_jobs for row in tx.connection.execute(query)}


def _all_counts(tx: Transaction) -> dict[str, int]:
    """Of every job there is: active attempts by the partial indices, ended jobs as their tasks count them."""
    found = _counts(tx, [WAITS]) | _counts(tx, [AT_PILOT])
    ended = tx.connection.execute(select(func.sum(tasks.c.n_finished), func.sum(tasks.c.n_failed))).one()
    for state, count in zip((JobState.FINISHED, JobState.FAILED), ended, strict=True):
        if count:
            found[state.value] = int(count)
    return found


def job_view(tx: Transaction, panda_id: int, find: FindFile) -> dict[str, Any] | None:
    """One job with all its attempts, its files and what was measured; None: there is no such job."""
    asked = tx.connection.execute(
        select(jobs.c.task_id, jobs.c.number, jobs.c.report).where(jobs.c.panda_id == panda_id)
    ).one_or_none()
    if asked is None:
        return None
    same = _ROWS.where(jobs.c.task_id == asked.task_id, jobs.c.number == asked.number).order_by(jobs.c.panda_id)
    attempts = tx.connection.execute(same).all()
    described = shown(tx, attempts, find)
    job = next(row for row in attempts if row.panda_id == panda_id)
    files = []
    for file in texts_of(known_task(tx, job.task_id), job).files:
        path = find(file.lfn)
        size = path.stat().st_size if path is not None and path.is_file() else None
        files.append({"name": file.lfn, "dataset": file.dataset, "kind": file.kind, "size": size})
    return {
        "job": next(one for one in described if one["panda_id"] == panda_id),
        "attempts": described,
        "files": files,
        "measures": {name: value for name, value in _measures(asked.report).items() if value is not None},
    }


def _measures(report: str | None) -> Mapping[str, Any]:
    return json.loads(report) if report else {}


def shown(tx: Transaction, rows: Iterable[AnyRow], find: FindFile) -> list[dict[str, Any]]:
    """The jobs of these rows as pages show them."""
    listed = list(rows)
    logged = _with_documents(tx, [row.panda_id for row in listed])
    failed = _failures(tx, [row.panda_id for row in listed if row.status == JobState.FINISHED])
    return [
        _shown(tx, row, row.panda_id in logged, find) | {"payload_error": failed.get(row.panda_id, "")}
        for row in listed
    ]


def _failures(tx: Transaction, panda_ids: Sequence[int]) -> dict[int, str]:
    """Why payloads of finished jobs failed; of those jobs alone where one did."""
    found: dict[int, str] = {}
    for start in range(0, len(panda_ids), 500):
        some = job_documents.c.panda_id.in_(panda_ids[start : start + 500])
        query = select(job_documents.c.panda_id, job_documents.c.meta_data).where(some, _MAY_HAVE_FAILED)
        found.update((row.panda_id, why) for row in tx.connection.execute(query) if (why := failure_of(row.meta_data)))
    return found


def _with_documents(tx: Transaction, panda_ids: Sequence[int]) -> set[int]:
    """Those of the jobs of which some text is kept that was said."""
    found: set[int] = set()
    kept = or_(job_documents.c.pilot_log.is_not(None), job_documents.c.stdout.is_not(None), _SAID)
    for start in range(0, len(panda_ids), 500):
        some = job_documents.c.panda_id.in_(panda_ids[start : start + 500])
        query: Select[tuple[int]] = select(job_documents.c.panda_id).where(some, kept)
        found.update(tx.connection.scalars(query))
    return found


def _shown(tx: Transaction, job: AnyRow, has_document: bool, find: FindFile) -> dict[str, Any]:
    needs = parse_needs(job.needs) if job.needs else Needs(cores=job.core_count, ram_mb=job.ram_mb)
    patience = 0.0 if JobState(job.status).is_over else job.patience
    known = assignment_of(tx, job.task_id)
    return {
        "panda_id": job.panda_id,
        "task_id": job.task_id,
        "task": job.task,
        "user": job.user_name,
        "search": known and known.search,
        "uid": known and known.uid,
        "generation": known and known.generation,
        "members": known.members.get(job.number, ()) if known else (),
        "number": job.number,
        "attempt": job.attempt_nr,
        "attempts": job.max_attempt,
        "state": job.status,
        "sub_state": job.sub_status,
        "queue": job.site or job.queue,
        "node": job.node,
        "pilot": key_of(job.harvester_id, job.worker_id, job.node, job.site),
        "created": job.created,
        "changed": job.state_changed,
        "started": job.started,
        "ended": job.ended,
        "heard": None if job.heartbeat is None else job.heartbeat - patience,
        "nodes": needs.nodes,
        "gpus": needs.gpus,
        "cores": job.core_count,
        "memory_mb": job.ram_mb,
        "seconds": job.max_walltime,
        "job_metrics": job.job_metrics,
        "errors": errors_of(job),
        "has_log": has_document or log_file(tx, job, find) is not None,
    }


def errors_of(job: AnyRow) -> dict[str, Any]:
    """A job's errors, under the names that descriptions have them."""
    found = {
        "transExitCode": job.trans_exit_code,
        "pilotErrorCode": job.pilot_error_code,
        "pilotErrorDiag": job.pilot_error_diag,
        "exeErrorCode": job.exe_error_code,
        "exeErrorDiag": job.exe_error_diag,
        "jobDispatcherErrorCode": job.dispatcher_error_code,
        "jobDispatcherErrorDiag": job.dispatcher_error_diag,
        "taskBufferErrorCode": job.buffer_error_code,
        "taskBufferErrorDiag": job.buffer_error_diag,
    }
    return {name: value for name, value in found.items() if value not in (None, 0, "")}


def log_file(tx: Transaction, job: AnyRow, find: FindFile) -> Path | None:
    """The log that the job's pilot has stored; None: there is none, or it is another attempt's, which has its name."""
    if not JobState(job.status).is_over:
        return None
    files = texts_of(known_task(tx, job.task_id), job).files
    name = next((file.lfn for file in files if file.kind == "log"), "")
    path = find(name) if name else None
    if path is None:
        return None
    try:
        stored = path.stat().st_mtime
    except OSError:
        return None  # removed just now
    return path if job.created - _CLOCKS <= stored <= job.state_changed + _CLOCKS else None
