"""Allocations of batch systems: scripts, submission, limits, and keeping as many as there is work for.

The batch systems' own commands are called directly. PSI/J (psij-python 0.9.11) was tried first. Its Slurm adapter
asks for all jobs of the user and fails on any of them that ended as it has no sentence for (out of memory, a signal):
then it takes every job for failed. It writes scripts of its own: no setup lines, no options but `--name=value`, and a
shell in the pilot's place, which does not hand on the warning before the end. It finds no job by its name, without
which a submission cannot be looked up after a crash. And it holds psutil at 7.0 or older.
"""

from hpo_pilot.batch.allocation_spec import AllocationSpec
from hpo_pilot.batch.batch_job import BatchJob, BatchState
from hpo_pilot.batch.batch_system import BatchSystem
from hpo_pilot.batch.flux import Flux
from hpo_pilot.batch.lsf import Lsf
from hpo_pilot.batch.pbs import Pbs
from hpo_pilot.batch.slurm import Slurm
from hpo_pilot.errors import InputError

__all__ = ["AllocationSpec", "BatchJob", "BatchState", "BatchSystem", "make_batch_system"]

_SYSTEMS: dict[str, type[BatchSystem]] = {system.name: system for system in (Slurm, Lsf, Pbs, Flux)}


def make_batch_system(name: str) -> BatchSystem:
    """The batch system of that name in a site profile.

    Raises:
        InputError: the site has none.
    """
    if name not in _SYSTEMS:
        raise InputError(
            f"batch.system is {name!r}: nodes are not allocated there, so run `hpo-pilot pilot` on them as it is; "
            f"batch systems are {', '.join(_SYSTEMS)}"
        )
    return _SYSTEMS[name]()
