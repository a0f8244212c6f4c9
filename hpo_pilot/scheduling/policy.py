"""How the scheduler decides where it has a choice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """The settings of a scheduler.

    Attributes:
        quantile: of a search's run times: a job is taken to last so long. A lower one keeps more nodes busy before the
            end of the allocation, and has more jobs cut there.
        measurements: with fewer run times of a search than this, its jobs are taken to last the minutes asked for. So
            they are while nearly all of them still run: nobody knows how long.
        margin: seconds before the end of the allocation when every job should have ended.
        backfill: whether jobs may overtake one that waits for room; without, it is first come, first served.
        depth: kinds of waiting jobs (search and needs) that are looked at in one decision, the oldest first.
    """

    quantile: float = 0.75
    measurements: int = 1
    margin: float = 120.0
    backfill: bool = True
    depth: int = 64
