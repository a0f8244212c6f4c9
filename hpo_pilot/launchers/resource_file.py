"""Explicit resource files of jsrun: which rank has which cores and GPUs of which node.

The format is IBM's (Spectrum LSF 10.1, Job Step Manager, "Explicit Resource File (ERF) format"). Nodes are counted
from 1 in the order of the allocation, the launch node left out. With logical numbers, hardware threads are counted
without gaps, whatever the SMT level and the cores set aside (github.com/olcf-tutorials/ERF-CPU-Indexing).
"""

from __future__ import annotations

from hpo_pilot.errors import InputError
from hpo_pilot.launchers.placement import Placement


def resource_file(placement: Placement, *, threads_per_core: int, share_gpus: bool) -> str:
    """The text of the file, one line for each rank.

    Args:
        placement: of the job.
        threads_per_core: the SMT level of the allocation.
        share_gpus: every rank sees all GPUs of the job on its node.

    Raises:
        InputError: jsrun cannot place ranks so.
    """
    order = placement.allocation or placement.nodes
    head = ["cpu_index_using: logical"]
    if share_gpus and placement.gpus_per_rank:
        # Ranks of one node have the same GPUs: their sets overlap.
        head += ["overlapping_rs: allow", "oversubscribe_gpu: allow"]
    lines = []
    for rank in range(placement.ranks):
        node, local = divmod(rank, placement.ranks_per_node)
        host = order.index(placement.nodes[node]) + 1
        parts = [f"host: {host}", f"cpu: {_listed(_threads(placement, local, threads_per_core))}"]
        if gpus := _gpus(placement, local, share_gpus=share_gpus):
            parts.append(f"gpu: {_listed(gpus)}")
        lines.append(f"rank: {rank}: {{ {'; '.join(parts)} }}")
    return "\n".join([*head, *lines]) + "\n"


def _threads(placement: Placement, local: int, per_core: int) -> list[int]:
    cores = placement.cores or tuple(range(placement.cores_per_node))
    own = cores[local * placement.cores_per_rank : (local + 1) * placement.cores_per_rank]
    return [core * per_core + thread for core in own for thread in range(per_core)]


def _gpus(placement: Placement, local: int, *, share_gpus: bool) -> list[int]:
    try:
        gpus = [int(gpu) for gpu in placement.gpus] or list(range(placement.gpus_per_node))
    except ValueError as error:
        raise InputError(f"jsrun takes GPUs by their numbers, not {', '.join(placement.gpus)}") from error
    if share_gpus:
        return gpus
    return gpus[local * placement.gpus_per_rank : (local + 1) * placement.gpus_per_rank]


def _listed(numbers: list[int]) -> str:
    """`{0-3,8}` for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "{" + ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) + "}"
