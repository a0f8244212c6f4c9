"""PBS Pro and OpenPBS."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.allocation.batch import Batch, Given, seconds_of


class Pbs(Batch):
    """From inside a qsub."""

    variable = "PBS_JOBID"

    def nodes(self) -> list[Given]:
        """See Batch."""
        file = self.environment.get("PBS_NODEFILE", "")
        try:
            names = list(Counter(Path(file).read_text().split()))
        except OSError as error:
            raise InputError(f"PBS_NODEFILE {file}: {error.strerror or error}") from error
        cpus = self.environment.get("NCPUS", "")  # of the first chunk
        return [Given(name, int(cpus) if cpus.isdecimal() else 0) for name in names]

    def seconds_left(self, now: float) -> float:
        """See Batch."""
        said = self.ask(["qstat", "-f", self.job])
        limit = re.search(r"^ *Resource_List\.walltime = (\S+)$", said, re.MULTILINE)
        start = re.search(r"^ *stime = (.+)$", said, re.MULTILINE)
        try:
            if limit is None or start is None:
                raise ValueError("it says no walltime, or no stime")
            began = time.mktime(time.strptime(start[1].strip(), "%a %b %d %H:%M:%S %Y"))
            return began + seconds_of(limit[1]) - now
        except ValueError as error:
            raise InputError(f"qstat -f {self.job}: {error}") from error
