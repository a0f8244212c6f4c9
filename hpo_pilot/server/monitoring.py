"""Jobs, logs, pilots, queues and waiting work, for the monitor's pages and the service."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, ColumnElement, TextClause, case, func, or_, select
from sqlalchemy.exc import DBAPIError

from hpo_pilot.databases import among, sqlite_engine, tables_are_current
from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState, RunReport
from hpo_pilot.jobs.results import parse_reports
from hpo_pilot.server.brokerage import TaskNeeds, WaitingTasks, parse_needs
from hpo_pilot.server.calls import ANYBODY_KNOWN, USERS, Access, Call, endpoint, parameters_of
from hpo_pilot.server.database import AT_PILOT, WAITS, AnyRow, Transaction, job_documents, jobs, tasks
from hpo_pilot.server.descriptions import error_fields
from hpo_pilot.server.file_store import is_safe
from hpo_pilot.server.job_records import FindFile, JobRecord, job_records, jobs_at_queues, queue_of_job
from hpo_pilot.server.pilots import key_of, pilots_shown
from hpo_pilot.server.points import assignment_of
from hpo_pilot.server.queues import Queue
from hpo_pilot.server.replies import Envelope, failure, success
from hpo_pilot.transformation.sandbox import UnsafeArchive, opened

#: Characters of a reason.
_LONGEST_REASON = 500


def reports_of(metadata: str | None) -> tuple[RunReport, ...]:
    """Returns the runner's report on each point; empty for payloads of other programs."""
    try:
        return parse_reports(json.loads(metadata)) if metadata else ()
    except (ValueError, RecursionError):
        return ()


def failure_of(metadata: str | None) -> str:
    """Returns why payloads of a job gave no figure of merit, in one line; empty: none failed."""
    reports = reports_of(metadata)
    reasons = [
        (f"trial {one.trial}, fold {one.fold}: " if len(reports) > 1 else "") + " ".join(one.message.split())
        for one in reports
        if one.status == "failed"
    ]
    return "; ".join(reasons)[:_LONGEST_REASON]


# Jobs for the pages. A query without a matching index (by queue, pilot or state) reads only the newest `SCANNED`
# attempts, so its cost does not grow with the history. A query for a search reads all its attempts.

#: Number of attempts, newest first, that a query without tasks or a search reads.
SCANNED = 100_000

_ROWS = select(*(column for column in jobs.c if column.name != "report"))
#: Job reports with a log tail that is not empty.
_HAS_LOG_TAIL = func.replace(job_documents.c.meta_data, '"log_tail": ""', "").contains('"log_tail": "', autoescape=True)
#: Condition on metadata that may contain a failed payload, so that only few of them are read.
_MAY_HAVE_FAILED = job_documents.c.meta_data.contains('"status": 1', autoescape=True)


def newest_jobs(tx: Transaction) -> ColumnElement[bool]:
    """Returns the condition on the newest `SCANNED` attempts."""
    return jobs.c.panda_id > (tx.connection.scalar(select(func.max(jobs.c.panda_id))) or 0) - SCANNED


def _tasks_of(tx: Transaction, search: str) -> list[int]:
    """Returns the tasks of a search, by its uid or name; `campaign` of our tasks is ``user/name.uid``."""
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


def _counts(tx: Transaction, conditions: Sequence[ColumnElement[bool] | TextClause]) -> dict[str, int]:
    query = select(jobs.c.status, func.count().label("n_jobs")).where(*conditions).group_by(jobs.c.status)
    return {row.status: row.n_jobs for row in tx.connection.execute(query)}


def _all_counts(tx: Transaction) -> dict[str, int]:
    """Counts all jobs by state: active attempts by the partial indices, ended jobs by their tasks' counts.

    A task counts its killed jobs, such as those of trials that were stopped early, as failed; here they are not.
    """
    found = _counts(tx, [WAITS]) | _counts(tx, [AT_PILOT])
    ended = tx.connection.execute(select(func.sum(tasks.c.n_finished), func.sum(tasks.c.n_failed))).one()
    finished, failed = (int(number or 0) for number in ended)
    with_failed = select(tasks.c.task_id).where(tasks.c.n_failed > 0)
    killed = _counts(tx, [jobs.c.task_id.in_(with_failed), jobs.c.status == JobState.CANCELLED]) if failed else {}
    cancelled = min(failed, sum(killed.values()))  # a retried task has attempts that no longer count
    counts = {JobState.FINISHED: finished, JobState.FAILED: failed - cancelled, JobState.CANCELLED: cancelled}
    return found | {state.value: number for state, number in counts.items() if number}


def described(tx: Transaction, rows: Iterable[AnyRow], find: FindFile) -> list[dict[str, Any]]:
    """Returns the jobs of these rows in the form for the pages."""
    records = job_records(tx, rows)
    assignments = {task_id: assignment_of(tx, task_id) for task_id in {job.row.task_id for job in records}}
    documents = _documents(tx, [job.row.panda_id for job in records])
    found = []
    for job in records:
        known, needs = assignments[job.row.task_id], job.parameters.needs
        has_log, payload_error = documents.get(job.row.panda_id, (False, ""))
        found.append(
            {name: getattr(job.row, column) for name, column in _COLUMNS.items()}
            | {
                "task": job.known.name,
                "user": job.known.user_name,
                "queue": job.queue,
                "heard": job.heard,
                **{name: getattr(known, name, None) for name in ("search", "uid", "generation")},
                "members": known.members.get(job.row.number, ()) if known else (),
                "pilot": key_of(job.row.harvester_id, job.row.worker_id, job.row.node, job.row.site),
                "nodes": needs.job.nodes,
                "gpus": needs.job.whole_gpus,
                "errors": _errors(job),
                "has_log": has_log or job.log_file(find) is not None,
                "payload_error": payload_error if job.row.status == JobState.FINISHED else "",
            }
        )
    return found


#: Names in the form for the pages, and columns of jobs.
_COLUMNS = {
    **{name: name for name in ("panda_id", "task_id", "number", "node", "created", "started", "ended", "job_metrics")},
    **{"attempt": "attempt_nr", "attempts": "max_attempt", "state": "status", "sub_state": "sub_status"},
    **{"changed": "state_changed", "cores": "core_count", "memory_mb": "ram_mb", "seconds": "max_walltime"},
}


def _errors(job: JobRecord) -> dict[str, Any]:
    """Returns a job's errors, with the same names as in job descriptions."""
    found = error_fields(job) | {"transExitCode": job.row.trans_exit_code}
    return {name: value for name, value in found.items() if value not in (None, 0, "")}


def _documents(tx: Transaction, panda_ids: Sequence[int]) -> dict[int, tuple[bool, str]]:
    """Returns whether a log text of a job is stored, and why payloads failed, by PandaID; other jobs are left out."""
    d = job_documents.c
    has_log = or_(d.pilot_log.is_not(None), d.stdout.is_not(None), _HAS_LOG_TAIL)
    query = select(d.panda_id, func.coalesce(has_log, False), case((_MAY_HAVE_FAILED, d.meta_data)))
    found: dict[int, tuple[bool, str]] = {}
    for panda_id, is_logged, metadata in tx.connection.execute(query.where(among(d.panda_id, panda_ids))):
        found[panda_id] = bool(is_logged), failure_of(metadata)
    return found


# A job's log as text: from the archive that its pilot stored, else from the texts that pilot and payload reported.
# The content of an archive comes from a payload. Therefore only a limited part of the archive is unpacked, and only the
# ends of its texts are kept.

#: The largest part of a log that is returned, in bytes.
LOG_LIMIT = 8 * 1024 * 1024

_UNPACKED = 256 << 20  # bytes of an archive that are read at most
_MEMBERS = 200
_BLOCK = 1 << 20
#: Names of files with text: the log names of our pilot and of Pilot 3.
_TEXTS = re.compile(r"(^|/)[^/]*(\.(log|txt|out|err)|stdout|stderr)$")
#: Characters that move a cursor or ring a bell, in a terminal that shows a downloaded log.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


#: A stored archive, or texts with their titles.
LogSources = tuple[Path | None, list[tuple[str, str]]]


def log_sources(tx: Transaction, panda_id: int, find: FindFile) -> LogSources | None:
    """Returns the source of a job's log; None: there is no such job."""
    columns = (jobs.c.task_id, jobs.c.number, jobs.c.attempt_nr, jobs.c.status, jobs.c.created, jobs.c.state_changed)
    job = tx.connection.execute(select(*columns).where(jobs.c.panda_id == panda_id)).one_or_none()
    if job is None:
        return None
    archive = job_records(tx, [job])[0].log_file(find)
    row = tx.connection.execute(
        select(job_documents.c.pilot_log, job_documents.c.stdout, job_documents.c.meta_data).where(
            job_documents.c.panda_id == panda_id
        )
    ).one_or_none()
    if row is None:
        return archive, []
    texts = [("payload's output", row.stdout), ("pilot's log", row.pilot_log), *_log_tails(row.meta_data)]
    return archive, [(title, text) for title, text in texts if text]


def _log_tails(metadata: str | None) -> list[tuple[str, str]]:
    """Returns the log tail of each payload without a figure of merit, from the runner's report."""
    if metadata is None or '"log_tail"' not in metadata:
        return []
    return [
        (f"payload.log of trial {one.trial}, fold {one.fold}", one.log_tail)
        for one in reports_of(metadata)
        if one.log_tail
    ]


def log_text(archive: Path | None, texts: list[tuple[str, str]], size: int) -> tuple[str, bool]:
    """Returns the end of a log. It reads files, so it must run in a thread that may wait for the disk.

    Args:
        archive: the stored log; None: there is none.
        texts: the texts that replace it, with their titles.
        size: largest number of characters.

    Returns:
        The text, and whether it is the whole log. Control characters are replaced.
    """
    parts, whole = ([], True) if archive is None else _unpacked(archive, size)
    parts = parts or texts
    text = "\n".join(f"==> {title} <==\n{content.rstrip()}\n" for title, content in parts)
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))
    return text[-size:], whole and len(text) <= size


def _unpacked(path: Path, size: int) -> tuple[list[tuple[str, str]], bool]:
    """Returns the ends of the texts in an archive, with their names, and whether nothing was left out."""
    found: list[tuple[str, str]] = []
    whole, left = True, _UNPACKED
    try:
        with opened(str(path), _UNPACKED) as archive:
            for count, member in enumerate(archive):
                left -= member.size
                if count >= _MEMBERS or left < 0:
                    return found, False
                if not member.isreg() or not _TEXTS.search(member.name):
                    continue
                content = archive.extractfile(member)
                if content is None:
                    continue
                tail = b""
                while block := content.read(_BLOCK):
                    tail = (tail + block)[-size:]
                whole = whole and len(tail) == member.size
                found.append((member.name, tail.decode(errors="replace")))
    except (OSError, UnsafeArchive) as error:
        found.append((path.name, f"the archive cannot be read: {error}"))
    return found, whole


# ``hpo_pilot/*``: calls for the monitor's pages. A real PanDA server has none of them and answers that they are
# forbidden. As on a BigPanDA, every user sees all jobs.

_MOST_JOBS = 1000  # in one answer
_STATES = frozenset(state.value for state in JobState)

#: The data of a refusal, which distinguishes it from other refusals.
_NO_JOB = "no job"


_Answer = TypeVar("_Answer", bound=Callable[..., Envelope])


def _job_call(answer: _Answer) -> _Answer:
    """Makes an API call of a function that also answers without a server; see `answer_after_end`."""

    def handler(tx: Transaction, call: Call, **given: Any) -> Envelope:
        return answer(tx, call.server.find_file, **given)

    more = parameters_of(answer).values()
    endpoint(f"hpo_pilot/{answer.__name__}", "GET", USERS, Access.READ, more=more)(handler)
    return answer


@_job_call
def job_list(
    tx: Transaction,
    find: FindFile,
    *,
    search: str | None = None,
    states: list[str] | None = None,
    queue: str | None = None,
    limit: int = 100,
    before: int | None = None,
) -> Envelope:
    """Returns jobs, newest first, at most 1000.

    Args:
        tx: a transaction.
        find: finds outputs and logs.
        search: uid or name of a search.
        states: only jobs in these states.
        queue: only jobs at this queue.
        limit: largest number of jobs.
        before: only jobs with a lower PandaID.

    Returns:
        data ``{"jobs": […], "before": `before` of the next page, "counts": {state: number of jobs}}``.
    """
    if unknown := sorted(set(states or ()) - _STATES):
        return failure(f"there is no job state {unknown[0][:50]!r}: {', '.join(sorted(_STATES))}")
    if not 1 <= limit <= _MOST_JOBS:
        return failure(f"limit must be 1 to {_MOST_JOBS}")
    conditions = [newest_jobs(tx) if search is None else jobs.c.task_id.in_(_tasks_of(tx, search))]
    if queue is not None:
        conditions.append(queue_of_job == queue)
    query = _ROWS.where(*conditions).order_by(jobs.c.panda_id.desc()).limit(limit + 1)
    if states:
        query = query.where(jobs.c.status.in_(states))
    if before is not None:
        query = query.where(jobs.c.panda_id < before)
    rows = tx.connection.execute(query).all()
    selects_all = search is None and queue is None
    return success(
        {
            "jobs": described(tx, rows[:limit], find),
            "before": rows[limit - 1].panda_id if len(rows) > limit else None,
            "counts": _all_counts(tx) if selects_all else _counts(tx, conditions),
        }
    )


@_job_call
def job_view(tx: Transaction, find: FindFile, *, panda_id: int) -> Envelope:
    """Returns one job: data ``{"job", "attempts", "files", "measures"}``."""
    row = tx.connection.execute(select(jobs).where(jobs.c.panda_id == panda_id)).one_or_none()
    if row is None:
        return _unknown(panda_id)
    same = _ROWS.where(jobs.c.task_id == row.task_id, jobs.c.number == row.number).order_by(jobs.c.panda_id)
    attempts, (job,) = described(tx, tx.connection.execute(same).all(), find), job_records(tx, [row])
    return success(
        {
            "job": next(one for one in attempts if one["panda_id"] == panda_id),
            "attempts": attempts,
            "files": [
                {"name": file.lfn, "dataset": file.dataset, "kind": file.kind, "size": file.size(find)}
                for file in job.outputs
            ],
            "measures": {name: value for name, value in job.reported.items() if value is not None},
        }
    )


@endpoint("hpo_pilot/job_log", "GET", USERS, Access.WAIT)
async def job_log(call: Call, *, panda_id: int, size: int = 65536) -> Envelope:
    """Returns the end of a job's log, at most `size` characters: data ``{"text", "is_whole"}``."""
    sources = await call.server.database.read(lambda tx: log_sources(tx, panda_id, call.server.find_file))
    return await asyncio.to_thread(_job_log, sources, panda_id, size)


def _job_log(sources: LogSources | None, panda_id: int, size: int) -> Envelope:
    if sources is None:
        return _unknown(panda_id)
    text, whole = log_text(*sources, max(1, min(size, LOG_LIMIT)))
    return success({"text": text, "is_whole": whole})


def answer_after_end(database: Path, files: Path, call: str, given: dict[str, Any]) -> Envelope:
    """Answers a question about jobs for a server that does not run; nothing is written.

    The database is opened for each answer, so that the server can start at any time.

    Args:
        database: the server's SQLite file.
        files: its folder of files. Logs that a Pilot 3 moved to the storage of a queue are not found.
        call: `job_list`, `job_view` or `job_log`.
        given: the arguments of the call.

    Raises:
        InputError: there is no such database, or it is not of this version.
    """
    if not database.is_file():
        raise InputError(f"there is no database {database}")

    def find(name: str) -> Path | None:
        path = files / "storage" / name
        return path if is_safe(name) and path.is_file() else None

    engine = sqlite_engine(URL.create("sqlite", database=str(database)))
    try:
        with engine.connect() as connection, connection.begin():
            if not tables_are_current(connection, "server", f"database {database}"):
                raise InputError(f"the database {database} is of an older version; the next server upgrades it")
            tx = Transaction(connection, time.time(), lambda: 0, {}, WaitingTasks())
            if call == "job_list":
                return job_list(tx, find, **given)
            if call == "job_view":
                return job_view(tx, find, **given)
            sources = log_sources(tx, given["panda_id"], find)
        return _job_log(sources, given["panda_id"], given["size"])
    except DBAPIError as error:
        raise InputError(f"the database {database} cannot be read: {error.orig}") from error
    finally:
        engine.dispose()


@endpoint("hpo_pilot/pilot_list", "GET", USERS, Access.WAIT)
async def pilot_list(call: Call) -> Envelope:
    """Returns pilots that called in the last hour or have jobs: data ``{"pilots": […]}``."""
    return success({"pilots": await _pilots(call)})


@endpoint("hpo_pilot/queue_list", "GET", USERS, Access.WAIT)
async def queue_list(call: Call) -> Envelope:
    """Returns the queues of the queue file, and queues with jobs or pilots: data ``{"queues": […]}``."""
    waiting, running = await call.server.database.read(lambda tx: (_by_queue(tx, WAITS), _by_queue(tx, AT_PILOT)))
    pilots = [one for one in await _pilots(call) if one["state"] in ("busy", "waiting")]
    described = call.server.queues.described
    names = {*described, *waiting, *running, *(one["queue"] for one in pilots)}
    return success({"queues": [_queue(name, described, waiting, running, pilots) for name in sorted(names)]})


async def _pilots(call: Call) -> list[dict[str, Any]]:
    notes = call.server.known_pilots.notes()
    return await call.server.database.read(lambda tx: pilots_shown(tx, notes))


def _by_queue(tx: Transaction, condition: TextClause) -> Counter[str]:
    """Returns the number of jobs by queue."""
    counts: Counter[str] = Counter()
    for (queue, _), n_jobs in jobs_at_queues(tx, condition).items():
        counts[queue] += n_jobs
    return counts


def _queue(
    name: str,
    described: Mapping[str, Queue],
    waiting: Mapping[str, int],
    running: Mapping[str, int],
    pilots: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    here = [one for one in pilots if one["queue"] == name]
    queue = described.get(name)
    limits = queue.model_dump(mode="json", exclude_none=True, include=_LIMITS) if queue else {}
    return {
        "name": name,
        "status": queue.status if queue else "",
        "description": queue.description if queue else "",
        "waiting": waiting.get(name, 0),
        "running": running.get(name, 0),
        "pilots": len(here),
        "slots": sum(one["slots"] for one in here) if all(one["slots"] is not None for one in here) else None,
        "limits": {key: value for key, value in limits.items() if value},
    }


_LIMITS = {"cores", "memory_mb", "disk_mb", "minutes", "gpus", "architecture"}


def _unknown(panda_id: int) -> Envelope:
    return failure(f"the PanDA server has no job {panda_id}: it never existed, or was removed", _NO_JOB)


_MOST_SHAPES = 1000  # shapes in one answer, the most frequent ones


@endpoint("hpo_pilot/demand", "GET", ANYBODY_KNOWN, Access.READ)
def demand(tx: Transaction, call: Call, *, queue: str = "", task_ids: list[int] | None = None) -> Envelope:
    """Returns waiting jobs by their needs, and the pilots that could take them.

    Args:
        tx: a transaction.
        call: the call.
        queue: only pilots of this queue, and jobs that they may take; empty: all pilots.
        task_ids: only jobs of these tasks; None: all tasks.

    Returns:
        data; times are in seconds before now:

        - ``waiting``: one entry for each shape of waiting jobs: the number of ``jobs``; ``since``, the start of the
          longest wait; ``queues``, the only ones that they may go to (none: any); ``site``, the site profile that their
          search names; ``nodes``, ``gpus``, ``cores``,
          ``memory_mb`` and ``minutes`` of one job (0: not given), and whether it has ``checkpoints``, so that it may
          run across several allocations;
        - ``going``: the number of jobs, of any task, at these pilots;
        - ``offers``: one entry for each pilot that asked for jobs in the last hour: the time when it last ``asked``,
          the most that it had free at once (0: not given), ``is_busy``: it has jobs, so it may not ask now, and
          ``why`` it cannot start jobs of these tasks (empty: it can);
        - ``known_for``: the time since the server started to listen.
    """
    found: dict[tuple[TaskNeeds, str], dict[str, Any]] = {}
    query = _WAITING if task_ids is None else _WAITING.where(among(jobs.c.task_id, set(task_ids)))
    for row in tx.connection.execute(query):
        if not _may_go(row, queue):
            continue
        queues = row.queue or (row.included or "").strip(",")
        entry = found.setdefault((parse_needs(row.needs), queues), {"jobs": 0, "since": 0.0})
        entry["jobs"] += row.n_jobs
        entry["since"] = max(entry["since"], tx.now - row.since)
    waiting = sorted((entry | _shape(*shape) for shape, entry in found.items()), key=lambda one: -one["jobs"])
    busy = {(row.harvester_id or "", row.worker_id or "") for row in tx.connection.execute(_BUSY)}
    offers = []
    for offer in call.server.known_pilots.offers(queue):
        is_busy = (offer.harvester_id, offer.worker_id) in busy
        told = {"asked": max(0.0, tx.now - offer.asked), "is_busy": is_busy}
        avoids = offer.avoids if task_ids is None else set(offer.avoids) & set(task_ids)
        offers.append(asdict(offer) | told | {"why": offer.why if avoids else ""})
    at_pilots = select(func.count()).select_from(jobs).where(AT_PILOT)
    going = tx.connection.scalar(at_pilots.where(queue_of_job == queue) if queue else at_pilots) or 0
    known = max(0.0, tx.now - call.server.known_pilots.began)
    return success({"waiting": waiting[:_MOST_SHAPES], "going": going, "offers": offers, "known_for": known})


_BUSY = select(jobs.c.harvester_id, jobs.c.worker_id).where(AT_PILOT).distinct()
_WAITING = (
    select(
        jobs.c.task_id,
        jobs.c.queue,
        tasks.c.included,
        tasks.c.excluded,
        tasks.c.needs,
        func.count().label("n_jobs"),
        func.min(jobs.c.state_changed).label("since"),
    )
    .join(tasks, tasks.c.task_id == jobs.c.task_id)
    .where(WAITS)
    .group_by(jobs.c.task_id, jobs.c.queue, tasks.c.included, tasks.c.excluded, tasks.c.needs)
)


def _may_go(row: AnyRow, queue: str) -> bool:
    """Returns whether pilots of the queue may take the waiting jobs of this row."""
    if not queue or row.queue:
        return not queue or bool(row.queue == queue)
    named = f",{queue},"
    return (not row.included or named in row.included) and named not in (row.excluded or "")


def _shape(needs: TaskNeeds, queues: str) -> dict[str, Any]:
    same = {name: getattr(needs.job, name) for name in ("nodes", "cores", "memory_mb", "minutes", "checkpoints")}
    share = {"gpu_share": needs.job.gpu_share} if needs.job.gpu_share > 1 else {}
    named = {"queues": queues.split(",") if queues else [], "site": needs.site}
    return same | named | {"gpus": needs.job.whole_gpus} | share
