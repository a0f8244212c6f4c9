"""IBM's jsrun: resource sets on the nodes of an LSF allocation.

It is driven directly: Horovod 0.28.1's own jsrun mode is broken (`horovod/runner/js_run.py`, line 47, unpacks two of
three values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import VISIBLE_GPUS, Placement
from hpo_pilot.launchers.traces import Traces


class Jsrun(Launcher):
    """Resource sets by numbers, on the job's nodes alone; the job step manager chooses their cores and GPUs.

    It hands none out twice (OLCF, Summit User Guide, "Simultaneous Job Steps"), and cores near their GPUs. Files that
    say which (ERF) have not worked there since its change to RHEL 8 (ibid., "Known Issues", "Error when using ERF").

    Ranks that outlive a jsrun that was killed are not ended: jskill wants the number of a step (IBM, JSM 10.4, "jskill
    command"), and no documented way leads from a jsrun to its number. What the pilot stops ends through jsrun itself.

    `-X 1`, `--exit_on_error`: else the others would wait for a dead rank until the walltime.
    """

    name = "jsrun"
    #: The labels are those of `--stdio_mode prepended`.
    traces = Traces(
        label=r"^ *(\d+): ?",
        dead=r"One or more process \(first noticed rank (\d+)\)",
        own=r"^(ERROR:|Error:|jsrun|Warning:) ",
        broken=r"JSM server is not responding on host (\S+)",
        not_started=r"JSM server",
        away=r"Error initializing RM connection|Error: It is only possible to use js commands",
    )

    @property
    def chooses_gpus(self) -> bool:
        """See Launcher."""
        return True

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        exported = [word for name in self.exported(placement) for word in ("-E", name)]
        labels = ["--stdio_mode", "prepended"] if placement.name else []
        sets = self._resource_sets(placement)
        return [self.name, *sets, "-X", "1", *labels, *self.settings.options, *exported, *argv]

    def environment(self, placement: Placement, base: Mapping[str, str]) -> dict[str, str]:
        """See Launcher."""
        env = super().environment(placement, base)
        # jsrun sets it for each resource set.
        env.pop(VISIBLE_GPUS.get(placement.gpu_kind, ""), None)
        # With it jsrun does not find the job step manager (Summit User Guide, "Known Issues").
        env.pop("TMPDIR", None)
        return env

    def _resource_sets(self, placement: Placement) -> list[str]:
        if self.settings.share_gpus or not placement.gpus_per_rank:
            # One set a node: its ranks see all its GPUs.
            sets, per_node, ranks = len(placement.nodes), 1, placement.ranks_per_node
        else:
            sets, per_node, ranks = placement.ranks, placement.ranks_per_node, 1
        own = set(placement.nodes)
        others = [node for node in placement.allocation if node not in own]
        return [
            f"-n{sets}",
            f"-r{per_node}",
            f"-a{ranks}",
            f"-g{ranks * placement.gpus_per_rank}",
            f"-c{ranks * placement.cores_per_rank}",
            f"-bpacked:{placement.cores_per_rank}",
            # Ranks in the order of nodes: IBM's default is one on each in turn.
            "-dpacked",
            # Some 30 kB where a job has few of Summit's 4,608 nodes; Linux takes words of up to 128 kB.
            *([f"--exclude_hosts={','.join(others)}"] if others else []),
        ]
