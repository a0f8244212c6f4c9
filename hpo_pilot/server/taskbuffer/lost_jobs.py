"""Jobs whose pilot is silent or gone: their attempt ends, and the next one may start.

The error is PanDA's: jobDispatcherErrorCode 100, "lost heartbeat" (`pandaserver/jobdispatcher/Watcher.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import DBAPIError

from hpo_pilot.jobs import JobState
from hpo_pilot.server.access.ownership import PilotIdentity
from hpo_pilot.server.data.database import Database, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, jobs, workers
from hpo_pilot.server.envelope import utc
from hpo_pilot.server.metrics import HEARTBEATS_LOST
from hpo_pilot.server.taskbuffer.attempts import end_attempt, job_row

log = logging.getLogger(__name__)

LOST_HEARTBEAT = 100
_BATCH = 200  # jobs ended in one transaction, so that pilots' calls get in between

#: What a worker may be said to be; the real server knows the first two.
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
    """Lets every job at a pilot count as just heard of: while this server was away, nobody could be."""
    tx.connection.execute(update(jobs).where(AT_PILOT).values(heartbeat=tx.now + jobs.c.patience))


def update_worker(
    tx: Transaction, pilot: PilotIdentity, harvester_id: str, worker_id: str, status: str, node_id: str | None
) -> None:
    """Notes what became of a worker; the jobs still at one that ended are lost at once.

    Args:
        tx: a writing transaction.
        pilot: who says so: of jobs that other pilots took nothing is lost, for anybody may use a worker's name.
        harvester_id: with `worker_id` the worker's name.
        worker_id: see above.
        status: one of `WORKER_STATES`, or Harvester's word for one that ended.
        node_id: where it runs; None: not said.
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
    """Looks for lost jobs when one can be due; sleeps without a single wake-up while no pilot has a job."""

    def __init__(self, database: Database, timeout: float) -> None:
        """Watches nothing until `run` runs.

        Args:
            database: of the jobs.
            timeout: seconds of silence that make a job lost.
        """
        self._database = database
        self._timeout = timeout
        self._jobs_out = asyncio.Event()

    def job_went_out(self) -> None:
        """Somebody acquired a job: there is something to watch."""
        self._jobs_out.set()

    async def run(self) -> None:
        """Until cancelled; a database that fails for a while (a full disk) is tried again."""
        absent = True  # nobody could reach this server before it started
        while True:
            try:
                absent = await self._watch(absent)
            except DBAPIError as error:
                log.error("looking for lost jobs: %s", error.orig)
                await asyncio.sleep(min(10.0, self._timeout))

    async def _watch(self, absent: bool) -> bool:
        """One look, and the pause after it.

        Args:
            absent: the pilots could not report, so their silence says nothing.

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
        # Jobs are not looked at more often than this, however many there are.
        pause = max(due, min(1.0, self._timeout / 4))
        before = time.monotonic(), time.time()
        await asyncio.sleep(pause)
        # Where the pause was far too long the machine slept or its clock jumped: the silence was ours.
        return max(time.monotonic() - before[0], time.time() - before[1]) - pause > self._timeout / 2
