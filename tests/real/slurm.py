"""A real Slurm of two nodes or more on this machine, for tests of allocations.

    from tests.real.slurm import Slurm, slurm  # the fixture, one cluster for the module that imports it

    def test_it(slurm: Slurm, tmp_path: Path) -> None:
        slurm.run("sbatch", "-N2", "job.sh")        # any Slurm command, or
        subprocess.Popen(..., env=slurm.environment)  # anything that shall find it (SLURM_CONF)

Nodes are n1, n2 and so on. All are this machine, so its file system is what they share; nothing watches what jobs use,
so more CPUs can be told than there are. Needs no root, no systemd and no munge. It listens on loopback alone.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.real.processes import missing

#: CPUs that each node has unless a test says otherwise: four jobs of two ranks side by side.
CPUS = 8

NODES = ("n1", "n2")

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")

_START_SECONDS = 600.0
_STOP_SECONDS = 600.0

#: `KillWait`: what a job gets between SIGTERM and SIGKILL; 30 s is Slurm's own.
_CONF = """\
ClusterName=hpo-pilot-tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={timeout}
KillWait=10
MinJobAge=300
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
TmpFS={folder}/tmp/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobs.txt
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={memory_mb}"


@dataclass(frozen=True)
class Slurm:
    """One that runs.

    Attributes:
        folder: all its files: `slurm.conf`, logs, state.
        environment: this process's, with what leads Slurm's commands to it.
        daemons: its processes, the controller first, then those of the nodes.
        nodes: their names.
    """

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen[bytes]]
    nodes: tuple[str, ...] = NODES

    def run(self, *words: object, timeout: float = 600.0) -> str:
        """What a command prints, without the last line's end; it must succeed."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.rstrip("\n")

    def state(self, job: str) -> str:
        """The state of a job, e.g. RUNNING; also of one that ended up to five minutes ago."""
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")

    def wait(self, job: str, *states: str, timeout: float = 600.0) -> str:
        """Waits for a job to be in one of these states; returns which."""
        end = time.monotonic() + timeout
        while (state := self.state(job)) not in states:
            assert time.monotonic() < end, f"job {job} is {state}, not {' or '.join(states)}; see {self.folder}/log"
            time.sleep(0.2)
        return state

    def stop_controller(self) -> None:
        """What runs goes on, and nothing more can be started. Killed, it would forget its jobs of the last seconds."""
        self.daemons[0].terminate()
        self.daemons[0].wait(_STOP_SECONDS)

    def start_controller(self) -> None:
        """Once more; it knows its jobs still."""
        self.daemons[0] = _controller(self)

    def kill_node(self, node: str) -> None:
        """As if its power went: its daemon and all that runs on it are gone, and nobody says so."""
        daemon = self.daemons[1 + self.nodes.index(node)]
        daemon.kill()
        daemon.wait()
        for process in _processes(self):
            with suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == node:
                    parent = process.parent()
                    if parent is not None and parent.name() == "slurmstepd":
                        parent.kill()
                    process.kill()

    def cancel_all(self) -> None:
        """Ends all jobs at once, and waits until they have."""
        self.run("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}")
        self.run("scancel", f"--user={getpass.getuser()}")
        end = time.monotonic() + _STOP_SECONDS
        while self.run("squeue", "--noheader"):
            assert time.monotonic() < end, f"jobs do not end: {self.run('squeue')}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A cluster of two nodes of `CPUS` CPUs; a module that needs others makes its own with `running_slurm`."""
    with running_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@contextmanager
def running_slurm(
    folder: Path, *, cpus: int = CPUS, memory_mb: int = 4000, nodes: Sequence[str] = NODES, timeout: int = 300
) -> Iterator[Slurm]:
    """Starts one, and ends it with all its jobs.

    Args:
        folder: an empty one that is the cluster's.
        cpus: of each node.
        memory_mb: of each node.
        nodes: their names.
        timeout: seconds after which a node that does not answer is taken for down; 300 is Slurm's own.
    """
    search = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # where Debian has the daemons, and users' PATH has not
    lacking = [program for program in (*_PROGRAMS, "setpriv") if shutil.which(program, path=search) is None]
    if lacking:
        missing(f"{', '.join(lacking)}: `make test-real` installs Slurm, if root")
    for name in ("state", "run", "log", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in nodes)):
        (folder / name).mkdir(parents=True)
    configuration = folder / "slurm.conf"
    controller, *ports = _free_ports(1 + len(nodes))
    lines = [
        _NODE.format(name=name, port=port, cpus=cpus, memory_mb=memory_mb)
        for name, port in zip(nodes, ports, strict=True)
    ]
    values = {"controller": controller, "user": getpass.getuser(), "folder": folder, "nodes": "\n".join(lines)}
    configuration.write_text(_CONF.format(**values, timeout=timeout))
    # Nothing of a Slurm job that these tests may run in.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
    daemons: list[subprocess.Popen[bytes]] = []
    cluster = Slurm(folder, {**own, "PATH": search, "SLURM_CONF": str(configuration)}, daemons, tuple(nodes))
    try:
        daemons.append(_controller(cluster))
        daemons += [_daemon(cluster, "slurmd", "-D", "-f", str(configuration), "-N", node) for node in nodes]
        _wait_until_idle(cluster, daemons)
        yield cluster
    finally:
        _stop(cluster, daemons)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _controller(cluster: Slurm) -> subprocess.Popen[bytes]:
    return _daemon(cluster, "slurmctld", "-D", "-i", "-f", str(cluster.folder / "slurm.conf"))


def _daemon(cluster: Slurm, *command: str) -> subprocess.Popen[bytes]:
    """Starts one in the foreground; it ends with this process, however that does."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        env=cluster.environment,
        cwd=cluster.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_until_idle(cluster: Slurm, daemons: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        said = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=debug", "--format=%T"],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        ).stdout.split()
        if said == ["idle"] * len(cluster.nodes):
            return
        ended = [daemon.args for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > end:
            logs = "\n".join(f"{log}: {log.read_text()[-2000:]}" for log in sorted((cluster.folder / "log").iterdir()))
            pytest.fail(f"Slurm does not start: nodes are {said}; ended: {ended}\n{logs}")
        time.sleep(0.2)


def _stop(cluster: Slurm, daemons: list[subprocess.Popen[bytes]]) -> None:
    if all(daemon.poll() is None for daemon in daemons):
        with suppress(AssertionError, subprocess.TimeoutExpired):  # then `_kill_steps` ends them
            cluster.cancel_all()
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    _kill_steps(cluster)


def _kill_steps(cluster: Slurm) -> None:
    """Ends what jobs left behind, wherever it is."""
    for process in _processes(cluster):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def _processes(cluster: Slurm) -> Iterator[psutil.Process]:
    """All that runs in the cluster, with its daemons: it has this SLURM_CONF in its environment."""
    mine = cluster.environment["SLURM_CONF"]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == mine:
                yield process
