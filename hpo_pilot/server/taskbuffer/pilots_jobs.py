"""The jobs that a pilot has, and the files that are therefore its own to write."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import select

from hpo_pilot.server.access.ownership import PilotIdentity
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, jobs
from hpo_pilot.server.taskbuffer.descriptions import texts_of
from hpo_pilot.server.taskbuffer.known_tasks import known_task

_NUMBERS = re.compile(r"\d{1,9}", re.ASCII)
_JOBS = select(
    *(jobs.c.task_id, jobs.c.number, jobs.c.attempt_nr, jobs.c.holder, jobs.c.holder_node, jobs.c.holder_key)
).where(AT_PILOT)


def makes_file(tx: Transaction, pilot: PilotIdentity, name: str) -> bool:
    """Whether a job that this pilot has is to make an output or log of this name.

    Only jobs whose number is in the name are looked at, and first jobs: the names of all others' files have ${SN}.
    """
    numbers = {1, *map(int, _NUMBERS.findall(name))}
    return any(
        any(file.lfn == name for file in texts_of(known_task(tx, job.task_id), job).files)
        for job in _held(pilot, tx.connection.execute(_JOBS.where(jobs.c.number.in_(numbers))))
    )


def has_job(tx: Transaction, pilot: PilotIdentity, task_id: int, sub_id: str) -> bool:
    """Whether this pilot has a job of the task that may keep the checkpoint `sub_id`.

    Our pilot calls a checkpoint after its job's number; what runs under other pilots may call it after a point.
    """
    held = _held(pilot, tx.connection.execute(_JOBS.where(jobs.c.task_id == task_id)))
    return any(not pilot.key or sub_id in _numbers(tx, job) for job in held)


def _numbers(tx: Transaction, job: AnyRow) -> tuple[str, str]:
    """A job's number in its task, and as its command has it."""
    return str(job.number), str(texts_of(known_task(tx, job.task_id), job).sequence)


def _held(pilot: PilotIdentity, rows: Iterable[AnyRow]) -> list[AnyRow]:
    return [row for row in rows if pilot.has(row)]
