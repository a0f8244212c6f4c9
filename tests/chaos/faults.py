"""The table of faults: each is a generator that injects, yields the seconds that it lasts, and heals."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from tests import outliving
from tests.chaos.world import Kept, World, below, do, words

Act = Iterator[float]


@dataclass(frozen=True)
class Fault:
    """A line of the table.

    Attributes:
        name: for the report.
        act: injects in the part of the world that it gets, yields, heals.
        part: service or site: two faults never act on the same part at the same time.
        needs: what the world must have: isolated, sqlite or postgresql.
        repeats: whether an execution that has ended may be repeated because of it, since its report can be lost.
        cuts: whether payloads are ended after a grace time, which can fall between an execution's end and its value.
    """

    name: str
    act: Callable[[World, str, random.Random], Act]
    part: str
    needs: str = ""
    repeats: bool = False
    cuts: bool = False


class NothingThereError(Exception):
    """A fault found nothing to act on, such as a runner between two jobs."""


# --- processes ---


def _find(kept: Kept, what: str) -> psutil.Process:
    """The newest process of a kind below the service or a pilot; "": itself."""
    root = kept.root
    found = [each for each in below(root) if what in words(each)] if root and what else [root] if root else []
    if not found:
        raise NothingThereError
    return found[-1]


def _kept(world: World, part: str) -> Kept:
    return world.service if part == "service" else world.pilots[part]


def _kill(what: str) -> Callable[[World, str, random.Random], Act]:
    def act(world: World, part: str, _dice: random.Random) -> Act:
        _find(_kept(world, part), what).kill()
        yield 0.0

    return act


def _kill_runner(world: World, part: str, dice: random.Random) -> Act:
    root = world.pilots[part].root
    found = list(outliving.runners(root.children() if root else ()))
    if not found:
        raise NothingThereError
    dice.choice(found).kill()
    yield 0.0


def _freeze(what: str, low: float, high: float) -> Callable[[World, str, random.Random], Act]:
    def act(world: World, part: str, dice: random.Random) -> Act:
        process = _find(_kept(world, part), what)
        process.suspend()
        yield dice.uniform(low, high)
        try:
            process.resume()
        except psutil.NoSuchProcess:
            return  # its parent has ended it

    return act


def _power_cut(world: World, part: str, dice: random.Random) -> Act:
    kept = _kept(world, part)
    kept.kill_all()
    yield dice.uniform(0.0, 4.0)
    kept.down = False


def _away(world: World, part: str, dice: random.Random) -> Act:
    kept = _kept(world, part)
    kept.stop()
    yield dice.uniform(3.0, 15.0)
    kept.down = False


def _vanish(world: World, part: str, dice: random.Random) -> Act:
    """The node is gone with its disk; some seconds later another takes its place."""
    world.pilots[part].kill_all()
    shutil.rmtree(world.root / part / "pilot", ignore_errors=True)
    yield dice.uniform(0.0, 8.0)
    world.pilots[part].down = False


# --- disks ---


def _full(world: World, part: str, dice: random.Random) -> Act:
    filler = world.root / part / "filler"
    about = os.statvfs(filler.parent)
    try:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (about.f_bavail - dice.randrange(3)) * about.f_frsize)
    except OSError:
        pass  # others write at the same time
    yield dice.uniform(4.0, 10.0)
    filler.unlink()


def _aborted(world: World, part: str, dice: random.Random) -> Act:
    """The file system has ended for an error: it is read-only, and what was not on the disk is lost."""
    kept = _kept(world, part)
    do("mount", "-o", "remount,abort", world.root / part)
    yield dice.uniform(3.0, 8.0)
    kept.kill_all()
    # A command would make another store in the folder below the service's disk. At a pilot's disk it may go on: it may
    # be waiting for tables that another fault locks, which is healed only after this one.
    with world.no_commands if part == "service" else nullcontext():
        world.wait_for(lambda: not do("umount", world.root / part, check=False) and not _is_mounted(world, part))
        do("e2fsck", "-p", world.root / f"{part}.img", check=False)
        world.mount(part)
    kept.down = False


def _is_mounted(world: World, part: str) -> bool:
    return os.path.ismount(world.root / part)


def _read_only(world: World, part: str, dice: random.Random) -> Act:
    """The disk is read-only when the processes start."""
    kept = _kept(world, part)
    kept.stop()
    with world.no_commands:
        world.wait_for(lambda: not _users(world.root / part))
        do("mount", "-o", "remount,ro", world.root / part)
    kept.down = False
    yield dice.uniform(4.0, 8.0)
    do("mount", "-o", "remount,rw", world.root / part)


def _users(folder: Path) -> list[int]:
    """The processes with files below a folder open."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(file.path.startswith(str(folder)) for file in process.open_files()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _slow(world: World, part: str, dice: random.Random) -> Act:
    """The disk answers one fifth of the time. Another process thaws it, whatever becomes of this one."""
    pulses = dice.randrange(5, 12)
    script = 'for i in $(seq "$1"); do fsfreeze -f "$0"; sleep 0.8; fsfreeze -u "$0"; sleep 0.2; done'
    with subprocess.Popen(["sh", "-c", script, str(world.root / part), str(pulses)]) as pulse:
        yield float(pulses)
        pulse.wait()


def _damage(*patterns: str) -> Callable[[World, str, random.Random], Act]:
    """The power fails, and half of a file is missing, or one of its bits is another."""

    def act(world: World, part: str, dice: random.Random) -> Act:
        kept, folder = _kept(world, part), world.root / part
        kept.kill_all()
        found = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
        found = [path for path in found if path.stat().st_size > 1]
        kept.down = False
        if not found:
            raise NothingThereError
        path = dice.choice(found)
        content = bytearray(path.read_bytes())
        if dice.random() < 0.5:
            del content[len(content) // 2 :]
        else:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
        yield 0.0

    return act


# --- databases ---


def _locked_sqlite(name: str) -> Callable[[World, str, random.Random], Act]:
    def act(world: World, _part: str, dice: random.Random) -> Act:
        connection = sqlite3.connect(world.workdir.root / name, timeout=10.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            connection.close()
            raise NothingThereError from None  # its owner does not let go of it
        yield dice.uniform(5.0, 15.0)
        connection.close()

    return act


def _lost_server_database(world: World, _part: str, _dice: random.Random) -> Act:
    world.service.kill_all()
    for path in world.workdir.root.glob("panda.db*"):
        path.unlink()
    world.service.down = False
    yield 0.0


def _locked_tables(world: World, _part: str, dice: random.Random) -> Act:
    engine = create_engine(os.environ["HPO_PILOT_STORE"])
    with engine.connect() as connection:
        connection.execute(text("LOCK TABLE trials, searches IN ACCESS EXCLUSIVE MODE"))
        yield dice.uniform(5.0, 15.0)
    engine.dispose()


def _ended_connections(world: World, _part: str, _dice: random.Random) -> Act:
    engine = create_engine(os.environ["HPO_PILOT_STORE"])
    with engine.connect() as connection:
        find = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = user"
        connection.execute(text(find))
    engine.dispose()
    yield 0.0


def _restarted_postgresql(world: World, _part: str, dice: random.Random) -> Act:
    world.pg_ctl("stop", "-m", dice.choice(["fast", "immediate"]))
    yield dice.uniform(1.0, 12.0)
    world.pg_ctl("start")


def _crashed_backend(world: World, _part: str, dice: random.Random) -> Act:
    """PostgreSQL then ends all sessions and recovers, without a new start."""
    dice.choice(below(world.postmaster)).kill()
    yield 0.0


def _frozen_backends(world: World, _part: str, dice: random.Random) -> Act:
    postmaster = world.postmaster
    every = [postmaster, *below(postmaster)]

    def each(step: Callable[[psutil.Process], None]) -> None:
        for process in every:
            with suppress(psutil.NoSuchProcess):  # it ended before the main process stood still
                step(process)

    each(psutil.Process.suspend)
    yield dice.uniform(5.0, 15.0)
    each(psutil.Process.resume)


# --- networks ---


def _cut(low: float, high: float) -> Callable[[World, str, random.Random], Act]:
    def act(_world: World, part: str, dice: random.Random) -> Act:
        do("ip", "link", "set", part, "down")
        yield dice.uniform(low, high)
        do("ip", "link", "set", part, "up")

    return act


def _loss(_world: World, part: str, dice: random.Random) -> Act:
    rules = [(chain, way, part) for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o"))]
    share = ("-m", "statistic", "--mode", "random", "--probability", f"{dice.uniform(0.1, 0.4):.2f}", "-j", "DROP")
    for rule in rules:
        do("iptables", "-A", *rule, *share)
    yield dice.uniform(8.0, 15.0)
    for rule in rules:
        do("iptables", "-D", *rule, *share)


def _narrow(_world: World, part: str, dice: random.Random) -> Act:
    do("tc", "qdisc", "add", "dev", part, "root", "tbf", "rate", "64kbit", "burst", "4k", "latency", "400ms")
    yield dice.uniform(8.0, 15.0)
    do("tc", "qdisc", "del", "dev", part, "root")


_CACHED, _UNSENT = "pilot/cache/**/*", "pilot/unsent/*/*.json"

FAULTS = [
    Fault("service killed", _kill(""), "service"),
    Fault("server killed", _kill("hpo_pilot.server"), "service"),
    Fault("API killed", _kill("hpo_pilot.web"), "service"),
    Fault("panda-client worker killed", _kill("client_worker"), "service"),
    Fault("local pilot killed", _kill("hpo_pilot.pilot"), "service", repeats=True),
    Fault("service and all below killed", _power_cut, "service", repeats=True),
    Fault("service stopped and started", _away, "service", cuts=True),
    Fault("service frozen", _freeze("", 5.0, 15.0), "service"),
    Fault("server frozen", _freeze("hpo_pilot.server", 5.0, 15.0), "service"),
    Fault("API frozen", _freeze("hpo_pilot.web", 5.0, 15.0), "service"),
    Fault("service's disk full", _full, "service", "isolated", repeats=True),
    Fault("service's disk read-only", _read_only, "service", "isolated"),
    Fault("service's disk aborted", _aborted, "service", "isolated", repeats=True),
    Fault("service's disk slow", _slow, "service", "isolated"),
    Fault("payload damaged at the server", _damage("work/panda-files/cache/sources.*"), "service", repeats=True),
    Fault("checkpoint damaged at the server", _damage("work/panda-files/cache/hpo_cp_*"), "service", repeats=True),
    Fault("server's database locked", _locked_sqlite("panda.db"), "service"),
    Fault("server's database lost", _lost_server_database, "service", repeats=True),
    Fault("store locked", _locked_sqlite("hpo-pilot.db"), "service", "sqlite"),
    Fault("tables locked", _locked_tables, "service", "postgresql"),
    Fault("connections ended", _ended_connections, "service", "postgresql"),
    Fault("PostgreSQL restarted", _restarted_postgresql, "service", "postgresql"),
    Fault("a process of PostgreSQL killed", _crashed_backend, "service", "postgresql"),
    Fault("PostgreSQL frozen", _frozen_backends, "service", "postgresql"),
    Fault("pilot killed", _kill(""), "site", repeats=True),
    Fault("pilot stopped and started", _away, "site", cuts=True),
    Fault("pilot frozen", _freeze("", 5.0, 15.0), "site"),
    Fault("interpreter killed", _kill("hpo_pilot_function"), "site", repeats=True),
    Fault("runner killed", _kill_runner, "site", repeats=True),
    Fault("keeper killed", _kill("import keep"), "site"),
    Fault("node gone", _vanish, "site", repeats=True),
    Fault("pilot's disk full", _full, "site", "isolated", repeats=True),
    Fault("pilot's disk aborted", _aborted, "site", "isolated", repeats=True),
    Fault("pilot's disk slow", _slow, "site", "isolated"),
    Fault("cached payload damaged", _damage(_CACHED), "site", repeats=True),
    Fault("unsent report damaged", _damage(_UNSENT), "site", repeats=True),
    Fault("network cut", _cut(5.0, 15.0), "site", "isolated"),
    Fault("network cut for long", _cut(65.0, 80.0), "site", "isolated", repeats=True),
    Fault("packets lost", _loss, "site", "isolated"),
    Fault("network slow", _narrow, "site", "isolated"),
]


def begin(fault: Fault, world: World, part: str, dice: random.Random) -> tuple[Act, float]:
    """Injects a fault. Returns what heals it, and when: seconds of the monotonic clock.

    Raises:
        NothingThereError: it found nothing to act on.
    """
    act = fault.act(world, part, dice)
    try:
        return act, time.monotonic() + next(act)
    except (
        psutil.Error,
        ProcessLookupError,
        OperationalError,
    ) as error:  # it has just ended; another transaction was in the way
        raise NothingThereError from error
