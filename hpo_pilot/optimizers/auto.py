"""The default optimizer: a Bayesian model, joined by an evolution when many results are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.base import Observation, Optimizer, Recommendation, Told
from hpo_pilot.optimizers.bayesian import BayesianOptimizer, ModelSettings
from hpo_pilot.optimizers.phase import ALONE, MANY_DIMENSIONS, ON_STEPS, STEPS_NEED
from hpo_pilot.search import Point, SearchSpace


class AutoOptimizer(Optimizer):
    """`bayesian` alone at first; from a number of results on, an evolution proposes every other point.

    If the values are steps, the evolution proposes every fourth point from the start.

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

    @cached_property
    def _model(self) -> Optimizer:
        model = BayesianOptimizer(self.space, settings=self.settings.model_dump(), levels=self.levels, **self._shared)
        model.follow(self)
        return model

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
        for part in self._PARTS:
            self.__dict__.pop(part, None)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        known = self._collect(n, pending).known
        late = len(self.history) >= self._alone
        if self.levels or not (late or self._on_steps()):
            return self._model.ask(n, pending)
        # The parts take turns, also where points are asked for one by one.
        every = 2 if late else ON_STEPS
        modelled = n - sum(place % every == every - 1 for place in range(known, known + n))
        points = self._from(self._model, modelled, pending)
        points += self._from(self._evolution, n - len(points), [*pending, *points])
        if len(points) < n and points:  # one part found fewer than it was asked for
            points += self._from(self._model, n - len(points), [*pending, *points])
        return points or self._model.ask(n, pending)  # raises the error that says why there is none

    def _choose_paused(self, n: int, pending: list[Point]) -> list[Point]:
        return self._model.go_on(n, pending)

    def _on_steps(self) -> bool:
        """Returns whether a quarter of the points share values with others; the worst may be a penalty or a bound."""
        values = {o.key: o.value for o in self.history if o.value is not None and not o.stopped}
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
