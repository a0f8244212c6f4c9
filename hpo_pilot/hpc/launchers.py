"""Launchers: build the command lines that start the ranks of a payload."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hpo_pilot.errors import InputError
from hpo_pilot.transformation.job import without_secrets

#: What tells a process which GPUs are its own, by their kind.
VISIBLE_GPUS = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}


@dataclass(frozen=True)
class Placement:
    """The nodes, cores and GPUs of one job: as many on each of its nodes.

    Attributes:
        nodes: by name, the first rank's first.
        ranks_per_node: processes on each.
        gpus_per_rank: 0: the payload uses none.
        cores_per_rank: cores of each process.
        gpu_kind: nvidia, amd or none: what the nodes have.
        environment: variables that every rank gets; on other nodes there may be no more than these and PATH: see
            `site_variables`.
        allocation: all nodes of the allocation, in the order of the batch system; empty: the job has all there are.
        gpus: which of a node's GPUs are the job's, as a `*_VISIBLE_DEVICES` names them; empty: the first ones, or
            those that the launcher finds free.
        gpus_on: the GPUs of nodes where they are others than `gpus`.
        memory_mb: the job's on each node, in MB; 0: not said.
        port: a TCP port of the first node that is the job's alone; 0: none.
        name: of the job step, unique in the allocation; its ranks' lines are labelled then. Empty: it has none.
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
    name: str = ""

    def __post_init__(self) -> None:
        """Checks that the parts fit.

        Raises:
            InputError: they do not.
        """
        if not self.nodes or len(set(self.nodes)) != len(self.nodes):
            raise InputError(f"a job needs nodes, each once, not {', '.join(self.nodes) or 'none'}")
        if min(self.ranks_per_node, self.cores_per_rank) < 1 or self.gpus_per_rank < 0:
            raise InputError("a job needs a rank or more on each node, and each rank a core or more")
        if self.gpus_per_rank and self.gpu_kind not in VISIBLE_GPUS:
            raise InputError(f"the job wants {self.gpus_per_rank} GPUs a rank, and its nodes have none")
        for gpus in filter(None, (self.gpus, *self.gpus_on.values())):
            if len(gpus) != self.gpus_per_node:
                raise InputError(f"the job wants {self.gpus_per_node} GPUs a node, and was given {len(gpus)}")
        if missing := [node for node in self.nodes if self.allocation and node not in self.allocation]:
            raise InputError(f"{missing[0]} is not a node of the allocation: {', '.join(self.allocation)}")

    def gpus_of(self, node: str) -> tuple[str, ...]:
        """Which GPUs of a node are the job's; empty: not said."""
        return self.gpus_on.get(node, self.gpus)

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the job on each node."""
        return self.ranks_per_node * self.gpus_per_rank

    @property
    def cores_per_node(self) -> int:
        """Cores of the job on each node."""
        return self.ranks_per_node * self.cores_per_rank

    @property
    def is_subset(self) -> bool:
        """Whether the allocation has more nodes than the job."""
        return bool(self.allocation) and set(self.nodes) != set(self.allocation)


#: What ssh says of a host that it does not reach; several launchers start their helpers by it.
SSH_FAILED = r"ssh: (?:Could not resolve hostname|connect to host) ([\w.-]+)"


@dataclass(frozen=True)
class Traces:
    """How a launcher's own lines look, as regular expressions; empty: it has none. The runner uses the first three.

    Attributes:
        label: what it puts before each line of a rank; group 1 is the rank.
        dead: its word that a rank has failed, the first of which counts; group 1, if there is one, is the rank. What
            follows may be said by others that are being ended.
        own: lines of the launcher's that do not say what was wrong.
        broken: its word that a node is of no use; a group names it.
        lost: its word that the batch system has taken a node away; a group names it. It is one of `broken` too.
        not_started: its word that nothing was started, whoever's fault it is.
        away: its word that nothing is started anywhere, for what it asks itself does not answer.
    """

    label: str = ""
    dead: str = ""
    own: str = ""
    broken: str = ""
    lost: str = ""
    not_started: str = ""
    away: str = ""

    def broken_nodes(self, said: str, nodes: Collection[str]) -> frozenset[str]:
        """The nodes that a log calls of no use.

        Args:
            said: the log.
            nodes: of the job.
        """
        return self._named(self.broken, said, nodes)

    def lost_nodes(self, said: str, nodes: Collection[str]) -> frozenset[str]:
        """The nodes that the batch system has taken away, by a log; arguments as of `broken_nodes`."""
        return self._named(self.lost, said, nodes)

    def _named(self, pattern: str, said: str, nodes: Collection[str]) -> frozenset[str]:
        found = [match for line in self._own_lines(said) for match in re.finditer(pattern or "(?!)", line)]
        named = {name.rstrip(":,.") for match in found for name in match.groups() if name}
        return frozenset(node for node in nodes if {node, node.partition(".")[0]} & named)

    def failure(self, said: str) -> str:
        """The line of a log that says that the launcher did not start the ranks, or lost a node under them, if any."""
        patterns = [pattern for pattern in (self.broken, self.not_started, self.away) if pattern]
        return next((line for line in self._own_lines(said) if any(re.search(one, line) for one in patterns)), "")

    def is_away(self, said: str) -> bool:
        """Whether a log says that nothing is started anywhere."""
        return bool(self.away) and any(re.search(self.away, line) for line in self._own_lines(said))

    def _own_lines(self, said: str) -> list[str]:
        """Those that no rank said: a payload may print anything."""
        return [line for line in said.splitlines() if not (self.label and re.match(self.label, line))]


@dataclass(frozen=True)
class StepCommands:
    """How a launcher's job step is reached where its own process cannot do it.

    Attributes:
        steps: a command that prints the allocation's steps, a line each: identifier and name.
        signal: a command that sends one a signal: `%SIGNAL` stands for its name, the identifier is added.
    """

    steps: tuple[str, ...]
    signal: tuple[str, ...]


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


class Plain(Launcher):
    """Starts one process where the command is started."""

    name = "plain"

    @property
    def programs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        if placement.ranks > 1:
            raise InputError(
                f"the launcher plain starts one process, not {placement.ranks}: name another as launcher of the site"
            )
        return list(argv)


#: MPICH does not say which rank it was.
_MPICH = Traces(
    label=r"^\[(\d+)\] ?",
    dead=r"^=   BAD TERMINATION OF ONE OF YOUR APPLICATION",
    own=r"^(=|YOUR APPLICATION TERMINATED|This typically refers to|Please see the FAQ)",
    broken=SSH_FAILED,
    not_started=r"unable to (launch|connect to) .*(proxy|bstrap)|HYD\w* \(.*\): (error|unable)",
)


class Mpirun(Launcher):
    """Ranks by slots on named hosts.

    They are not bound to cores: two jobs on one node would both be bound to its first ones. Horovod asks for it too.

    MPICH ends the others of a dead rank only if that one had called MPI_Init; else they go on to the job's walltime.
    """

    name = "mpirun"
    #: Of Open MPI.
    traces = Traces(
        label=r"^\[\d+,(\d+)\]<std(?:out|err)>:",
        dead=r"^  Process name: \[\[\d+,\d+\],(\d+)\]",
        own=r"^(  Process name|  Exit code|mpirun\S* detected|Primary job|a non-zero exit code|the job to be|-----)",
        broken=rf"Remote daemon: \S+ on node ([\w.-]+)|{SSH_FAILED}",
        not_started=r"(ORTE|PRTE) was unable to reliably start|There are not enough slots available",
    )

    def __init__(self, settings: LauncherSettings | None = None) -> None:
        """See Launcher."""
        super().__init__(settings)
        if self.settings.mpi == "mpich":
            self.traces = _MPICH

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        return [self.name, *(self._mpich if self.settings.mpi == "mpich" else self._openmpi)(placement), *argv]

    def _openmpi(self, placement: Placement) -> list[str]:
        hosts = ",".join(f"{node}:{placement.ranks_per_node}" for node in placement.nodes)
        exported = [word for name in self.exported(placement) for word in ("-x", name)]
        binding = ["--bind-to", "none", "--map-by", "slot"]
        labels = ["--tag-output"] if placement.name else []
        return ["-np", str(placement.ranks), "-H", hosts, *binding, *labels, *self.settings.options, *exported]

    def _mpich(self, placement: Placement) -> list[str]:
        return [
            "-n",
            str(placement.ranks),
            "-hosts",
            ",".join(placement.nodes),
            "-ppn",
            str(placement.ranks_per_node),
            "-bind-to",
            "none",
            *(["-prepend-rank"] if placement.name else []),
            *self.settings.options,
            "-genvlist",
            ",".join(self.exported(placement)),
        ]

    def exported(self, placement: Placement) -> list[str]:
        """See Launcher; with what programs are found by, for other nodes get nothing else."""
        return sorted({*super().exported(placement), "PATH"})


class Srun(Launcher):
    """Job steps that run side by side.

    `--exact` (Slurm 20.11 and later) leaves a step no more than it asks for, so that others fit beside it; a step
    that says nothing of memory would take all of the job's. Which of a node's GPUs a step gets is Slurm's choice: it
    hands none out twice, and sets `*_VISIBLE_DEVICES`.
    """

    name = "srun"
    traces = Traces(
        label=r"^ *(\d+): ?",
        dead=r"^srun: error: \S+: tasks? (\d+)[\d,-]*: ",
        own=r"^(srun|slurmstepd\S*): (?!error: (execve|Unable|Task launch|Node failure))",
        broken=r"[Tt]ask launch for \S+ failed on node (\S+):|Node failure on (\S+)",
        lost=r"Node failure on (\S+)",
        not_started=r"^srun: (fatal: |error: (Unable to create step|[Tt]ask launch for|Application launch failed))",
        # Slurm's src/common/slurm_errno.c; measured with 22.05, whose controller had been killed.
        away=r"^srun: error: .*(Unable to contact slurm controller|Slurm backup controller in standby mode|"
        r"Unable to confirm allocation for job)",
    )

    @property
    def chooses_gpus(self) -> bool:
        """See Launcher."""
        return True

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        nodes = [f"--nodelist={','.join(placement.nodes)}"] if placement.is_subset else []
        memory = [f"--mem={placement.memory_mb}M"] if placement.memory_mb else []
        return [
            self.name,
            f"-N{len(placement.nodes)}",
            f"-n{placement.ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
            f"-c{placement.cores_per_rank * self.settings.threads_per_core}",
            *self._gpus(placement),
            *nodes,
            "--exact",
            *memory,
            *([f"--job-name={placement.name}", "--label"] if placement.name else []),
            # Else the others would wait for a dead rank until the walltime.
            "--kill-on-bad-exit=1",
            f"--export={','.join(self.exported(placement))}",
            *self.settings.options,
            *argv,
        ]

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        env = super().environment(placement, base)
        # Slurm sets it for each rank: what stands there before would be counted from.
        env.pop(VISIBLE_GPUS.get(placement.gpu_kind, ""), None)
        return env

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """See Launcher. srun itself takes a SIGTERM for an order to kill its ranks (22.05)."""
        job = environment.get("SLURM_JOB_ID")
        if not job:
            return None
        return StepCommands(
            ("squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %j"), ("scancel", "--signal=%SIGNAL")
        )

    def exported(self, placement: Placement) -> list[str]:
        """See Launcher; with what programs are found by, for srun passes nothing else on."""
        return sorted({*super().exported(placement), "HOME", "PATH"})

    def _gpus(self, placement: Placement) -> list[str]:
        if not placement.gpus_per_rank:
            # A step would inherit the GPUs of the job, and others wait for them.
            return ["--gres=none"] if placement.gpu_kind in VISIBLE_GPUS else []
        if self.settings.share_gpus:
            return [f"--gpus-per-node={placement.gpus_per_node}", "--gpu-bind=none"]
        return [f"--gpus-per-task={placement.gpus_per_rank}", "--gpu-bind=closest"]


# IBM's jsrun: resource sets on the nodes of an LSF allocation.
#
# It is driven directly: Horovod 0.28.1's own jsrun mode is broken (`horovod/runner/js_run.py`, line 47, unpacks two
# of
# three values).


class Jsrun(Launcher):
    """Resource sets by numbers, on the job's nodes alone; the job step manager chooses their cores and GPUs.

    It hands none out twice (OLCF, Summit User Guide, "Simultaneous Job Steps"), and cores near their GPUs. Files that
    say which (ERF) have not worked there since its change to RHEL 8 (ibid., "Known Issues", "Error when using ERF").

    Ranks that outlive a jsrun that was killed are not ended: jskill wants the number of a step (IBM, JSM 10.4, "jskill
    command"), and no documented way leads from a jsrun to its number. What the pilot stops ends through jsrun itself.

    `-X 1`, `--exit_on_error`: else the others would wait for a dead rank until the walltime.
    """

    name = "jsrun"
    #: The labels are those of `--stdio_mode prepended`.
    traces = Traces(
        label=r"^ *(\d+): ?",
        dead=r"One or more process \(first noticed rank (\d+)\)",
        own=r"^(ERROR:|Error:|jsrun|Warning:) ",
        broken=r"JSM server is not responding on host (\S+)",
        not_started=r"JSM server",
        away=r"Error initializing RM connection|Error: It is only possible to use js commands",
    )

    @property
    def chooses_gpus(self) -> bool:
        """See Launcher."""
        return True

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        exported = [word for name in self.exported(placement) for word in ("-E", name)]
        labels = ["--stdio_mode", "prepended"] if placement.name else []
        sets = self._resource_sets(placement)
        return [self.name, *sets, "-X", "1", *labels, *self.settings.options, *exported, *argv]

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        env = super().environment(placement, base)
        # jsrun sets it for each resource set.
        env.pop(VISIBLE_GPUS.get(placement.gpu_kind, ""), None)
        # With it jsrun does not find the job step manager (Summit User Guide, "Known Issues").
        env.pop("TMPDIR", None)
        return env

    def _resource_sets(self, placement: Placement) -> list[str]:
        if self.settings.share_gpus or not placement.gpus_per_rank:
            # One set a node: its ranks see all its GPUs.
            sets, per_node, ranks = len(placement.nodes), 1, placement.ranks_per_node
        else:
            sets, per_node, ranks = placement.ranks, placement.ranks_per_node, 1
        own = set(placement.nodes)
        others = [node for node in placement.allocation if node not in own]
        return [
            f"-n{sets}",
            f"-r{per_node}",
            f"-a{ranks}",
            f"-g{ranks * placement.gpus_per_rank}",
            f"-c{ranks * placement.cores_per_rank}",
            f"-bpacked:{placement.cores_per_rank}",
            # Ranks in the order of nodes: IBM's default is one on each in turn.
            "-dpacked",
            # Some 30 kB where a job has few of Summit's 4,608 nodes; Linux takes words of up to 128 kB.
            *([f"--exclude_hosts={','.join(others)}"] if others else []),
        ]


class Horovodrun(Launcher):
    """Ranks by slots on named hosts; other hosts are reached by ssh, which must ask for no password.

    It passes its whole environment on, so there is nothing to name.
    """

    name = "horovodrun"
    traces = Traces(
        label=r"^\[(?:\d+,)?(\d+)\]<std(?:out|err)>:",
        dead=r"^Process (\d+) exit with status code|^  Process name: \[\[\d+,\d+\],(\d+)\]",
        own=r"^(Process \d+ exit|Terminating remaining|Traceback|  |RuntimeError: Horovod detected|Process name:"
        r"|Exit code:|mpirun detected|Primary job|a non-zero exit code|the job to be|-----)",
        broken=rf"ssh not successful for host ([\w.-]+)|{SSH_FAILED}",
        not_started=r"SSH was not successful|could not connect to any of",
    )

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        hosts = ",".join(f"{node}:{placement.ranks_per_node}" for node in placement.nodes)
        return [self.name, "-np", str(placement.ranks), "-H", hosts, *self.settings.options, *argv]


class Torchrun(Launcher):
    """One torchrun a node; on several nodes another launcher starts them, and they meet at the first one.

    A rank that fails ends the others. The port must be the job's alone: several jobs may share the node.
    """

    name = "torchrun"
    #: It labels no lines; what a rank said before torchrun's first word on a failure is taken for its last.
    traces = Traces(
        dead=r"^[WE]\d{4} .*(closing signal|failed \(exitcode)",
        own=r"^[WEI]\d{4} ",
        broken=SSH_FAILED,
        not_started=r"RendezvousConnectionError|RendezvousTimeoutError",
    )

    def __init__(self, settings: LauncherSettings | None = None, starter: Launcher | None = None) -> None:
        """A launcher.

        Args:
            settings: of the site; its options go to torchrun.
            starter: what starts torchrun on each of several nodes.
        """
        super().__init__(settings)
        self._starter = starter

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        run = [self.name, f"--nproc-per-node={placement.ranks_per_node}", f"--nnodes={len(placement.nodes)}"]
        ending = ["--no-python", *self.settings.options, *argv]
        if len(placement.nodes) == 1:
            return [*run, "--standalone", *ending]
        if not placement.port:
            raise InputError("torchrun on several nodes needs a port of the first one, where they meet")
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={placement.nodes[0]}:{placement.port}"]
        # A name of their own: a neighbour's torchrun that comes to the wrong port is turned away.
        meeting.append(f"--rdzv-id=hpo-pilot-{placement.port}")
        return self._started(placement).command([*run, *meeting, *ending], _one_a_node(placement))

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        if len(placement.nodes) == 1:
            return super().environment(placement, base)
        env = self._started(placement).environment(_one_a_node(placement), base)
        # It stands for each rank, not for the torchrun that starts them.
        env["OMP_NUM_THREADS"] = super().environment(placement, {})["OMP_NUM_THREADS"]
        return env

    @property
    def chooses_gpus(self) -> bool:
        """As its starter does."""
        return self._starter is not None and self._starter.chooses_gpus

    @property
    def per_node(self) -> Launcher:
        """Its starter."""
        return self._starter or self

    @property
    def programs(self) -> tuple[str, ...]:
        """Its own and its starter's."""
        return (self.name, *(self._starter.programs if self._starter else ()))

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """See Launcher."""
        return self._starter.step_commands(environment) if self._starter else None

    def _started(self, placement: Placement) -> Launcher:
        if self._starter is None:
            raise InputError(
                f"torchrun starts ranks on one node, not on {len(placement.nodes)}: name launcher.starter of the site, "
                "such as srun"
            )
        return self._starter


def _one_a_node(placement: Placement) -> Placement:
    """The same nodes, cores and GPUs for one process each, which starts the ranks."""
    return replace(
        placement,
        ranks_per_node=1,
        gpus_per_rank=placement.gpus_per_node,
        cores_per_rank=placement.cores_per_node,
    )


#: By the names that site profiles use.
LAUNCHERS: dict[str, type[Launcher]] = {kind.name: kind for kind in (Plain, Mpirun, Srun, Jsrun, Horovodrun, Torchrun)}


def make_launcher(said: Mapping[str, Any], threads_per_core: int = 1) -> Launcher:
    """The launcher of a site.

    Args:
        said: `launcher` of its profile, as a mapping; only `name` must be there.
        threads_per_core: `node.threads_per_core` of its profile.

    Raises:
        InputError: there is no such launcher.
    """
    name = str(said["name"])
    if name not in LAUNCHERS:
        raise InputError(f"there is no launcher {name!r}; there is {', '.join(LAUNCHERS)}")
    settings = LauncherSettings(
        options=tuple(said.get("options") or ()),
        share_gpus=bool(said.get("share_gpus")),
        threads_per_core=threads_per_core,
        mpi=str(said.get("mpi") or "openmpi"),
        starter=str(said.get("starter") or ""),
    )
    if name != Torchrun.name or not settings.starter:
        return LAUNCHERS[name](settings)
    # It starts one process on each node, which sees all GPUs there.
    starting = {**said, "name": settings.starter, "options": (), "share_gpus": True}
    return Torchrun(settings, make_launcher(starting, threads_per_core))
