"""Slurm: submits, lists and cancels batch jobs; reads the nodes and the end of an allocation."""

from __future__ import annotations

import getpass
import logging
import re
import shlex
import time
from collections.abc import Collection
from typing import ClassVar

from typing_extensions import override

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import (
    AllocatedNode,
    AllocationSpec,
    BatchAllocation,
    BatchJob,
    BatchState,
    BatchSystem,
    CommandFailedError,
    Remainder,
    run_command,
    walltime_text,
)

log = logging.getLogger(__name__)

#: squeue(1), "JOB STATE CODES". A job in any other state runs, or is ending.
_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"), BatchState.WAITING),
    **dict.fromkeys(("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), BatchState.HELD),
    "COMPLETED": BatchState.ENDED,
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), BatchState.TIMED_OUT),
    **dict.fromkeys(("CANCELLED", "REVOKED", "PREEMPTED"), BatchState.CANCELLED),
    **dict.fromkeys(("BOOT_FAIL", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"), BatchState.FAILED),
}

#: Reasons of pending jobs that could not start even on free nodes; squeue(1), "JOB REASON CODES".
_HELD = ("JobHeld", "BeginTime", "Dependency", "QOSMax", "AssocMax", "MaxJobs", "QOSJobLimit", "AssociationJobLimit")

#: Fields separated by bars; the name comes last, because it may have bars in it.
_SQUEUE_FIELDS = "%i|%T|%r|%P|%q|%j"
_SACCT_FIELDS = "JobIDRaw,State,Reason,Partition,QOS,JobName"
_BARS = 5


class SlurmAllocation(BatchAllocation):
    """An allocation of sbatch or salloc."""

    variable = "SLURM_JOB_ID"

    def nodes(self) -> list[AllocatedNode]:
        """See BatchAllocation."""
        listed = self.environment.get("SLURM_JOB_NODELIST") or self.environment.get("SLURM_NODELIST", "")
        names = self._expanded(listed) if listed else []
        cpus = _repeated(self.environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return [AllocatedNode(name, cpus[place] if len(cpus) == len(names) else 0) for place, name in enumerate(names)]

    def seconds_left(self, now: float) -> float:
        """See BatchAllocation."""
        said = self.environment.get("SLURM_JOB_END_TIME", "")  # since 22.05, and not at every site
        if said.isdecimal():
            return int(said) - now
        text = self.ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%e"])
        try:
            return _time(text) - now
        except ValueError as error:  # N/A: the job has no limit
            raise InputError(f"squeue gives {text!r} as the end of job {self.job}") from error

    def remainder(self, now: float) -> Remainder:
        """See BatchAllocation. Preempted with a grace time, a job still runs, and its end is that of the grace time."""
        said = self.ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%T %e %D %N"])
        if said.startswith("COMPLETING "):  # its nodes go one by one
            return Remainder(seconds=0.0)
        _, end, count, listed = said.split()
        given = [node.name for node in self.nodes()]
        left = self._expanded(listed) if int(count) < len(given) else given
        lost = tuple(name for name in given if name not in left)
        try:
            return Remainder(lost, _time(end) - now)
        except ValueError:  # NONE: the job has no limit
            return Remainder(lost)

    def _expanded(self, listed: str) -> list[str]:
        return self.ask(["scontrol", "show", "hostnames", listed]).split()

    def gpus_per_node(self) -> int:
        """See BatchAllocation."""
        return self.number("SLURM_GPUS_ON_NODE")

    def memory_mb(self) -> int:
        """See BatchAllocation."""
        return self.number("SLURM_MEM_PER_NODE")


def _time(text: str) -> float:
    """Returns the seconds since the epoch of a time as squeue prints it; ValueError: there is none."""
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def _repeated(text: str) -> list[int]:
    """Returns 2, 2, 2, 4 for `2(x3),4`."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


class Slurm(BatchSystem):
    """Slurm. Queues are partitions, or QOS if the profile sets `queue_option` so."""

    name: ClassVar[str] = "slurm"
    allocation: ClassVar[type[BatchAllocation]] = SlurmAllocation
    mark: ClassVar[str] = "#SBATCH"
    queue_option: ClassVar[str] = "-p"
    account_option: ClassVar[str] = "-A"
    submitting: ClassVar[tuple[str, ...]] = ("sbatch", "--parsable")
    cancelling: ClassVar[tuple[str, ...]] = ("scancel", "--quiet")

    @override
    def options(self, spec: AllocationSpec) -> list[str]:
        batch = spec.site.batch
        return [
            f"--job-name={spec.name}",
            f"--nodes={spec.nodes}",
            f"--time={walltime_text(spec.minutes)}:00",
            *self.queue_and_account(spec),
            *([f"--constraint={shlex.quote(batch.constraint)}"] if batch.constraint else []),
            # Whole nodes, even in partitions whose jobs share nodes.
            "--exclusive",
            "--mem=0",
            *([f"--gpus-per-node={spec.gpus}"] if spec.gpus else []),
            # To the script only: the pilot replaces it.
            *([f"--signal=B:{batch.warning.signal}@{batch.warning.seconds}"] if batch.warning else []),
            # If Slurm restarted the job by itself, its earlier work would be unknown.
            "--no-requeue",
            # The loss of a node ends only the PanDA jobs on it; the pilot goes on with the others.
            "--no-kill",
            f"--output={spec.output}",
            "--open-mode=append",
        ]

    @override
    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        return super().submit(spec, lock=lock).partition(";")[0]  # id;cluster

    @override
    def jobs(self) -> dict[str, BatchJob]:
        said = run_command(
            ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--format={_SQUEUE_FIELDS}"]
        )
        return _read(said)

    @override
    def earlier(self, ids: Collection[str]) -> dict[str, BatchJob]:
        try:
            shape = ["--noheader", "--parsable2", "--allocations", f"--format={_SACCT_FIELDS}"]
            said = run_command(["sacct", *shape, f"--jobs={','.join(ids)}"])
        except (CommandFailedError, InputError) as error:
            log.info("Slurm has no accounting here: %s", error)
            return {}
        return _read(said)


def _read(said: str) -> dict[str, BatchJob]:
    found = {}
    for line in said.splitlines():
        number, state, reason, *queue, name = line.split("|", 5) if line.count("|") >= _BARS else ("", "", "", "")
        if not state.strip():
            log.warning("skipped a line of squeue or sacct that describes no job: %.200s", line)
            continue
        word = state.split()[0]  # CANCELLED by 1000
        kind = _STATES.get(word, BatchState.RUNNING)
        if kind is BatchState.WAITING and reason.startswith(_HELD):
            kind = BatchState.HELD
        told = "" if reason in ("None", "") else reason
        if kind is BatchState.FAILED and not told:
            told = word
        found[number] = BatchJob(number, name, kind, tuple(queue), told)
    return found
