"""The hyper-parameter points of tasks, for payloads that fetch theirs and report the loss, as iDDS has them do.

A task of hpo-pilot carries its points in its jobs' ``--task`` argument: base64url(zlib(JSON)) of ``{"jobs": [[trial,
fold, seed], …], "points": {"<trial>": {…}}}``; a job that runs several has a list of those triples. The points are
numbered from 1 in that order, so that a point's number is its job's wherever each job has one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sqlalchemy import delete, insert, select

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import jobs, point_losses
from hpo_pilot.server.taskbuffer.known_tasks import known_task

#: Where the job dictionary given to pilots has the job's capability.
CAPABILITY_KEY = "hpoPilotPoints"

_TASK_ARGUMENT = re.compile(r"--task ([A-Za-z0-9_-]+=*) --number ")
_MOST_BYTES = 8 << 20  # of a task's points, unpacked
_SECRET_BYTES = 32

#: What reading a user's text may raise.
_UNREADABLE = (binascii.Error, zlib.error, ValueError, KeyError, TypeError, IndexError, RecursionError)

#: Jobs that a pilot has, hence may use their capability.
_AT_PILOT = frozenset({JobState.SENT, JobState.STARTING, JobState.RUNNING, JobState.TRANSFERRING, JobState.HOLDING})


class PointStatus(StrEnum):
    """How far a point is; names of iDDS's `ContentStatus`, but for the last, which it calls Available."""

    NEW = "New"
    PROCESSING = "Processing"
    FINISHED = "Finished"


@dataclass(frozen=True)
class Point:
    """A point and what is known of it.

    Attributes:
        number: from 1, in its task.
        job: the number of the job that runs it, from 1.
        parameters: name -> value.
        loss: None: nobody has reported one.
    """

    number: int
    job: int
    trial: int
    fold: int
    parameters: Mapping[str, Any]
    status: PointStatus
    loss: float | None


class Capabilities:
    """Unguessable path segments, each good for the points of one job while a pilot has it.

    The payload's environment holds no token: what it can do with this is to read its own points and report on them.
    """

    def __init__(self, file: Path) -> None:
        """Reads the secret that they are made with; makes it if need be.

        Raises:
            InputError: it cannot be read or written.
        """
        try:
            try:
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                self._secret = file.read_bytes()
            else:
                self._secret = secrets.token_bytes(_SECRET_BYTES)
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(self._secret)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}") from error
        if len(self._secret) != _SECRET_BYTES:
            raise InputError(f"{file} is damaged: without it another is made")

    def of(self, panda_id: int) -> str:
        """The capability of a job."""
        digest = hmac.digest(self._secret, str(panda_id).encode(), hashlib.sha256)
        return f"{panda_id}-{base64.urlsafe_b64encode(digest[:24]).decode()}"

    def job(self, capability: str) -> int | None:
        """The job whose capability this is; None: nobody's."""
        number = capability.partition("-")[0]
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            return None
        expected = self.of(int(number))
        return int(number) if hmac.compare_digest(expected.encode(), capability.encode("utf-8", "replace")) else None


def points_of(tx: Transaction, task_id: int, job: int | None = None) -> list[Point]:
    """The points of a task that is not broken; none: it is no task of hpo-pilot.

    Args:
        job: the number of the job whose points are wanted; None: all.
    """
    table = [
        (number, entry) for number, entry in enumerate(_table(_encoded(tx, task_id)), 1) if job in (None, entry[0])
    ]
    attempts = select(jobs.c.number, jobs.c.status).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id)
    if job is not None:
        attempts = attempts.where(jobs.c.number == job)
    states = {row.number: JobState(row.status) for row in tx.connection.execute(attempts)}  # the last one counts
    known = select(point_losses.c.number, point_losses.c.loss).where(point_losses.c.task_id == task_id)
    if job is not None:
        known = known.where(point_losses.c.number.in_([number for number, _ in table]))
    losses = {row.number: row.loss for row in tx.connection.execute(known)}
    return [
        Point(
            number, ran_by, trial, fold, parameters, _status(states.get(ran_by), losses.get(number)), losses.get(number)
        )
        for number, (ran_by, trial, fold, parameters) in table
    ]


def job_at_pilot(tx: Transaction, panda_id: int) -> tuple[int, int] | None:
    """(task, job number) of a job that a pilot has; None: it is over, or was never there."""
    row = tx.connection.execute(
        select(jobs.c.task_id, jobs.c.number, jobs.c.status).where(jobs.c.panda_id == panda_id)
    ).first()
    return None if row is None or JobState(row.status) not in _AT_PILOT else (row.task_id, row.number)


def set_loss(tx: Transaction, task_id: int, number: int, loss: float | None) -> None:
    """Stores what was reported of a point; None: nothing any more."""
    tx.connection.execute(
        delete(point_losses).where(point_losses.c.task_id == task_id, point_losses.c.number == number)
    )
    if loss is not None:
        tx.connection.execute(insert(point_losses).values(task_id=task_id, number=number, loss=loss, modified=tx.now))


def _status(state: JobState | None, loss: float | None) -> PointStatus:
    if loss is not None or (state is not None and state.is_over):
        return PointStatus.FINISHED
    return PointStatus.PROCESSING if state in _AT_PILOT else PointStatus.NEW


def _encoded(tx: Transaction, task_id: int) -> str:
    match = _TASK_ARGUMENT.search(unquote(known_task(tx, task_id).parameters.template))
    return match[1] if match else ""


@dataclass(frozen=True)
class Assignment:
    """What the jobs of a task of hpo-pilot are for.

    Attributes:
        uid: the search's identity in its store.
        members: by the job's number, (trial, fold) of each point that it runs.
    """

    search: str
    uid: str
    generation: int
    members: Mapping[int, tuple[tuple[int, int], ...]]


def assignment_of(tx: Transaction, task_id: int) -> Assignment | None:
    """What the task's jobs are for, by its parameters; None: it is no task of hpo-pilot, or broken."""
    try:
        return _assignment(_encoded(tx, task_id))
    except InputError:  # its parameters make no sense
        return None


@lru_cache(maxsize=512)
def _assignment(encoded: str) -> Assignment | None:
    try:
        document = _document(encoded)
        members: dict[int, list[tuple[int, int]]] = {}
        for number, trial, fold, _ in _table(encoded):
            members.setdefault(number, []).append((trial, fold))
        return Assignment(
            str(document["search"]),
            str(document["uid"]),
            int(document["generation"]),
            {number: tuple(found) for number, found in members.items()},
        )
    except _UNREADABLE:
        return None


def _document(encoded: str) -> Any:
    """What a `--task` argument holds; one of `_UNREADABLE` where it is none of ours."""
    return json.loads(zlib.decompressobj().decompress(base64.urlsafe_b64decode(encoded), _MOST_BYTES))


@lru_cache(maxsize=64)
def _table(encoded: str) -> tuple[tuple[int, int, int, Mapping[str, Any]], ...]:
    """(job, trial, fold, point) of each; what cannot be read is as if it were not there: it is a user's text."""
    if not encoded:
        return ()
    try:
        document = _document(encoded)
        found = []
        for job, entry in enumerate(document["jobs"], 1):
            for trial, fold, _seed in entry if isinstance(entry[0], list) else [entry]:
                found.append((job, int(trial), int(fold), dict(document["points"][str(trial)])))
    except _UNREADABLE:
        return ()
    return tuple(found)
