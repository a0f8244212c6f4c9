"""Chooses the points of a search with levels that go on to their next levels, as far as the budget allows.

`search.promotion` decides by ranks. While ranks at low levels agree with the ranks at the last one, an optimizer that
uses levels decides instead; one ask returns new points and points that go on. With a quarter of the epochs of whole
trainings it found better points then, and worse ones on recorded trainings whose ranks disagree. Figures:
`tests/performance/optimizers/results/README.md`. The rule takes over again where the optimizer chooses nothing that the
budget allows, and once it has no limit and has trained what is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpo_pilot.optimizers import optimizer_class
from hpo_pilot.search import Point, Search, Trial, point_key
from hpo_pilot.search.fidelity import Levels
from hpo_pilot.search.promotion import Promotion, first_points, level_sum
from hpo_pilot.search.ranking import costs, figures_of_merit
from hpo_pilot.steering.budget import Spending
from hpo_pilot.store.steering_store import NumberedTrials

#: Sums of fractional levels differ in the last digits from what they should be.
ROUNDING = 1e-9

#: The trial from which another goes on, and the level of the other.
Continuation = tuple[Trial, float]


class Promotions:
    """The promotions of one search with levels."""

    def __init__(self, search: Search, levels: Levels, spent: Spending, trials: NumberedTrials) -> None:
        """Starts without results.

        Args:
            search: the search.
            levels: its levels.
            spent: what it has spent; the caller keeps it up to date.
            trials: its trials.
        """
        self._search, self._levels, self._spent, self._trials = search, levels, spent, trials
        first = first_points(search.budget.trials, levels.high, search.budget.fidelity)
        self._rule = Promotion(levels.values, levels.eta, first)
        self._uses_levels = optimizer_class(search.optimizer.name).uses_levels
        self._has_given_up = False

    def tell(self, trial: Trial, chain: int) -> None:
        """Takes a result, in the order of results; `chain`: number of the first trial of its point."""
        self._has_given_up = False
        if trial.level is not None:
            figures = figures_of_merit(self._search, trial)
            self._rule.tell(trial.number, trial.level, figures and costs(self._search.objectives, figures), chain)

    def go_on(self, number: int) -> None:
        """Takes a promotion: another trial goes on from this one."""
        self._rule.go_on(number)

    @property
    def by_optimizer(self) -> bool:
        """Whether the optimizer decides at present which points go on."""
        may = self._uses_levels and not self._has_given_up and self._rule.levels_agree
        return may and self.levels_left >= self._levels.low * (1 - ROUNDING)

    def give_up(self) -> None:
        """Lets the rule decide until the next result: the optimizer found nothing that the budget allows."""
        self._has_given_up = True

    def due(self, room: int, *, last: bool = False) -> list[Continuation]:
        """Returns the trials that should go on now by the rule, each with its next level.

        Args:
            room: their number at most.
            last: nothing else is left to do; one point is trained to the last level, if no other was.
        """
        found: list[Continuation] = []
        if room <= 0 or (self.by_optimizer and not last):
            return found
        left = self._spent.levels_left
        due = list(filter(None, [self._rule.last()] if last else self._rule.due()))
        self._trials.fetch([number for number, _ in due])
        for number, level in due:
            before = self._trials[number]
            if (cost := level - (before.level or 0)) <= left * (1 + ROUNDING) and len(found) < room:
                found.append((before, level))
                left -= cost
        return found

    @property
    def levels_left(self) -> float:
        """The sum of levels that the optimizer may spend; of what is planned, if there is no limit."""
        budget = self._search.budget
        if budget.fidelity is not None:
            return self._spent.levels_left
        return level_sum(self._levels.wanted(budget.trials, None), self._levels.values) - self._spent.levels

    def affordable(
        self, points: Sequence[Point], known: Iterable[Trial], new: int
    ) -> list[tuple[Point, Continuation | None]]:
        """Returns the proposed points that the budget allows, each with its continuation; None: it is a new point.

        Args:
            points: what the optimizer proposed, in this order.
            known: the trials of these points; confirmation runs do not count.
            new: the number of new points that may be tried.
        """
        known = [trial for trial in known if trial.trains_point]
        paused, tried = self._paused(known), {point_key(trial.point) for trial in known}
        left, found = self.levels_left, dict[str, tuple[Point, Continuation | None]]()
        for point in points:
            before = paused.get(key := point_key(point))
            if before is None and (key in tried or new <= 0):
                continue
            at = (before and before.level) or 0
            level = next(each for each in self._levels.values if each > at)
            if level - at <= left * (1 + ROUNDING):
                found[key] = point, None if before is None else (before, level)
                left, new = left - (level - at), new - (before is None)
        self._trials.fetch([going[0].number for _, going in found.values() if going is not None])
        return list(found.values())

    def _paused(self, known: Iterable[Trial]) -> Mapping[str, Trial]:
        """Returns the trials from which points may go on, by the keys of the points; `known`: trials."""
        highest = {
            point_key(trial.point): trial
            for trial in sorted(known, key=lambda one: (one.level or 0, -one.number))
            if trial.values
        }
        below = ((key, trial) for key, trial in highest.items() if (trial.level or 0) < self._levels.high)
        return {key: trial for key, trial in below if not self._rule.has_gone_on(trial.number)}

    def waiting(self) -> Iterable[int]:
        """Yields the trials that would go on first if the search were extended; see `Promotion.waiting`."""
        return self._rule.waiting()
