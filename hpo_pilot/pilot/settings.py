"""What a pilot is told when it starts."""

from __future__ import annotations

import os
import socket
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.transformation.container import RUNTIMES

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
