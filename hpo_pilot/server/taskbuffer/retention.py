"""Old data goes: tasks that have been over for long, with their jobs, outputs and sandboxes.

Slice by slice, each one short transaction, so that pilots' calls get in between. What a task needs that is still kept
stays, however old: a sandbox goes when it was not touched for as long and no task names it. Checkpoints of points go
a day after their task was over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from pathlib import Path

from sqlalchemy import delete, func, select
from sqlalchemy.exc import DBAPIError

from hpo_pilot.jobs import TaskState
from hpo_pilot.server.data.database import Database, Transaction, in_slices
from hpo_pilot.server.data.file_store import CHECKPOINT_START, Folder, checkpoint_task, plain_name
from hpo_pilot.server.data.tables import cache_files, job_documents, jobs, metadata, tasks, workers
from hpo_pilot.server.taskbuffer.known_tasks import known_task

log = logging.getLogger(__name__)

SLICE = 500  # jobs, or files, in one transaction
_DAY = 86_400.0  # seconds
_PAUSE = 0.2  # seconds between two slices
_FIRST, _EVERY = 600.0, 3600.0  # seconds until the first sweep, and between two

#: Whatever else is kept of a task.
_OF_TASKS = [table for table in metadata.sorted_tables if "task_id" in table.c and table not in (tasks, jobs)]
_OVER = [state.value for state in TaskState if state.is_over]


class Housekeeping:
    """Removes what is older than the server keeps it."""

    def __init__(self, database: Database, cache: Folder, storage: Folder, days: float) -> None:
        """Removes nothing until `run` runs.

        Args:
            database: of the tasks.
            cache: the folder of sandboxes.
            storage: the folder of outputs.
            days: how long things are kept; 0: for ever.
        """
        self._database = database
        self._cache = cache
        self._storage = storage
        self._seconds = days * _DAY

    async def run(self) -> None:
        """Until cancelled; a database that fails for a while is tried again."""
        if self._seconds <= 0:
            return
        await asyncio.sleep(_FIRST)
        while True:
            try:
                while await self._database.write(self.remove_slice):
                    await asyncio.sleep(_PAUSE)
            except (DBAPIError, OSError) as error:
                log.error("removing old data: %s", error)
            await asyncio.sleep(_EVERY)

    def remove_slice(self, tx: Transaction) -> bool:
        """Removes a little of what is too old.

        Returns:
            False: there is no more.
        """
        before = tx.now - self._seconds
        return (
            self._remove_jobs(tx, before)
            or self._remove_checkpoints(tx)
            or self._remove_sandboxes(tx, before)
            or self._remove_rest(tx, before)
        )

    def _remove_jobs(self, tx: Transaction, before: float) -> bool:
        # The last change of all stays: cursors are counted on from it.
        newest = select(func.max(tasks.c.change)).scalar_subquery()
        task_id = tx.connection.scalar(
            select(tasks.c.task_id)
            .where(
                tasks.c.ended < before, tasks.c.modified < before, tasks.c.status.in_(_OVER), tasks.c.change < newest
            )
            .order_by(tasks.c.ended)
            .limit(1)
        )
        if task_id is None:
            return False
        some = select(jobs.c.panda_id, jobs.c.number, jobs.c.attempt_nr).where(jobs.c.task_id == task_id).limit(SLICE)
        rows = tx.connection.execute(some).all()
        if not rows:
            for table in _OF_TASKS:
                tx.connection.execute(delete(table).where(table.c.task_id == task_id))
            tx.connection.execute(delete(tasks).where(tasks.c.task_id == task_id))
            return True
        parameters = known_task(tx, task_id).parameters
        for row in rows:
            texts = parameters.job(task_id=task_id, number=row.number, attempt_nr=row.attempt_nr)
            for file in texts.files:
                _remove_old(self._storage, file.lfn, before)
        ids = [row.panda_id for row in rows]
        tx.connection.execute(delete(job_documents).where(job_documents.c.panda_id.in_(ids)))
        tx.connection.execute(delete(jobs).where(jobs.c.panda_id.in_(ids)))
        return True

    def _remove_checkpoints(self, tx: Transaction) -> bool:
        """Those of tasks that have been over for a day: they are large, and only further attempts would want them."""
        names = tx.connection.scalars(select(cache_files.c.name).where(cache_files.c.name.startswith(CHECKPOINT_START)))
        by_task = defaultdict(list)
        for name in names:
            by_task[checkpoint_task(name)].append(name)
        for some in in_slices(sorted(by_task)):
            ended = tasks.c.ended.is_(None) | (tasks.c.ended >= tx.now - _DAY)
            for kept in tx.connection.scalars(select(tasks.c.task_id).where(tasks.c.task_id.in_(some), ended)):
                del by_task[kept]
        old = [name for its in by_task.values() for name in its][:SLICE]
        for name in old:
            self._cache.remove(name)
        if old:
            tx.connection.execute(delete(cache_files).where(cache_files.c.name.in_(old)))
        return bool(old)

    def _remove_sandboxes(self, tx: Transaction, before: float) -> bool:
        named = select(tasks.c.sandbox).where(tasks.c.sandbox.is_not(None))
        unused = select(cache_files.c.name).where(cache_files.c.touched < before, cache_files.c.name.not_in(named))
        names = tx.connection.scalars(unused.limit(SLICE)).all()
        for name in names:
            self._cache.remove(plain_name(name))
        if names:
            tx.connection.execute(delete(cache_files).where(cache_files.c.name.in_(names)))
        return bool(names)

    def _remove_rest(self, tx: Transaction, before: float) -> bool:
        tx.connection.execute(delete(workers).where(workers.c.ended < before))
        return False


def _remove_old(folder: Folder, name: str, before: float) -> None:
    """Removes a file unless it was written lately: another task may use the same name."""
    path: Path | None = folder.find(name)
    if path is not None and path.stat().st_mtime < before:
        folder.remove(name)
