"""PBS and OpenPBS: submits, lists and cancels batch jobs; reads the nodes and the end of an allocation."""

from __future__ import annotations

import getpass
import json
import re
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.batch_system import (
    AllocatedNode,
    AllocationSpec,
    BatchAllocation,
    BatchJob,
    BatchState,
    BatchSystem,
    CommandFailedError,
    run_command,
    walltime_seconds,
)

#: PBS Professional Reference Guide, "Job States". A job in any other state runs, or is ending.
_STATES = {
    **dict.fromkeys("QT", BatchState.WAITING),
    **dict.fromkeys("WH", BatchState.HELD),
    **dict.fromkeys("MFX", BatchState.ENDED),
}

#: `Exit_status` of a job that reached its walltime; PBS Professional Reference Guide, "Job Exit Status Codes".
_WALLTIME_OVER = -29

#: `Exit_status` of a script that a signal ended is 256 plus the signal's number; qdel sends TERM, then KILL.
_KILLED = (256 + 15, 256 + 9)

#: Messages of servers without a job history.
_NO_HISTORY = ("job_history_enable", "history")


class PbsAllocation(BatchAllocation):
    """An allocation of qsub."""

    variable = "PBS_JOBID"

    def nodes(self) -> list[AllocatedNode]:
        """See BatchAllocation."""
        cpus = self.number("NCPUS")  # of the first chunk
        return [AllocatedNode(name, cpus) for name in self.hosts("PBS_NODEFILE")]

    def seconds_left(self, now: float) -> float:
        """See BatchAllocation."""
        said = self.ask(["qstat", "-f", self.job])
        limit = re.search(r"^ *Resource_List\.walltime = (\S+)$", said, re.MULTILINE)
        start = re.search(r"^ *stime = (.+)$", said, re.MULTILINE)
        try:
            if limit is None or start is None:
                raise ValueError("its answer has no walltime or no stime")
            began = time.mktime(time.strptime(start[1].strip(), "%a %b %d %H:%M:%S %Y"))
            return began + walltime_seconds(limit[1]) - now
        except ValueError as error:
            raise InputError(f"qstat -f {self.job}: {error}") from error


class Pbs(BatchSystem):
    """PBS. It sends no warning before a job's end: the pilot uses its own clock."""

    name: ClassVar[str] = "pbs"
    allocation: ClassVar[type[BatchAllocation]] = PbsAllocation
    mark: ClassVar[str] = "#PBS"
    queue_option: ClassVar[str] = "-q"
    account_option: ClassVar[str] = "-A"
    warns: ClassVar[bool] = False
    submitting: ClassVar[tuple[str, ...]] = ("qsub",)
    cancelling: ClassVar[tuple[str, ...]] = ("qdel",)
    over: ClassVar[tuple[str, ...]] = ("has finished", "Unknown Job Id")

    @override
    def options(self, spec: AllocationSpec) -> list[str]:
        batch = spec.site.batch
        chunk = [
            str(spec.nodes),
            # By default a chunk has one core and no GPU, also with place=exclhost.
            f"ncpus={spec.cores * spec.site.node.threads_per_core}",
            # Profiles count tiles of Intel's GPUs, PBS may count cards; exclhost gives all of them.
            *([f"ngpus={spec.gpus}"] if spec.gpus and spec.site.node.gpu_kind != "intel" else []),
            *([batch.constraint] if batch.constraint else []),
        ]
        return [
            f"-N {spec.name}",
            f"-l select={':'.join(chunk)}",
            "-l place=scatter:exclhost",
            f"-l walltime={spec.minutes // 60:02d}:{spec.minutes % 60:02d}:00",
            *self.queue_and_account(spec),
            "-S /bin/bash",
            "-r n",  # no automatic restart
            "-j oe",
            f"-o {spec.output}",
        ]

    @override
    def jobs(self) -> dict[str, BatchJob]:
        try:
            return self._jobs("-x")
        except CommandFailedError as error:
            if not any(word in error.said for word in _NO_HISTORY):
                raise
            return self._jobs()

    def _jobs(self, *history: str) -> dict[str, BatchJob]:
        ids = run_command(["qselect", *history, "-u", getpass.getuser()]).split()
        if not ids:
            return {}
        try:
            document = json.loads(run_command(["qstat", *history, "-f", "-F", "json", *ids]))
            return {number: _read(number, job) for number, job in document.get("Jobs", {}).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise TryAgainError(f"qstat does not print proper JSON: {error}") from error


def _read(number: str, job: Mapping[str, Any]) -> BatchJob:
    state, status = str(job.get("job_state")), job.get("Exit_status", 0)
    kind = _STATES.get(state, BatchState.RUNNING)
    if kind is BatchState.ENDED and status != 0:
        if status == _WALLTIME_OVER:
            kind = BatchState.TIMED_OUT
        else:
            kind = BatchState.CANCELLED if status in _KILLED else BatchState.FAILED
    return BatchJob(
        number, str(job.get("Job_Name", "")), kind, (str(job.get("queue", "")),), str(job.get("comment", ""))
    )
