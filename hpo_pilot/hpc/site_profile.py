"""Site profiles: the nodes, the batch system, the launcher and the containers of a machine, as pydantic models.

The models are the source of `schemas/site.json`. Profiles are read where searches are checked, planned and submitted.
Pilots are installed without pydantic: they read the checked JSON of `hpo-pilot sites show NAME --json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import BatchSystem
from hpo_pilot.hpc.batch_systems import BATCH_SYSTEMS
from hpo_pilot.hpc.launcher import Launcher
from hpo_pilot.hpc.launchers import LAUNCHERS
from hpo_pilot.plugins import find_plugin
from hpo_pilot.transformation.container import RUNTIMES, ContainerRuntime

Text = Annotated[StrictStr, Field(min_length=1)]
Name = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")]
Variable = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Line = Annotated[StrictStr, StringConstraints(min_length=1, pattern=r"^[^\r\n]*$")]
Folder = Annotated[StrictStr, StringConstraints(pattern=r"^[/$]")]
Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
Watts = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


class ProfileSection(BaseModel):
    """A part of a profile: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _or_found(value: Any, built_in: ValidatorFunctionWrapHandler, *, group: str, base: type[Any]) -> Any:
    """Accepts the names of the registry, and those that other packages register in the entry-point group."""
    try:
        return built_in(value)
    except ValueError:
        try:
            if isinstance(value, str) and find_plugin(group, value, base) is not None:
                return value
        except InputError as error:
            raise ValueError(str(error)) from error
        raise


if TYPE_CHECKING:
    BatchName = str
    LauncherName = str
    RuntimeName = str
else:

    def _names(group: str, base: type[Any], *names: str) -> Any:
        check = partial(_or_found, group=group, base=base)
        return Annotated[Literal[names], WrapValidator(check, json_schema_input_type=Literal[names] | Name)]

    BatchName = _names("batch_systems", BatchSystem, *BATCH_SYSTEMS, "none")
    LauncherName = _names("launchers", Launcher, *LAUNCHERS)
    RuntimeName = _names("runtimes", ContainerRuntime, "auto", *RUNTIMES)

GpuKind = Literal["nvidia", "amd", "intel", "none"]


def _any_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


class WalltimeBin(ProfileSection):
    """The longest walltime of jobs up to a number of nodes."""

    nodes: Count = Field(description="Largest number of nodes of the jobs; those that fit a smaller bin belong to it.")
    hours: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)] = Field(description="Longest walltime, in hours.")


class JobLimits(ProfileSection):
    """The largest numbers of jobs of one user in a queue. A number that is not given is not limited."""

    queued: Count | None = Field(None, description="Jobs in any state.")
    eligible: Count | None = Field(None, description="Waiting jobs that could start; further jobs are held.")
    running: Count | None = Field(None, description="Running jobs.")


class BatchQueue(ProfileSection):
    """One queue, partition or QOS of the batch system."""

    walltime: tuple[WalltimeBin, ...] = Field(
        (), description="Longest walltime by job size, small jobs first. Default: not given, and not checked."
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
        """The nodes of the largest job; None: not given."""
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
    seconds: Count = Field(300, description="Time from the signal to the end, in seconds.")


class Batch(ProfileSection):
    """The batch system, and the common settings of all job scripts."""

    system: BatchName = Field(
        "none",
        description=f"{_any_of(BATCH_SYSTEMS)}, or that of another package; none: nodes are not allocated by one.",
    )
    queue: Name | None = Field(
        None, description="The default queue, partition or QOS of jobs. Default: the batch system's own."
    )
    queue_option: Text | None = Field(
        None, description="The option that names the queue in a job script, if it is not the batch system's usual one."
    )
    queues: dict[Name, BatchQueue] = Field({}, description="The queues by name; other queues are not checked.")
    account: Name | None = Field(None, description="The project that is charged, unless the user names another one.")
    account_required: StrictBool = Field(False, description="Whether the batch system refuses jobs without a project.")
    account_suffix: Annotated[StrictStr, Field(pattern="^[A-Za-z0-9_.-]*$")] = Field(
        "", description="Suffix of the project's name, e.g. _g for GPU nodes."
    )
    constraint: Text | None = Field(None, description="Node features that jobs require, as in Slurm's --constraint.")
    options: tuple[Line, ...] = Field(
        (), description="Further options of each job script, one per line, without #SBATCH, #BSUB, #PBS or #HTCONDOR."
    )
    warning: EndWarning | None = Field(EndWarning(), description="The warning before the end of a job; null: none.")
    job_steps: Count | None = Field(
        None, description="Largest number of job steps that run in one allocation at the same time."
    )

    @model_validator(mode="after")
    def _check(self) -> Batch:
        if self.queues and self.queue is not None and self.queue not in self.queues:
            raise ValueError(f"queue {self.queue!r} is not among the queues: {', '.join(self.queues)}")
        return self

    def rules(self, queue: str | None) -> BatchQueue:
        """Returns the rules of a queue; there are none for None and for a queue that is not in the profile."""
        return self.queues.get(queue or "", BatchQueue())

    @property
    def has_one_node(self) -> bool:
        """Whether an allocation has one node only."""
        return self.system in BATCH_SYSTEMS and BATCH_SYSTEMS[self.system].one_node

    def largest(self) -> int | None:
        """Returns the nodes of the largest allocation that any queue gives; None: not given."""
        if self.has_one_node:
            return 1
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

    count: Count = Field(
        description="Number of GPUs of a node, as programs count them: a Frontier MI250X counts as two."
    )
    kind: Literal["nvidia", "amd", "intel"] = Field(
        description="nvidia: with CUDA; amd: with ROCm; intel: with Level Zero."
    )
    model: Text | None = Field(None, description="Model, e.g. 'A100 40GB'. Default: not given.")
    memory_mb: Count | None = Field(None, description="Memory of one GPU, in MB. Default: not given.")
    mps: StrictBool = Field(
        False, description="Whether NVIDIA's Multi-Process Service runs on the nodes; jobs with a share get its limits."
    )


class Power(ProfileSection):
    """The power of a node for energy estimates: idle + per_core x cores + per_gpu x GPUs, in watts."""

    idle: Watts = Field(description="Power of an idle node, idle GPUs included, in watts.")
    per_core: Watts = Field(description="Additional power of each busy core, in watts.")
    per_gpu: Watts = Field(0.0, description="Additional power of each busy GPU, in watts.")
    source: Text = Field(description="Source of the figures.")

    def watts(self, cores: int, gpus: float) -> float:
        """Returns the power of one node with these numbers of busy cores and GPUs, in watts."""
        return self.idle + self.per_core * cores + self.per_gpu * gpus


class Carbon(ProfileSection):
    """Emissions of the site's electricity."""

    grams_per_kwh: Annotated[StrictFloat, Field(ge=0, le=2000)] = Field(
        description="Mean emissions, in grams of CO2 equivalent per kWh."
    )
    source: Text = Field(description="Source of the figure, with its year.")


class SiteNode(ProfileSection):
    """A compute node. A value that is not given is not checked."""

    count: Count | None = Field(None, description="Number of such nodes at the site.")
    cores: Count | None = Field(None, description="CPU cores that jobs may use.")
    threads_per_core: Count = Field(1, description="Hardware threads of a core that jobs get.")
    memory_mb: Count | None = Field(None, description="Memory, in MB.")
    gpus: SiteGpus | None = Field(None, description="The GPUs; null: none.")
    architecture: Literal["x86_64", "aarch64", "ppc64le"] | None = Field(
        None, description="CPU architecture, as `uname -m` prints it."
    )
    power: Power | None = Field(None, description="Power figures. Default: not given, and no energy is estimated.")

    @property
    def gpu_count(self) -> int:
        """GPUs of a node."""
        return self.gpus.count if self.gpus is not None else 0

    @property
    def gpu_kind(self) -> GpuKind:
        """The kind of GPU; `none` for a node without GPUs."""
        return self.gpus.kind if self.gpus is not None else "none"


class SiteLauncher(ProfileSection):
    """The program that starts the ranks of a payload."""

    name: LauncherName = Field("plain", description=f"{_any_of(LAUNCHERS)}, or that of another package.")
    options: tuple[Text, ...] = Field((), description="Further options of every call, one word each.")
    share_gpus: StrictBool = Field(
        False,
        description="true: each rank sees all GPUs of its job on the node, and uses the one of its local rank; "
        "false: each rank sees only its own GPU, if the launcher supports it.",
    )
    mpi: Literal["openmpi", "mpich"] = Field("openmpi", description="The MPI of mpirun.")
    starter: Literal["srun", "jsrun", "mpirun", "pals", "flux"] | None = Field(
        None, description="The program that starts torchrun on each node of a job on several nodes."
    )
    on_node: Literal["horovodrun", "mpirun", "torchrun"] | None = Field(
        None,
        description="The program that starts the ranks of a job on one node of a larger allocation, without a job step "
        "of the batch system; null: the launcher, with a job step for each such job.",
    )


class Scratch(ProfileSection):
    """Folders in which jobs may write. Variables such as $USER have the values of the job."""

    node: Folder | None = Field(None, description="A folder on the node's own disk; null: none.")
    node_by_launcher: StrictBool = Field(
        False, description="Whether only processes of the launcher see the node's own disk."
    )
    shared: Folder | None = Field(None, description="A folder that all nodes share.")


class SiteContainers(ProfileSection):
    """The containers of payloads with an image."""

    runtime: RuntimeName = Field("auto", description="The container runtime; auto: the first that can run the image.")
    read_only: tuple[Folder, ...] = Field((), description="Folders of the node that containers mount read-only.")
    mpi: tuple[Folder, ...] = Field((), description="Folders of the node's MPI, which replaces the MPI of the image.")


class Network(ProfileSection):
    """The network access of compute nodes."""

    outbound: StrictBool = Field(True, description="Whether compute nodes reach servers outside of the site.")
    proxy: Text | None = Field(None, description="The web proxy for servers outside of the site.")
    no_proxy: tuple[Text, ...] = Field((), description="Hosts that are reached without the proxy.")


class SiteProfile(ProfileSection):
    """A site: its nodes, its batch system and its launcher."""

    name: Name = Field(description="The name for `site.profile` of a search file: the file's name without .yaml.")
    description: StrictStr = Field("", description="For people.")
    node: SiteNode = SiteNode()
    batch: Batch = Batch()
    launcher: SiteLauncher = SiteLauncher()
    modules: tuple[Line, ...] = Field((), description="Environment modules to load first, in this order.")
    environment: dict[Variable, StrictStr] = Field({}, description="Variables of every job.")
    setup: tuple[Line, ...] = Field((), description="Shell lines to run after the modules are loaded.")
    scratch: Scratch = Scratch()
    containers: SiteContainers = SiteContainers()
    network: Network = Network()
    carbon: Carbon | None = Field(
        None, description="Emissions of the electricity. Default: not given, and no emissions are estimated."
    )
