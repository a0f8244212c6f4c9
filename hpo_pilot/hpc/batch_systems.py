"""The batch systems by the names that site profiles give them. Another one is a file like these and a name here."""

from __future__ import annotations

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import BatchSystem
from hpo_pilot.hpc.flux import Flux
from hpo_pilot.hpc.htcondor import Htcondor
from hpo_pilot.hpc.lsf import Lsf
from hpo_pilot.hpc.pbs import Pbs
from hpo_pilot.hpc.slurm import Slurm
from hpo_pilot.plugins import find_plugin

#: The batch systems of this package.
BATCH_SYSTEMS: dict[str, type[BatchSystem]] = {kind.name: kind for kind in (Slurm, Lsf, Pbs, Flux, Htcondor)}


def make_batch_system(name: str) -> BatchSystem:
    """Returns the batch system with that name in a site profile.

    Raises:
        InputError: the site has no batch system, or that of another package cannot be used.
    """
    known = BATCH_SYSTEMS.get(name) or (find_plugin("batch_systems", name, BatchSystem) if name != "none" else None)
    if known is None:
        raise InputError(
            f"batch.system is {name!r}: that site has no batch system, so start `hpo-pilot pilot` on its nodes "
            f"directly; batch systems are {', '.join(BATCH_SYSTEMS)}"
        )
    return known()
