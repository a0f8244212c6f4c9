"""Horovod's horovodrun: ranks that find each other by Gloo, or by MPI with the option --mpi."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import Placement


class Horovodrun(Launcher):
    """Ranks by slots on named hosts; other hosts are reached by ssh, which must ask for no password.

    It passes its whole environment on, so there is nothing to name.
    """

    name = "horovodrun"

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        hosts = ",".join(f"{node}:{placement.ranks_per_node}" for node in placement.nodes)
        return [self.name, "-np", str(placement.ranks), "-H", hosts, *self.settings.options, *argv]
