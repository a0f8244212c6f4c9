"""Site profiles: the nodes, the batch system, the launcher and the containers of a machine, as pydantic models.

The models are the source of `schemas/site.json`. Profiles are read where searches are checked, planned and submitted.
Pilots install without pydantic, so their command line tells them what they need of a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from hpo_pilot.hpc.batch_systems import BATCH_SYSTEMS
from hpo_pilot.hpc.launchers import LAUNCHERS
from hpo_pilot.transformation.container import RUNTIMES

Text = Annotated[StrictStr, Field(min_length=1)]
Name = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")]
Variable = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Line = Annotated[StrictStr, StringConstraints(min_length=1, pattern=r"^[^\r\n]*$")]
Folder = Annotated[StrictStr, StringConstraints(pattern=r"^[/$]")]
Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
Watts = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


class ProfileSection(BaseModel):
    """Frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


if TYPE_CHECKING:
    BatchName = str
    LauncherName = str
    RuntimeName = str
else:  # the names that the registries have
    BatchName = Literal[(*BATCH_SYSTEMS, "none")]
    LauncherName = Literal[tuple(LAUNCHERS)]
    RuntimeName = Literal[("auto", *RUNTIMES)]

GpuKind = Literal["nvidia", "amd", "none"]


def _any_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


class WalltimeBin(ProfileSection):
    """How long jobs of a size may be."""

    nodes: Count = Field(description="Jobs of up to this many nodes, if a smaller bin does not take them.")
    hours: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)] = Field(description="Longest walltime, in hours.")


class JobLimits(ProfileSection):
    """How many jobs one user may have in a queue; what is not said is not limited."""

    queued: Count | None = Field(None, description="Jobs in any state.")
    eligible: Count | None = Field(None, description="Jobs that wait and could start; more are held.")
    running: Count | None = Field(None, description="Jobs that run.")


class BatchQueue(ProfileSection):
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
        """Returns the longest walltime of an allocation of `nodes` nodes, in hours; None: not given, or no bin fits."""
        return next((one.hours for one in self.walltime if nodes <= one.nodes), None)

    def longest(self, nodes: int) -> float | None:
        """Returns the longest walltime of `nodes` nodes or more, in hours; None: not given, or no bin fits."""
        return max((one.hours for one in self.walltime if nodes <= one.nodes), default=None)

    def smallest(self, nodes: int, hours: float) -> int | None:
        """Returns the nodes of the smallest allocation that has `nodes` for `hours`; None: there is none."""
        if not self.walltime:
            return nodes
        first = 1
        for one in self.walltime:
            if nodes <= one.nodes and hours <= one.hours:
                return max(nodes, first)
            first = one.nodes + 1
        return None


class EndWarning(ProfileSection):
    """The signal by which the batch system warns a job before it ends."""

    signal: Annotated[StrictStr, Field(pattern="^[A-Z][A-Z0-9]*$")] = Field(
        "USR1", description="The signal's name without SIG, e.g. USR1."
    )
    seconds: Count = Field(300, description="How long before the end, in seconds.")


class Batch(ProfileSection):
    """The batch system, and what every job script there says."""

    system: BatchName = Field("none", description=f"{_any_of(BATCH_SYSTEMS)}; none: nodes are not allocated by one.")
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

    def rules(self, queue: str | None) -> BatchQueue:
        """Returns the rules of a queue; a queue that the profile does not have, or None, has no rules."""
        return self.queues.get(queue or "", BatchQueue())

    def largest(self) -> int | None:
        """Returns the nodes of the largest allocation that any queue gives; None: not given."""
        sizes = [queue.largest for queue in self.queues.values()]
        known = [size for size in sizes if size is not None]
        return max(known) if known and len(known) == len(sizes) else None

    def longest(self, nodes: int) -> float | None:
        """Returns the longest walltime of an allocation of at least `nodes` nodes, in hours; None: not known."""
        hours = [queue.longest(nodes) for queue in self.queues.values() if nodes <= (queue.largest or nodes)]
        known = [value for value in hours if value is not None]
        return max(known) if known and len(known) == len(hours) else None

    def smallest(self, nodes: int, hours: float) -> int | None:
        """Returns the nodes of the smallest allocation that can run a job; None: no allocation can.

        Args:
            nodes: nodes of the job, which may share its allocation with other jobs.
            hours: run time of the job, in hours.
        """
        sizes = [queue.smallest(nodes, hours) for queue in self.queues.values()]
        return min((size for size in sizes if size is not None), default=None) if sizes else nodes


class SiteGpus(ProfileSection):
    """The GPUs of one node, all alike."""

    count: Count = Field(description="How many a node has, as programs count them: a Frontier MI250X is two.")
    kind: Literal["nvidia", "amd"] = Field(description="nvidia: CUDA; amd: ROCm.")
    model: Text | None = Field(None, description="Model, e.g. 'A100 40GB'. Default: not said.")
    memory_mb: Count | None = Field(None, description="Memory of one GPU, in MB. Default: not said.")


class Power(ProfileSection):
    """What the energy of a job is estimated from: idle + per_core x cores + per_gpu x GPUs, in watts."""

    idle: Watts = Field(description="One node that does nothing, its idle GPUs included, in watts.")
    per_core: Watts = Field(description="What each busy core adds, in watts.")
    per_gpu: Watts = Field(0.0, description="What each busy GPU adds, in watts.")
    source: Text = Field(description="Where the figures come from.")

    def watts(self, cores: int, gpus: int) -> float:
        """Returns the power of one node with this many busy cores and GPUs, in watts."""
        return self.idle + self.per_core * cores + self.per_gpu * gpus


class SiteNode(ProfileSection):
    """One compute node; what is not said is not checked."""

    count: Count | None = Field(None, description="How many such nodes the site has.")
    cores: Count | None = Field(None, description="CPU cores that jobs may use.")
    threads_per_core: Count = Field(1, description="Hardware threads of a core, as jobs get them.")
    memory_mb: Count | None = Field(None, description="Memory, in MB.")
    gpus: SiteGpus | None = Field(None, description="The GPUs; null: none.")
    architecture: Literal["x86_64", "aarch64", "ppc64le"] | None = Field(
        None, description="CPU architecture, as `uname -m` prints it."
    )
    power: Power | None = Field(None, description="Power figures. Default: not known, so no energy is estimated.")

    @property
    def gpu_count(self) -> int:
        """GPUs of a node."""
        return self.gpus.count if self.gpus is not None else 0

    @property
    def gpu_kind(self) -> GpuKind:
        """The kind of GPU; `none` where there is none."""
        return self.gpus.kind if self.gpus is not None else "none"


class SiteLauncher(ProfileSection):
    """What starts the ranks of a payload."""

    name: LauncherName = Field("plain", description=f"{_any_of(LAUNCHERS)}.")
    options: tuple[Text, ...] = Field((), description="More options of every call, one word each.")
    share_gpus: StrictBool = Field(
        False,
        description="true: every rank sees all GPUs of its job on the node, and takes that of its local rank; "
        "false: where the launcher can, a rank sees its own alone.",
    )
    mpi: Literal["openmpi", "mpich"] = Field("openmpi", description="Whose mpirun it is.")
    starter: Literal["srun", "jsrun", "mpirun"] | None = Field(
        None, description="What starts torchrun on each of several nodes."
    )


class Scratch(ProfileSection):
    """Where jobs may write; variables such as $USER are those of the job."""

    node: Folder | None = Field(None, description="A folder on the node's own disk; null: there is none.")
    node_by_launcher: StrictBool = Field(
        False, description="Whether only processes that the launcher starts see the node's own disk."
    )
    shared: Folder | None = Field(None, description="A folder that all nodes share.")


class SiteContainers(ProfileSection):
    """How payloads with an image run."""

    runtime: RuntimeName = Field("auto", description="The container runtime; auto: the first that can run the image.")
    read_only: tuple[Folder, ...] = Field((), description="Folders of the node that the payload sees too, read-only.")
    mpi: tuple[Folder, ...] = Field(
        (), description="Folders of the node's own MPI, which takes the place of the image's."
    )


class Network(ProfileSection):
    """What compute nodes reach."""

    outbound: StrictBool = Field(True, description="Whether they reach servers outside.")
    proxy: Text | None = Field(None, description="The web proxy through which they do.")
    no_proxy: tuple[Text, ...] = Field((), description="Hosts that are reached without the proxy.")


class SiteProfile(ProfileSection):
    """A site: its nodes, its batch system, and how jobs are started there."""

    name: Name = Field(
        description="Its name, as `site.profile` of a search file has it; the file's name without .yaml."
    )
    description: StrictStr = Field("", description="For people.")
    node: SiteNode = SiteNode()
    batch: Batch = Batch()
    launcher: SiteLauncher = SiteLauncher()
    modules: tuple[Line, ...] = Field((), description="Environment modules that are loaded first, in this order.")
    environment: dict[Variable, StrictStr] = Field({}, description="Variables of every job.")
    setup: tuple[Line, ...] = Field((), description="Shell lines that run after the modules are loaded.")
    scratch: Scratch = Scratch()
    containers: SiteContainers = SiteContainers()
    network: Network = Network()
