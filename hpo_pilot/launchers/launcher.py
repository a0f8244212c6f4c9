"""What starts the ranks of a payload on the nodes of an allocation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpo_pilot.launchers.placement import VISIBLE_GPUS, Placement
from hpo_pilot.launchers.traces import StepCommands, Traces
from hpo_pilot.transformation.environment import without_secrets

#: What modules and sites set for the programs of a job: `site_variables`.
_SITE_NAMES = frozenset(
    {"CONDA_PREFIX", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV"}
)
_SITE_PREFIXES = (
    "APPTAINER",
    "CUDA_",
    "FI_",
    "HIP_",
    "HOROVOD_",
    "HPO_PILOT_",
    "HSA_",
    "MIOPEN_",
    "MKL_",
    "MPICH_",
    "NCCL_",
    "OMP_",
    "OPENBLAS_",
    "PMIX_MCA_",
    "RCCL_",
    "ROCM_",
    "SINGULARITY",
    "UCX_",
)


def site_variables(base: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that ranks on other nodes need too, without what looks like a credential.

    Args:
        base: the environment of the batch script, after its modules are loaded.
    """
    wanted = {name: value for name, value in base.items() if name in _SITE_NAMES or name.startswith(_SITE_PREFIXES)}
    return {name: value for name, value in without_secrets(wanted).items() if name not in VISIBLE_GPUS.values()}


@dataclass(frozen=True)
class LauncherSettings:
    """What a site says of its launcher: `launcher` of a site profile.

    Attributes:
        options: more words of every call, before the payload's command.
        share_gpus: every rank sees all GPUs of its job on the node and takes that of its local rank, as Horovod's
            examples do; else, where the launcher can, a rank sees its own alone.
        threads_per_core: hardware threads of a core, where the launcher counts those.
        mpi: whose mpirun it is, openmpi or mpich.
        starter: for torchrun, the launcher that starts it on each of several nodes.
    """

    options: tuple[str, ...] = ()
    share_gpus: bool = False
    threads_per_core: int = 1
    mpi: str = "openmpi"
    starter: str = ""


class Launcher(ABC):
    """One way to start ranks.

    `command` gives a command that, started in the job's folder with `environment` as its whole environment, starts
    `placement.ranks` processes of `argv`, where and with what the placement says. It ends when all have ended, with
    status 0 if all of them did; where one rank fails, the others are ended.

    Only names of variables stand on the command line: values there can be read by every user of a node.
    """

    name: ClassVar[str]
    #: What it leaves in logs.
    traces: Traces = Traces()

    def __init__(self, settings: LauncherSettings | None = None) -> None:
        """A launcher with the settings of a site; default: none."""
        self.settings = settings or LauncherSettings()

    @property
    def chooses_gpus(self) -> bool:
        """Whether it gives each node's ranks GPUs itself; else they are those that the environment names."""
        return False

    @property
    def per_node(self) -> Launcher:
        """What starts one process on each node, where nothing else is wanted."""
        return self

    @property
    def programs(self) -> tuple[str, ...]:
        """The executables that must be in PATH."""
        return (self.name,)

    @abstractmethod
    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """The command line, see above.

        Raises:
            InputError: this launcher cannot place ranks so.
        """

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """How ranks are reached other than through the command, by `Placement.name`; None: they need not be.

        Args:
            environment: of the batch script.
        """
        return None

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """The environment in which the command is started.

        Args:
            placement: its own variables count more than those of `base`.
            base: of the process that starts it; what looks like a credential is left out.
        """
        env = without_secrets({**base, **passed_on(placement)})
        if placement.gpu_kind in VISIBLE_GPUS and (placement.gpus or not placement.gpus_per_rank):
            # Without GPUs of its own a payload must not take those of its neighbours.
            env[VISIBLE_GPUS[placement.gpu_kind]] = ",".join(placement.gpus)
        return env

    def exported(self, placement: Placement) -> list[str]:
        """The names of the variables that ranks on all nodes get."""
        env = self.environment(placement, {})
        return sorted(env)


def passed_on(placement: Placement) -> dict[str, str]:
    """The variables of a placement, with those that follow from it where they are not said."""
    derived = {"OMP_NUM_THREADS": str(placement.cores_per_rank)}
    if placement.port:
        derived |= {"MASTER_ADDR": placement.nodes[0], "MASTER_PORT": str(placement.port)}
    return {**derived, **placement.environment}
