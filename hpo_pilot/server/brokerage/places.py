"""The room that an allocation's pilot has, as jobs are chosen for it."""

from __future__ import annotations

from functools import lru_cache

from hpo_pilot.jobs import JobNeeds
from hpo_pilot.scheduling import Wish
from hpo_pilot.server.brokerage.hardware import GpuOffer
from hpo_pilot.server.brokerage.needs import Needs


class Places:
    """What is left of a pilot's openings; for one answer."""

    def __init__(self, wish: Wish, waited: float) -> None:
        """Begins with everything that the pilot has.

        Args:
            wish: what the pilot said.
            waited: seconds ago; jobs that start now have so much less time.
        """
        self._wish = wish
        self._waited = waited
        self._now = self._before = wish.now.copy()

    def gpus(self) -> tuple[GpuOffer, ...]:
        """The GPUs that the pilot's nodes have free, of which it does not say more."""
        counts = [sum(opening.gpus) for opening in (*self._wish.now, *self._wish.later)]
        return (GpuOffer(max(counts)),) if any(counts) else ()

    def take(self, needs: Needs, campaign: str, most: int) -> int:
        """Takes room for at most so many jobs of a campaign; returns for how many there was some."""
        self._before = self._now.copy()
        return self._now.take_many(_on_nodes(needs), self._seconds(needs, campaign), most)

    def correct(self, needs: Needs, campaign: str, count: int) -> None:
        """There were only so many jobs for the room that was taken last."""
        self._now = self._before
        self._now.take_many(_on_nodes(needs), self._seconds(needs, campaign), count)

    def may_wait(self, needs: Needs, campaign: str) -> bool:
        """Whether the pilot would make room for such a job, for which it has none now."""
        wanted, seconds = _on_nodes(needs), self._seconds(needs, campaign)
        return any(opening.nodes >= needs.nodes and opening.fits(wanted, seconds) for opening in self._wish.later)

    def _seconds(self, needs: Needs, campaign: str) -> float:
        """How long such a job takes, from the pilot's own measurements, counted from when it spoke."""
        known = self._wish.seconds.get(campaign)
        limit = float(needs.payload_seconds or needs.seconds)
        return self._waited + (limit if known is None else min(known, limit) if limit else known)


@lru_cache(maxsize=1024)
def _on_nodes(needs: Needs) -> JobNeeds:
    return JobNeeds(needs.nodes, needs.gpus, needs.cores, needs.ram_mb)
