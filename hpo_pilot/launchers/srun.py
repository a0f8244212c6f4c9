"""Slurm's srun: a job step on some nodes of the allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import VISIBLE_GPUS, Placement
from hpo_pilot.launchers.traces import StepCommands, Traces


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
