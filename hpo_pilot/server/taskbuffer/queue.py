"""PanDA queues as a queue file describes them: what a pilot there has, and whether it gets jobs.

The models are the source of `schemas/queues.json`; users write the file in YAML, which `config` turns into the JSON
that the server reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

#: Of a queue's name: `hpo_pilot.search.wording.QUEUE_PATTERN`. Not imported from there: the models of searches, which
#: the server has no use for, would be a quarter of its start.
QUEUE_PATTERN = r"^[A-Za-z0-9_.-]+$"

_Text = Annotated[StrictStr, Field(min_length=1)]
_Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(_Section):
    """The kind of GPU of a queue; all of them are alike. Jobs that ask for what is not said here do not fit."""

    vendor: _Text = Field("NVIDIA", description="Vendor, e.g. NVIDIA, AMD.")
    model: _Text | None = Field(None, description="Model, e.g. 'A100 80GB'. Default: not said.")
    memory_mb: _Count | None = Field(None, description="Memory of one GPU, in MB. Default: not said.")
    generation: _Text | None = Field(None, description="Microarchitecture, e.g. Ampere. Default: not said.")
    framework_version: _Text | None = Field(None, description="CUDA or ROCm version, e.g. '12.4'. Default: not said.")
    driver_version: _Text | None = Field(None, description="Driver version, e.g. '575.57'. Default: not said.")


class Queue(_Section):
    """One PanDA queue: what one job may have there. What is not said is not checked."""

    status: Literal["online", "test", "brokeroff", "offline"] = Field(
        "online",
        description=(
            "online: jobs as they come; test: jobs with label test alone; brokeroff: jobs that name this queue; "
            "offline: none."
        ),
    )
    description: StrictStr = Field("", description="For people.")
    site: _Text | None = Field(None, description="The site that the queue belongs to. Default: the queue's name.")
    cores: _Count | None = Field(None, description="CPU cores that one job may use.")
    memory_mb: _Count | None = Field(None, description="Memory that one job may use, in MB.")
    disk_mb: _Count | None = Field(None, description="Disk that one job may use, in MB.")
    minutes: Annotated[StrictFloat, Field(gt=0, lt=1e6)] | None = Field(
        None, description="The longest walltime of a job, in minutes."
    )
    architecture: _Text | None = Field(
        None,
        description="CPU: architecture, or architecture-vendor-instructions, e.g. x86_64, x86_64-intel-avx512f.",
    )
    platforms: tuple[_Text, ...] = Field(
        (), description="Operating systems that jobs may ask for, e.g. el9. Default: not said, hence any."
    )
    gpus: Annotated[StrictInt, Field(ge=0, lt=10_000)] = Field(0, description="GPUs that one job may use.")
    gpu: Gpu = Field(default_factory=Gpu, description="The kind of GPU, where there are some.")
    containers: tuple[_Text, ...] | None = Field(
        None, description="Container runtimes of its nodes, e.g. [apptainer]; []: none. Default: not said."
    )
    storage: Annotated[StrictStr, Field(pattern="^/")] | None = Field(
        None,
        description=(
            "Folder that the nodes share with the server: a Pilot 3 moves outputs there. "
            "Default: one in the server's files."
        ),
    )
    pilot: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of the queue's description for Pilot 3 (queuedata), beside or instead of those made here.",
    )


class QueueFile(_Section):
    """A queue file. Pilots and tasks may name these queues and no others."""

    queues: dict[Annotated[StrictStr, Field(pattern=QUEUE_PATTERN)], Queue] = Field(
        min_length=1, description="The queues by their names."
    )
