"""IBM Spectrum LSF: submits, lists and cancels batch jobs; reads the nodes and the end of an allocation."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import ClassVar

from typing_extensions import override

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.batch_system import (
    AllocatedNode,
    AllocationSpec,
    BatchAllocation,
    BatchJob,
    BatchState,
    BatchSystem,
    run_command,
    run_command_unless_over,
    walltime_seconds,
    walltime_text,
)

#: bjobs, "STAT". A job in any other state runs, or its host cannot be reached.
_STATES = {
    **dict.fromkeys(("PEND", "WAIT"), BatchState.WAITING),
    "PSUSP": BatchState.HELD,
    "DONE": BatchState.ENDED,
    "EXIT": BatchState.FAILED,
}

#: The beginnings of `exit_reason`; LSF, "Termination reasons displayed by bacct, bhist and bjobs".
_ENDS = {
    **dict.fromkeys(("TERM_RUNLIMIT", "TERM_DEADLINE", "TERM_WINDOW"), BatchState.TIMED_OUT),
    **dict.fromkeys(("TERM_OWNER", "TERM_FORCE_OWNER", "TERM_ADMIN", "TERM_FORCE_ADMIN"), BatchState.CANCELLED),
    "TERM_REMOVE_HUNG_JOB": BatchState.FAILED,
}

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted")

#: The name comes last, because it may have bars in it.
_FIELDS = "jobid stat queue exit_reason job_name delimiter='|'"


class LsfAllocation(BatchAllocation):
    """An allocation of bsub. With jsrun the first host is the launch node, which runs no payloads."""

    variable = "LSB_JOBID"

    def nodes(self) -> list[AllocatedNode]:
        """See BatchAllocation."""
        slots = self._slots()
        names = list(slots)
        if self._has_launch_node(slots):
            names = names[1:]
        # Slots of easy mode are hardware threads, not cores; the profile has the cores.
        return [AllocatedNode(name) for name in names]

    @staticmethod
    def _has_launch_node(slots: Counter[str]) -> bool:
        """Returns True if the first host has one slot and the others have more."""
        first, *others = [*slots.values()] or [0]
        return first == 1 and bool(others) and min(others) > 1

    def _slots(self) -> Counter[str]:
        if self.environment.get("LSB_DJOB_HOSTFILE"):
            return self.hosts("LSB_DJOB_HOSTFILE")
        words = self.environment.get("LSB_MCPU_HOSTS", "").split()
        return Counter({name: int(count) for name, count in zip(words[::2], words[1::2], strict=False)})

    def seconds_left(self, now: float) -> float:
        """See BatchAllocation."""
        text = self.ask(["bjobs", "-noheader", "-o", "time_left", self.job])
        try:
            return walltime_seconds(text.split()[0])  # "1:59 L": from the limit; E: an estimate
        except (ValueError, IndexError) as error:
            raise InputError(f"bjobs gives {text!r} as the time left of job {self.job}") from error


class Lsf(BatchSystem):
    """LSF. With jsrun (Summit and similar machines) it allocates whole nodes, elsewhere all slots of each node."""

    name: ClassVar[str] = "lsf"
    allocation: ClassVar[type[BatchAllocation]] = LsfAllocation
    mark: ClassVar[str] = "#BSUB"
    queue_option: ClassVar[str] = "-q"
    account_option: ClassVar[str] = "-P"
    submitting: ClassVar[tuple[str, ...]] = ("bsub",)
    cancelling: ClassVar[tuple[str, ...]] = ("bkill",)
    over: ClassVar[tuple[str, ...]] = ("No job found", "No unfinished job found", "is not found", "already finished")

    @override
    def options(self, spec: AllocationSpec) -> list[str]:
        batch = spec.site.batch
        return [
            f"-J {spec.name}",
            *self._nodes(spec),
            f"-W {walltime_text(spec.minutes)}",
            *self.queue_and_account(spec),
            *([f"-R {shlex.quote(f'select[{batch.constraint}]')}"] if batch.constraint else []),
            # In minutes, rounded up.
            *([f"-wa {batch.warning.signal}", f"-wt {-(-batch.warning.seconds // 60)}"] if batch.warning else []),
            "-rn",  # no automatic restart
            f"-o {spec.output}",
        ]

    def _nodes(self, spec: AllocationSpec) -> list[str]:
        if spec.site.launcher.name == "jsrun":
            return [f"-nnodes {spec.nodes}"]
        return [
            f"-n {spec.nodes * spec.cores}",  # LSF without jsrun counts slots
            f"-R 'span[ptile={spec.cores}]'",
            "-x",
            *([f"-gpu 'num={spec.gpus}/host'"] if spec.gpus else []),
        ]

    @override
    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        # Every LSF reads #BSUB lines from standard input; from a file argument only if it is configured so.
        said = run_command(self.submitting, text=spec.script_file.read_text(), kept_fd=lock)
        if (match := _SUBMITTED.search(said)) is None:
            raise TryAgainError(f"bsub does not say which job it submitted: {said.strip()!r}")
        return match[1]

    @override
    def jobs(self) -> dict[str, BatchJob]:
        said = run_command_unless_over(["bjobs", "-a", "-noheader", "-o", _FIELDS], self.over)
        return {job.id: job for line in said.splitlines() if line.count("|") >= 4 for job in [_read(line)]}


def _read(line: str) -> BatchJob:
    number, state, queue, why, name = line.split("|", 4)
    kind = _STATES.get(state, BatchState.RUNNING)
    reason = "" if why == "-" else why
    if kind is BatchState.FAILED:
        kind = _ENDS.get(reason.split(":")[0], BatchState.FAILED)
    return BatchJob(number, name, kind, (queue,), reason)
