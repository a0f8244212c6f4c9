"""Leases: each search is steered by one process at a time, and a crash of it frees its searches soon.

A process that steers has a row in `leases`, which it renews. A search names its process in `searches.holder`: this
column alone says who may write (`SteeringStore`). The rows say whose searches others may take, by the database's clock.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, text, update

from hpo_pilot.databases import among, end_silent_sessions
from hpo_pilot.errors import TryAgainError
from hpo_pilot.store.database import StoreAwayError, reading, writing
from hpo_pilot.store.records import EMBEDDED, ENDED_SEARCHES
from hpo_pilot.store.tables import leases, searches

#: Seconds from the last renewal to the expiry of a lease; with the renewal every quarter of it, a dead service's
#: searches are free within a minute.
LEASE_SECONDS = 45.0

#: For readers, a lease counts as held until this many seconds after its expiry: its holder may renew it late.
LATE_SECONDS = 15.0


class LeaseHeldError(TryAgainError):
    """A live process steers the store, or a search of it, and this one cannot do so beside it.

    Attributes:
        mode: the command of that process: `run`, `serve` or `stop`.
    """

    def __init__(self, mode: str, message: str) -> None:
        super().__init__(message)
        self.mode = mode


class LeaseLostError(StoreAwayError):
    """Another process has taken over, so this one must not write; the transaction did not happen."""


@dataclass(frozen=True)
class Holder:
    """The processes that steer searches of a store; their tasks are at one server.

    Attributes:
        mode: the command: `serve` if one of them is a service, else `run` or `stop`.
        server: the PanDA server of their tasks; None: not known.
        searches: the numbers of the searches that they steer; None: all.
    """

    mode: str
    server: str | None
    searches: frozenset[int] | None = None

    def steers(self, search_id: int, server: str | None) -> bool:
        """Returns True if they steer a search that is bound to `server` (None: to none yet)."""
        if self.searches is not None and search_id not in self.searches:
            return False
        return None in (server, self.server) or server == self.server


@dataclass
class Lease:
    """The lease of this process on the searches that it steers. `renew` it well within `LEASE_SECONDS`."""

    engine: Engine
    row: Mapping[str, Any]

    @property
    def holder(self) -> str:
        """The random name of this process."""
        return str(self.row["holder"])

    def renew(self) -> None:
        """Extends the lease on all its searches, and ends sessions of halted processes, which may lock free ones.

        Raises:
            LeaseLostError: it had expired, and a process has come that does not steer beside this one.
            StoreAwayError: the store cannot be reached now.
        """
        with writing(self.engine) as connection:
            end_silent_sessions(connection)
            mine = update(leases).where(leases.c.holder == self.holder)
            if not connection.execute(mine.values(expires=_now(connection) + LEASE_SECONDS)).rowcount:
                try:
                    _join(connection, self.row)
                except LeaseHeldError as error:
                    raise LeaseLostError(f"{error}; this one stops") from error

    def live(self) -> dict[str, str]:
        """Returns the processes that steer searches of the store, the oldest first: their commands by their names."""
        with reading(self.engine) as connection:
            return {row.holder: row.mode for row in _live_rows(connection)}

    def speaks_for(self, holder: str | None) -> bool:
        """Returns whether this process, and no other, acts for a search that had `holder`, although it may be over."""
        live = self.live()
        services = [name for name, mode in live.items() if mode == "serve"]
        return holder == self.holder or (holder not in live and self.holder in services[:1])

    def take(self, numbers: Collection[int]) -> set[int]:
        """Takes open searches that no live process steers. Returns those of `numbers` that this process steers now."""
        s = searches.c
        with writing(self.engine) as connection:
            # A row that is locked is left for the next time: another service takes it, or writes to the search.
            asked = select(s.id, s.holder).where(among(s.id, numbers), s.state.not_in(ENDED_SEARCHES))
            found = connection.execute(asked.with_for_update(skip_locked=True, key_share=True)).all()
            live = {row.holder for row in _live_rows(connection)}
            if self.holder not in live:
                return set()  # It was halted, and another service may take its searches: `renew` comes first.
            free = [row.id for row in found if row.holder not in live]
            if free:
                taken = {"holder": self.holder, "held_since": _now(connection)}
                connection.execute(update(searches).where(among(s.id, free)).values(**taken))
            return {*free, *(row.id for row in found if row.holder == self.holder)}

    def take_all(self, numbers: Collection[int]) -> None:
        """Takes these searches.

        Raises:
            LeaseHeldError: another process steers one of them; the message names it.
        """
        for number in set(numbers) - self.take(numbers):
            with reading(self.engine) as connection:
                other = connection.execute(_steerer(number)).one_or_none()
            if other is None:
                raise LeaseHeldError("run", f"search {number} has just ended, or another process has it: try again")
            raise LeaseHeldError(
                other.mode, f"{_name(other)} is steering search {other.name!r}: wait for it, or stop it"
            )

    def let_go(self, numbers: Collection[int]) -> None:
        """Leaves searches to other services."""
        with writing(self.engine) as connection:
            mine = among(searches.c.id, numbers) & (searches.c.holder == self.holder)
            connection.execute(update(searches).where(mine).values(holder=None))

    def release(self) -> None:
        """Releases the lease; the searches are free then."""
        with writing(self.engine) as connection:
            connection.execute(delete(leases).where(leases.c.holder == self.holder))


def acquire(
    engine: Engine, mode: str, server: str | None = None, before_taking_over: Callable[[], None] = lambda: None
) -> Lease:
    """Lets this process, whose tasks go to `server`, steer searches of a store.

    Services whose tasks go to the same server steer side by side. The embedded server has one service, because it has
    the tasks in its work folder. Searches of a dead process of this host are free at once, so that the same command
    works right after ``kill -9``; those of another host when its lease expires. `before_taking_over` is called if there
    was such a process; if it raises, nothing is changed.

    Raises:
        LeaseHeldError: a live process does not steer beside this one; the message names it.
    """
    row = {
        "holder": secrets.token_hex(8),
        "mode": mode,
        "server": server,
        "host": socket.gethostname(),
        "pid": (me := psutil.Process()).pid,
        "pid_started": me.create_time(),
        "inode": _inode(engine),
    }
    with reading(engine) as connection:
        expired = len(_live_rows(connection)) < len(connection.execute(select(leases.c.holder)).all())
    if expired:
        before_taking_over()
    with writing(engine) as connection:
        _join(connection, row)
    return Lease(engine, row)


def _join(connection: Connection, row: Mapping[str, Any]) -> None:
    """Adds the row of a process, if it may steer beside those that live.

    Raises:
        LeaseHeldError: it may not.
    """
    if connection.dialect.name == "postgresql":  # one after the other, as in SQLite
        connection.execute(text("LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE"))
    live = _live_rows(connection)
    for other in live:
        if row["server"] != other.server or other.server in (None, EMBEDDED):
            remedy = "wait for it, stop it, or use another --workdir"
            if "serve" in (row["mode"], other.mode):
                remedy += "; services side by side need one PanDA server: --server URL for each, not `embedded`"
            raise LeaseHeldError(other.mode, f"{_name(other)} is steering this store: {remedy}")
        if row["mode"] != "serve" and other.mode == "serve":
            raise LeaseHeldError(other.mode, f"{_name(other)} is steering this store: wait for it, or stop it")
    connection.execute(delete(leases).where(leases.c.holder.not_in([other.holder for other in live])))
    connection.execute(insert(leases).values(**row, expires=_now(connection) + LEASE_SECONDS))


def lease_holder(engine: Engine) -> Holder | None:
    """Returns what steers searches of the store; None: nothing does.

    A lease that expired less than `LATE_SECONDS` ago still counts.
    """
    with reading(engine) as connection:
        return lease_holder_in(connection)


def lease_holder_in(connection: Connection) -> Holder | None:
    """Returns the same as `lease_holder`, within a transaction."""
    live = _live_rows(connection, late=LATE_SECONDS)
    if not live:
        return None
    service = next((row for row in live if row.mode == "serve"), None)
    if service is not None:
        return Holder(service.mode, service.server)
    s = searches.c
    held = select(s.id).where(s.holder.in_([row.holder for row in live]), s.state.not_in(ENDED_SEARCHES))
    return Holder(live[0].mode, live[0].server, frozenset(connection.scalars(held)))


def steerer(engine: Engine, search_id: int) -> dict[str, Any] | None:
    """Returns the process that has a search: `mode`, `host`, `pid`, and `since` in seconds; None: there is none."""
    with reading(engine) as connection:
        found = connection.execute(_steerer(search_id)).one_or_none()
        if found is None or not _is_live(found, _now(connection) < found.expires + LATE_SECONDS, _inode(engine)):
            return None
        return {"mode": found.mode, "host": found.host, "pid": found.pid, "since": found.held_since}


def _steerer(search_id: int) -> Any:
    of_search = leases.c.holder == searches.c.holder
    return (
        select(leases, searches.c.held_since, searches.c.name)
        .join(searches, of_search)
        .where(searches.c.id == search_id)
    )


def _name(row: Row[Any]) -> str:
    return f"`hpo-pilot {row.mode}` (process {row.pid} on {row.host})"


def _live_rows(connection: Connection, late: float = 0.0) -> list[Row[Any]]:
    """Returns the rows of the processes that live, the oldest first; `late`: seconds that a lease still counts."""
    rows = connection.execute(select(leases).order_by(leases.c.id)).all()
    now, inode = (_now(connection), _inode(connection.engine)) if rows else (0.0, None)
    return [row for row in rows if _is_live(row, now < row.expires + late, inode)]


def _inode(engine: Engine) -> int | None:
    """Returns the inode of a store's file; None: it has none, as on PostgreSQL, or was removed."""
    if engine.dialect.name == "sqlite":
        with suppress(OSError):
            return Path(engine.url.database or "").stat().st_ino & (1 << 63) - 1  # SQLite's integers have a sign
    return None


def _now(connection: Connection) -> float:
    """Returns seconds since the epoch by the database's clock, which all hosts of a store share."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
    return time.time()  # SQLite has no clock of its own


def _is_live(row: Row[Any], in_time: bool, inode: int | None) -> bool:
    """Returns True if the process of a row lives.

    Args:
        row: the row.
        in_time: whether its lease has not expired.
        inode: of this store's file.
    """
    if row.host != socket.gethostname() or row.inode not in (None, inode):  # in a copy of the file nobody renews it
        return in_time
    try:
        process = psutil.Process(row.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # While a service is halted, its embedded server goes on: nobody else could go on with the tasks there. Another
        # process may have its number now; if the clock was set, start times have shifted.
        alone = row.server in (None, EMBEDDED)
        return in_time or (alone and abs(process.create_time() - row.pid_started) < 2.0)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def held_lease(
    engine: Engine, mode: str, server: str | None = None, before_taking_over: Callable[[], None] = lambda: None
) -> Iterator[Lease]:
    """Holds the lease during a block; for the arguments see `acquire`."""
    lease = acquire(engine, mode, server, before_taking_over)
    try:
        yield lease
    finally:
        lease.release()
