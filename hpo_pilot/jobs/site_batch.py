"""The batch system of a site: queues, how long jobs may be there, and what their scripts say."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictStr, field_validator, model_validator

from hpo_pilot.jobs.site_section import Count, Line, Name, Section, Text

BatchName = Literal["slurm", "lsf", "pbs", "flux", "none"]

#: What names the account in a job script; `none` has no accounts.
_ACCOUNT_FLAGS: dict[str, str] = {"slurm": "-A", "lsf": "-P", "pbs": "-A", "flux": "--bank"}

#: What names the queue there, unless the profile says otherwise.
_QUEUE_FLAGS: dict[str, str] = {"slurm": "-p", "lsf": "-q", "pbs": "-q", "flux": "--queue"}


class WalltimeBin(Section):
    """How long jobs of a size may be."""

    nodes: Count = Field(description="Jobs of up to this many nodes, if a smaller bin does not take them.")
    hours: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)] = Field(description="Longest walltime, in hours.")


class JobLimits(Section):
    """How many jobs one user may have in a queue; what is not said is not limited."""

    queued: Count | None = Field(None, description="Jobs in any state.")
    eligible: Count | None = Field(None, description="Jobs that wait and could start; more are held.")
    running: Count | None = Field(None, description="Jobs that run.")


class BatchQueue(Section):
    """One queue, partition or QOS of the batch system."""

    walltime: tuple[WalltimeBin, ...] = Field(
        (), description="Longest walltime by job size, small jobs first. Default: not said, hence not checked."
    )
    limits: JobLimits = JobLimits()

    @field_validator("walltime")
    @classmethod
    def _ascending(cls, bins: tuple[WalltimeBin, ...]) -> tuple[WalltimeBin, ...]:
        for smaller, larger in pairwise(bins):
            if larger.nodes <= smaller.nodes:
                raise ValueError(f"the bins must grow: {larger.nodes} nodes come after {smaller.nodes}")
        return bins

    @property
    def largest(self) -> int | None:
        """The nodes of the largest job; None: not said."""
        return self.walltime[-1].nodes if self.walltime else None

    def hours(self, nodes: int) -> float | None:
        """The longest walltime of an allocation of `nodes` nodes, in hours; None: not said, or no bin takes it."""
        return next((one.hours for one in self.walltime if nodes <= one.nodes), None)

    def longest(self, nodes: int) -> float | None:
        """The longest walltime of one of `nodes` nodes or more, in hours; None: not said, or no bin takes it."""
        return max((one.hours for one in self.walltime if nodes <= one.nodes), default=None)

    def smallest(self, nodes: int, hours: float) -> int | None:
        """The nodes of the smallest allocation that holds `nodes` for `hours`; None: there is none."""
        if not self.walltime:
            return nodes
        first = 1
        for one in self.walltime:
            if nodes <= one.nodes and hours <= one.hours:
                return max(nodes, first)
            first = one.nodes + 1
        return None


class EndWarning(Section):
    """The signal by which the batch system warns a job before it ends."""

    signal: Annotated[StrictStr, Field(pattern="^[A-Z][A-Z0-9]*$")] = Field(
        "USR1", description="The signal's name without SIG, e.g. USR1."
    )
    seconds: Count = Field(300, description="How long before the end, in seconds.")


class Batch(Section):
    """The batch system, and what every job script there says."""

    system: BatchName = Field("none", description="slurm, lsf, pbs or flux; none: nodes are not allocated by one.")
    queue: Name | None = Field(
        None, description="The queue, partition or QOS that jobs go to by themselves. Default: the batch system's own."
    )
    queue_option: Text | None = Field(
        None, description="What names the queue in a job script, where it is not the batch system's usual option."
    )
    queues: dict[Name, BatchQueue] = Field({}, description="The queues by name; one that is missing is not checked.")
    account: Name | None = Field(None, description="The project that is charged where the user names no other.")
    account_required: StrictBool = Field(False, description="Whether jobs without a project are refused.")
    account_suffix: Annotated[StrictStr, Field(pattern="^[A-Za-z0-9_.-]*$")] = Field(
        "", description="What is added to the project's name, e.g. _g for GPU nodes."
    )
    constraint: Text | None = Field(None, description="Node features that jobs ask for, as Slurm's --constraint.")
    options: tuple[Line, ...] = Field(
        (), description="More options of each job script, one a line, as they stand after #SBATCH, #BSUB or #PBS."
    )
    warning: EndWarning | None = Field(EndWarning(), description="The warning before a job's end; null: there is none.")
    job_steps: Count | None = Field(None, description="Job steps that one allocation can run side by side.")

    @model_validator(mode="after")
    def _check(self) -> Batch:
        if self.queues and self.queue is not None and self.queue not in self.queues:
            raise ValueError(f"queue {self.queue!r} is not among the queues: {', '.join(self.queues)}")
        return self

    @property
    def account_flag(self) -> str | None:
        """What names the account in a job script; None: there are no accounts."""
        return _ACCOUNT_FLAGS.get(self.system)

    @property
    def queue_flag(self) -> str | None:
        """What names the queue in a job script; None: there are no queues."""
        return self.queue_option or _QUEUE_FLAGS.get(self.system)

    def largest(self) -> int | None:
        """The nodes of the largest allocation that any queue gives; None: not said."""
        sizes = [queue.largest for queue in self.queues.values()]
        known = [size for size in sizes if size is not None]
        return max(known) if known and len(known) == len(sizes) else None

    def longest(self, nodes: int) -> float | None:
        """The longest that any allocation of `nodes` nodes or more lasts, in hours; None: not said, or none is."""
        hours = [queue.longest(nodes) for queue in self.queues.values() if nodes <= (queue.largest or nodes)]
        known = [value for value in hours if value is not None]
        return max(known) if known and len(known) == len(hours) else None

    def smallest(self, nodes: int, hours: float) -> int | None:
        """How many nodes the smallest allocation has that holds `nodes` for so long; None: there is none.

        Args:
            nodes: of one job, which may share its allocation with others.
            hours: that the job takes.
        """
        sizes = [queue.smallest(nodes, hours) for queue in self.queues.values()]
        return min((size for size in sizes if size is not None), default=None) if sizes else nodes
