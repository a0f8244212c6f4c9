"""Random search: points drawn evenly over the scales of the space."""

from __future__ import annotations

from hpo_pilot.optimizers.base import Optimizer
from hpo_pilot.optimizers.streams import stream
from hpo_pilot.search import Point


class RandomSearch(Optimizer):
    """Independent points, uniform in the unit cube; the yardstick for every other optimizer.

    What is drawn depends on the seed and on how many distinct points are known (told or pending), never on values.
    """

    several_objectives = True
    learns_from_earlier = False

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        feasible = [observation.point for observation in self.history[-64:]] if self.space.constraints else []
        return proposals.complete(stream(self.seed, proposals.known), [*feasible, *pending])
