"""Settings of a pilot, the site that it runs at, and its work folder."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import PRIVATE, close_to_others, make_private, try_lock, write_whole
from hpo_pilot.hpc.launcher import Launcher
from hpo_pilot.hpc.launchers import Plain, make_launcher
from hpo_pilot.plugins import find_plugin
from hpo_pilot.transformation.container import RUNTIMES, ContainerRuntime, Inside
from hpo_pilot.transformation.process import GRACE, WORKER_MARK

CHECKPOINT_MB = 500  # what panda-server 1.0.4 takes
_URL = "https://panda.example.org:25443"


def know_runtime(name: str) -> None:
    """Makes a runtime known to `choose_runtime` in this process: `auto`, one of `RUNTIMES`, or one of another package.

    The transformation, which is shipped as one file, has only those of its own.

    Raises:
        InputError: there is no such runtime, or that of another package cannot be used.
    """
    if name == "auto" or name in RUNTIMES:
        return
    kind = find_plugin("runtimes", name, ContainerRuntime)
    if kind is None:
        raise InputError(f"there is no container runtime {name!r}; there is auto, {', '.join(RUNTIMES)}")
    RUNTIMES[name] = kind()


@dataclass(frozen=True)
class PilotSettings:
    """Settings of one pilot process.

    Attributes:
        server: the PanDA server's base URL, without a path.
        queue: the PanDA queue that it serves.
        slots: number of jobs that run at the same time.
        cores: cores of all jobs together; 0: the larger of the machine's cores and the slots.
        gpus: GPUs to share out: `all`, a number, or a list; None: the machine's GPUs, for jobs that ask for one, while
            other jobs see all of them.
        workdir: for job folders, the sandbox cache, and reports that could not be sent yet.
        token_file: file with the pilot's bearer token; read again when it changes. None: a proxy is used.
        proxy: grid proxy, certificates and key in PEM form; None, and no token file: the one that grid tools use.
        ca: PEM file or hashed folder of the certificate authorities of the server; None: with a proxy the folder
            X509_CERT_DIR, else the system's.
        checkpoints: folder that keeps checkpoints between attempts; None: in the work folder.
        checkpoint_mb: largest packed checkpoint that is sent through the server to a job's next attempt; 0: none is
            sent; None: 500, PanDA's own limit, or 0 if `checkpoints` names a folder, which pilots then share.
        checkpoint_every: seconds between uploads of a running job's checkpoint.
        storage: folder for outputs and logs if the server stores none; None: in the work folder.
        worker_id: identifies this pilot at the server, together with `harvester_id`; only one running pilot may use it.
        harvester_id: empty: made from the host and the work folder.
        vo: virtual organisation, sent as `Origin` as panda-client does.
        heartbeat: seconds between reports on a running job.
        shortest_report: smallest interval between reports on a job whose search wants intermediate values soon, in
            seconds; ten times as long for a server that is not ours.
        first_report: seconds until the first report; a shorter job is reported only once, at its end.
        end_idle: seconds without a job after which a pilot gives its allocation back; 0: never.
        drain: seconds for running jobs to end by themselves after SIGTERM.
        grace: seconds between TERM and KILL for a job; longer than the runner's time for its payload.
        walltime_grace: seconds that a job may run beyond its maxWalltime.
        refused: seconds during which a refused token is tried again, because its file may be under renewal.
        lifetime: seconds until no more jobs are taken, or until the allocation ends; 0: no limit, or from the batch
            system.
        memory_mb: memory for the largest job; 0: not given.
        cache_mb: size limit of the cache of unpacked sandboxes.
        input_cache_mb: size limit of the cache of inputs, and of a single input.
        min_free_mb: free disk below which no jobs are taken.
        container_runtime: a name of `RUNTIMES`, one of another package, or `auto`.
        environments: folder with the stored environments of searches that were submitted on this machine, by their
            uid; their jobs run in them. None: all jobs run in the pilot's environment.
        isolation: jobs cannot read this pilot's files and those of other searches, where the kernel has Landlock.
        hide: further files and folders that jobs cannot read.
        staging: copy files that many jobs read to the nodes' own disks, if the site's profile names a folder there.
        staging_mb: size limit of the copies on a node.
        keep: job folders stay after the job.
        site: the site's profile as JSON; None: jobs have no ranks.
        allocation: share out all nodes of the batch allocation in which the pilot runs; its work folder is on storage
            that the nodes share.
        agents: in an allocation, run jobs of one node by agents, where the launcher can start them.
        agent: this pilot is an agent: its server is the pilot of the allocation.
        checkpoint_rate: MB/s at most that the agents of an allocation write as checkpoints.
        margin: seconds before the end of an allocation when jobs must save and stop; at most a tenth of its length.
        metrics_port: port for Prometheus; 0: any free port; None: no port.
        lifeline_fd: reading end of a pipe; the pilot ends when the other end closes with the process that started it.
    """

    server: str
    queue: str
    slots: int
    workdir: Path
    token_file: Path | None = None
    proxy: Path | None = None
    checkpoints: Path | None = None
    checkpoint_mb: int | None = None
    checkpoint_every: float = 300.0
    storage: Path | None = None
    cores: int = 0
    gpus: str | None = None
    ca: Path | None = None
    worker_id: int = 1
    harvester_id: str = ""
    vo: str = "hpo_pilot"
    heartbeat: float = 20.0
    shortest_report: float = 0.25
    first_report: float = 0.5
    end_idle: float = 900.0
    drain: float = 3.0
    grace: float = GRACE
    walltime_grace: float = 60.0
    refused: float = 60.0
    lifetime: float = 0.0
    memory_mb: int = 0
    cache_mb: int = 5_000
    input_cache_mb: int = 100_000
    min_free_mb: int = 200
    container_runtime: str = "auto"
    environments: Path | None = None
    isolation: bool = True
    hide: tuple[str, ...] = ()
    staging: bool = True
    staging_mb: int = 100_000
    keep: bool = False
    site: Path | None = None
    allocation: bool = False
    agents: bool = True
    agent: bool = False
    checkpoint_rate: float = 1000.0
    margin: float = 120.0
    metrics_port: int | None = None
    lifeline_fd: int | None = None
    node: str = field(default_factory=lambda: socket.gethostname()[:100] or "unknown")

    def __post_init__(self) -> None:
        if self.token_file is None:
            self._use_proxy()
        elif self.proxy is not None:
            raise InputError("--token-file and --proxy: give one of them")
        for name in ("workdir", "checkpoints", "storage", "token_file", "proxy", "ca", "site", "environments"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(path).absolute())
        object.__setattr__(self, "hide", tuple(os.path.abspath(path) for path in self.hide))  # noqa: PTH100  sent as JSON
        port, every = self.metrics_port, self.checkpoint_every
        for is_good, mistake in (
            (self.server.startswith(("http://", "https://")), f"server {self.server!r}: give a URL such as {_URL}"),
            (not self.ca or self.ca.exists(), f"ca {self.ca}: there is no such file; the server's operator has it"),
            (self.slots >= 1, f"slots {self.slots}: at least one"),
            (self.site or not self.allocation, "allocation: give --site FILE as well; it says how ranks are started"),
            (self.cores >= 0, f"cores {self.cores}: at least one"),
            (self.heartbeat > 0, f"heartbeat {self.heartbeat}: a time in seconds, above zero"),
            (every > 0, f"checkpoint-every {every}: a time in seconds, above zero"),
            ((self.checkpoint_mb or 0) >= 0, f"checkpoint-mb {self.checkpoint_mb}: a size in MB, or 0"),
            (self.checkpoint_rate > 0, f"checkpoint-rate {self.checkpoint_rate}: a rate in MB/s, above zero"),
            (0 <= (port or 0) <= 65535, f"metrics-port {port}: a port between 0 and 65535; 0: any free one"),
            (self.staging_mb >= 1, f"staging-mb {self.staging_mb}: a size in MB; --no-staging stages nothing"),
        ):
            if not is_good:
                raise InputError(f"--{mistake}")
        try:
            know_runtime(self.container_runtime)
        except InputError as error:
            raise InputError(f"--container-runtime: {error}") from error
        object.__setattr__(self, "server", self.server.rstrip("/"))
        if not self.harvester_id:
            mark = zlib.crc32(os.fsencode(self.workdir.resolve()))
            object.__setattr__(self, "harvester_id", f"hpo-pilot-{self.node}-{mark:08x}")

    def _use_proxy(self) -> None:
        """Finds the grid proxy, and the authorities that go with it, where grid tools look for them."""
        proxy = self.proxy or Path(os.environ.get("X509_USER_PROXY") or f"/tmp/x509up_u{os.getuid()}")  # noqa: S108  the usual place
        if not proxy.is_file():
            raise InputError(
                f"give --token-file, a file with a pilot's token, or --proxy, a grid proxy: there is none at {proxy}"
            )
        if not self.server.startswith("https://"):
            raise InputError(f"--server {self.server}: only https shows it the proxy {proxy}; else give --token-file")
        object.__setattr__(self, "proxy", proxy)
        if self.ca is None and (folder := os.environ.get("X509_CERT_DIR")):
            object.__setattr__(self, "ca", Path(folder))

    @property
    def checkpoint_root(self) -> Path:
        """Folder that keeps checkpoints between attempts."""
        return self.checkpoints or self.workdir / "checkpoints"

    @property
    def shipped_mb(self) -> int:
        """Largest checkpoint that is sent through the server, in MB; 0: none is sent."""
        if self.checkpoint_mb is not None:
            return self.checkpoint_mb
        return 0 if self.checkpoints else CHECKPOINT_MB

    @property
    def storage_folder(self) -> Path:
        """Folder for outputs and logs that the server does not store."""
        return self.storage or self.workdir / "storage"

    @property
    def jobs_folder(self) -> Path:
        """Folder of the running jobs, and of packed checkpoints on their way; the next pilot empties it."""
        return self.workdir / "jobs" / self.worker_name

    @property
    def worker_name(self) -> str:
        """Name of the worker in file names and environment variables."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.harvester_id)
        return f"{safe}-{self.worker_id}"


# The site's profile, as `hpo-pilot sites show NAME --json` prints it. pydantic checks profiles when they are read from
# YAML. Pilots are installed without pydantic, so they read only the fields that they need.

#: Number of consecutive GPUs on a node with fast links between them: two of an MI250X, three on each socket of Summit
#: (see the guides named in deploy/sites/). Other GPUs count as equally close.
_CLOSE = {"MI250X": 2, "V100": 3}


@dataclass(frozen=True)
class EndSignal:
    """Signal of the batch system, `seconds` before the end of the allocation."""

    number: signal.Signals
    seconds: float


@dataclass(frozen=True)
class Site:
    """The site's profile as far as a pilot needs it. 0 in a number means: not given.

    Attributes:
        launcher: starts the ranks of payloads.
        cores: cores of a node.
        threads_per_core: hardware threads of a core, as the batch system counts CPUs.
        memory_mb: memory of a node, in MB.
        gpus: GPUs of a node.
        gpu_kind: nvidia, amd, intel or none.
        gpu_model: empty: not given.
        gpu_memory_mb: memory of one GPU, in MB.
        mps: NVIDIA's Multi-Process Service runs on the nodes.
        close: number of consecutive GPUs with fast links between them.
        batch: the batch system, or none.
        warning: signal before the end of an allocation; None: there is none.
        job_steps: job steps that an allocation can run at the same time; 0: no limit.
        runtime: container runtime, or auto.
        read_only: folders that containers mount read-only.
        mpi: folders of the node's MPI, which replaces the image's MPI.
        scratch: folder on the node's own disk; empty: there is none.
        environment: variables of every job.
    """

    name: str = ""
    launcher: Launcher = field(default_factory=Plain)
    cores: int = 0
    threads_per_core: int = 1
    memory_mb: int = 0
    gpus: int = 0
    gpu_kind: str = "none"
    gpu_model: str = ""
    gpu_memory_mb: int = 0
    mps: bool = False
    close: int = 1
    batch: str = "none"
    warning: EndSignal | None = None
    job_steps: int = 0
    runtime: str = "auto"
    read_only: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    scratch: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def inside(self, *, gpus: bool) -> Inside:
        """Returns the settings of containers at this site; `gpus`: whether the job has GPUs."""
        read_only, mpi = ([Path(os.path.expandvars(name)) for name in names] for names in (self.read_only, self.mpi))
        kind = self.gpu_kind if gpus and self.gpu_kind != "none" else None if gpus else "none"
        return Inside(kind, read_only, mpi)


def load_site(path: Path) -> Site:
    """Reads a site's profile.

    Raises:
        InputError: the file cannot be read, or is not a profile.
    """
    remedy = f"write it with: hpo-pilot sites show NAME --json > {path.name}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or "launcher" not in data:
            raise ValueError("no site profile")
        return _site(data)
    except InputError as error:
        raise InputError(f"--site {path}: {error}") from error
    except OSError as error:
        raise InputError(f"--site {path}: {error.strerror or error}; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"--site {path} cannot be understood ({error}); {remedy}") from error


def _site(data: Mapping[str, Any]) -> Site:
    node, batch = _section(data, "node"), _section(data, "batch")
    gpus, containers = _section(node, "gpus"), _section(data, "containers")
    runtime, model = str(containers.get("runtime") or "auto"), str(gpus.get("model") or "")
    know_runtime(runtime)
    threads = int(node.get("threads_per_core") or 1)
    return Site(
        name=str(data.get("name") or ""),
        launcher=make_launcher(_section(data, "launcher"), threads),
        cores=int(node.get("cores") or 0),
        threads_per_core=threads,
        memory_mb=int(node.get("memory_mb") or 0),
        gpus=int(gpus.get("count") or 0),
        gpu_kind=str(gpus.get("kind") or "none"),
        gpu_model=model,
        gpu_memory_mb=int(gpus.get("memory_mb") or 0),
        mps=bool(gpus.get("mps")),
        close=next((close for name, close in _CLOSE.items() if name in model), 1),
        batch=str(batch.get("system") or "none"),
        warning=_warning(_section(batch, "warning")),
        job_steps=int(batch.get("job_steps") or 0),
        runtime=runtime,
        read_only=tuple(map(str, containers.get("read_only") or ())),
        mpi=tuple(map(str, containers.get("mpi") or ())),
        scratch=str(_section(data, "scratch").get("node") or ""),
        environment={str(name): str(value) for name, value in _section(data, "environment").items()},
    )


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not a mapping")
    return found


def _warning(said: Mapping[str, Any]) -> EndSignal | None:
    if not said:
        return None
    name = f"SIG{said['signal']}"
    if name not in signal.Signals.__members__:
        raise InputError(f"there is no signal {said['signal']!r}")
    return EndSignal(signal.Signals[name], float(said.get("seconds") or 0))


log = logging.getLogger(__name__)

#: Seconds that a pilot waits for the pilot before it to end its jobs.
_TAKE_OVER_SECONDS = 30.0

_SAMPLE = 4096  # bytes of a test file that is written to check the disk

_KEY_BYTES = 32


def pilot_key(workdir: Path, worker_name: str) -> str:
    """Returns the secret that identifies this worker at the server; makes it if it is missing or damaged.

    It is kept after the pilot has ended: the next pilot with its name sends the reports that this one could not send.

    Raises:
        InputError: the key file cannot be read or written.
    """
    file = workdir / "jobs" / f"{worker_name}.key"
    try:
        key = file.read_bytes().decode("ascii", "replace").strip() if file.exists() else ""
        if not re.fullmatch(r"[A-Za-z0-9_-]{32,}", key):
            if file.exists():
                log.warning("%s is damaged: a new key is made, and jobs of the earlier pilot count as lost", file)
            key = secrets.token_urlsafe(_KEY_BYTES)
            write_whole(file, key, mode=0o600)
    except OSError as error:
        raise InputError(f"{file} cannot be used: {error}") from error
    return key


def remove(path: Path) -> None:
    """Deletes a file or a folder if that is possible."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def worker_mark(settings: PilotSettings) -> dict[str, str]:
    """Returns the variable that only the processes of this worker's jobs have."""
    return {WORKER_MARK: f"{settings.worker_name}@{settings.workdir}"}


class PilotWorkDir:
    """The work folder, closed to other accounts.

    ::

        cache/            unpacked sandboxes, for all pilots here
        inputs/           fetched inputs, for all pilots here
        jobs/WORKER/      one folder per running job, below one per search if jobs are isolated; packed checkpoints
        interpreters/     sandboxes of kept interpreters
        jobs/WORKER.lock  held while a pilot of that name lives
        jobs/WORKER.key   identifies the worker at the server
        unsent/WORKER/    reports that are not sent yet
        staging/WORKER/   archives and requests for copies to the nodes
        checkpoints/      of trials, kept between attempts
    """

    #: If the owner opens the work folder to others, these folders stay closed.
    CLOSED = ("cache", "inputs", "interpreters", "jobs", "unsent", "staging", "storage")

    def __init__(self, settings: PilotSettings) -> None:
        """Makes the folders and takes the worker's name.

        Raises:
            InputError: the folder cannot be written, or belongs to another account.
            TryAgainError: a pilot of this name lives.
        """
        self.root = settings.workdir
        self.cache, self.inputs = self.root / "cache", self.root / "inputs"
        self.jobs = settings.jobs_folder
        self.interpreters = self.root / "interpreters" / settings.worker_name
        self._unsent = self.root / "unsent" / settings.worker_name
        self.staging = self.root / "staging" / settings.worker_name
        try:
            make_private(self.root)
            for name in self.CLOSED:
                close_to_others(self.root / name)
            for folder in (self.jobs, self._unsent, settings.checkpoint_root):
                make_private(folder)
            self._lock = self.jobs.with_name(self.jobs.name + ".lock").open("w")
        except OSError as error:
            raise InputError(f"--workdir {self.root} cannot be used: {error}") from error
        # If the process that starts pilots was killed, its earlier pilot may still be ending its jobs.
        give_up = time.monotonic() + (_TAKE_OVER_SECONDS if settings.lifeline_fd is not None else 0.0)
        while not try_lock(self._lock.fileno()):
            if time.monotonic() >= give_up:
                raise TryAgainError(
                    f"a pilot {settings.worker_name} runs in {self.root} already; give this one another --worker-id"
                )
            time.sleep(0.1)
        self.key = pilot_key(self.root, settings.worker_name)
        self.stale = list(self.jobs.iterdir())

    def new_job_folder(self, panda_id: int, attempt: int, search: str = "") -> Path:
        """Makes and returns an empty folder for a job, in the existing folder `search`."""
        folder = self.jobs / search / f"{panda_id}.{attempt}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=PRIVATE)
        return folder

    def free_mb(self) -> int:
        """Returns the free disk space in MB."""
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize >> 20

    def trouble(self, least_mb: int) -> str:
        """Returns why no job can run here; empty: one can. `least_mb`: required free disk."""
        sample = self.jobs / ".sample"
        try:
            if (free := self.free_mb()) < least_mb:
                return f"only {free // 50 * 50} MB or so of disk are free in {self.root}"
            sample.write_bytes(bytes(_SAMPLE))
            sample.unlink()
        except OSError as error:
            return f"{self.jobs} cannot be written: {error.strerror or error}"
        return ""

    def remove_stale(self) -> None:
        """Deletes the job folders and packed checkpoints of an earlier pilot, whose processes have ended."""
        for entry in self.stale:
            remove(entry)
        if self.stale:
            log.info("%d folders and files of an earlier pilot's jobs or searches removed", len(self.stale))
        self.stale = []

    def keep_report(self, report: dict[str, Any]) -> None:
        """Stores an unsent report for this pilot or the next one with its name."""
        try:
            write_whole(self._report(report), json.dumps(report))
        except OSError as error:
            log.error("the report on job %s cannot be stored and is only in memory: %s", report["job_id"], error)

    def drop_report(self, report: dict[str, Any]) -> None:
        """Deletes a stored report after it was sent or refused."""
        try:
            self._report(report).unlink(missing_ok=True)
        except OSError as error:  # the next pilot sends it again, and the server refuses it
            log.warning("the report on job %s stays on disk: %s", report["job_id"], error)

    def kept_reports(self) -> Iterator[dict[str, Any]]:
        """Yields the unsent reports of an earlier pilot with this name."""
        for path in sorted(self._unsent.glob("*.json")):
            try:
                report = json.loads(path.read_text())
                report["job_id"], report["attempt_nr"], report["job_status"]
            except OSError as error:
                log.error("%s cannot be read and is skipped: %s", path, error)
                continue
            except (ValueError, KeyError, TypeError) as error:
                log.error("%s is damaged and is removed; its job counts as lost: %r", path, error)
                path.unlink(missing_ok=True)
                continue
            yield report

    def _report(self, report: dict[str, Any]) -> Path:
        return self._unsent / f"{int(report['job_id'])}.{int(report['attempt_nr'])}.json"
