"""Horovod's horovodrun: ranks that find each other by Gloo, or by MPI with the option --mpi."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import Placement
from hpo_pilot.launchers.traces import SSH_FAILED, Traces


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
