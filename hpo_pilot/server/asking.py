"""Trials of searches without payload, which clients ask for: each is a job in the queue of its search.

A client has a trial as a pilot has a job: its lease is the silence after which the job counts as lost, a value that it
reports is a heartbeat, and the result that it tells is the final report.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from hpo_pilot.jobs import ASKED_QUEUE, MOST_LEASE, JobState
from hpo_pilot.jobs.results import parse_reports, reported_progress
from hpo_pilot.pilot.report import progress_text
from hpo_pilot.server.attempts import record_report
from hpo_pilot.server.calls import MAX_WAIT, USERS, Access, Call, endpoint
from hpo_pilot.server.database import AT_PILOT, AT_PILOT_STATES, AnyRow, Transaction, job_documents, jobs, tasks
from hpo_pilot.server.dispatch import JobRequest, send, take
from hpo_pilot.server.pilot_calls import WAIT_HEADER, wait_at
from hpo_pilot.server.points import assignment_of, trial_of
from hpo_pilot.server.queues import Queue
from hpo_pilot.server.replies import Envelope, failure, success

_MOST_ASKS = 1000  # in one call
#: Jobs of no other queue, not even those that may run at any.
_ONLY_ITS_OWN = Queue(status="brokeroff")


@endpoint("hpo_pilot/ask", "POST", USERS, Access.WAIT)
async def ask(call: Call, *, search: str, uid: str, most: int, asks: list[dict[str, Any]]) -> Envelope:
    """Gives trials of a search of the caller to clients; with `WAIT_HEADER` the answer waits for the first one.

    Args:
        call: the call.
        search: name of the search.
        uid: its identity.
        most: number of trials that clients may have at once.
        asks: for each client `key`, which names the call of that client, `lease` in seconds, and `node`. The same key
            gets the same trial as long as the client has it.

    Returns:
        data: for each client that gets one `key`, `trial`, `attempt` and `point`.
    """
    kinds = {"key": str, "lease": int | float, "node": str}
    if not all(one.keys() == kinds.keys() and all(isinstance(one[key], kinds[key]) for key in kinds) for one in asks):
        return failure("asks must be a list of objects with key, lease and node")
    if len(asks) > _MOST_ASKS or not all(1 <= one["lease"] <= MOST_LEASE for one in asks):
        return failure(f"at most {_MOST_ASKS} asks, each with a lease from 1 to {MOST_LEASE:.0f} seconds")
    queue, campaign = f"{ASKED_QUEUE}{uid}", f"{call.caller.name}/{search}.{uid}"
    wanted = JobRequest(queue, queue=_ONLY_ITS_OWN, campaign=campaign, pilot=call.pilot)

    def request(key: str, lease: float, node: str) -> JobRequest:
        return replace(wanted, scheduler_id=key, node=node, patience=lease - call.server.watch.timeout)

    def look(tx: Transaction, waited: float) -> list[dict[str, Any]]:
        del waited
        rows = tx.connection.execute(select(jobs).where(AT_PILOT, jobs.c.queue == queue)).all()
        held = {row.scheduler_id: row for row in rows if row.command != "tobekilled"}
        found, free = [], most - len(held)
        for one in asks:
            job = held.get(one["key"])
            if job is None and free > 0:
                job = next(iter(take(tx, request(**one))), None)
                free = 0 if job is None else free - 1
            if job is not None:
                record_report(tx, JobState.RUNNING, {"job_id": job.panda_id}, None)
                trial, point = trial_of(tx, job.task_id, job.number)
                found.append({"key": one["key"], "trial": trial, "attempt": job.attempt_nr, "point": point})
        return found

    given = await wait_at(call, queue, call.seconds(WAIT_HEADER, MAX_WAIT), look)
    if given:
        call.server.watch.job_sent(min(one["lease"] for one in asks))
    return success(given)


def _last_attempt(tx: Transaction, call: Call, task: str, number: int) -> AnyRow | None:
    """Returns the last attempt of a job of a task of the caller; None: there is none."""
    its = (tasks.c.user_name == call.caller.name) & (tasks.c.name == task) & (jobs.c.number == number)
    query = select(jobs).join(tasks, tasks.c.task_id == jobs.c.task_id).where(its, jobs.c.queue.startswith(ASKED_QUEUE))
    return tx.connection.execute(query.order_by(jobs.c.panda_id.desc()).limit(1)).one_or_none()


@endpoint("hpo_pilot/report", "POST", USERS, Access.WRITE)
def report(
    tx: Transaction,
    call: Call,
    *,
    task: str,
    number: int,
    step: int,
    value: int | float | None = None,
    attempt: int | None = None,
) -> Envelope:
    """Records an intermediate value of a trial, and renews its lease.

    Args:
        tx: a writing transaction.
        call: the call.
        task: name of the task.
        number: number of the job in it.
        step: the step, from 0.
        value: the value; None: it is not finite.
        attempt: the attempt that the client has; None: the last one.

    Returns:
        data: why the trial is to end; empty: it goes on.
    """
    job = _last_attempt(tx, call, task, number)
    if job is None or job.status not in AT_PILOT_STATES or attempt not in (None, job.attempt_nr):
        over = job is not None and JobState(job.status).is_over
        return success("the trial is over" if over else "its lease has ended: it waits for another client, or has one")
    values = dict(reported_progress(job.job_metrics or ""))
    values.setdefault(step, math.nan if value is None else float(value))
    said: dict[str, Any] = {"job_id": job.panda_id, "job_metrics": progress_text(sorted(values.items()))}
    if record_report(tx, JobState.RUNNING, said, None) != "tobekilled":
        return success("")
    record_report(tx, JobState.FAILED, {"job_id": job.panda_id}, None)  # the client has nothing more to say
    return success("it was stopped: early, or with its search")


@endpoint("hpo_pilot/tell", "POST", USERS, Access.WRITE)
def tell(
    tx: Transaction,
    call: Call,
    *,
    task: str,
    number: int,
    values: list[float],
    message: str,
    metrics: dict[str, Any],
    node: str,
) -> Envelope:
    """Records the result of a trial. The first result counts, whichever client tells it, as long as the trial is open.

    Args:
        tx: a writing transaction.
        call: the call.
        task: name of the task.
        number: number of the job in it.
        values: one for each objective; none: it failed.
        message: the reason of a failure.
        metrics: further figures.
        node: the client's machine.

    Returns:
        data: the result that counts, with `values` and `message`; empty: none can count any more in this task.
    """
    job, assignment = _last_attempt(tx, call, task, number), None
    if job is not None:
        assignment = assignment_of(tx, job.task_id)
    if job is None or assignment is None:
        return failure(f"there is no job {number} of a task {task}")
    state = JobState(job.status)
    if state is JobState.FINISHED:
        query = select(job_documents.c.meta_data).where(job_documents.c.panda_id == job.panda_id)
        counted = next(iter(parse_reports(json.loads(tx.connection.scalar(query) or "{}"))), None)
        return success({"values": counted.values, "message": counted.message} if counted else {})
    if state.is_over:
        return success({})
    if state not in AT_PILOT_STATES:  # its lease has ended, and no other client has got it
        send(tx, JobRequest(job.queue, node=node, pilot=call.pilot), [job.panda_id])
    started = job.started or tx.now
    (trial, fold), *_ = assignment.members[job.number]
    reported = reported_progress(job.job_metrics or "")
    progress = [[step, value if math.isfinite(value) else None] for step, value in reported]
    verdict = {
        **{"uid": assignment.uid, "generation": assignment.generation, "trial": trial, "fold": fold},
        **{"number": job.number, "attempt": job.attempt_nr, "version": 1, "status": int(not values)},
        **{"value": values[0] if values else None, "values": values, "message": message},
        **{"metrics": metrics, "node": node, "progress": progress},
        **{"started": started, "ended": tx.now, "seconds": tx.now - started},
    }
    said = {"job_id": job.panda_id, "meta_data": json.dumps({"user_job_metadata": {"hpo_pilot": verdict}})}
    record_report(tx, JobState.FINISHED, said | {"node": node}, None)
    tx.activated[job.queue, job.task_id] += 1  # a client that waits may have another trial now
    return success({"values": values, "message": message})
