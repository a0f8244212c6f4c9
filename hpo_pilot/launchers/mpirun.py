"""mpirun, of Open MPI or of MPICH and what comes from it (Hydra)."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import Placement


class Mpirun(Launcher):
    """Ranks by slots on named hosts.

    They are not bound to cores: two jobs on one node would both be bound to its first ones. Horovod asks for it too.

    MPICH ends the others of a dead rank only if that one had called MPI_Init; else they go on to the job's walltime.
    """

    name = "mpirun"

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        return [self.name, *(self._mpich if self.settings.mpi == "mpich" else self._openmpi)(placement), *argv]

    def _openmpi(self, placement: Placement) -> list[str]:
        hosts = ",".join(f"{node}:{placement.ranks_per_node}" for node in placement.nodes)
        exported = [word for name in self.exported(placement) for word in ("-x", name)]
        binding = ["--bind-to", "none", "--map-by", "slot"]
        return ["-np", str(placement.ranks), "-H", hosts, *binding, *self.settings.options, *exported]

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
            *self.settings.options,
            "-genvlist",
            ",".join(self.exported(placement)),
        ]

    def exported(self, placement: Placement) -> list[str]:
        """See Launcher; with what programs are found by, for other nodes get nothing else."""
        return sorted({*super().exported(placement), "PATH"})
