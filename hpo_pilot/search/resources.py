"""What one job needs: `resources` of the search file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hpo_pilot.search import limits
from hpo_pilot.search.point import StrictInt
from hpo_pilot.search.section import Amount, Count, Section


class Resources(Section):
    """What one job needs."""

    nodes: Count = Field(1, le=limits.MOST_NODES, description="Nodes per job.")
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=limits.MOST_PER_NODE)] = Field(0, description="GPUs per node.")
    ranks_per_node: Count | None = Field(
        None,
        le=limits.MOST_PER_NODE,
        description="Processes that the site's launcher starts on each node. Default: on several nodes one for each "
        "GPU, or one where there are none; on one node the command is started once, without a launcher.",
    )
    cores: Count = Field(1, le=limits.MOST_PER_NODE, description="CPU cores per node.")
    memory_mb: Count = Field(2000, le=limits.MOST_MEMORY_MB, description="Memory per node, in MB.")
    minutes: Amount = Field(
        60, le=limits.MOST_MINUTES, description="Walltime limit of one job, in minutes; of all its points together."
    )
    trials_per_job: Annotated[StrictInt, Field(ge=1, le=limits.MOST_TRIALS_PER_JOB)] = Field(
        1,
        description="How many points one job runs, one after another, on one slot of a machine; of k folds each has a "
        "job of its own. Points for which the job's time does not suffice are submitted again.",
    )

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.nodes * self.gpus_per_node

    @property
    def all_cores(self) -> int:
        """CPU cores of the whole job."""
        return self.nodes * self.cores

    @property
    def ranks(self) -> int:
        """Processes that a launcher starts on each node; 0: no launcher, the command is started once."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        return (self.gpus_per_node or 1) if self.nodes > 1 else 0
