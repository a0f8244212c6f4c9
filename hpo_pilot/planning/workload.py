"""The jobs of a whole search, as a plan counts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobNeeds
from hpo_pilot.search import Search


@dataclass(frozen=True)
class Workload:
    """The jobs of a search, or of all segments of a family, all alike.

    Attributes:
        needs: of each job.
        seconds: that each job runs.
        groups: that go out one by one: a trial's folds, or those of the trials that share jobs.
        folds: jobs of a group.
        parallel: groups that are out at once.
        trials: that all of them have, confirmation runs included.
        searches: that they are of, each with the whole budget: more than one of a family.
    """

    needs: JobNeeds
    seconds: float
    groups: int
    folds: int
    parallel: int
    trials: int
    searches: int = 1

    @classmethod
    def of(cls, search: Search, minutes_per_trial: float | None = None) -> Self:
        """That of a search; of one with segments, of all their searches, which run side by side.

        Args:
            search: the search.
            minutes_per_trial: how long one fold of one trial runs; None: as long as it may.

        Raises:
            InputError: that is longer than it may.
        """
        needs, together = search.resources, search.resources.trials_per_job
        trials = search.budget.trials + search.confirm.top * search.confirm.repeats
        segments = max(1, len(search.segments or ()))
        minutes = needs.minutes if minutes_per_trial is None else minutes_per_trial * together
        if minutes > needs.minutes:
            raise InputError(
                f"--minutes-per-trial {minutes_per_trial:g}: by resources.minutes a trial may run "
                f"{needs.minutes / together:g} at most, and would be ended"
            )
        return cls(
            JobNeeds(needs.nodes, needs.gpus_per_node, needs.cores, needs.memory_mb, needs.minutes, needs.ranks),
            60.0 * minutes,
            segments * math.ceil(trials / together),
            search.folds.k,
            segments * math.ceil(search.budget.parallel / together),
            segments * trials,
            segments,
        )

    @property
    def jobs(self) -> int:
        """All of them."""
        return self.groups * self.folds

    @property
    def job_seconds(self) -> float:
        """Run time of all jobs together."""
        return self.jobs * self.seconds
