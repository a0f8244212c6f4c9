"""The lease on steering: one service at a time per store, and none for long after a crash."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from sqlalchemy import Engine, delete, insert, select, update

from hpo_pilot.errors import TryAgainError
from hpo_pilot.store.engine import reading, writing
from hpo_pilot.store.tables import leases

#: How long a lease outlives its last renewal, in seconds; only where its holder is on another host.
LEASE_SECONDS = 60.0
_NAME = "steering"


class LeaseHeldError(TryAgainError):
    """A live service steers the store.

    Attributes:
        mode: the command that it was started by, `run` or `serve`.
    """

    def __init__(self, mode: str, message: str) -> None:
        super().__init__(message)
        self.mode = mode


class LeaseLostError(TryAgainError):
    """Another process has taken the lease: this one must stop steering."""


@dataclass(frozen=True)
class Holder:
    """Who steers the store.

    Attributes:
        mode: the command that it was started by, `run` or `serve`.
        server: the PanDA server that it takes tasks to.
    """

    mode: str
    server: str | None


@dataclass(frozen=True)
class Lease:
    """A held lease. `renew` it well within `LEASE_SECONDS`."""

    engine: Engine
    holder: str

    def renew(self) -> None:
        """Extends the lease.

        Raises:
            LeaseLostError: another process has taken it meanwhile.
            StoreAwayError: the store cannot be reached now.
        """
        with writing(self.engine) as connection:
            held = connection.execute(
                update(leases)
                .where(leases.c.name == _NAME, leases.c.holder == self.holder)
                .values(expires=time.time() + LEASE_SECONDS)
            )
            if not held.rowcount:
                raise LeaseLostError("another service has taken over this store; this one stops steering")

    def release(self) -> None:
        """Gives the lease back."""
        with writing(self.engine) as connection:
            connection.execute(delete(leases).where(leases.c.name == _NAME, leases.c.holder == self.holder))


def acquire(engine: Engine, mode: str, server: str | None = None) -> Lease:
    """Takes the lease for this process, which takes tasks to `server`.

    A lease whose holder is a dead process of this host is taken at once, so that the same command works right after
    ``kill -9``; one of another host when it has expired.

    Raises:
        LeaseHeldError: a live service holds it; the message names it.
    """
    me, host = psutil.Process(), socket.gethostname()
    identity = secrets.token_hex(8)
    values = {
        "holder": identity,
        "mode": mode,
        "server": server,
        "host": host,
        "pid": me.pid,
        "pid_started": me.create_time(),
        "expires": time.time() + LEASE_SECONDS,
    }
    with writing(engine) as connection:
        row = connection.execute(select(leases).where(leases.c.name == _NAME)).one_or_none()
        if row is None:
            connection.execute(insert(leases).values(name=_NAME, **values))
        elif _is_live(row.host, row.pid, row.pid_started, row.expires, host):
            raise LeaseHeldError(
                row.mode,
                f"`hpo-pilot {row.mode}` (process {row.pid} on {row.host}) is steering this store: "
                "wait for it, stop it, or use another --workdir",
            )
        else:
            # Another process may have seen the same dead holder: the one whose update comes first has it.
            mine = (leases.c.name == _NAME) & (leases.c.holder == row.holder)
            if not connection.execute(update(leases).where(mine).values(**values)).rowcount:
                raise LeaseHeldError("service", "another service has just taken this store; wait for it, or stop it")
    return Lease(engine, identity)


def holder(engine: Engine) -> Holder | None:
    """The live service that steers the store; None: there is none."""
    with reading(engine) as connection:
        row = connection.execute(select(leases).where(leases.c.name == _NAME)).one_or_none()
    if row is None or not _is_live(row.host, row.pid, row.pid_started, row.expires, socket.gethostname()):
        return None
    return Holder(row.mode, row.server)


def _is_live(host: str, pid: int, started: float, expires: float, here: str) -> bool:
    if host != here:
        return time.time() < expires
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # A process id may have been given to another process since. Or somebody has set the clock, which moves the
        # times at which processes began: then this one renews its lease.
        return abs(process.create_time() - started) < 2.0 or time.time() < expires
    except psutil.NoSuchProcess:
        return False


@contextmanager
def held(engine: Engine, mode: str, server: str | None = None) -> Iterator[Lease]:
    """The lease for the length of a block."""
    lease = acquire(engine, mode, server)
    try:
        yield lease
    finally:
        lease.release()
