"""``hpo_pilot/job_list`` and its kin: what the monitor's pages show of jobs, pilots and queues.

PanDA has no such calls; a real server answers that they are forbidden. As on a BigPanDA, everybody known sees all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import AT_PILOT, WAITS, jobs
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.job_logs import LOG_LIMIT, log_sources, log_text
from hpo_pilot.server.taskbuffer.job_pages import FindFile, JobFilter
from hpo_pilot.server.taskbuffer.job_pages import job_list as list_of_jobs
from hpo_pilot.server.taskbuffer.job_pages import job_view as view_of_job
from hpo_pilot.server.taskbuffer.pilot_book import pilots_shown
from hpo_pilot.server.taskbuffer.queue import Queue
from hpo_pilot.server.taskbuffer.queuedata import find_output
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint

_MOST_JOBS = 1000  # in one answer
_MOST_TASKS = 10_000  # in one question
_STATES = frozenset(state.value for state in JobState)

#: The data of a refusal, by which it is told from others.
_NO_JOB = "no job"


def find_file(call: Call) -> FindFile:
    """What finds an output or log by its name, wherever pilots have put it."""
    server = call.server

    def find(name: str) -> Path | None:
        return server.storage.find(name) or find_output(server.queues, name)

    return find


@endpoint("hpo_pilot/job_list", "GET", USERS, Access.READ)
def job_list(
    tx: Transaction,
    call: Call,
    *,
    task_ids: list[int] | None = None,
    search: str | None = None,
    states: list[str] | None = None,
    queue: str | None = None,
    pilot: str | None = None,
    limit: int = 100,
    before: int | None = None,
) -> Envelope:
    """Jobs, newest first, at most 1000; `search` is the uid or name of a search, `before` a PandaID.

    Returns:
        data ``{"jobs": […], "before": for the next page, "counts": {state: how many}}``.
    """
    if unknown := sorted(set(states or ()) - _STATES):
        return failure(f"there is no job state {unknown[0][:50]!r}: {', '.join(sorted(_STATES))}")
    if not 1 <= limit <= _MOST_JOBS or len(task_ids or ()) > _MOST_TASKS:
        return failure(f"limit must be 1 to {_MOST_JOBS}, task_ids at most {_MOST_TASKS}")
    wanted = JobFilter(tuple(task_ids or ()), search, tuple(states or ()), queue, pilot)
    return success(list_of_jobs(tx, wanted, limit, before, find_file(call)))


@endpoint("hpo_pilot/job_view", "GET", USERS, Access.READ)
def job_view(tx: Transaction, call: Call, *, panda_id: int) -> Envelope:
    """One job: data ``{"job", "attempts", "files", "measures"}``."""
    found = view_of_job(tx, panda_id, find_file(call))
    return _unknown(panda_id) if found is None else success(found)


@endpoint("hpo_pilot/job_log", "GET", USERS, Access.WAIT)
async def job_log(call: Call, *, panda_id: int, size: int = 65536) -> Envelope:
    """The end of a job's log, at most `size` characters: data ``{"text", "is_whole"}``."""
    find = find_file(call)
    sources = await call.server.database.read(lambda tx: log_sources(tx, panda_id, find))
    if sources is None:
        return _unknown(panda_id)
    text, whole = await asyncio.to_thread(log_text, sources, max(1, min(size, LOG_LIMIT)))
    return success({"text": text, "is_whole": whole})


@endpoint("hpo_pilot/pilot_list", "GET", USERS, Access.WAIT)
async def pilot_list(call: Call) -> Envelope:
    """The pilots that have called in the last hour, and those that have jobs: data ``{"pilots": […]}``."""
    return success({"pilots": await _pilots(call)})


@endpoint("hpo_pilot/queue_list", "GET", USERS, Access.WAIT)
async def queue_list(call: Call) -> Envelope:
    """The queues that are described, and those where jobs or pilots are: data ``{"queues": […]}``."""
    waiting, running = await call.server.database.read(_active)
    pilots = [one for one in await _pilots(call) if one["state"] in ("busy", "waiting")]
    described = call.server.queues.described
    names = {*described, *waiting, *running, *(one["queue"] for one in pilots)}
    return success({"queues": [_queue(name, described, waiting, running, pilots) for name in sorted(names)]})


async def _pilots(call: Call) -> list[dict[str, Any]]:
    notes = call.server.pilot_book.notes()
    return await call.server.database.read(lambda tx: pilots_shown(tx, notes))


def _active(tx: Transaction) -> tuple[Counter[str], Counter[str]]:
    """How many jobs wait at each queue, and how many pilots have there."""
    where = func.coalesce(jobs.c.site, jobs.c.queue)
    waiting = select(jobs.c.queue.label("queue"), func.count().label("n_jobs")).where(WAITS).group_by(jobs.c.queue)
    running = select(where.label("queue"), func.count().label("n_jobs")).where(AT_PILOT).group_by(where)

    def counted(query: Select[Any, Any]) -> Counter[str]:
        return Counter({row.queue: row.n_jobs for row in tx.connection.execute(query)})

    return counted(waiting), counted(running)


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
    return failure(f"the PanDA server has no job {panda_id}: it never had, or has removed it since", _NO_JOB)
