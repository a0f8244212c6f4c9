"""The lease on steering: one service steers a store at a time, and a crash frees the lease soon."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from hpo_pilot.errors import TryAgainError
from hpo_pilot.store.database import reading, writing
from hpo_pilot.store.tables import leases

#: Seconds from the last renewal to the expiry of a lease; it matters only if its holder is on another host.
LEASE_SECONDS = 60.0

#: For readers, a lease counts as held until this many seconds after its expiry: its holder may renew it late.
LATE_SECONDS = 15.0

_NAME = "steering"

#: A holder that steers only some searches has an additional row for each: this text with the search's number.
_OF_SEARCH = "steering search "


class LeaseHeldError(TryAgainError):
    """A live service steers the store.

    Attributes:
        mode: the command of the service, `run` or `serve`.
    """

    def __init__(self, mode: str, message: str) -> None:
        super().__init__(message)
        self.mode = mode


class LeaseLostError(TryAgainError):
    """Another process has taken the lease, so this one must stop steering."""


@dataclass(frozen=True)
class Holder:
    """The service that steers the store.

    Attributes:
        mode: its command: `run`, `serve` or `stop`.
        server: the PanDA server of its tasks; None: not known.
        searches: the numbers of the searches that it steers; None: all.
    """

    mode: str
    server: str | None
    searches: frozenset[int] | None = None

    def steers(self, search_id: int, server: str | None) -> bool:
        """Returns True if it steers a search that is bound to `server` (None: to none yet)."""
        if self.searches is not None and search_id not in self.searches:
            return False
        return None in (server, self.server) or server == self.server


@dataclass
class Lease:
    """A held lease. `renew` it well within `LEASE_SECONDS`."""

    engine: Engine
    row: Mapping[str, object]
    searches: Collection[int] = ()

    @property
    def holder(self) -> object:
        """The random name of the holder."""
        return self.row["holder"]

    def renew(self) -> bool:
        """Extends the lease. Takes it again if another process had taken it, as this one was halted, and released it.

        Returns:
            False if it was taken again: the other process may have changed everything in the store.

        Raises:
            LeaseLostError: another process has taken the lease.
            StoreAwayError: the store cannot be reached now.
        """
        with writing(self.engine) as connection:
            expires = _now(connection) + LEASE_SECONDS
            held = update(leases).where(leases.c.name == _NAME, leases.c.holder == self.holder).values(expires=expires)
            if connection.execute(held).rowcount:
                return True
            if connection.execute(select(leases.c.holder).where(leases.c.name == _NAME)).first() is not None:
                raise LeaseLostError("another service has taken over this store; this one stops steering")
            connection.execute(insert(leases).values(**self.row, name=_NAME, expires=expires))
            self._note_searches(connection, expires)
            return False

    def steer_only(self, searches: Collection[int]) -> None:
        """Notes that the holder steers these searches and no others.

        Raises:
            StoreAwayError: the store cannot be reached now.
        """
        self.searches = searches
        with writing(self.engine) as connection:
            mine = (leases.c.name == _NAME) & (leases.c.holder == self.holder)
            expires = connection.execute(select(leases.c.expires).where(mine)).scalar()
            if expires is not None:  # else it is lost: `renew` raises the error
                self._note_searches(connection, expires)

    def _note_searches(self, connection: Connection, expires: float) -> None:
        connection.execute(delete(leases).where(leases.c.holder == self.holder, leases.c.name != _NAME))
        rows = [{**self.row, "name": f"{_OF_SEARCH}{number}", "expires": expires} for number in self.searches]
        connection.execute(delete(leases).where(leases.c.name.in_([row["name"] for row in rows])))
        if rows:
            connection.execute(insert(leases), rows)

    def release(self) -> None:
        """Releases the lease."""
        with writing(self.engine) as connection:
            connection.execute(delete(leases).where(leases.c.holder == self.holder))


def acquire(
    engine: Engine, mode: str, server: str | None = None, before_taking_over: Callable[[], None] = lambda: None
) -> Lease:
    """Takes the lease for this process, whose tasks go to `server`.

    It takes the lease of a dead process of this host at once, so that the same command works right after ``kill -9``.
    It takes the lease of a process of another host after its expiry. `before_taking_over` is called before; if it
    raises, the other process keeps the lease.

    Raises:
        LeaseHeldError: a live service holds it; the message names it.
    """
    me, host = psutil.Process(), socket.gethostname()
    values = {
        "holder": secrets.token_hex(8),
        "mode": mode,
        "server": server,
        "host": host,
        "pid": me.pid,
        "pid_started": me.create_time(),
    }
    present = select(leases).where(leases.c.name == _NAME)
    with reading(engine) as connection:
        now, row = _now(connection), connection.execute(present).one_or_none()
    if row is not None and not _is_live(row.host, row.pid, row.pid_started, now < row.expires, host):
        before_taking_over()
    with writing(engine) as connection:
        now = _now(connection)
        expires = now + LEASE_SECONDS
        row = connection.execute(present).one_or_none()
        if row is None:
            connection.execute(insert(leases).values(name=_NAME, **values, expires=expires))
        elif _is_live(row.host, row.pid, row.pid_started, now < row.expires, host):
            raise LeaseHeldError(
                row.mode,
                f"`hpo-pilot {row.mode}` (process {row.pid} on {row.host}) is steering this store: "
                "wait for it, stop it, or use another --workdir",
            )
        else:
            # Another process may have found the same dead holder: the first update wins.
            mine = (leases.c.name == _NAME) & (leases.c.holder == row.holder)
            if not connection.execute(update(leases).where(mine).values(**values, expires=expires)).rowcount:
                raise LeaseHeldError("service", "another service has just taken this store; wait for it, or stop it")
            connection.execute(delete(leases).where(leases.c.holder == row.holder))
    return Lease(engine, values)


def lease_holder(engine: Engine) -> Holder | None:
    """Returns the live service that steers the store; None: there is none.

    A lease that expired less than `LATE_SECONDS` ago still counts.
    """
    with reading(engine) as connection:
        return lease_holder_in(connection)


def lease_holder_in(connection: Connection) -> Holder | None:
    """Returns the same as `lease_holder`, within a transaction."""
    rows = connection.execute(select(leases)).all()
    row = next((row for row in rows if row.name == _NAME), None)
    if row is None:
        return None
    in_time = _now(connection) < row.expires + LATE_SECONDS
    if not _is_live(row.host, row.pid, row.pid_started, in_time, socket.gethostname()):
        return None
    named = [each.name.removeprefix(_OF_SEARCH) for each in rows if each.holder == row.holder and each.name != _NAME]
    return Holder(row.mode, row.server, frozenset(map(int, named)) if named else None)


def _now(connection: Connection) -> float:
    """Returns seconds since the epoch by the database's clock, which all hosts of a store share."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
    return time.time()  # SQLite has no clock of its own


def _is_live(host: str, pid: int, started: float, in_time: bool, here: str) -> bool:
    """Returns True if the holder of a lease lives.

    Args:
        host: the holder's host.
        pid: the holder's process there.
        started: start of that process, in seconds since the epoch.
        in_time: whether the lease has not expired.
        here: this host.
    """
    if host != here:
        return in_time
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Another process may have the same process id now. If the clock was set, start times have shifted; then a live
        # holder still renews its lease.
        return abs(process.create_time() - started) < 2.0 or in_time
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
