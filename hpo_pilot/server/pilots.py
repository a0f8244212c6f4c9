"""Pilots: their free room, the files that they may write; callers that wait for jobs and for changes."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from time import time
from typing import Any

from sqlalchemy import or_, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.brokerage import free_gpus
from hpo_pilot.server.database import AT_PILOT, AnyRow, Transaction, jobs, tasks, workers
from hpo_pilot.server.dispatch import JobRequest
from hpo_pilot.server.job_records import texts_of
from hpo_pilot.server.task_parameters import known_task
from hpo_pilot.server.tokens import PilotIdentity

_LONGEST = 128  # characters of a queue's name; no queue has a longer one


@dataclass(frozen=True)
class Offer:
    """The most that a pilot has had free for one job at any time; 0: not known.

    Attributes:
        queue: the queue that it serves.
        harvester_id: first part of its name, if it has a name; `worker_id` is the second.
        asked: time of its last request for jobs, in seconds since the epoch.
        nodes: free nodes at once.
        gpus: free GPUs of a node.
        cores: free cores of a node.
        memory_mb: free memory of a node, in MB.
        minutes: time for one job, in minutes.
        site: name of its site profile; empty: it states none.
        avoids: tasks of searches whose jobs it cannot start.
        why: the reason.
    """

    queue: str
    harvester_id: str
    worker_id: str
    asked: float
    nodes: int
    gpus: int
    cores: int
    memory_mb: int
    minutes: float
    site: str = ""
    avoids: tuple[int, ...] = ()
    why: str = ""


def offer_of(request: JobRequest, now: float) -> Offer:
    """Returns the free room that a request states."""
    who = (request.site[:_LONGEST], request.harvester_id, request.worker_id)
    more = (request.profile, request.avoids, request.why)
    if request.allocation is None:
        gpus = math.ceil(sum(free_gpus(request.gpus or ())))
        return Offer(*who, now, 1, gpus, request.cores, request.memory, request.remaining_time / 60, *more)
    allocation, room = request.allocation, request.allocation.largest
    # The longest time limit of a job without checkpoints that would start. From searches with measured run times, the
    # pilot also takes jobs with a longer limit.
    minutes = 0.0 if allocation.seconds else room.seconds / (allocation.left.share or 1.0) / 60
    return Offer(*who, now, room.nodes, math.ceil(sum(room.gpus)), room.cores, room.memory_mb, minutes, *more)


def most_of(one: Offer, other: Offer) -> Offer:
    """Returns `other` with the larger of both sizes."""
    most: dict[str, Any] = {
        name: max(getattr(one, name), getattr(other, name)) for name in ("nodes", "gpus", "cores", "memory_mb")
    }
    minutes = max(one.minutes, other.minutes) if one.minutes and other.minutes else 0.0
    return replace(other, **most, minutes=minutes)


# Pilots of the last hour, in memory: the pages show them, and the demand for pilots is estimated from them.
# Brokerage does not use these notes, so a restart may lose them: every running pilot calls again within a
# minute, and pilots with jobs are known by their jobs.

#: A pilot without jobs counts as silent after this many seconds without a call. Our pilots call at least every minute.
SILENT = 120.0
#: Seconds after which a pilot that ended, or fell silent, is forgotten; and how many are remembered at most.
KEPT = 3600.0
MOST = 32_768

_OURS = "hpo-pilot"
_UNKNOWN = "unknown"


def host(name: str) -> str:
    """Returns the machine's name without the slot: ``slot1@node`` and ``node`` are the same machine."""
    return name.rsplit("@", 1)[-1][:128]


def key_of(harvester: str | None, worker: str | None, node: str | None, queue: str | None) -> str:
    """Returns a pilot's name: ``harvester/worker``, else ``host at queue``; empty: it has none."""
    if harvester or worker:
        return f"{harvester or ''}/{worker or ''}"
    return f"{host(node)} at {queue or ''}" if node else ""


@dataclass(frozen=True)
class PilotNote:
    """Information on a pilot from its requests.

    Attributes:
        key: its name; empty: it has no name, and is not on the pages.
        since: time of its first request, in seconds since the epoch.
        slots: the largest number of jobs that it has asked for at once.
        nodes: free nodes of its allocation; None: it has no allocation.
        offer: the most that it had free, its place, and the time of its last request.
    """

    key: str
    host: str
    kind: str
    version: str
    since: float
    slots: int
    nodes: int | None
    offer: Offer


class KnownPilots:
    """The pilots that ask for jobs. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        """Starts without pilots."""
        self._clock = clock
        self.began = clock()  #: time when it started to listen, in seconds since the epoch
        self._lock = threading.Lock()
        self._notes: OrderedDict[tuple[str, str], PilotNote] = OrderedDict()

    def asked(self, request: JobRequest, program: str) -> None:
        """Notes that a pilot asks for jobs.

        Args:
            request: the request; its `site` is the queue's name.
            program: its User-Agent.
        """
        offer = offer_of(request, self._clock())
        key = key_of(request.harvester_id, request.worker_id, request.node, offer.queue)
        kind, version = _program(program)
        place = key, offer.queue
        with self._lock:
            before = self._notes.pop(place, None)
            self._notes[place] = PilotNote(
                key=key,
                host=host(request.node),
                kind=kind,
                version=version,
                since=before.since if before else offer.asked,
                slots=max(request.n_jobs, before.slots if before else 0),
                nodes=None if request.allocation is None else sum(room.nodes for room in request.allocation.now),
                offer=most_of(before.offer, offer) if before else offer,
            )
            while len(self._notes) > MOST or next(iter(self._notes.values())).offer.asked < offer.asked - KEPT:
                self._notes.popitem(last=False)

    def offers(self, queue: str) -> list[Offer]:
        """Returns the free room of a queue's pilots in the last hour; queue empty: of all queues."""
        since = self._clock() - KEPT
        with self._lock:
            offers = [note.offer for note in self._notes.values()]
        return [offer for offer in offers if offer.asked >= since and queue in ("", offer.queue)]

    def notes(self) -> list[PilotNote]:
        """Returns the known pilots that have a name, the least recent first."""
        with self._lock:
            return [note for note in self._notes.values() if note.key]


def _program(agent: str) -> tuple[str, str]:
    """Returns kind and version of a pilot from its User-Agent: ``hpo-pilot/0.1.0``, ``pilot/3.7.0.36 (Python …)``."""
    first = agent.split(" ", 1)[0][:100]
    name, _, version = first.partition("/")
    if name == "pilot":
        return f"Pilot {version.partition('.')[0]}".rstrip(), version
    return name or _UNKNOWN, version


def pilots_shown(tx: Transaction, notes: Iterable[PilotNote]) -> list[dict[str, Any]]:
    """Returns the known pilots and all pilots with jobs, in the form for the pages, by queue and name."""
    columns = (
        *(jobs.c.panda_id, jobs.c.harvester_id, jobs.c.worker_id, jobs.c.node, jobs.c.site, jobs.c.pilot_id),
        *(jobs.c.heartbeat, jobs.c.patience),
    )
    busy: dict[str, list[AnyRow]] = {}
    for row in tx.connection.execute(select(*columns).where(AT_PILOT).order_by(jobs.c.panda_id)):
        if key := key_of(row.harvester_id, row.worker_id, row.node, row.site):
            busy.setdefault(key, []).append(row)
    w = workers.c
    over = select(w.harvester_id, w.worker_id, w.ended).where(w.ended >= tx.now - KEPT, w.status != "started")
    ended = {(row.harvester_id, row.worker_id): row.ended for row in tx.connection.execute(over)}
    noted = {note.key: note for note in notes if note.offer.asked >= tx.now - KEPT or note.key in busy}
    shown = [_shown(tx.now, key, noted.get(key), busy.get(key, []), ended) for key in {**noted, **busy}]
    return sorted(shown, key=lambda one: (one["queue"], one["key"]))


def _shown(
    now: float, key: str, note: PilotNote | None, rows: list[AnyRow], ended: dict[tuple[str, str], float]
) -> dict[str, Any]:
    """Returns one pilot for the pages; `note` is None if it has not asked for jobs since this server started."""
    times = [row.heartbeat - row.patience for row in rows if row.heartbeat is not None]
    common = {"key": key, "state": "busy", "jobs": [row.panda_id for row in rows], "version": ""}
    if note is None:
        last = rows[-1]
        return common | {
            "host": host(last.node or ""),
            "queue": last.site or "",
            "kind": _OURS if (last.pilot_id or "").startswith(f"{_OURS}|") else _UNKNOWN,
            "heard": max(times, default=None),
            **dict.fromkeys(("since", "slots", "nodes")),
        }
    offer = note.offer
    heard = max([offer.asked, *times])
    if not rows:
        common["state"] = "waiting" if heard >= now - SILENT else "silent"
        if ended.get((offer.harvester_id, offer.worker_id), 0.0) >= offer.asked:
            common["state"] = "ended"
    said = {name: getattr(note, name) for name in ("host", "kind", "version", "since", "nodes")}
    return common | said | {"queue": offer.queue, "heard": heard, "slots": max(note.slots, len(rows))}


_NUMBERS = re.compile(r"\d{1,9}", re.ASCII)
_ANY_JOBS = select(
    *(jobs.c.task_id, jobs.c.number, jobs.c.attempt_nr, jobs.c.holder, jobs.c.holder_node, jobs.c.holder_key)
)
_JOBS = _ANY_JOBS.where(AT_PILOT)


def makes_file(tx: Transaction, pilot: PilotIdentity, name: str) -> bool:
    """Returns whether one of this pilot's jobs may write an output or log with this name.

    Checks only jobs of tasks whose number is in the name, as in every output's, and of these the ones whose own number
    is there, and first jobs: the file names of all other jobs contain ${SN}.
    """
    numbers = set(map(int, _NUMBERS.findall(name)))
    rows = tx.connection.execute(_JOBS.where(jobs.c.task_id.in_(numbers), jobs.c.number.in_({1, *numbers})))
    return any(
        file.lfn == name for job in _held(pilot, rows) for file in texts_of(known_task(tx, job.task_id), job).files
    )


def owner_of(tx: Transaction, name: str, also: str) -> str | None:
    """Returns the owner of an output by its name: of users a and a.b, the second owns user.a.b.1.x.

    Args:
        tx: a transaction.
        name: the output.
        also: a user who may have no tasks.
    """
    parts = name.split(".")
    if parts[0] != "user":
        return None
    users = [".".join(parts[1:end]) for end in range(2, len(parts))]
    known = set(tx.connection.scalars(select(tasks.c.user_name).where(tasks.c.user_name.in_(users)).distinct()))
    return max((user for user in users if user in known or user == also), key=len, default=None)


def has_job(tx: Transaction, pilot: PilotIdentity, task_id: int, sub_id: str, *, finished: bool = False) -> bool:
    """Returns whether this pilot has a job of the task that may keep the checkpoint `sub_id`.

    Our pilot names a checkpoint after the job's number, and that of a trial with a level ``<number>.t<trial>f<fold>``;
    payloads under other pilots may name it after a point. `finished`: or had the job when it finished.
    """
    query = _ANY_JOBS.where(or_(AT_PILOT, jobs.c.status == JobState.FINISHED)) if finished else _JOBS
    held = _held(pilot, tx.connection.execute(query.where(jobs.c.task_id == task_id)))
    if not pilot.key:
        return bool(held)
    sub_id = sub_id.partition(".t")[0]
    return any(sub_id in (str(job.number), str(texts_of(known_task(tx, task_id), job).sequence)) for job in held)


def _held(pilot: PilotIdentity, rows: Iterable[AnyRow]) -> list[AnyRow]:
    return [row for row in rows if pilot.has(row)]


def _end(future: asyncio.Future[bool], woken: bool) -> None:
    if not future.done():
        future.set_result(woken)


async def _within(future: asyncio.Future[bool], seconds: float) -> bool:
    """Returns whether `future` was woken in time; with fewer objects for each that waits than `asyncio.wait_for`."""
    timer = asyncio.get_running_loop().call_later(seconds, _end, future, False)
    try:
        return await future
    finally:
        timer.cancel()


class Waiter:
    """One pilot that waits at a queue."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.tried = 0  # the round of its last look for a job
        self.called_for = site  # the queue of the jobs for which it was woken
        self.called = False  # whether it was woken for a job, and has not looked since
        self.wake: asyncio.Future[bool] | None = None

    def call(self, called_for: str) -> None:
        """Wakes it to look for a job at the queue `called_for`."""
        self.called, self.called_for = True, called_for
        if self.wake is not None:
            _end(self.wake, True)


class WaitingPilots:
    """Pilots that wait for jobs, first come, first served.

    A new waiting job wakes one pilot, not all. If no job fits this pilot, but one is left, it wakes the next one that
    has not looked since. So no pilot misses a job that fits it, and 5,000 waiting pilots do not need 5,000 queries.
    """

    def __init__(self) -> None:
        self._round = 0
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of waiting pilots."""
        return len(self._waiters)

    def enter(self, site: str) -> Waiter:
        """Joins the waiting pilots. Call it before the first look, so that no job is missed in between."""
        waiter = Waiter(site)
        waiter.tried = self._round
        self._waiters[waiter] = None
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Ends waiting; if it was woken meanwhile, the next pilot is woken."""
        del self._waiters[waiter]
        if waiter.called and not self._closed:
            self._call(waiter.called_for, 1)

    def looks(self, waiter: Waiter) -> bool:
        """Notes that the pilot looks for a job; call it before.

        Returns:
            Whether it was woken for a job, which another one may want if it does not: then call `found_nothing`.
        """
        called, waiter.called = waiter.called, False
        waiter.tried = self._round
        return called

    def found_nothing(self, waiter: Waiter) -> None:
        """Wakes the next pilot."""
        self._call(waiter.called_for, 1)

    async def wait(self, waiter: Waiter, seconds: float) -> bool:
        """Waits until there may be a job.

        Returns:
            False: the time is over, or the server ends.
        """
        if self._closed or seconds <= 0:
            return False
        if waiter.tried < self._round:
            return True  # called while it was looking
        waiter.wake = asyncio.get_running_loop().create_future()
        try:
            return await _within(waiter.wake, seconds) and not self._closed
        finally:
            waiter.wake = None

    def announce(self, activated: Counter[str]) -> None:
        """Announces new waiting jobs; queue "" means any."""
        self._round += 1
        for site, count in activated.items():
            self._call(site, count)

    def _call(self, site: str, count: int) -> None:
        for waiter in self._waiters:
            if count <= 0:
                return
            asleep = waiter.wake is not None and not waiter.wake.done()
            if asleep and waiter.tried < self._round and site in ("", waiter.site):
                waiter.call(site)
                count -= 1

    def close(self) -> None:
        """Ends all waiting."""
        self._closed = True
        for waiter in self._waiters:
            waiter.call("")


class WaitingClients:
    """Clients that wait for a change to the tasks of a user."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], str] = {}
        self._closed = False

    def listen(self, user_name: str) -> asyncio.Future[bool]:
        """Returns a future that is done at the next change to tasks of `user_name` (empty: of any user)."""
        future = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(True)
        else:
            self._waiting[future] = user_name
        return future

    async def wait(self, future: asyncio.Future[bool], seconds: float) -> bool:
        """Waits for a future from `listen`, which the caller forgets afterwards.

        Returns:
            False: the time is over, or the server ends.
        """
        return await _within(future, seconds) and not self._closed

    def forget(self, future: asyncio.Future[bool]) -> None:
        """Ends listening."""
        self._waiting.pop(future, None)

    def announce(self, users: Iterable[str]) -> None:
        """Announces a change to tasks of these users."""
        changed = set(users)
        for future, user_name in list(self._waiting.items()):
            if not user_name or user_name in changed:
                del self._waiting[future]
                _end(future, True)

    def close(self) -> None:
        """Ends all waiting."""
        self._closed = True
        for future in self._waiting:
            _end(future, True)
        self._waiting.clear()
