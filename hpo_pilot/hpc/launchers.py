"""The launchers of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.launcher import (
    GPU_VARIABLES,
    SSH_FAILED,
    VISIBLE_GPUS,
    Launcher,
    LauncherSettings,
    LogPatterns,
    Placement,
    StepCommands,
)
from hpo_pilot.plugins import find_plugin


class Plain(Launcher):
    """Starts one process on the node of the caller."""

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


def _plain_here(launcher: Launcher, here: bool) -> Launcher:
    """See `Launcher.once`: these launchers divide nothing among jobs, so on this node none is needed."""
    return Plain(launcher.settings) if here else launcher


#: MPICH does not name the rank that failed.
_MPICH = LogPatterns(
    label=r"^\[(\d+)\] ?",
    dead=r"^=   BAD TERMINATION OF ONE OF YOUR APPLICATION",
    own=r"^(=|YOUR APPLICATION TERMINATED|This typically refers to|Please see the FAQ)",
    broken=SSH_FAILED,
    not_started=r"unable to (launch|connect to) .*(proxy|bstrap)|HYD\w* \(.*\): (error|unable)",
)


class Mpirun(Launcher):
    """Starts ranks on slots of named hosts.

    Ranks are not bound to cores: two jobs on one node would both be bound to its first cores. Horovod asks for that
    too.

    If a rank dies before MPI_Init, MPICH does not end the others; they run on to the job's walltime.
    """

    name = "mpirun"
    names_also = ("PATH",)  # other nodes get no other variables
    once = _plain_here
    #: Of Open MPI.
    log_patterns = LogPatterns(
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
            self.log_patterns = _MPICH

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
        hosts = ["-hosts", ",".join(placement.nodes), "-ppn", str(placement.ranks_per_node)]
        labels = ["-prepend-rank"] if placement.name else []
        exported = ["-genvlist", ",".join(self.exported(placement))]
        return ["-n", str(placement.ranks), *hosts, "-bind-to", "none", *labels, *self.settings.options, *exported]


class Srun(Launcher):
    """Starts ranks as job steps that run side by side.

    With `--exact` (Slurm 20.11 and later) a step gets only what it asks for, so that others fit beside it; without
    `--mem` a step would take all memory of the job. Slurm chooses the GPUs of a step, gives none to two steps, and sets
    `*_VISIBLE_DEVICES`.
    """

    name = "srun"
    names_also = ("HOME", "PATH")  # srun passes no other variables on
    chooses_gpus = True
    has_agents = True
    log_patterns = LogPatterns(
        label=r"^ *(\d+): ?",
        dead=r"^srun: error: \S+: tasks? (\d+)[\d,-]*: |slurmstepd\S*: error: .*memory limit",
        own=r"^(srun|slurmstepd\S*): (?!error: (execve|Unable|Task launch|Node failure))",
        # slurmstepd's lines have the label of a rank.
        cancelled=r"slurmstepd\S*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT (?!.* DUE TO TASK FAILURE)"
        r"|^srun: Job step aborted",
        broken=r"[Tt]ask launch for \S+ failed on node (\S+):|Node failure on (\S+)",
        lost=r"Node failure on (\S+)",
        not_started=r"^srun: (fatal: |error: (Unable to create step|[Tt]ask launch for|Application launch failed))",
        # Slurm's src/common/slurm_errno.c; measured with 22.05, whose controller had been killed.
        away=r"^srun: error: .*(Unable to contact slurm controller|Slurm backup controller in standby mode|"
        r"Unable to confirm allocation for job)",
    )

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        is_part = placement.allocation and set(placement.nodes) != set(placement.allocation)
        nodes = [f"--nodelist={','.join(placement.nodes)}"] if is_part else []
        memory = [f"--mem={placement.memory_mb}M"] if placement.memory_mb else []
        return [
            self.name,
            f"-N{len(placement.nodes)}",
            f"-n{placement.ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
            f"-c{placement.cores_per_rank * self.settings.threads_per_core}",
            # A step with --overlap shares all resources with all other steps (srun(1), Slurm 20.11 and later), and
            # without an option for GPUs it has the job's GPUs.
            *(["--overlap", "--cpu-bind=none"] if placement.is_shared else self._gpus(placement)),
            *nodes,
            "--exact",
            *memory,
            *([f"--job-name={placement.name}", "--label"] if placement.name else []),
            # Otherwise the others would wait for a dead rank until the walltime.
            "--kill-on-bad-exit=1",
            f"--export={','.join(self.exported(placement))}",
            *self.settings.options,
            *argv,
        ]

    def agents(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher. Of an option that is given twice, srun takes the last."""
        lasting = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL"]
        return self.command([*lasting, *argv], replace(placement, is_shared=True))

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        env = super().environment(placement, base)
        # Slurm sets it for each rank, relative to an earlier value; on shared nodes the pilot's script does.
        env.pop(VISIBLE_GPUS.get(placement.gpu_kind, ""), None)
        return env

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """See Launcher. On SIGTERM, srun itself kills its ranks (22.05)."""
        job = environment.get("SLURM_JOB_ID")
        if not job:
            return None
        return StepCommands(
            ("squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %j"), ("scancel", "--signal=%SIGNAL")
        )

    def _gpus(self, placement: Placement) -> list[str]:
        if not placement.gpus_per_rank:
            # Otherwise the step would inherit the GPUs of the job, and other steps would wait for them.
            return ["--gres=none"] if placement.gpu_kind in VISIBLE_GPUS else []
        if self.settings.share_gpus:
            return [f"--gpus-per-node={placement.gpus_per_node}", "--gpu-bind=none"]
        return [f"--gpus-per-task={placement.gpus_per_rank}", "--gpu-bind=closest"]


class Jsrun(Launcher):
    """Starts ranks in resource sets on the job's nodes of an LSF allocation, with IBM's jsrun.

    The job step manager chooses cores and GPUs: each for one step only (OLCF, Summit User Guide, "Simultaneous Job
    Steps"), and cores near their GPUs. Files that name them (ERF) have not worked there since the change to RHEL 8
    (ibid., "Known Issues", "Error when using ERF").

    Ranks that outlive a killed jsrun are not ended: jskill needs the number of the step (IBM, JSM 10.4, "jskill
    command"), and there is no documented way from a jsrun to its number. The pilot stops ranks through jsrun itself.

    With `-X 1` a dead rank ends the others, which would wait for it until the walltime. IBM's guide of jsrun is not
    public any more. Of the options that OLCF's guides do not use, `-X 1` and `--stdio_mode prepended` are as in
    github.com/LLNL/UMT, sierra-runs/216nodes4rank.sh (`-X 1` also in github.com/Nek5000/nekRS, scripts/nrsqsub_summit),
    and `--exclude_hosts` is as in github.com/LLNL/scr, scripts/jobscripts/scr_jsrun_loop.sh.

    Horovod 0.28.1's own jsrun mode is broken (`horovod/runner/js_run.py`, line 47, unpacks two of three values).
    """

    name = "jsrun"
    chooses_gpus = True
    #: With the labels of `--stdio_mode prepended`.
    log_patterns = LogPatterns(
        label=r"^ *(\d+): ?",
        dead=r"One or more process \(first noticed rank (\d+)\)",
        own=r"^(ERROR:|Error:|jsrun|Warning:) ",
        broken=r"JSM server is not responding on host (\S+)",
        not_started=r"JSM server",
        away=r"Error initializing RM connection|Error: It is only possible to use js commands",
    )

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
            # One set on each node: its ranks see all its GPUs.
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
            # Consecutive ranks on one node: by default they alternate between nodes.
            "-dpacked",
            # Some 30 kB for a job with few of Summit's 4,608 nodes; Linux takes arguments of up to 128 kB.
            *([f"--exclude_hosts={','.join(others)}"] if others else []),
        ]


class Pals(Launcher):
    """Starts ranks with mpiexec of HPE's Parallel Application Launch Service.

    Every rank sees all GPUs of its job on the node. Ranks are not bound to cores, for the reason of Mpirun. mpiexec
    passes on its whole environment, and signals; if a rank fails, it ends the others.

    Options and lines: HPE's client (github.com/Cray-HPE/craycli, cray/modules/mpiexec/cli.py, cray/pals.py); lines on
    nodes that are not reached: ALCF, user guides of Aurora and Polaris, "Known Issues". They end the domain of a node's
    name in several ways.
    """

    name = "pals"
    once = _plain_here
    has_agents = True
    log_patterns = LogPatterns(
        label=r"^[\w.-]+ (\d+): ?",
        dead=r"^[\w.-]+: rank (\d+) (?:exited with code|died from signal)",
        own=r"^([\w.-]+: (rank \d+|shepherd) (exited with|died from)|(launch|ping) (failed on|RPC timeout))",
        broken=r"^(?:launch|ping) failed on .*(?: to child |: No reply from )([\w-]+)|^ping RPC timeout from ([\w-]+)"
        r"|^ping failed on ([\w-]+)\S*: Application \S+ not found",
        not_started=r"^launch failed on ",
    )

    @property
    def programs(self) -> tuple[str, ...]:
        """See Launcher."""
        return ("mpiexec",)

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        ranks = ["-n", str(placement.ranks), "--ppn", str(placement.ranks_per_node)]
        labels = ["--label", "--line-buffer"] if placement.name else []
        hosts = ["--hosts", ",".join(placement.nodes)]
        return ["mpiexec", *ranks, *hosts, "--cpu-bind", "none", "--envall", *labels, *self.settings.options, *argv]

    def agents(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher. Several mpiexec run side by side on a node (ALCF, user guides, "Running Multiple MPI ...")."""
        return self.command(["--no-abort-on-failure", *argv], placement)


class Flux(Launcher):
    """Starts ranks as jobs of the allocation's own Flux instance, with `flux run`.

    Flux chooses cores and GPUs: each for one job only. It names GPUs of any kind in CUDA_VISIBLE_DEVICES (flux-core,
    src/shell/gpubind.c), which HIP reads too. Options: flux-run(1), flux-shell-options(7).
    """

    name = "flux"
    names_also = ("HOME", "PATH")
    chooses_gpus = True
    has_agents = True
    #: Measured with 0.88; flux-core, src/cmd/job/attach.c, src/shell/doom.c, src/modules/job-exec/bulkexec.c.
    log_patterns = LogPatterns(
        label=r"^ *(\d+): ?",
        dead=r"^\S+s: (?:flux-shell\S+ FATAL|job\.exception \S+ type=exec) .*(?:task|doom:) rank (\d+) ",
        own=r"^(\d+\.\d+s: (flux-shell|job\.exception)|flux-(run|job): )",
        cancelled=r"^\S+s: job\.exception \S+ type=cancel ",
        broken=r"node failure on ([\w.-]+) \(",
        lost=r"node failure on ([\w.-]+) \(",
        not_started=r"^flux-run: ERROR|^\S+s: job\.exception \S+ type=(alloc|scheduler|validate)",
        away=r"^flux-run: ERROR: .*[Uu]nable to connect to Flux",
    )

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        is_part = placement.allocation and set(placement.nodes) != set(placement.allocation)
        gpus = [f"-g{placement.gpus_per_rank}"] if placement.gpus_per_rank and not placement.is_shared else []
        own = [] if self.settings.share_gpus or not gpus else ["-o", "gpu-affinity=per-task"]
        if placement.is_shared:  # Flux does not know which cores and GPUs the agents' jobs have
            own = ["-o", "cpu-affinity=off", "-o", "gpu-affinity=off"]
        return [
            *("flux", "run", f"-N{len(placement.nodes)}", f"-n{placement.ranks}", f"-c{placement.cores_per_rank}"),
            *gpus,
            *own,
            *([f"--requires=host:{','.join(placement.nodes)}"] if is_part else []),
            # By default a job ends 30 s after its first rank, and a failed rank's partners wait as long.
            *("-o", "exit-on-error", "-o", "exit-timeout=none"),
            *([f"--job-name={placement.name}", "--label-io"] if placement.name else []),
            "--env-remove=*",
            *(f"--env={name}" for name in self.exported(placement)),
            *self.settings.options,
            *argv,
        ]

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        env = super().environment(placement, base)
        return {name: value for name, value in env.items() if name not in GPU_VARIABLES}

    def agents(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher. As a job the agents would leave no core to others: Flux's brokers start them beside all jobs.

        Measured with 0.88: the end of one process, and the loss of a node, do not end the others.
        """
        return ["flux", "exec", "--noinput", "--label-io", *argv]

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """See Launcher. A killed `flux run` leaves its job running."""
        if "FLUX_URI" not in environment:
            return None
        return StepCommands(
            ("flux", "jobs", "--no-header", "--format={id.dec} {name}"), ("flux", "job", "kill", "--signal=%SIGNAL")
        )


class Horovodrun(Launcher):
    """Starts ranks on slots of named hosts, with horovodrun; ssh to other hosts must work without a password.

    It passes on its whole environment.
    """

    name = "horovodrun"
    once = _plain_here
    log_patterns = LogPatterns(
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


class ByAgents(Launcher):
    """Starts one process on each of several nodes by the agents of the allocation, without a job step."""

    name = "agents"
    names_also = ("HOME", "PATH")

    def __init__(self, settings: LauncherSettings, words: Sequence[str]) -> None:
        """Takes the settings of a site and the program that asks the agents; none: `command` is that of each node."""
        super().__init__(settings)
        self._words = words

    @property
    def programs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        told = [",".join(placement.nodes), ",".join(self.exported(placement))] if self._words else []
        return [*self._words, *told, *argv]


class Torchrun(Launcher):
    """Runs one torchrun on each node; on several nodes another launcher starts them, and they meet at the first node.

    A rank that fails ends the others. No other job may use the port: several jobs may share the node.
    """

    name = "torchrun"
    #: PyTorch labels exceptions alone; else the line before torchrun's first message of a failure is the rank's last.
    log_patterns = LogPatterns(
        label=r"^\[rank(\d+)\]: ?",
        dead=r"^[WE]\d{4} .*(?:closing signal|failed \(exitcode)",
        own=r"^([WEI]\d{4}|hpo_pilot_spread:) ",
        cancelled=r"^hpo_pilot_spread: the agent of \S+ was told to end",  # those of spread.py
        broken=rf"{SSH_FAILED}|^hpo_pilot_spread: (?:nothing has started on|the connection was lost to) ([\w.-]+)",
        not_started=r"RendezvousConnectionError|RendezvousTimeoutError|^hpo_pilot_spread: no agents can start the job",
    )

    def __init__(self, settings: LauncherSettings | None = None, starter: Launcher | None = None) -> None:
        """Takes the settings of a site and the starter.

        Args:
            settings: the site's settings; their options go to torchrun.
            starter: the launcher that starts torchrun on each of several nodes; None: there is only this node.
        """
        super().__init__(settings)
        self._starter = starter or Plain(self.settings)
        self.chooses_gpus, self.has_agents = self._starter.chooses_gpus, self._starter.has_agents

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        run = [self.name, f"--nproc-per-node={placement.ranks_per_node}", f"--nnodes={len(placement.nodes)}"]
        ending = ["--no-python", *self.settings.options, *argv]
        if len(placement.nodes) == 1:
            return [*run, "--standalone", *ending]
        if not placement.port:
            raise InputError("torchrun on several nodes needs a port of the first one, where they meet")
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={placement.nodes[0]}:{placement.port}"]
        # A unique name turns away the torchrun of another job at the wrong port.
        meeting.append(f"--rdzv-id=hpo-pilot-{placement.port}")
        return self._started(placement).command([*run, *meeting, *ending], _one_a_node(placement))

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        if len(placement.nodes) == 1:
            return super().environment(placement, base)
        env = self._started(placement).environment(_one_a_node(placement), base)
        # The value for each rank, not for the torchrun that starts the ranks.
        env["OMP_NUM_THREADS"] = super().environment(placement, {})["OMP_NUM_THREADS"]
        return env

    def once(self, here: bool) -> Launcher:
        """See Launcher."""
        return self._starter.once(here)

    @property
    def on_node(self) -> Launcher:
        """Itself, without the starter."""
        return Torchrun(self.settings)

    def by_agents(self, words: Sequence[str] = ()) -> Launcher | None:
        """See Launcher. torchrun needs nothing of a job step."""
        return Torchrun(self.settings, ByAgents(self.settings, words)) if self.has_agents else None

    def agents(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        return self._starter.agents(argv, placement)

    @property
    def per_node(self) -> Launcher:
        """The starter."""
        return self._starter

    @property
    def programs(self) -> tuple[str, ...]:
        """torchrun, and the programs of the starter."""
        return (self.name, *self._starter.programs)

    def step_commands(self, environment: Mapping[str, str]) -> StepCommands | None:
        """See Launcher."""
        return self._starter.step_commands(environment)

    def _started(self, placement: Placement) -> Launcher:
        if isinstance(self._starter, Plain):
            raise InputError(
                f"torchrun starts ranks on one node, not on {len(placement.nodes)}: name launcher.starter of the site, "
                "such as srun"
            )
        return self._starter


def _one_a_node(placement: Placement) -> Placement:
    """Returns the same placement with one process on each node, which starts the ranks there."""
    gpus, cores = placement.gpus_per_node, placement.cores_per_node
    return replace(placement, ranks_per_node=1, gpus_per_rank=gpus, cores_per_rank=cores)


#: The launchers of this package by their names in site profiles.
LAUNCHERS: dict[str, type[Launcher]] = {
    kind.name: kind for kind in (Plain, Mpirun, Srun, Jsrun, Pals, Flux, Horovodrun, Torchrun)
}


def make_launcher(said: Mapping[str, Any], threads_per_core: int = 1) -> Launcher:
    """Makes the launcher of a site.

    Args:
        said: `launcher` of the site profile, as a mapping; only `name` is required.
        threads_per_core: `node.threads_per_core` of the site profile.

    Raises:
        InputError: there is no such launcher, or that of another package cannot be used.
    """
    name = str(said["name"])
    kind = LAUNCHERS.get(name) or find_plugin("launchers", name, Launcher)
    if kind is None:
        raise InputError(f"there is no launcher {name!r}; there is {', '.join(LAUNCHERS)}")
    settings = LauncherSettings(
        options=tuple(said.get("options") or ()),
        share_gpus=bool(said.get("share_gpus")),
        threads_per_core=threads_per_core,
        mpi=str(said.get("mpi") or "openmpi"),
        starter=str(said.get("starter") or ""),
        on_node=make_launcher({"name": said["on_node"]}) if said.get("on_node") else None,
    )
    if name != Torchrun.name or not settings.starter:
        return kind(settings)
    # The starter starts one process on each node, which sees all GPUs there.
    starting = {**said, "name": settings.starter, "options": (), "share_gpus": True}
    return Torchrun(settings, make_launcher(starting, threads_per_core))
