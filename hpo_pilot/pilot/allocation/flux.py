"""Flux."""

from __future__ import annotations

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.allocation.batch import Batch, Given


class Flux(Batch):
    """From inside a flux batch or flux alloc, which is an instance of its own."""

    variable = "FLUX_URI"

    def nodes(self) -> list[Given]:
        """See Batch."""
        return [Given(name) for name in self.ask(["flux", "hostlist", "--expand", "local"]).split()]

    def seconds_left(self, now: float) -> float:
        """See Batch."""
        text = self.ask(["flux", "job", "timeleft"])
        try:
            return float(text)
        except ValueError as error:
            raise InputError(f"flux job timeleft prints {text!r}") from error
