"""mpirun, of Open MPI or of MPICH and what comes from it (Hydra)."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.launchers.launcher import Launcher, LauncherSettings
from hpo_pilot.launchers.placement import Placement
from hpo_pilot.launchers.traces import SSH_FAILED, Traces

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
