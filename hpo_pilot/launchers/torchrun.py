"""PyTorch's torchrun: it starts the ranks of one node, and itself has to be started on each of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpo_pilot.errors import InputError
from hpo_pilot.launchers.launcher import Launcher, LauncherSettings
from hpo_pilot.launchers.placement import Placement


class Torchrun(Launcher):
    """One torchrun a node; on several nodes another launcher starts them, and they meet at the first one.

    A rank that fails ends the others. The port must be the job's alone: several jobs may share the node.
    """

    name = "torchrun"

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

    def files(self, placement: Placement) -> dict[str, str]:
        """See Launcher."""
        if len(placement.nodes) == 1:
            return {}
        return self._started(placement).files(_one_a_node(placement))

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        if len(placement.nodes) == 1:
            return super().environment(placement, base)
        env = self._started(placement).environment(_one_a_node(placement), base)
        # It stands for each rank, not for the torchrun that starts them.
        env["OMP_NUM_THREADS"] = super().environment(placement, {})["OMP_NUM_THREADS"]
        return env

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
