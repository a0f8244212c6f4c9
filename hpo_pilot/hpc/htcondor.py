"""HTCondor: submits, lists and removes batch jobs; reads the node and the end of an allocation."""

from __future__ import annotations

import json
import logging
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
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
)

log = logging.getLogger(__name__)

#: `JobStatus`; HTCondor Manual, "Job Status Codes". A job with any other status runs, or is ending.
_STATES = {1: BatchState.WAITING, 5: BatchState.HELD}
_REMOVED, _COMPLETED = 3, 4

_ATTRIBUTES = (
    *("ClusterId", "ProcId", "JobBatchName", "JobStatus", "HoldReason", "RemoveReason"),
    *("ExitBySignal", "ExitCode", "ExitSignal", "MaxRuntime", "RemoteWallClockTime"),
)

#: HTCondor starts a job again that has lost its node.
_STARTED = "NumJobStarts > 0"

#: Jobs of HTCondor end by no limit of time of their own; CERN's pool reads `MaxRuntime`, others pass over it.
_REMOVE = f"(JobStatus == 2 && time() - JobCurrentStartDate > MaxRuntime) || (JobStatus == 1 && {_STARTED})"

#: Ended jobs that condor_history reads at most, latest first: schedds keep months of them.
_MOST_ENDED = 10_000


class HtcondorAllocation(BatchAllocation):
    """A job of condor_submit, with its one node. The job's file of attributes has everything: nothing is asked."""

    variable = "_CONDOR_JOB_AD"

    @property
    def job(self) -> str:
        """See BatchAllocation."""
        return f"{self._number('ClusterId')}.{self._number('ProcId')}"

    def nodes(self) -> list[AllocatedNode]:
        """See BatchAllocation."""
        return [AllocatedNode(platform.node(), self._number("CpusProvisioned"))]

    def seconds_left(self, now: float) -> float:
        """See BatchAllocation."""
        began, limit = self._number("JobCurrentStartDate"), self._number("MaxRuntime")
        if not began or not limit:
            raise InputError(f"{self.environment[self.variable]} has no JobCurrentStartDate or no MaxRuntime")
        return began + limit - now

    def gpus_per_node(self) -> int:
        """See BatchAllocation."""
        return self._number("GpusProvisioned")

    def memory_mb(self) -> int:
        """See BatchAllocation."""
        return self._number("MemoryProvisioned")

    def _number(self, attribute: str) -> int:
        """Returns the value of an attribute; 0: there is none, or it is not a number."""
        return int(self._said.get(attribute, 0))

    @cached_property
    def _said(self) -> dict[str, str]:
        file = self.environment[self.variable]
        try:
            return dict(re.findall(r"^(\w+) = (\d+)$", Path(file).read_text(errors="replace"), re.MULTILINE))
        except OSError as error:
            raise InputError(f"{self.variable} {file}: {error.strerror or error}") from error


class Htcondor(BatchSystem):
    """HTCondor: one node for each job. The lines of the script with options are its submit description.

    A job that is removed, evicted or at the end of its time gets SIGTERM, and SIGKILL after `job_max_vacate_time` or
    the machine's own, smaller limit; HTCondor Manual, "How Jobs are Vacated". Before the end no signal comes: the pilot
    uses its own clock.
    """

    name: ClassVar[str] = "htcondor"
    allocation: ClassVar[type[BatchAllocation]] = HtcondorAllocation
    mark: ClassVar[str] = "#HTCONDOR"
    queue_option: ClassVar[str] = ""
    account_option: ClassVar[str] = "accounting_group"
    warns: ClassVar[bool] = False
    one_node: ClassVar[bool] = True
    between: ClassVar[str] = " = "
    submitting: ClassVar[tuple[str, ...]] = ("condor_submit", "-terse")
    cancelling: ClassVar[tuple[str, ...]] = ("condor_rm",)
    over: ClassVar[tuple[str, ...]] = ("not found", "already marked for removal")

    @override
    def options(self, spec: AllocationSpec) -> list[str]:
        batch, node = spec.site.batch, spec.site.node
        if spec.queue_name and not batch.queue_option:
            raise InputError(f"--queue {spec.queue_name}: HTCondor has no queues: leave it out")
        first = f"({_STARTED}) =!= true"
        return [
            f"batch_name = {spec.name}",
            # A file that is not executable, and that need not be copied: nodes see its folder.
            "executable = /bin/bash",
            "transfer_executable = false",
            f"arguments = {spec.script_file}",
            f"initialdir = {spec.folder}",
            f"output = {spec.output}",
            f"error = {spec.output}",
            'transfer_output_files = ""',
            f"request_cpus = {spec.cores * node.threads_per_core}",
            *([f"request_gpus = {spec.gpus}"] if spec.gpus else []),
            *([f"request_memory = {node.memory_mb}"] if node.memory_mb else []),
            *self.queue_and_account(spec),
            f"+MaxRuntime = {60 * spec.minutes}",
            # No automatic restart: the earlier work would be unknown.
            f"requirements = ({batch.constraint}) && ({first})" if batch.constraint else f"requirements = {first}",
            f"periodic_remove = {_REMOVE}",
            "want_graceful_removal = true",
            *([f"job_max_vacate_time = {batch.warning.seconds}"] if batch.warning else []),
        ]

    @override
    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        lines = spec.script_file.read_text().splitlines()
        description = [line.removeprefix(self.mark) for line in lines if line.startswith(self.mark)]
        said = run_command(self.submitting, text="\n".join([*description, "queue", ""]), kept_fd=lock).split()
        if not said:
            raise TryAgainError(f"{self.submitting[0]} does not say which job it submitted")
        return said[-1]  # 12.0 - 12.0

    @override
    def jobs(self) -> dict[str, BatchJob]:
        return _read(["condor_q"])

    @override
    def earlier(self, ids: Collection[str]) -> dict[str, BatchJob]:
        words = ["condor_history", "-limit", str(len(ids)), "-scanlimit", str(_MOST_ENDED)]
        try:
            return _read(words, ids)
        except (CommandFailedError, InputError) as error:
            log.info("HTCondor has no history here: %s", error)
            return {}


def _read(words: Sequence[str], ended: Collection[str] = ()) -> dict[str, BatchJob]:
    said = run_command([*words, "-json", "-attributes", ",".join(_ATTRIBUTES), *ended])
    try:
        found = [_job(one, bool(ended)) for one in json.loads(said or "[]")]  # without jobs condor_q prints nothing
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TryAgainError(f"{words[0]} does not print proper JSON: {error}") from error
    return {job.id: job for job in found}


def _job(said: Mapping[str, Any], is_over: bool) -> BatchJob:
    status, reason = said["JobStatus"], str(said.get("HoldReason") or said.get("RemoveReason") or "")
    kind = _STATES.get(status, BatchState.RUNNING)
    if status == _COMPLETED:
        code, signal = said.get("ExitCode", 0), said.get("ExitSignal")
        kind = BatchState.FAILED if said.get("ExitBySignal") or code else BatchState.ENDED
        reason = f"signal {signal}" if said.get("ExitBySignal") else f"exit status {code}" if code else ""
    elif status == _REMOVED and is_over:
        is_late = said.get("RemoteWallClockTime", 0) >= said.get("MaxRuntime", float("inf"))
        kind = BatchState.TIMED_OUT if is_late else BatchState.CANCELLED
    return BatchJob(f"{said['ClusterId']}.{said['ProcId']}", str(said.get("JobBatchName", "")), kind, (), reason)
