"""Slurm."""

from __future__ import annotations

import re
import time

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.allocation.batch import Batch, Given


class Slurm(Batch):
    """From inside an sbatch or salloc."""

    variable = "SLURM_JOB_ID"

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
        """See Batch. Slurm (job_mgr.c, step_mgr.c) gives no cores back of steps that outlive a node's loss."""
        given = [node.name for node in self.nodes()]
        count, listed = self.ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%D %N"]).split()
        if int(count) >= len(given):
            return []
        left = set(self.ask(["scontrol", "show", "hostnames", listed]).split())
        return [name for name in given if name not in left]

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
