"""What the faults act on: a service, two sites with a pilot each, searches, and what their payloads have noted.

As root on Linux, everything is in namespaces of its own: small disks (ext4 on loop devices), a network between the
service and each site, and process ids, so that all of it ends with this program. Elsewhere it is folders and loopback,
and the faults that need disks or networks are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml

from hpo_pilot.steering.server_processes import free_port
from hpo_pilot.steering.workdir import WorkDir
from tests.certificates import self_signed

HPO_PILOT = [sys.executable, "-m", "hpo_pilot.cli"]
SITES = ("site1", "site2")

#: Each execution notes its begin and its end in a file that no fault reaches; the figure is a function of the point.
#: A checkpoint that cannot be read, after a fault of the disk, is as none.
_PAYLOAD = """
import json, os, pathlib, time
point = json.load(open("input.json"))
name = {name!r}
about = [name, int(os.environ["HPO_PILOT_TRIAL"]), int(os.environ["HPO_PILOT_FOLD"]), os.environ["PANDA_ATTEMPTNR"]]
def note(what):
    with open({notes!r}, "a") as file:
        file.write(json.dumps([what, time.time(), os.getpid(), *about]) + "\\n")
note("begin")
kept = pathlib.Path(os.environ["HPO_PILOT_CHECKPOINT_DIR"], "step")
try:
    done = int(kept.read_text())
except (OSError, ValueError):
    done = 0
for step in range(done + 1, int(point.get("epochs", 3)) + 1):
    time.sleep({seconds})
    try:
        kept.with_suffix(".new").write_text(str(step))
        kept.with_suffix(".new").replace(kept)
    except OSError:
        pass
note("end")
json.dump({{"status": 0, "loss": point["x"] + about[2], "message": ""}}, open("output.json", "w"))
"""

#: Searches by kind; each finished one is followed by another of its kind, until the last fault.
KINDS: dict[str, dict[str, Any]] = {
    "folds": {"folds": 2, "budget": {"trials": 24, "parallel": 3}},
    "levels": {"fidelity": {"epochs": {"low": 1, "high": 9}}, "budget": {"trials": 18, "parallel": 2}},
    "several": {
        "budget": {"trials": 24, "parallel": 6},
        "resources": {"trials_per_job": 3},
        "optimizer": "evolutionary",
    },
}


def do(*words: str | Path, check: bool = True) -> str:
    """Runs a program of the system; returns its output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def below(process: psutil.Process) -> list[psutil.Process]:
    """The descendants of a process, as they are now."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def words(process: psutil.Process) -> str:
    """The command line of a process; empty: it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _has_ended(process: psutil.Process) -> bool:
    """Whether a process waits for its parent's look."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:  # another thread has just waited for it
        return False


@dataclass
class Kept:
    """A process that is started again when it has ended, as systemd does; `down`: it is not, for the time being."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    down: bool = False
    statuses: list[int] = field(default_factory=list)

    def look(self) -> None:
        if self.process is not None and (status := self.process.poll()) is not None:
            self.statuses.append(status)
            self.process = None
        if self.process is None and not self.down:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    @property
    def root(self) -> psutil.Process | None:
        try:
            return psutil.Process(self.process.pid) if self.process is not None else None
        except psutil.NoSuchProcess:
            return None

    def kill_all(self) -> None:
        """Ends it with all that is below it, at once, as a power cut does; it stays down."""
        self.down = True
        if (root := self.root) is not None:
            every = [root, *below(root)]
            for step in (psutil.Process.suspend, psutil.Process.kill):
                for process in every:
                    try:
                        step(process)
                    except psutil.Error:
                        continue
            psutil.wait_procs(every, timeout=600)
        self.look()

    def stop(self, seconds: float = 600.0) -> None:
        """Ends it in order; it stays down."""
        self.down = True
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill_all()
        self.look()


class World:
    """Everything, in a folder that is empty at first."""

    def __init__(self, root: Path, *, isolated: bool, postgresql: bool) -> None:
        """Makes disks, networks and the database, and starts all.

        Args:
            root: the folder.
            isolated: in namespaces of its own, as root.
            postgresql: the store is a PostgreSQL; else SQLite.
        """
        self.root, self.isolated, self.postgresql = root, isolated, postgresql
        self.notes = root / "notes"
        self.notes.touch()
        self.submitted: list[str] = []
        self.answers: list[tuple[float, int, str]] = []
        self.slowest = (0.0, "")
        self._ended: set[int] = set()
        self.no_commands = threading.Lock()  # held while a disk is away
        for name in ("service", *SITES):
            (root / name).mkdir()
            if isolated:
                image = root / f"{name}.img"
                with image.open("wb") as file:
                    file.truncate(700_000_000 if name == "service" else 400_000_000)
                do("mkfs.ext4", "-q", "-m", "0", image)  # nothing reserved for root: full is full
                self.mount(name)
        os.environ["OMP_NUM_THREADS"] = "1"
        if postgresql:
            self._start_postgresql()
        self.host, tls, ca = "127.0.0.1", [], []
        self._networks: dict[str, subprocess.Popen[bytes]] = {}
        if isolated:
            self.host = "10.99.0.1"
            made = self_signed(root / "tls", [self.host])
            tls, ca = [*made.options, "--ca", str(made.chain)], ["--ca", str(made.chain)]
            self._make_networks()
        self.port, api = free_port(), free_port()
        self.workdir = WorkDir.at(root / "service" / "work")
        # On loopback its pilot takes itself for the only one, and keeps its checkpoints to itself.
        serve = ["serve", "--slots", "1" if isolated else "0", "--host", self.host, *tls]
        serve += ["--port", str(self.port), "--api-port", str(api)]
        self.service = Kept([*HPO_PILOT, *serve, *self.where], root / "service.log")
        self.service.look()
        self.wait_for((self.workdir.tokens / "pilot.token").exists, 600.0)
        token = root / "pilot.token"
        do(*HPO_PILOT, "token", "create", "--name", "sites", "--role", "pilot", "-o", token, *self.where)
        url = f"http{'s' if isolated else ''}://{self.host}:{self.port}"
        self.pilots: dict[str, Kept] = {}
        for site in SITES:
            pilot = [sys.executable, "-m", "hpo_pilot.pilot", "--server", url, "--queue", "LOCAL", *ca]
            pilot += ["--token-file", str(token), "--workdir", str(root / site / "pilot"), "--slots", "2"]
            pilot += ["--heartbeat", "2", "--checkpoint-every", "2", "--min-free-mb", "50"]
            if isolated:
                pilot = ["nsenter", f"--net=/proc/{self._networks[site].pid}/ns/net", *pilot]
            self.pilots[site] = Kept(pilot, root / f"{site}.log")
            self.pilots[site].look()

    # --- disks, networks, PostgreSQL ---

    def mount(self, name: str) -> None:
        """Mounts the disk of the service or a site."""
        do("mount", "-o", "loop", self.root / f"{name}.img", self.root / name)

    def _make_networks(self) -> None:
        do("ip", "link", "set", "lo", "up")
        do("ip", "address", "add", f"{self.host}/32", "dev", "lo")
        for number, site in enumerate(SITES, 1):
            # A process holds the site's network namespace; it ends with this program's process ids.
            holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            self._networks[site] = holder
            theirs, mine = (Path(f"/proc/{pid}/ns/net") for pid in (holder.pid, "self"))
            while theirs.readlink() == mine.readlink():  # it is made in a moment
                time.sleep(0.01)
            do("ip", "link", "add", site, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            do("ip", "address", "add", f"10.99.{number}.1/24", "dev", site)
            do("ip", "link", "set", site, "up")
            there = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "ip")
            do(*there, "link", "set", "lo", "up")
            do(*there, "address", "add", f"10.99.{number}.2/24", "dev", "eth0")
            do(*there, "link", "set", "eth0", "up")
            do(*there, "route", "add", "default", "via", f"10.99.{number}.1")

    def _start_postgresql(self) -> None:
        data, socket = self.root / "postgresql", self.root / "socket"
        data.mkdir()
        socket.mkdir()
        bins = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        found = bins[-1] if bins else Path(shutil.which("initdb") or "initdb").parent
        as_postgres: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self.root.chmod(0o755)
            shutil.chown(data, "postgres")
            shutil.chown(socket, "postgres")
            as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "env", "-C", "/"]
        do(*as_postgres, found / "initdb", "-D", data, "-U", "test", "-A", "trust", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={socket} -c fsync=off"
        self._pg_ctl = [*as_postgres, str(found / "pg_ctl"), "-D", str(data), "-s", "-w", "-l", str(data / "log")]
        self._pg_ctl += ["-t", "600", "-o", options]
        self.pg_ctl("start")
        os.environ["HPO_PILOT_STORE"] = f"postgresql+psycopg://test@/postgres?host={socket}"

    def pg_ctl(self, what: str, *options: str) -> None:
        """Starts or stops PostgreSQL."""
        # Not captured: the server would keep the pipe open.
        done = subprocess.run([*self._pg_ctl, *options, what], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise OSError(f"pg_ctl {what}: {done.returncode}")

    @property
    def postmaster(self) -> psutil.Process:
        """The main process of PostgreSQL."""
        return psutil.Process(int((self.root / "postgresql" / "postmaster.pid").read_text().split()[0]))

    # --- what happens by itself ---

    def wait_for(self, condition: Any, seconds: float = 600.0) -> None:
        """Waits for a condition.

        Raises:
            TimeoutError: it does not hold in time.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds:g} s")
            time.sleep(0.1)

    def look(self) -> None:
        """Starts again what has ended, and waits for the processes that have no other parent any more."""
        for kept in self.every:
            kept.look()
        ended = [child.pid for child in psutil.Process().children() if _has_ended(child)]
        for pid in self._ended.intersection(ended):  # twice: those of `subprocess` are waited for at once
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._ended = set(ended)

    @cached_property
    def every(self) -> list[Kept]:
        """The service and the pilots."""
        return [self.service, *self.pilots.values()]

    @property
    def where(self) -> list[str]:
        """The options of a command that name the work folder."""
        return ["--workdir", str(self.workdir.root)]

    def command(self, *arguments: str) -> str | None:
        """Gives a command as a user does. Returns its output; None: it said "try again" (status 3)."""
        begun = time.monotonic()
        try:
            whole = [*HPO_PILOT, *arguments, *self.where]
            with self.no_commands:
                done = subprocess.run(whole, capture_output=True, text=True, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            self.answers.append((time.time(), -1, f"hpo-pilot {arguments[0]}: no answer in 600 s"))
            return None
        self.slowest = max(self.slowest, (time.monotonic() - begun, arguments[0]))
        said = f"hpo-pilot {' '.join(arguments)}: {done.stderr.strip()[-300:]}"
        self.answers.append((time.time(), done.returncode, said))
        return done.stdout if done.returncode == 0 else None

    def submit(self, kind: str) -> None:
        """Submits another search of a kind, if that is possible now."""
        name = f"{kind}{sum(each.startswith(kind) for each in self.submitted)}"
        folder = self.root / "searches" / name
        if not folder.exists():
            (folder / "payload").mkdir(parents=True)
            text = _PAYLOAD.format(name=name, notes=str(self.notes), seconds=0.3)
            (folder / "payload" / "train.py").write_text(text)
            document = {
                "search": name,
                "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
                "optimizer": "random",
                "payload": {"files": "payload", "command": "python3 -I -S train.py"},
                "panda": {"attempts": 20},  # each fault may meet the same job
                **KINDS[kind],
            }
            document["resources"] = {"minutes": 1, "memory_mb": 100, **document.get("resources", {})}
            (folder / "search.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        if self.command("submit", str(folder / "search.yaml")) is not None or name in (self.states() or {}):
            self.submitted.append(name)

    def states(self) -> dict[str, str] | None:
        """The states of all searches by name; None: the store does not answer."""
        said = self.command("list", "--json")
        return None if said is None else {row["name"]: row["state"] for row in json.loads(said)}

    def executions(self) -> Iterator[Sequence[Any]]:
        """The lines that the payloads noted: what, time, process, search, trial, fold, attempt."""
        for line in self.notes.read_text().splitlines():
            yield json.loads(line)

    def end(self) -> None:
        """Ends all of it."""
        for kept in self.every:
            if (root := kept.root) is not None:
                root.send_signal(signal.SIGCONT)
        for kept in reversed(self.every):
            kept.stop()
        if self.postgresql:
            self.pg_ctl("stop", "-m", "immediate")
        for holder in self._networks.values():
            holder.kill()
            holder.wait()
        shutil.copytree(self.workdir.root / "logs", self.root / "logs", dirs_exist_ok=True)
        if self.isolated:
            for name in ("service", *SITES):
                do("umount", "--lazy", self.root / name, check=False)  # something may still end
