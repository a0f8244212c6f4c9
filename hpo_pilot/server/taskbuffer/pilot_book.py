"""The pilots that have called lately: what pages show of them, and whom waiting jobs wait for. Kept in memory.

It says nothing of what pilots are given, so that losing it costs nothing: whoever is alive calls again within a minute,
and who has jobs is known by those.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import time
from typing import Any

from sqlalchemy import select

from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, jobs, workers
from hpo_pilot.server.taskbuffer.dispatch import JobRequest
from hpo_pilot.server.taskbuffer.offers import Offer, most_of, offer_of

#: Seconds without a word after which one that has no jobs counts as silent: ours ask every minute at least.
SILENT = 120.0
#: Seconds after which a pilot that ended, or fell silent, is forgotten; and how many are remembered at most.
KEPT = 3600.0
MOST = 4096

_OURS = "hpo-pilot"
_UNKNOWN = "unknown"


def host(name: str) -> str:
    """The machine's name without the slot: ``slot1@node`` and ``node`` are the same machine."""
    return name.rsplit("@", 1)[-1][:128]


def key_of(harvester: str | None, worker: str | None, node: str | None, queue: str | None) -> str:
    """What a pilot is called: ``harvester/worker``, else ``host at queue``; empty: it has no name."""
    if harvester or worker:
        return f"{harvester or ''}/{worker or ''}"
    return f"{host(node)} at {queue or ''}" if node else ""


@dataclass(frozen=True)
class PilotNote:
    """What a pilot has said of itself.

    Attributes:
        key: what it is called; empty: it has no name, and is on no page.
        since: when it was first heard of, in seconds since the epoch.
        slots: the most jobs that it ever asked for at once; of one that asks for one at a time, one.
        nodes: free ones of its allocation; None: it has none.
        offer: the most that it had free, where it is, and when it was last heard of.
    """

    key: str
    host: str
    kind: str
    version: str
    since: float
    slots: int
    nodes: int | None
    offer: Offer


class PilotBook:
    """Notes of who asks for jobs. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        """Has heard of nobody yet."""
        self._clock = clock
        self.began = clock()  #: when it began to listen, in seconds since the epoch
        self._lock = threading.Lock()
        self._notes: OrderedDict[tuple[str, str], PilotNote] = OrderedDict()

    def asked(self, request: JobRequest, program: str) -> None:
        """Notes that a pilot asks for jobs.

        Args:
            request: what it asks for; its `site` is the queue's name.
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
                nodes=None if request.wish is None else sum(opening.nodes for opening in request.wish.now),
                offer=most_of(before.offer, offer) if before else offer,
            )
            while len(self._notes) > MOST or next(iter(self._notes.values())).offer.asked < offer.asked - KEPT:
                self._notes.popitem(last=False)

    def offers(self, queue: str) -> list[Offer]:
        """What a queue's pilots of the last hour had free; queue empty: any queue's."""
        since = self._clock() - KEPT
        with self._lock:
            offers = [note.offer for note in self._notes.values()]
        return [offer for offer in offers if offer.asked >= since and queue in ("", offer.queue)]

    def notes(self) -> list[PilotNote]:
        """Who is remembered and has a name, longest unheard first."""
        with self._lock:
            return [note for note in self._notes.values() if note.key]


def _program(agent: str) -> tuple[str, str]:
    """Kind and version of a pilot's program by its User-Agent: ``hpo-pilot/0.1.0``, ``pilot/3.7.0.36 (Python …)``."""
    first = agent.split(" ", 1)[0][:100]
    name, _, version = first.partition("/")
    if name == "pilot":
        return f"Pilot {version.partition('.')[0]}".rstrip(), version
    return name or _UNKNOWN, version


def pilots_shown(tx: Transaction, notes: Iterable[PilotNote]) -> list[dict[str, Any]]:
    """The pilots as pages show them: those that are remembered, and those that have jobs. By queue and name."""
    columns = (
        *(jobs.c.panda_id, jobs.c.harvester_id, jobs.c.worker_id, jobs.c.node, jobs.c.site, jobs.c.pilot_id),
        *(jobs.c.heartbeat, jobs.c.patience),
    )
    busy: dict[str, list[AnyRow]] = {}
    for row in tx.connection.execute(select(*columns).where(AT_PILOT).order_by(jobs.c.panda_id)):
        if key := key_of(row.harvester_id, row.worker_id, row.node, row.site):
            busy.setdefault(key, []).append(row)
    ended = {
        (row.harvester_id, row.worker_id): row.ended
        for row in tx.connection.execute(
            select(workers.c.harvester_id, workers.c.worker_id, workers.c.ended).where(
                workers.c.ended >= tx.now - KEPT, workers.c.status != "started"
            )
        )
    }
    found = {note.key: note for note in notes if note.offer.asked >= tx.now - KEPT or note.key in busy}
    shown = [_shown(tx.now, note, busy.get(key, ()), ended) for key, note in found.items()]
    shown += [_unnoted(key, rows) for key, rows in busy.items() if key not in found]
    return sorted(shown, key=lambda one: (one["queue"], one["key"]))


def _shown(now: float, note: PilotNote, its: Iterable[AnyRow], ended: dict[tuple[str, str], float]) -> dict[str, Any]:
    rows = list(its)
    offer = note.offer
    heard = max([offer.asked, *(row.heartbeat - row.patience for row in rows if row.heartbeat is not None)])
    if rows:
        state = "busy"
    elif ended.get((offer.harvester_id, offer.worker_id), 0.0) >= offer.asked:
        state = "ended"
    else:
        state = "waiting" if heard >= now - SILENT else "silent"
    return {
        "key": note.key,
        "state": state,
        "host": note.host,
        "queue": offer.queue,
        "kind": note.kind,
        "version": note.version,
        "since": note.since,
        "heard": heard,
        "slots": max(note.slots, len(rows)),
        "nodes": note.nodes,
        "jobs": [row.panda_id for row in rows],
    }


def _unnoted(key: str, rows: list[AnyRow]) -> dict[str, Any]:
    """One that has not asked for jobs since this server started."""
    last = rows[-1]
    heard = [row.heartbeat - row.patience for row in rows if row.heartbeat is not None]
    return {
        "key": key,
        "state": "busy",
        "host": host(last.node or ""),
        "queue": last.site or "",
        "kind": _OURS if (last.pilot_id or "").startswith(f"{_OURS}|") else _UNKNOWN,
        "version": "",
        "since": None,
        "heard": max(heard, default=None),
        "slots": None,
        "nodes": None,
        "jobs": [row.panda_id for row in rows],
    }
