"""When free slots are filled: at once where that is cheap, in batches where every task costs its brokerage."""

from __future__ import annotations

import math

from hpo_pilot.search import Budget


class Refill:
    """Decides for one search whether its free slots are filled now."""

    def __init__(self, budget: Budget, trials_per_job: int = 1) -> None:
        """Starts with all slots free; jobs that run several trials are filled before they go out."""
        self._budget = budget
        # What the smaller jobs hold where all slots are filled: one that ends is followed by another at once.
        self._least = budget.parallel // math.ceil(budget.parallel / trials_per_job)
        self._filling = False

    def is_due(self, count: int, left: int, polite: float) -> bool:
        """Whether so many free slots are to be filled now; once they are, all of them are, task by task.

        Args:
            count: the free slots, those of points kept waiting among them.
            left: how many trials the budget has left, which may be less than a batch.
            polite: the share of `budget.parallel` that is a batch where the search says auto.
        """
        share = polite if self._budget.refill == "auto" else self._budget.refill
        wanted = math.ceil(share * self._budget.parallel - 1e-9)  # 0.07 * 100 is a little more than 7
        batch = min(max(wanted, self._least), left)
        self._filling = count > 0 and (self._filling or count >= batch)
        return self._filling
