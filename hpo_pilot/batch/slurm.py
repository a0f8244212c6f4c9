"""Slurm: sbatch, squeue, sacct, scancel."""

from __future__ import annotations

import getpass
import logging
import shlex
from collections.abc import Collection, Iterable
from typing import ClassVar

from typing_extensions import override

from hpo_pilot.batch.allocation_spec import AllocationSpec
from hpo_pilot.batch.batch_job import BatchJob, BatchState
from hpo_pilot.batch.batch_system import BatchSystem
from hpo_pilot.batch.walltime import hours_and_minutes
from hpo_pilot.errors import InputError
from hpo_pilot.launchers.batch_commands import CommandFailedError, call, last_word

log = logging.getLogger(__name__)

#: squeue(1), "JOB STATE CODES". Those that are not here run, or end.
_STATES = {
    "PENDING": BatchState.WAITING,
    "CONFIGURING": BatchState.WAITING,
    "REQUEUED": BatchState.WAITING,
    "REQUEUE_FED": BatchState.WAITING,
    "REQUEUE_HOLD": BatchState.HELD,
    "SPECIAL_EXIT": BatchState.HELD,
    "RESV_DEL_HOLD": BatchState.HELD,
    "COMPLETED": BatchState.ENDED,
    "TIMEOUT": BatchState.TIMED_OUT,
    "DEADLINE": BatchState.TIMED_OUT,
    "CANCELLED": BatchState.CANCELLED,
    "REVOKED": BatchState.CANCELLED,
    "PREEMPTED": BatchState.CANCELLED,
    "BOOT_FAIL": BatchState.FAILED,
    "FAILED": BatchState.FAILED,
    "NODE_FAIL": BatchState.FAILED,
    "OUT_OF_MEMORY": BatchState.FAILED,
}

#: Reasons why a pending job could not start even on free nodes; squeue(1), "JOB REASON CODES".
_HELD = ("JobHeld", "BeginTime", "Dependency", "QOSMax", "AssocMax", "MaxJobs", "QOSJobLimit", "AssociationJobLimit")

#: Fields with a bar between; the name, in which users may have bars, is the last.
_SQUEUE_FIELDS = "%i|%T|%r|%P|%q|%j"
_SACCT_FIELDS = "JobIDRaw,State,Reason,Partition,QOS,JobName"
_BARS = 5


class Slurm(BatchSystem):
    """Slurm; queues are partitions, or QOS where the profile's `queue_option` says so."""

    name: ClassVar[str] = "slurm"
    mark: ClassVar[str] = "#SBATCH"

    @override
    def options(self, spec: AllocationSpec) -> list[str]:
        batch, gpus = spec.site.batch, spec.site.node.gpu_count
        return [
            f"--job-name={spec.name}",
            f"--nodes={spec.nodes}",
            f"--time={hours_and_minutes(spec.minutes)}:00",
            *([f"{batch.queue_flag} {spec.queue_name}"] if spec.queue_name else []),
            *([f"{batch.account_flag} {spec.account_name}"] if spec.account_name else []),
            *([f"--constraint={shlex.quote(batch.constraint)}"] if batch.constraint else []),
            # The whole of each node, where partitions share nodes among jobs.
            "--exclusive",
            "--mem=0",
            *([f"--gpus-per-node={gpus}"] if gpus else []),
            # To the script alone, whose place the pilot takes.
            *([f"--signal=B:{batch.warning.signal}@{batch.warning.seconds}"] if batch.warning else []),
            # Of a job that Slurm starts again by itself nobody would know what it did before.
            "--no-requeue",
            # A node that is lost takes its own jobs along; the pilot goes on with the others.
            "--no-kill",
            f"--output={spec.output}",
            "--open-mode=append",
        ]

    @override
    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        words = ["sbatch", "--parsable", str(spec.script_file)]
        return last_word(words, call(words, kept_fd=lock)).partition(";")[0]  # id;cluster

    @override
    def jobs(self) -> dict[str, BatchJob]:
        said = call(
            ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--format={_SQUEUE_FIELDS}"]
        )
        return _read(said.splitlines())

    @override
    def earlier(self, ids: Collection[str]) -> dict[str, BatchJob]:
        try:
            said = call(
                [
                    "sacct",
                    "--noheader",
                    "--parsable2",
                    "--allocations",
                    f"--format={_SACCT_FIELDS}",
                    "--jobs",
                    ",".join(ids),
                ]
            )
        except (CommandFailedError, InputError) as error:
            log.info("Slurm keeps no books here: %s", error)
            return {}
        return _read(said.splitlines())

    @override
    def cancel(self, ids: Collection[str]) -> None:
        call(["scancel", "--quiet", *ids])


def _read(lines: Iterable[str]) -> dict[str, BatchJob]:
    found = {}
    for line in lines:
        number, state, reason, *queue, name = line.split("|", 5) if line.count("|") >= _BARS else ("", "", "", "")
        if not state.strip():
            log.warning("not a line on a job, and passed over: %.200s", line)
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
