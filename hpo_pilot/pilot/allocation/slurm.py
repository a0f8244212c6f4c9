"""Slurm."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from contextlib import suppress

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.allocation.batch import Batch, Given

_ALONE = 8  # nodes that are tried one by one, where not all of them are free


class Slurm(Batch):
    """From inside an sbatch or salloc."""

    variable = "SLURM_JOB_ID"
    keeps_cores = True

    def nodes(self) -> list[Given]:
        """See Batch."""
        listed = self.environment.get("SLURM_JOB_NODELIST") or self.environment.get("SLURM_NODELIST", "")
        names = self.ask(["scontrol", "show", "hostnames", listed]).split() if listed else []
        cpus = _repeated(self.environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return [Given(name, cpus[place] if len(cpus) == len(names) else 0) for place, name in enumerate(names)]

    def seconds_left(self, now: float) -> float:
        """See Batch."""
        said = self.environment.get("SLURM_JOB_END_TIME", "")  # since 22.05, and only where the site has it
        if said.isdecimal():
            return int(said) - now
        text = self.ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%e"])
        try:
            return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) - now
        except ValueError as error:  # N/A: it has no limit
            raise InputError(f"squeue calls {text!r} the end of job {self.job}") from error

    def lost(self) -> list[str]:
        """See Batch."""
        given = [node.name for node in self.nodes()]
        count, listed = self.ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%D %N"]).split()
        if int(count) >= len(given):
            return []
        left = self._expanded(listed)
        return [name for name in given if name not in left]

    def reclaim(self, nodes: Sequence[str]) -> list[str]:
        """See Batch.

        A step that outlives a node's loss takes its cores along when it ends, up to Slurm 23.02.2 (SchedMD's bug
        16691). A step that has a whole node sets all of its cores free, and shows for any version that they are.
        """
        steps = self.ask(["squeue", "--steps", "--noheader", f"--jobs={self.job}", "--format=%i %N"]).splitlines()
        listed = {line.split()[1] for line in steps if re.match(r"\S+\.\d+\s+\S", line)}  # not those of the script
        busy = self._expanded(",".join(sorted(listed))) if listed else set()
        free = [node for node in nodes if node not in busy]
        try:
            return self._wholly_free(free)
        except InputError:
            if len(free) == 1:
                raise
        found = []
        for node in random.sample(free, min(_ALONE, len(free))):
            with suppress(InputError):
                found += self._wholly_free([node])
        return found

    def _wholly_free(self, nodes: list[str]) -> list[str]:
        """The same nodes, once a step has had all of them."""
        if nodes:
            count = str(len(nodes))
            words = ["srun", "--immediate=5", "-N", count, "-n", count, f"--nodelist={','.join(nodes)}", "--whole"]
            self.ask([*words, "--mem=16M", "--job-name=hpo-pilot-reclaim", "true"])
        return nodes

    def _expanded(self, listed: str) -> set[str]:
        return set(self.ask(["scontrol", "show", "hostnames", listed]).split())

    def gpus_per_node(self) -> int:
        """See Batch."""
        return self._number("SLURM_GPUS_ON_NODE")

    def memory_mb(self) -> int:
        """See Batch."""
        return self._number("SLURM_MEM_PER_NODE")

    def _number(self, name: str) -> int:
        said = self.environment.get(name, "")
        return int(said) if said.isdecimal() else 0


def _repeated(text: str) -> list[int]:
    """`2(x3),4` is 2, 2, 2, 4."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found
