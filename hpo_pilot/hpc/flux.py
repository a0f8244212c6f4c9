"""Flux: submits, lists and cancels batch jobs; reads the nodes and the end of an allocation."""

from __future__ import annotations

import shlex
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
    run_command,
)

#: flux-jobs(1), "JOB STATUS": a state, or the result of an inactive job. A job with any other status runs.
_STATES = {
    "DEPEND": BatchState.HELD,
    **dict.fromkeys(("PRIORITY", "SCHED", "PENDING"), BatchState.WAITING),
    "COMPLETED": BatchState.ENDED,
    "TIMEOUT": BatchState.TIMED_OUT,
    "CANCELED": BatchState.CANCELLED,
    "FAILED": BatchState.FAILED,
}

_FIELDS = "{id.f58}|{status}|{queue}|{name}"


class FluxAllocation(BatchAllocation):
    """An allocation of flux batch or flux alloc, which is a Flux instance of its own."""

    variable = "FLUX_URI"

    def nodes(self) -> list[AllocatedNode]:
        """See BatchAllocation."""
        return [AllocatedNode(name) for name in self.ask(["flux", "hostlist", "--expand", "local"]).split()]

    def seconds_left(self, now: float) -> float:
        """See BatchAllocation."""
        text = self.ask(["flux", "job", "timeleft"])
        try:
            return float(text)
        except ValueError as error:
            raise InputError(f"flux job timeleft prints {text!r}") from error


class Flux(BatchSystem):
    """Flux. The script asks for no warning signal: the pilot uses its own clock.

    Flux sends the signal of `--signal` to the brokers of the allocation, which pass it on to all jobs inside and, since
    2025, to the script too (flux-core, issues 5105, 6729 and 6964). It would end payloads that do not expect it.
    """

    name: ClassVar[str] = "flux"
    allocation: ClassVar[type[BatchAllocation]] = FluxAllocation
    mark: ClassVar[str] = "# flux:"
    queue_option: ClassVar[str] = "--queue"
    account_option: ClassVar[str] = "--bank"
    warns: ClassVar[bool] = False
    between: ClassVar[str] = "="
    submitting: ClassVar[tuple[str, ...]] = ("flux", "batch")
    cancelling: ClassVar[tuple[str, ...]] = ("flux", "cancel")
    over: ClassVar[tuple[str, ...]] = ("inactive",)

    @override
    def options(self, spec: AllocationSpec) -> list[str]:
        batch = spec.site.batch
        return [
            f"--job-name={spec.name}",
            f"--nodes={spec.nodes}",
            "--exclusive",
            f"--time-limit={spec.minutes}m",
            *self.queue_and_account(spec),
            *([f"--requires={shlex.quote(batch.constraint)}"] if batch.constraint else []),
            f"--output={spec.output}",
        ]

    @override
    def jobs(self) -> dict[str, BatchJob]:
        said = run_command(["flux", "jobs", "-a", "--no-header", f"--format={_FIELDS}"])
        return {job.id: job for line in said.splitlines() if line.count("|") >= 3 for job in [_read(line)]}


def _read(line: str) -> BatchJob:
    number, status, queue, name = line.split("|", 3)
    return BatchJob(number, name, _STATES.get(status, BatchState.RUNNING), (queue,) if queue else ())
