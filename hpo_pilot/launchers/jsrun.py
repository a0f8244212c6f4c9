"""IBM's jsrun: resource sets on the nodes of an LSF allocation.

It is driven directly: Horovod 0.28.1's own jsrun mode is broken (`horovod/runner/js_run.py`, line 47, unpacks two of
three values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import VISIBLE_GPUS, Placement
from hpo_pilot.launchers.resource_file import resource_file

#: Where the resource sets stand, in the job's folder.
RESOURCE_FILE = "hpo_pilot_resources.erf"


class Jsrun(Launcher):
    """Resource sets: by numbers where the job has all nodes, by a file where it has some of them."""

    name = "jsrun"

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        sets = [f"--erf_input={RESOURCE_FILE}"] if self._by_file(placement) else self._resource_sets(placement)
        exported = [word for name in self.exported(placement) for word in ("-E", name)]
        return [self.name, *sets, *self.settings.options, *exported, *argv]

    def files(self, placement: Placement) -> dict[str, str]:
        """See Launcher."""
        if not self._by_file(placement):
            return {}
        threads, shared = self.settings.threads_per_core, self.settings.share_gpus
        return {RESOURCE_FILE: resource_file(placement, threads_per_core=threads, share_gpus=shared)}

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        env = super().environment(placement, base)
        # jsrun sets it for each resource set.
        env.pop(VISIBLE_GPUS.get(placement.gpu_kind, ""), None)
        return env

    @staticmethod
    def _by_file(placement: Placement) -> bool:
        return placement.is_subset or bool(placement.gpus or placement.cores)

    def _resource_sets(self, placement: Placement) -> list[str]:
        if self.settings.share_gpus or not placement.gpus_per_rank:
            # One set a node: its ranks see all its GPUs.
            sets, per_node, ranks = len(placement.nodes), 1, placement.ranks_per_node
        else:
            sets, per_node, ranks = placement.ranks, placement.ranks_per_node, 1
        return [
            f"-n{sets}",
            f"-r{per_node}",
            f"-a{ranks}",
            f"-g{ranks * placement.gpus_per_rank}",
            f"-c{ranks * placement.cores_per_rank}",
            f"-bpacked:{placement.cores_per_rank}",
        ]
