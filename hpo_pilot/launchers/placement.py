"""Where the ranks of a payload run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpo_pilot.errors import InputError

#: What tells a process which GPUs are its own, by their kind.
VISIBLE_GPUS = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}


@dataclass(frozen=True)
class Placement:
    """The nodes, cores and GPUs of one job: as many on each of its nodes.

    Attributes:
        nodes: by name, the first rank's first.
        ranks_per_node: processes on each.
        gpus_per_rank: 0: the payload uses none.
        cores_per_rank: cores of each process.
        gpu_kind: nvidia, amd or none: what the nodes have.
        environment: variables that every rank gets; on other nodes there may be no more than these and PATH: see
            `site_variables`.
        allocation: all nodes of the allocation, in the order of the batch system; empty: the job has all there are.
        gpus: which of a node's GPUs are the job's, as a `*_VISIBLE_DEVICES` names them; empty: the first ones, or
            those that the launcher finds free.
        gpus_on: the GPUs of nodes where they are others than `gpus`.
        memory_mb: the job's on each node, in MB; 0: not said.
        port: a TCP port of the first node that is the job's alone; 0: none.
        name: of the job step, unique in the allocation; its ranks' lines are labelled then. Empty: it has none.
    """

    nodes: tuple[str, ...]
    ranks_per_node: int = 1
    gpus_per_rank: int = 0
    cores_per_rank: int = 1
    gpu_kind: str = "none"
    environment: Mapping[str, str] = field(default_factory=dict)
    allocation: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    gpus_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory_mb: int = 0
    port: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        """Checks that the parts fit.

        Raises:
            InputError: they do not.
        """
        if not self.nodes or len(set(self.nodes)) != len(self.nodes):
            raise InputError(f"a job needs nodes, each once, not {', '.join(self.nodes) or 'none'}")
        if min(self.ranks_per_node, self.cores_per_rank) < 1 or self.gpus_per_rank < 0:
            raise InputError("a job needs a rank or more on each node, and each rank a core or more")
        if self.gpus_per_rank and self.gpu_kind not in VISIBLE_GPUS:
            raise InputError(f"the job wants {self.gpus_per_rank} GPUs a rank, and its nodes have none")
        for gpus in filter(None, (self.gpus, *self.gpus_on.values())):
            if len(gpus) != self.gpus_per_node:
                raise InputError(f"the job wants {self.gpus_per_node} GPUs a node, and was given {len(gpus)}")
        if missing := [node for node in self.nodes if self.allocation and node not in self.allocation]:
            raise InputError(f"{missing[0]} is not a node of the allocation: {', '.join(self.allocation)}")

    def gpus_of(self, node: str) -> tuple[str, ...]:
        """Which GPUs of a node are the job's; empty: not said."""
        return self.gpus_on.get(node, self.gpus)

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the job on each node."""
        return self.ranks_per_node * self.gpus_per_rank

    @property
    def cores_per_node(self) -> int:
        """Cores of the job on each node."""
        return self.ranks_per_node * self.cores_per_rank

    @property
    def is_subset(self) -> bool:
        """Whether the allocation has more nodes than the job."""
        return bool(self.allocation) and set(self.nodes) != set(self.allocation)
