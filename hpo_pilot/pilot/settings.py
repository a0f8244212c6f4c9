"""Settings of a pilot, the site that it runs at, and its work folder."""

from __future__ import annotations

import fcntl
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
from hpo_pilot.files import PRIVATE, close_to_others, make_private, write_whole
from hpo_pilot.hpc.launchers import Launcher, Plain, make_launcher
from hpo_pilot.transformation.container import RUNTIMES, Inside

_CHECKPOINT_MB = 500  # what panda-server 1.0.4 takes


def _host() -> str:
    return socket.gethostname()[:100] or "unknown"


@dataclass(frozen=True)
class PilotSettings:
    """Settings of one pilot process.

    Attributes:
        server: the PanDA server's base URL, without a path.
        queue: the PanDA queue that it serves.
        slots: how many jobs run side by side.
        cores: that all of them together take; 0: the machine's, or as many as slots, whatever is more.
        gpus: to share out: `all`, how many, or which; None: those of the machine, for jobs that ask for one, while
            other jobs see them all.
        token_file: holds the pilot's bearer token; read again when it changes.
        ca: a PEM file of the certificate authorities that the server's certificate is of; None: the usual ones.
        workdir: for job folders, the sandbox cache, and reports that could not be sent yet.
        checkpoints: where checkpoints outlive attempts; None: in the work folder.
        checkpoint_mb: the largest packed checkpoint that goes through the server to a job's next attempt; 0: none does;
            None: 500, PanDA's own limit, or none where `checkpoints` names a folder, which pilots then share.
        checkpoint_every: seconds between uploads of a running job's checkpoint.
        storage: a folder for outputs and logs, for servers that keep none; None: in the work folder.
        worker_id: with `harvester_id` what the server knows this pilot by; one pilot at a time may have it.
        harvester_id: empty: made from the host and the work folder.
        vo: sent as `Origin`, as panda-client does.
        label: which jobs are asked for (`prodSourceLabel`).
        heartbeat: seconds between reports on a running job.
        shortest_report: the shortest pause between reports on a job whose search wants its intermediate values sooner,
            in seconds; ten times as long at a server that is not one of ours.
        first_report: seconds until the first one; a shorter job is reported once, when it is over.
        poll: seconds that a request for jobs may wait at the server.
        end_idle: seconds without a job after which a pilot gives its allocation back; 0: never.
        idle: the longest pause, in seconds, between requests to a server that does not wait.
        drain: seconds that running jobs get to end by themselves after SIGTERM.
        grace: seconds between TERM and KILL for a job; more than the runner gives its payload.
        walltime_grace: seconds that a job may go on beyond its maxWalltime.
        refused: seconds during which a refused token is tried again, for its file may be under renewal.
        lifetime: seconds until it takes no more jobs; of an allocation, until that ends; 0: for ever, or as the batch
            system says.
        memory_mb: what the largest job may need; 0: not said.
        cache_mb: the size to which unpacked sandboxes are kept.
        input_cache_mb: the size to which fetched inputs are kept, and the largest single one.
        unpack_mb: the largest sandbox, unpacked.
        min_free_mb: with less free disk no job is taken.
        container_runtime: a name of `RUNTIMES`, or `auto`.
        environments: a folder with the environments of searches that were submitted on this machine, by their uid:
            their jobs run in these; None: all jobs run in the pilot's own.
        staging: in an allocation whose site names the nodes' own scratch, what many jobs read is copied there.
        staging_mb: size of all copies on a node.
        keep: job folders stay after the job.
        site: a site's profile as JSON; None: jobs have no ranks.
        allocation: it has the nodes of the batch allocation that it runs in; its work folder is on storage that they
            share.
        margin: seconds before the end of an allocation when jobs are told to save and stop; at most a tenth of it.
        metrics_port: where Prometheus finds this pilot's figures; 0: any free port; None: nowhere.
        lifeline_fd: a pipe; its end is the end of whoever started this pilot, and then of the pilot.
    """

    server: str
    queue: str
    slots: int
    token_file: Path
    workdir: Path
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
    label: str = "user"
    heartbeat: float = 20.0
    shortest_report: float = 0.25
    first_report: float = 0.5
    poll: float = 25.0
    end_idle: float = 900.0
    idle: float = 30.0
    drain: float = 3.0
    grace: float = 15.0
    walltime_grace: float = 60.0
    refused: float = 60.0
    lifetime: float = 0.0
    memory_mb: int = 0
    cache_mb: int = 5_000
    input_cache_mb: int = 100_000
    unpack_mb: int = 20_000
    min_free_mb: int = 200
    container_runtime: str = "auto"
    environments: Path | None = None
    staging: bool = True
    staging_mb: int = 100_000
    keep: bool = False
    site: Path | None = None
    allocation: bool = False
    margin: float = 120.0
    metrics_port: int | None = None
    lifeline_fd: int | None = None
    node: str = field(default_factory=_host)

    def __post_init__(self) -> None:
        for name in ("workdir", "checkpoints", "storage", "token_file", "ca", "site", "environments"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(path).absolute())
        if not self.server.startswith(("http://", "https://")):
            raise InputError(f"--server {self.server!r}: give a URL such as https://panda.example.org:25443")
        object.__setattr__(self, "server", self.server.rstrip("/"))
        if self.ca is not None and not self.ca.is_file():
            raise InputError(f"--ca {self.ca}: there is no such file; the server's operator has it")
        if self.slots < 1:
            raise InputError(f"--slots {self.slots}: at least one")
        if self.allocation and self.site is None:
            raise InputError("--allocation: give --site FILE as well, which says how ranks are started there")
        if self.cores < 0:
            raise InputError(f"--cores {self.cores}: at least one")
        if self.heartbeat <= 0:
            raise InputError(f"--heartbeat {self.heartbeat}: a time in seconds, above zero")
        if self.checkpoint_every <= 0 or (self.checkpoint_mb or 0) < 0:
            raise InputError("--checkpoint-every: a time above zero, in seconds; --checkpoint-mb: a size in MB, or 0")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise InputError(f"--metrics-port {self.metrics_port}: a port between 0 and 65535; 0: any free one")
        if self.staging_mb < 1:
            raise InputError(f"--staging-mb {self.staging_mb}: a size in MB; --no-staging stages nothing")
        if self.container_runtime not in ("auto", *RUNTIMES):
            raise InputError(
                f"--container-runtime {self.container_runtime!r}: choose one of auto, {', '.join(RUNTIMES)}"
            )
        if not self.harvester_id:
            mark = zlib.crc32(os.fsencode(self.workdir.resolve()))
            object.__setattr__(self, "harvester_id", f"hpo-pilot-{self.node}-{mark:08x}")

    @property
    def checkpoint_root(self) -> Path:
        """Where checkpoints outlive attempts."""
        return self.checkpoints or self.workdir / "checkpoints"

    @property
    def shipped_mb(self) -> int:
        """The largest checkpoint that goes through the server, in MB; 0: none does."""
        if self.checkpoint_mb is not None:
            return self.checkpoint_mb
        return 0 if self.checkpoints else _CHECKPOINT_MB

    @property
    def storage_folder(self) -> Path:
        """Where outputs and logs go that the server does not keep."""
        return self.storage or self.workdir / "storage"

    @property
    def worker_name(self) -> str:
        """The worker in file names and marks."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.harvester_id)
        return f"{safe}-{self.worker_id}"


# What a pilot is told of its site: the profile as `hpo-pilot sites show NAME --json` prints it.
#
# Profiles are checked where they are read from YAML, by pydantic, which pilots install without; here only what they
# need
# is taken.

#: How many GPUs in a row are close to each other on a node, where it is known: two of an MI250X, three on each socket
#: of Summit (the guides that deploy/sites/ names). Else they count as alike.
_CLOSE = {"MI250X": 2, "V100": 3}


@dataclass(frozen=True)
class EndWarning:
    """The batch system's word before the end; `seconds` before it."""

    number: signal.Signals
    seconds: float


@dataclass(frozen=True)
class Site:
    """One site.

    Attributes:
        launcher: starts the ranks of payloads.
        cores: of a node; 0: not said, as for the other numbers.
        threads_per_core: hardware threads of a core, as the batch system counts CPUs.
        memory_mb: of a node, in MB.
        gpus: of a node.
        gpu_kind: nvidia, amd or none.
        gpu_model: empty: not said.
        gpu_memory_mb: of one.
        close: how many GPUs in a row are close to each other.
        batch: slurm, lsf, pbs, flux or none.
        warning: the signal before the end of an allocation; None: there is none.
        job_steps: that an allocation can have side by side; 0: not limited.
        runtime: of containers, or auto.
        read_only: folders that payloads in containers see too.
        mpi: folders of the node's MPI, which takes the place of the image's.
        scratch: a folder on the node's own disk; empty: there is none.
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
    close: int = 1
    batch: str = "none"
    warning: EndWarning | None = None
    job_steps: int = 0
    runtime: str = "auto"
    read_only: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    scratch: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def inside(self, *, gpus: bool) -> Inside:
        """What payloads in containers find there; `gpus`: whether they have any."""
        read_only, mpi = ([Path(os.path.expandvars(name)) for name in names] for names in (self.read_only, self.mpi))
        kind = self.gpu_kind if gpus and self.gpu_kind != "none" else None if gpus else "none"
        return Inside(kind, read_only, mpi)


def load_site(path: Path) -> Site:
    """Reads a site's file.

    Raises:
        InputError: it cannot be read, or is none.
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
    if runtime not in ("auto", *RUNTIMES):
        raise InputError(f"there is no container runtime {runtime!r}; there is auto, {', '.join(RUNTIMES)}")
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
        raise ValueError(f"{name} is no mapping")
    return found


def _warning(said: Mapping[str, Any]) -> EndWarning | None:
    if not said:
        return None
    name = f"SIG{said['signal']}"
    if name not in signal.Signals.__members__:
        raise InputError(f"there is no signal {said['signal']!r}")
    return EndWarning(signal.Signals[name], float(said.get("seconds") or 0))


log = logging.getLogger(__name__)

#: How long a pilot waits for the one before it to end its jobs, in seconds.
_TAKE_OVER_SECONDS = 30.0

_SAMPLE = 4096  # bytes that are written to see whether that can be done

_KEY_BYTES = 32


def pilot_key(workdir: Path, worker_name: str) -> str:
    """The secret by which a server knows the pilots of this work folder and worker again; makes it if need be.

    It outlives the pilot: the next one of its name sends the reports that this one could not.

    Raises:
        InputError: it cannot be read or written.
    """
    file = workdir / "jobs" / f"{worker_name}.key"
    try:
        if not file.exists():
            write_whole(file, secrets.token_urlsafe(_KEY_BYTES), mode=0o600)
        key = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be used: {error}; remove it, and another is made") from error
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,}", key):
        raise InputError(f"{file} is damaged: remove it, and another is made")
    return key


class WorkDir:
    """The work folder, which no other account looks into.

    ::

        cache/            unpacked sandboxes, for all pilots here
        inputs/           fetched inputs, for all pilots here
        jobs/WORKER/      one folder per running job
        jobs/WORKER.lock  held while a pilot of that name lives
        jobs/WORKER.key   what its server knows it by
        unsent/WORKER/    reports that the server has not got yet
        staging/WORKER/   what nodes copy: archives, and how they are told
        checkpoints/      of trials, kept between attempts
    """

    def __init__(self, settings: PilotSettings) -> None:
        """Makes the folders and takes the worker's name.

        Raises:
            InputError: the folder cannot be written, or belongs to another account.
            TryAgainError: a pilot of this name lives.
        """
        self.root = settings.workdir
        self.cache, self.inputs = self.root / "cache", self.root / "inputs"
        self._jobs = self.root / "jobs" / settings.worker_name
        self._unsent = self.root / "unsent" / settings.worker_name
        self.staging = self.root / "staging" / settings.worker_name
        try:
            make_private(self.root)
            # Their names are ours: where an owner lets others into the root, they still see no payload and no result.
            for name in ("cache", "inputs", "jobs", "unsent", "staging", "storage"):
                close_to_others(self.root / name)
            for folder in (self._jobs, self._unsent, settings.checkpoint_root):
                make_private(folder)
            self._lock = self._jobs.with_name(self._jobs.name + ".lock").open("w")
        except OSError as error:
            raise InputError(f"--workdir {self.root} cannot be used: {error}") from error
        # A pilot on a lifeline may follow one whose starter was killed, and which is still ending its jobs.
        give_up = time.monotonic() + (_TAKE_OVER_SECONDS if settings.lifeline_fd is not None else 0.0)
        while not self._locked():
            if time.monotonic() >= give_up:
                raise TryAgainError(
                    f"a pilot {settings.worker_name} runs in {self.root} already; give this one another --worker-id"
                )
            time.sleep(0.1)
        self.key = pilot_key(self.root, settings.worker_name)
        self.stale = [entry for entry in self._jobs.iterdir() if entry.is_dir()]

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def new_job_folder(self, panda_id: int, attempt: int) -> Path:
        """An empty folder for a job."""
        folder = self._jobs / f"{panda_id}.{attempt}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=PRIVATE)
        return folder

    def free_mb(self) -> int:
        """Free disk, in MB."""
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize >> 20

    def trouble(self, least_mb: int) -> str:
        """Why no job could run here; empty: one could. `least_mb`: that must be free."""
        sample = self._jobs / ".sample"
        try:
            if (free := self.free_mb()) < least_mb:
                return f"only {free // 50 * 50} MB or so of disk are free in {self.root}"
            sample.write_bytes(bytes(_SAMPLE))
            sample.unlink()
        except OSError as error:
            return f"{self._jobs} cannot be written: {error.strerror or error}"
        return ""

    def remove_stale(self) -> None:
        """Deletes what an earlier pilot left; nothing of it runs any more."""
        for folder in self.stale:
            shutil.rmtree(folder, ignore_errors=True)
        if self.stale:
            log.info("%d job folders of an earlier pilot removed", len(self.stale))
        self.stale = []

    def keep_report(self, report: dict[str, Any]) -> None:
        """Stores a report that could not be sent, for this pilot or the next of its name."""
        try:
            write_whole(self._report(report), json.dumps(report))
        except OSError as error:
            log.error("a report on job %s is in memory alone: %s", report["job_id"], error)

    def drop_report(self, report: dict[str, Any]) -> None:
        """Forgets a report: it was sent, or nobody wants it."""
        self._report(report).unlink(missing_ok=True)

    def kept_reports(self) -> Iterator[dict[str, Any]]:
        """Reports that an earlier pilot of this name could not send."""
        for path in sorted(self._unsent.glob("*.json")):
            try:
                report = json.loads(path.read_text())
                report["job_id"], report["attempt_nr"], report["job_status"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.error("%s is no report and is left alone: %s", path, error)
                continue
            yield report

    def _report(self, report: dict[str, Any]) -> Path:
        return self._unsent / f"{int(report['job_id'])}.{int(report['attempt_nr'])}.json"
