"""IBM Spectrum LSF."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.allocation.batch import Batch, Given, seconds_of


class Lsf(Batch):
    """From inside a bsub. Under jsrun the first host is the launch node, which runs no payloads."""

    variable = "LSB_JOBID"

    def nodes(self) -> list[Given]:
        """See Batch."""
        slots = self._slots()
        names = list(slots)
        if self._has_launch_node(slots):
            names = names[1:]
        # The slots of easy mode are threads of its own counting; the profile knows the cores.
        return [Given(name) for name in names]

    @staticmethod
    def _has_launch_node(slots: Counter[str]) -> bool:
        """It has one slot, and the others have all their cores."""
        first, *others = [*slots.values()] or [0]
        return first == 1 and bool(others) and min(others) > 1

    def _slots(self) -> Counter[str]:
        file = self.environment.get("LSB_DJOB_HOSTFILE")
        if file:
            try:
                return Counter(Path(file).read_text().split())
            except OSError as error:
                raise InputError(f"LSB_DJOB_HOSTFILE {file}: {error.strerror or error}") from error
        words = self.environment.get("LSB_MCPU_HOSTS", "").split()
        return Counter({name: int(count) for name, count in zip(words[::2], words[1::2], strict=False)})

    def seconds_left(self, now: float) -> float:
        """See Batch."""
        text = self.ask(["bjobs", "-noheader", "-o", "time_left", self.job])
        try:
            return seconds_of(text.split()[0])  # "1:59 L": by the limit; E: by an estimate
        except (ValueError, IndexError) as error:
            raise InputError(f"bjobs calls {text!r} the time left of job {self.job}") from error
