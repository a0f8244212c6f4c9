"""PyTorch's torchrun: it starts the ranks of one node, and itself has to be started on each of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpo_pilot.errors import InputError
from hpo_pilot.launchers.launcher import Launcher, LauncherSettings
from hpo_pilot.launchers.placement import Placement
from hpo_pilot.launchers.traces import SSH_FAILED, StepCommands, Traces


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
