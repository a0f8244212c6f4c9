"""Two services on one PostgreSQL store: halted, cut off, killed, with clocks apart; nothing is lost or run twice."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from sqlalchemy import make_url, select, text

from hpo_pilot.server.tokens import Role
from hpo_pilot.store import SteeringStore
from hpo_pilot.store.database import read_rows
from hpo_pilot.store.tables import jobs, leases, searches
from tests.bearer import make_token_folder, token
from tests.end_to_end.conftest import HPO_PILOT, Scan
from tests.panda_environment import panda_environment
from tests.real.elsewhere import forward
from tests.real.processes import missing, until
from tests.real.test_postgresql import store_url
from tests.server_process import ServerProcess

__all__ = ["store_url"]

SEARCHES, TRIALS, FOLDS = 24, 4, 2

#: It leaves a file for each execution. Trial n waits until n - 1 things have happened to the services.
PAYLOAD = """
import json, os, sys, time
trial, fold = os.environ["HPO_PILOT_TRIAL"], os.environ["HPO_PILOT_FOLD"]
open(f"{FOLDER}/{sys.argv[1]}.{trial}.{fold}.{os.urandom(4).hex()}", "x").close()
while not os.path.exists(f"{FOLDER}-{int(trial) - 1}"):
    time.sleep(0.1)
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"]}, open("output.json", "w"))
"""

#: A network for documentation (RFC 5737), so that no machine uses it; another part of it in each run.
_PART = 4 * secrets.randbelow(64)
HERE, THERE = (f"198.51.100.{_PART + number}" for number in (1, 2))

#: The state of the sessions of the database, which may hold locks.
SESSIONS = """
    SELECT pid, state, wait_event_type, wait_event, clock_timestamp() - query_start AS silent, left(query, 100)
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

#: The other service's clock is a day ahead.
AHEAD = 86400.0


class Network:
    """A network namespace, connected with this machine by a link that can be cut."""

    def __init__(self) -> None:
        self.name = f"hpo{secrets.token_hex(3)}"
        self.link = f"{self.name}h"
        inside = ("-n", self.name)
        _ip("netns", "add", self.name)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "host0", "netns", self.name)
        _ip("addr", "add", f"{HERE}/30", "dev", self.link)
        _ip(*inside, "addr", "add", f"{THERE}/30", "dev", "host0")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "link", "set", "host0", "up")
        self.set("up")

    def set(self, state: str) -> None:
        _ip("link", "set", self.link, state)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def network() -> Iterator[Network | None]:
    """A network namespace; None: this machine makes none."""
    try:
        made = Network()
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield made
    finally:
        _ip("netns", "del", made.name)


def _free_port() -> int:
    with socket.create_server((HERE, 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def started(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(600)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_services_take_over_from_each_other(tmp_path, store_url):
    ran = tmp_path / "ran"
    ran.mkdir()
    for name, role in (("user", Role.USER), ("pilot", Role.PILOT)):
        (tmp_path / f"{name}.token").touch(mode=0o600)
        (tmp_path / f"{name}.token").write_text(token("ada", role))
    with ExitStack() as stack:
        net = stack.enter_context(network())
        server = ServerProcess(
            database=tmp_path / "panda.db",
            files=tmp_path / "files",
            tokens=make_token_folder(tmp_path / "tokens"),
            stderr=tmp_path / "server.log",
        )
        stack.enter_context(server)
        store = stack.enter_context(closing(SteeringStore.open(store_url)))
        environment = panda_environment(server.url, tmp_path / "user.token", None)

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(started([*command], tmp_path / f"{name}.log", environment))

        def serve(name: str, store: str, *before: str) -> subprocess.Popen[bytes]:
            return start(
                name, *before, "serve", "--server", server.url, "--store", store, "--workdir", str(tmp_path / name)
            )

        pilot = [sys.executable, "-m", "hpo_pilot.pilot", "--server", server.url, "--queue", "LOCAL", "--slots", "8"]
        pilot += ["--token-file", str(tmp_path / "pilot.token"), "--vo", "hpo_pilot", "--heartbeat", "2"]
        start("pilot", *pilot, "--workdir", str(tmp_path / "pilot"))
        scan = Scan(tmp_path, {**environment, "HPO_PILOT_STORE": store_url})
        for number in range(SEARCHES):
            document = {"search": f"s{number}", "folds": FOLDS, "budget": {"trials": TRIALS, "parallel": 1}}
            document["resources"] = {"minutes": 10, "memory_mb": 500}
            document["payload"] = {"files": "payload", "command": f"python3 -I -S train.py s{number}"}
            scan.write(document, f"FOLDER = {str(ran)!r}\n{PAYLOAD}")
            scan.here("submit", str(scan.file))

        near = serve("near", store_url, *HPO_PILOT)
        before, far_store = [sys.executable, "-m", "tests.real.elsewhere", str(AHEAD)], store_url
        if net is not None:
            url, address = make_url(store_url), server.url.rpartition("/")[2]
            to_server, to_store = (f"{HERE}:{_free_port()}" for _ in range(2))
            forward(to_server, address)
            forward(to_store, f"{url.query['host']}/.s.PGSQL.{url.query.get('port', 5432)}")
            before = ["ip", "netns", "exec", net.name, *before, address, to_server]
            far_store = f"postgresql+psycopg://{url.username}@{to_store}/{url.database}"
        far = serve("far", far_store, *before, "--")

        def held() -> Counter[int]:
            """Numbers of open searches by the process that may write them."""
            holders = [one.holder for one in store.search_states().values()]
            pids = dict(row for row in read_rows(store.engine, select(leases.c.holder, leases.c.pid)))
            return Counter(pids.get(holder, 0) for holder in holders)

        def sessions() -> str:
            return "\n".join(str(tuple(map(str, row))) for row in read_rows(store.engine, text(SESSIONS)))

        def reached(what: str, condition: Callable[[], bool]) -> None:
            begun = time.monotonic()
            until(condition, lambda: f"{what}: {held()}, near {near.pid}, far {far.pid}; sessions: {sessions()}")
            with (tmp_path / "times").open("a") as times:
                times.write(f"{what}: {time.monotonic() - begun:.1f} s\n")

        def happened(number: int) -> None:
            """Lets trials of the next number end, and waits until some have."""
            (tmp_path / f"ran-{number}").touch()

            def over() -> int:
                return len(
                    read_rows(store.engine, select(jobs.c.id).where(jobs.c.trial > number, jobs.c.value.is_not(None)))
                )

            until(lambda: over() > 4, lambda: f"{number}: {held()}")

        def shared() -> bool:
            """Each service has its part: one that is busy keeps up to 1.25 of its half, and one more."""
            parts = held()
            return sorted(parts) == sorted((near.pid, far.pid)) and min(parts.values()) >= SEARCHES // 3

        reached("both have a part", shared)
        happened(0)
        near.send_signal(signal.SIGSTOP)
        reached("the halted one has none", lambda: held() == {far.pid: SEARCHES})
        happened(1)
        near.send_signal(signal.SIGCONT)
        reached("it has a part again", shared)
        if net is not None:
            net.set("down")
            reached("the one that was cut off has none", lambda: held() == {near.pid: SEARCHES})
            happened(2)
            net.set("up")
            reached("it has a part again", shared)
        (tmp_path / "ran-2").touch()
        near.kill()
        near.wait()
        reached("the killed one has none", lambda: held() == {far.pid: SEARCHES})
        happened(3)
        reached("all are over", lambda: not store.search_states())

        for name in ("far", "pilot"):
            assert "Traceback" not in (tmp_path / f"{name}.log").read_text()
        states = [one.state.value for one in store.searches()]
        assert states == ["done"] * SEARCHES
        folds = {
            (f"s{n}", str(trial), str(fold))
            for n in range(SEARCHES)
            for trial in range(1, TRIALS + 1)
            for fold in range(FOLDS)
        }
        executed = Counter(tuple(path.name.split(".")[:3]) for path in ran.iterdir())
        assert executed.keys() == folds
        assert executed.total() == len(folds), [fold for fold, times in executed.items() if times > 1]
        names = dict(read_rows(store.engine, select(searches.c.id, searches.c.name)))
        rows = read_rows(
            store.engine, select(jobs.c.search_id, jobs.c.trial, jobs.c.fold).where(jobs.c.value.is_not(None))
        )
        values = Counter((names[number], str(trial), str(fold)) for number, trial, fold in rows)
        assert values == dict.fromkeys(folds, 1)
        told = [sorted(trial.told for trial in store.trials(number)) for number in names]
        assert told == [list(range(1, TRIALS + 1))] * SEARCHES
    if net is None:
        missing("`ip netns` and a link into it, as root: no service was cut off")
