"""Site profiles: what a machine offers, as data.

The models are the source of `schemas/site.json`. Profiles are read where searches are checked, planned and submitted;
pilots, which install without pydantic, are told what they need on their command line.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictBool, StrictStr

from hpo_pilot.jobs.site_batch import Batch
from hpo_pilot.jobs.site_section import Count, Folder, Line, Name, Section, Text, Variable, Watts

GpuKind = Literal["nvidia", "amd", "none"]
LauncherName = Literal["plain", "mpirun", "srun", "jsrun", "horovodrun", "torchrun"]
RuntimeName = Literal["auto", "none", "apptainer", "charliecloud", "shifter", "podman-hpc", "podman"]


class SiteGpus(Section):
    """The GPUs of one node, all alike."""

    count: Count = Field(description="How many a node has, as programs count them: a Frontier MI250X is two.")
    kind: Literal["nvidia", "amd"] = Field(description="nvidia: CUDA; amd: ROCm.")
    model: Text | None = Field(None, description="Model, e.g. 'A100 40GB'. Default: not said.")
    memory_mb: Count | None = Field(None, description="Memory of one GPU, in MB. Default: not said.")


class Power(Section):
    """What the energy of a job is estimated from: idle + per_core x cores + per_gpu x GPUs, in watts."""

    idle: Watts = Field(description="One node that does nothing, its idle GPUs included, in watts.")
    per_core: Watts = Field(description="What each busy core adds, in watts.")
    per_gpu: Watts = Field(0.0, description="What each busy GPU adds, in watts.")
    source: Text = Field(description="Where the figures come from.")

    def watts(self, cores: int, gpus: int) -> float:
        """One node on which so many cores and GPUs are busy, in watts."""
        return self.idle + self.per_core * cores + self.per_gpu * gpus


class NodeShape(Section):
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


class SiteLauncher(Section):
    """What starts the ranks of a payload."""

    name: LauncherName = Field("plain", description="plain, mpirun, srun, jsrun, horovodrun or torchrun.")
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


class Scratch(Section):
    """Where jobs may write; variables such as $USER are those of the job."""

    node: Folder | None = Field(None, description="A folder on the node's own disk; null: there is none.")
    node_by_launcher: StrictBool = Field(
        False, description="Whether only processes that the launcher starts see the node's own disk."
    )
    shared: Folder | None = Field(None, description="A folder that all nodes share.")


class SiteContainers(Section):
    """How payloads with an image run."""

    runtime: RuntimeName = Field("auto", description="The container runtime; auto: the first that can run the image.")
    read_only: tuple[Folder, ...] = Field((), description="Folders of the node that the payload sees too, read-only.")
    mpi: tuple[Folder, ...] = Field(
        (), description="Folders of the node's own MPI, which takes the place of the image's."
    )


class Network(Section):
    """What compute nodes reach."""

    outbound: StrictBool = Field(True, description="Whether they reach servers outside.")
    proxy: Text | None = Field(None, description="The web proxy through which they do.")
    no_proxy: tuple[Text, ...] = Field((), description="Hosts that are reached without the proxy.")


class SiteProfile(Section):
    """A site: its nodes, its batch system, and how jobs are started there."""

    name: Name = Field(
        description="Its name, as `site.profile` of a search file has it; the file's name without .yaml."
    )
    description: StrictStr = Field("", description="For people.")
    node: NodeShape = NodeShape()
    batch: Batch = Batch()
    launcher: SiteLauncher = SiteLauncher()
    modules: tuple[Line, ...] = Field((), description="Environment modules that are loaded first, in this order.")
    environment: dict[Variable, StrictStr] = Field({}, description="Variables of every job.")
    setup: tuple[Line, ...] = Field((), description="Shell lines that run after the modules are loaded.")
    scratch: Scratch = Scratch()
    containers: SiteContainers = SiteContainers()
    network: Network = Network()
