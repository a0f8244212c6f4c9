"""The contract of launchers, which build the command lines that start the ranks of a payload."""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hpo_pilot.transformation.job import without_secrets

#: The variable that names the GPUs of a process, by kind of GPU.
VISIBLE_GPUS = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}

#: HIP and OpenCL count the GPUs that ROCR_VISIBLE_DEVICES leaves (ROCm documentation, "GPU isolation techniques"):
#: beside it each of these would select among the job's GPUs by numbers of the node.
_COUNT_AGAIN = ("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")

#: All variables that limit the GPUs of a process.
GPU_VARIABLES = frozenset((*VISIBLE_GPUS.values(), *_COUNT_AGAIN))

#: Level Zero takes an empty mask for none at all, and skips numbers that no GPU has (github.com/intel/compute-runtime,
#: shared/source/execution_environment/execution_environment.cpp, parseAffinityMask).
NO_INTEL_GPU = "9999"


def show_gpus(kind: str, names: Sequence[str]) -> dict[str, str]:
    """Returns the variable that limits a process to these GPUs of a kind; no names: it sees none."""
    return {VISIBLE_GPUS[kind]: ",".join(names) or (NO_INTEL_GPU if kind == "intel" else "")}


def index_gpus_once(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the variables that would select among AMD GPUs a second time."""
    again = _COUNT_AGAIN if environment.get(VISIBLE_GPUS["amd"]) else ()
    return {name: value for name, value in environment.items() if name not in again}


@dataclass(frozen=True)
class Placement:
    """The nodes, cores and GPUs of one job, with the same number on each node.

    Attributes:
        nodes: names of the nodes, the first rank's node first.
        ranks_per_node: processes on each node.
        gpus_per_rank: GPUs of each process; 0: none.
        cores_per_rank: cores of each process.
        gpu_kind: kind of GPU of the nodes: nvidia, amd, intel or none.
        environment: variables of every rank; on other nodes a rank may have only these and PATH, see `site_variables`.
        allocation: all nodes of the allocation, in the order of the batch system; empty: the job has all of them.
        gpus: the GPUs of the job on each node, as in `*_VISIBLE_DEVICES`; empty: the first ones, or those that the
            launcher finds free.
        gpus_on: the GPUs on the nodes where they differ from `gpus`.
        memory_mb: memory of the job on each node, in MB; 0: not known.
        port: a TCP port of the first node that only this job uses; 0: none.
        is_shared: whether agents run other jobs on these nodes: then the caller chooses GPUs and cores.
        name: name of the job step, unique in the allocation; output lines are then labelled by rank. Empty: no name.
    """

    nodes: tuple[str, ...]
    ranks_per_node: int = 1
    gpus_per_rank: int = 0
    cores_per_rank: int = 1
    gpu_kind: str = "none"
    environment: Mapping[str, str] = field(default_factory=dict)
    allocation: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    gpus_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory_mb: int = 0
    port: int = 0
    is_shared: bool = False
    name: str = ""

    @property
    def ranks(self) -> int:
        """Number of processes on all nodes."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the job on each node."""
        return self.ranks_per_node * self.gpus_per_rank

    @property
    def cores_per_node(self) -> int:
        """Cores of the job on each node."""
        return self.ranks_per_node * self.cores_per_rank


#: Message of ssh about a host that it cannot reach; several launchers start their helpers with ssh.
SSH_FAILED = r"ssh: (?:Could not resolve hostname|connect to host) ([\w.-]+)"


@dataclass(frozen=True)
class LogPatterns:
    """Regular expressions for a launcher's own lines in logs; empty: there are none. The runner uses the first four.

    Attributes:
        label: the label before each line of a rank; group 1 is the rank.
        dead: a rank has failed; group 1, if any, is the rank. The first such line counts: later ones may come from
            ranks that are being ended.
        own: lines of the launcher that do not tell the cause of a failure.
        cancelled: the ranks were ended from outside, unless a rank has failed before.
        broken: a node is unusable; a group names it.
        lost: the batch system has taken a node away; a group names it. `broken` matches these lines too.
        not_started: nothing was started, for any reason.
        away: nothing starts on any node, because the launcher's controller does not answer.
    """

    label: str = ""
    dead: str = ""
    own: str = ""
    cancelled: str = ""
    broken: str = ""
    lost: str = ""
    not_started: str = ""
    away: str = ""

    def broken_nodes(self, said: str, nodes: Collection[str]) -> frozenset[str]:
        """Returns the nodes that a log names as unusable.

        Args:
            said: the log.
            nodes: the nodes of the job.
        """
        return self._named(self.broken, said, nodes)

    def lost_nodes(self, said: str, nodes: Collection[str]) -> frozenset[str]:
        """Returns the nodes that a log names as taken away by the batch system; arguments as for `broken_nodes`."""
        return self._named(self.lost, said, nodes)

    def _named(self, pattern: str, said: str, nodes: Collection[str]) -> frozenset[str]:
        found = [match for line in self._own_lines(said) for match in re.finditer(pattern or "(?!)", line)]
        named = {name.rstrip(":,.") for match in found for name in match.groups() if name}
        return frozenset(node for node in nodes if {node, node.partition(".")[0]} & named)

    def failure(self, said: str) -> str:
        """Returns the first line of a log about ranks that did not start or lost their node; empty: there is none.

        Once a rank has failed, messages that nothing was started come from the launcher's end, and are no cause.
        """
        any_time = "|".join(filter(None, (self.broken, self.away))) or "(?!)"
        pattern = f"{any_time}|{self.not_started or '(?!)'}"
        for line in self._own_lines(said):
            if re.search(pattern, line):
                return line
            if self.dead and re.search(self.dead, line):
                pattern = any_time
        return ""

    def is_away(self, said: str) -> bool:
        """Returns True if, by a log, nothing starts on any node."""
        return bool(self.away) and any(re.search(self.away, line) for line in self._own_lines(said))

    def were_terminated(self, said: str) -> bool:
        """Returns whether a log says that ranks have failed, and of each that SIGTERM has ended it."""
        dead = [line for line in self._own_lines(said) if re.search(self.dead or "(?!)", line)]
        return bool(dead) and all(line.rstrip().endswith(": Terminated") for line in dead)

    def _own_lines(self, said: str) -> list[str]:
        """Returns the lines without a rank's label: a payload may print anything."""
        return [line for line in said.splitlines() if not (self.label and re.match(self.label, line))]


@dataclass(frozen=True)
class StepCommands:
    """Commands to reach a job step, if the launcher's own process cannot.

    Attributes:
        steps: a command that prints the steps of the allocation, one a line: identifier and name.
        signal: a command that sends a signal to a step: `%SIGNAL` stands for its name, the identifier is appended.
    """

    steps: tuple[str, ...]
    signal: tuple[str, ...]


#: Variables that modules, sites and login shells set for the programs of a job; see `site_variables`.
_SITE_NAMES = frozenset(
    {
        *("CONDA_PREFIX", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR", "VIRTUAL_ENV"),
        *("PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONUSERBASE"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "XDG_CACHE_HOME"),
    }
)
_SITE_PREFIXES = (
    *("APPTAINER", "CCL_", "CUDA_", "FI_", "HF_", "HIP_", "HOROVOD_", "HPO_PILOT_", "HSA_", "JAX_", "KERAS_"),
    *("MIOPEN_", "MKL_", "MPICH_", "NCCL_", "OMP_", "ONEAPI_", "OPENBLAS_", "PMIX_MCA_", "PYTORCH_", "RCCL_", "ROCM_"),
    *("SINGULARITY", "SYCL_", "TF_", "TORCH", "TRANSFORMERS_", "TRITON_", "UCX_", "XLA_", "ZE_"),
)


def site_variables(base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that ranks on other nodes need too, without possible credentials.

    Args:
        base: the environment of the batch script with its modules loaded.
    """
    wanted = {name: value for name, value in base.items() if name in _SITE_NAMES or name.startswith(_SITE_PREFIXES)}
    return {name: value for name, value in without_secrets(wanted).items() if name not in GPU_VARIABLES}


#: Jobs on several nodes that agents start at the same time: each has a runner and a starter on the pilot's node.
MOST_SPREAD = 2000


@dataclass(frozen=True)
class LauncherSettings:
    """The settings of a launcher, from `launcher` of a site profile.

    Attributes:
        options: further options of every call, before the payload's command.
        share_gpus: True: every rank sees all GPUs of its job on the node and takes the one of its local rank, as in
            Horovod's examples; False: a rank sees only its own GPUs, if the launcher can do that.
        threads_per_core: hardware threads of a core, for launchers that count threads.
        mpi: the kind of mpirun, openmpi or mpich.
        starter: the launcher that starts torchrun on each of several nodes.
        on_node: the launcher that starts ranks on one node without a job step; None: there is none.
    """

    options: tuple[str, ...] = ()
    share_gpus: bool = False
    threads_per_core: int = 1
    mpi: str = "openmpi"
    starter: str = ""
    on_node: Launcher | None = None


class Launcher(ABC):
    """Builds the command that starts the ranks of a payload.

    The caller starts `command` in the job's folder, with `environment` as its whole environment. The command starts
    `placement.ranks` processes of `argv` on the nodes, cores and GPUs of the placement. It ends when all of them have
    ended, with status 0 if all had status 0; if one rank fails, it ends the others.

    The command line has names of variables only: all users of a node can read its values.
    """

    name: ClassVar[str]
    #: Its own lines in logs.
    log_patterns: LogPatterns = LogPatterns()
    #: True if the launcher assigns GPUs to ranks itself; False: the environment names them.
    chooses_gpus: bool = False
    #: True if one job step can run agents on all nodes beside other job steps; see `agents`.
    has_agents: bool = False
    #: Variables that ranks get only if they are named.
    names_also: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: LauncherSettings | None = None) -> None:
        """Takes the settings of a site; None: the defaults."""
        self.settings = settings or LauncherSettings()

    @property
    def per_node(self) -> Launcher:
        """The launcher that starts one process on each node."""
        return self

    def once(self, here: bool) -> Launcher:
        """Returns the launcher for a command that runs once, on one node; `here`: the node of the caller."""
        return self

    @property
    def on_node(self) -> Launcher | None:
        """The launcher that starts ranks on the node of the caller without the batch system; None: there is none."""
        return self.settings.on_node

    def by_agents(self, words: Sequence[str] = ()) -> Launcher | None:
        """Returns the launcher that starts ranks on several nodes by agents; None: only job steps can.

        Args:
            words: the program that asks the agents, see `ByAgents`.
        """
        return None

    def needs_step(self, nodes: int, ranks_per_node: int) -> bool:
        """Returns whether a job takes a job step in an allocation; otherwise agents on its nodes start it."""
        if nodes > 1:
            return self.by_agents() is None
        return not self.has_agents or (ranks_per_node > 0 and self.on_node is None)

    def agents(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """Returns the command of a job step with one process on each node, beside which other job steps can run.

        The end of one process does not end the others.
        """
        raise NotImplementedError

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that must be in PATH."""
        return (self.name,)

    def lacks(self, path: str | None) -> str:
        """Returns which program is missing in a PATH (None: that of this process) and the remedy; empty: none is."""
        missing = next((name for name in self.programs if not shutil.which(name, path=path)), None)
        if missing is None:
            return ""
        builds = {"torchrun": "install PyTorch (`pip install torch`)", "horovodrun": "build it with `make horovod`"}
        remedy = f"{builds[missing]}, or " if missing in builds else ""
        remedy += "load its module before the pilot starts, or name another launcher in the site's profile"
        return f"{missing}, which starts the ranks, is not in PATH: {remedy}"

    @abstractmethod
    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """Returns the command line; see the class.

        Raises:
            InputError: this launcher cannot do such a placement.
        """

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """Returns the commands to reach ranks by `Placement.name`; None: the launcher's process reaches them.

        Args:
            environment: the environment of the batch script.
        """
        return None

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of the command.

        Args:
            placement: its variables override those of `base`.
            base: the environment of the calling process; variables that look like credentials are left out.
        """
        env = without_secrets({**base, **passed_on(placement)})
        if placement.gpu_kind in VISIBLE_GPUS and (placement.gpus or not placement.gpus_per_rank):
            # A payload without GPUs must not take those of other jobs.
            env |= show_gpus(placement.gpu_kind, placement.gpus)
        return index_gpus_once(env)

    def exported(self, placement: Placement) -> list[str]:
        """Returns the names of the variables that ranks on all nodes get."""
        return sorted({*self.environment(placement, {}), *self.names_also})


def passed_on(placement: Placement) -> dict[str, str]:
    """Returns the variables of a placement, with defaults that follow from it."""
    derived = {"OMP_NUM_THREADS": str(placement.cores_per_rank)}
    if placement.port:
        derived |= {"MASTER_ADDR": placement.nodes[0], "MASTER_PORT": str(placement.port)}
    return {**derived, **placement.environment}
