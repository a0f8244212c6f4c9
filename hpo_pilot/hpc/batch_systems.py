"""The batch systems by the names that site profiles give them. Another one is a file like these and a line here."""

from __future__ import annotations

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import BatchAllocation, BatchSystem
from hpo_pilot.hpc.flux import Flux, FluxAllocation
from hpo_pilot.hpc.htcondor import Htcondor, HtcondorAllocation
from hpo_pilot.hpc.lsf import Lsf, LsfAllocation
from hpo_pilot.hpc.pbs import Pbs, PbsAllocation
from hpo_pilot.hpc.slurm import Slurm, SlurmAllocation

#: For each batch system: the class that submits to it, and the class that reads an allocation from inside.
BATCH_SYSTEMS: dict[str, tuple[type[BatchSystem], type[BatchAllocation]]] = {
    Slurm.name: (Slurm, SlurmAllocation),
    Lsf.name: (Lsf, LsfAllocation),
    Pbs.name: (Pbs, PbsAllocation),
    Flux.name: (Flux, FluxAllocation),
    Htcondor.name: (Htcondor, HtcondorAllocation),
}


def make_batch_system(name: str) -> BatchSystem:
    """Returns the batch system with that name in a site profile.

    Raises:
        InputError: the site has no batch system.
    """
    if name not in BATCH_SYSTEMS:
        raise InputError(
            f"batch.system is {name!r}: that site has no batch system, so start `hpo-pilot pilot` on its nodes "
            f"directly; batch systems are {', '.join(BATCH_SYSTEMS)}"
        )
    system, _ = BATCH_SYSTEMS[name]
    return system()
