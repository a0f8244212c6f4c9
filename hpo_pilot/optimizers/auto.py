"""The default optimizer: a Bayesian model, joined by an evolution when many results are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.base import Observation, Optimizer, Recommendation, Told
from hpo_pilot.optimizers.bayesian import BayesianOptimizer, ModelSettings
from hpo_pilot.optimizers.phase import ALONE, MANY_DIMENSIONS, ON_STEPS, PAIRS, PAIRS_NEED, STEPS_NEED, allows_pairs
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.search import Point, Real, SearchSpace, point_key

#: The two points of a pair differ by this share of the range of each continuous dimension. Without noise their values
#: are next to each other: in 121 of 132 runs of 22 made-up kinds, no value was between the two.
_APART = 0.003

#: The noise is heavy if this share of the first values is between the two values of a pair, summed over the pairs.
#: This finds none of 132 runs without noise, and 80% to 98% of those with heavy noise of four kinds, in batches of 8.
_BETWEEN = 3 / 16


class Pairs:
    """Tells noise by points next to the best ones.

    A model needs half of a hundred noisy results until it finds the noise: short length scales explain the values as
    well. Two points that are nearly the same tell it at once.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Starts without results."""
        self._space = space
        self._continuous = [
            place
            for place, dimension in enumerate(space.dimensions.values())
            if isinstance(dimension, Real) and dimension.step is None
        ]
        self.are_all_continuous = len(self._continuous) == len(space.dimensions)
        self._taken = 0  # number of results
        self._before = 0  # number of results before those of the first pair
        self._bases: dict[str, tuple[Point, Observation]] = {}  # the point beside each, by its key
        self._found: dict[str, tuple[Observation, Observation]] = {}  # by the key of the second one

    def take(self, history: Sequence[Observation]) -> None:
        """Takes the new results; `history`: all in their order."""
        for place in range(self._taken, len(history)):
            seen = history[place]
            if seen.key in self._bases:
                self._before = self._before or place
                self._found[seen.key] = self._bases[seen.key][1], seen
            elif not self._is_complete and (beside := self._beside(seen)) is not None:
                self._bases[point_key(beside)] = beside, seen
        self._taken = len(history)

    @property
    def _is_complete(self) -> bool:
        return len(self._found) >= PAIRS

    def offer(self, proposals: Proposals, pending: Iterable[Point]) -> None:
        """Offers points, each beside one of the best, as far as they are missing; `pending`: without a result."""
        if self._is_complete or len(self._bases) < PAIRS_NEED:
            return
        missing = PAIRS - len(self._found) - sum(point_key(point) in self._bases for point in pending)
        for _, key in sorted((base.values, key) for key, (_, base) in self._bases.items()):
            if missing <= 0:
                return
            missing -= proposals.offer_point(self._bases[key][0])

    def tell_heavy_noise(self, history: Sequence[Observation]) -> bool:
        """Returns whether the noise is heavy; `history`: all results in their order."""
        if not self._is_complete or len(history) < 2 * self._before:
            return False
        first = [value for seen in history[: 2 * self._before] if (value := _value(seen)) is not None]
        pairs = [(_value(base), _value(seen)) for base, seen in self._found.values()]
        ends = [sorted((a, b)) for a, b in pairs if a is not None and b is not None]
        between = sum(low < value < high for low, high in ends for value in first)
        return between >= _BETWEEN * len(first)

    def _beside(self, seen: Observation) -> Point | None:
        """Returns the point beside that of a result; None: it is not good, or no dimension is continuous."""
        if _value(seen) is None or seen.violation or seen.unit is None or not seen.is_within_bounds:
            return None
        unit = list(seen.unit)
        for place in self._continuous:
            unit[place] += _APART if unit[place] < 0.5 else -_APART
        point = self._space.decode(unit)
        return None if point_key(point) == seen.key else point


def _value(seen: Observation) -> float | None:
    """Returns the value of a result; None also where it is projected."""
    return None if seen.stopped else seen.value


class AutoOptimizer(Optimizer):
    """`bayesian` alone at first; from a number of results on, an evolution proposes every other point.

    If the values are steps, the evolution proposes every fourth point from the start. If pairs of points show that the
    noise is heavy, it proposes all points, and every other one where some dimensions are not continuous.

    The evolution is `cma` for one objective and `evolutionary` (NSGA-II) for several. The number of known points
    decides which part proposes a point, so that the same history gives the same points.
    """

    Settings = ModelSettings
    _PARTS = frozenset({"_model", "_evolution"})
    several_objectives = True
    uses_prior = True
    uses_levels = True

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Makes the model; see `Optimizer`."""
        super().__init__(space, **options)
        self._shared = {"seed": self.seed, "trials": self.trials, "objectives": self.objectives, "limits": self.limits}
        self._alone = 0 if len(space.dimensions) > MANY_DIMENSIONS else ALONE
        self._makes_pairs = self._alone > 0 and allows_pairs(self.trials, self.objectives) and not self.levels

    @cached_property
    def _model(self) -> Optimizer:
        model = BayesianOptimizer(self.space, settings=self.settings.model_dump(), levels=self.levels, **self._shared)
        model.follow(self)
        return model

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self.space)

    @cached_property
    def _evolution(self) -> Optimizer:
        """The evolution; made when it is needed, because few searches need it."""
        from hpo_pilot.optimizers.cma import CmaOptimizer  # noqa: PLC0415 - loads DEAP
        from hpo_pilot.optimizers.evolutionary import EvolutionaryOptimizer  # noqa: PLC0415 - loads DEAP

        evolution = (CmaOptimizer if self.objectives == 1 else EvolutionaryOptimizer)(self.space, **self._shared)
        evolution.follow(self)
        return evolution

    def tell_earlier(self, source: str, trials: Iterable[Told]) -> None:
        """Takes the results of an earlier search; see `Optimizer`."""
        super().tell_earlier(source, trials)
        self._start_over()

    def recommend(self, count: int = 1) -> list[Recommendation]:
        """See `Optimizer.recommend`; the model knows the earlier searches, too."""
        self._catch_up()
        return self._model.recommend(count)

    def _learn(self, observation: Observation) -> None:
        for part in self._PARTS & self.__dict__.keys():
            getattr(self, part).take(observation)

    def _start_over(self) -> None:
        for part in self._PARTS | {"_pairs"}:
            self.__dict__.pop(part, None)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        if self._makes_pairs:
            self._pairs.take(self.history)
            if len(self.history) < self._alone:
                self._pairs.offer(proposals, pending)
        points = proposals.points
        try:
            return points + (self._by_turns(proposals.missing, [*pending, *points]) if proposals.missing else [])
        except ExhaustedError:
            if points:
                return points
            raise

    def _by_turns(self, n: int, pending: list[Point]) -> list[Point]:
        """Returns points of the parts, which take turns also where points are asked for one by one."""
        every = self._every()
        if not every:
            return self._model.ask(n, pending)
        known = self._collect(n, pending).known
        modelled = n - sum(place % every == every - 1 for place in range(known, known + n))
        points = self._from(self._model, modelled, pending)
        points += self._from(self._evolution, n - len(points), [*pending, *points])
        if len(points) < n and points:  # one part found fewer than it was asked for
            points += self._from(self._model, n - len(points), [*pending, *points])
        return points or self._model.ask(n, pending)  # raises the error that says why there is none

    def _every(self) -> int:
        """Returns n if every n-th point is the evolution's; 0: none is."""
        if self.levels:
            return 0
        if self._makes_pairs and self._pairs.tell_heavy_noise(self.history):
            return 1 if self._pairs.are_all_continuous else 2
        if len(self.history) >= self._alone:
            return 2
        return ON_STEPS if self._on_steps() else 0

    def _choose_paused(self, n: int, pending: list[Point]) -> list[Point]:
        return self._model.go_on(n, pending)

    def _on_steps(self) -> bool:
        """Returns whether a quarter of the points share values with others; the worst may be a penalty or a bound."""
        values = {seen.key: value for seen in self.history if (value := _value(seen)) is not None}
        if self.objectives > 1 or len(values) < STEPS_NEED:
            return False
        counts = Counter(values.values())
        del counts[max(counts)]
        return 4 * sum(count for count in counts.values() if count > 1) >= len(values)

    @staticmethod
    def _from(part: Optimizer, n: int, pending: list[Point]) -> list[Point]:
        if n < 1:
            return []
        try:
            return part.ask(n, pending)
        except ExhaustedError:
            return []
