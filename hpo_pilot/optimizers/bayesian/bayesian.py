"""Bayesian optimization: a Gaussian process learns the values, and the batch goes where improvement is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.stats import qmc

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, Result
from hpo_pilot.optimizers.bayesian.batch import BatchChooser
from hpo_pilot.optimizers.bayesian.candidates import Candidates
from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.bayesian.front_surrogate import FrontSurrogate
from hpo_pilot.optimizers.bayesian.improvement_surrogate import ImprovementSurrogate
from hpo_pilot.optimizers.bayesian.start_rules import LEAST_VALUES, default_start_points
from hpo_pilot.optimizers.bayesian.success import SuccessLearner
from hpo_pilot.optimizers.bayesian.surrogate import Surrogate
from hpo_pilot.optimizers.bayesian.told import Rows, Table, Told
from hpo_pilot.optimizers.bayesian.values_model import ValuesLearner
from hpo_pilot.optimizers.placement import unit_vector
from hpo_pilot.optimizers.proposals import Proposals, placed
from hpo_pilot.optimizers.streams import array_stream, stream
from hpo_pilot.optimizers.threads import one_thread
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.limits import MOST_POPULATION

Array = npt.NDArray[np.float64]

#: The processes are conditioned on this many points at most, for the cost grows with the cube; on fewer where several
#: objectives have one each.
_CONDITIONED, _CONDITIONED_EACH = 2_000, 1_500

#: Start points tried per point wanted before random ones fill up: constraints and small spaces refuse many.
_TRIES_PER_START = 16

#: While earlier searches count, one in this many start points is of the even spread; the others are where they were
#: good.
_STARTS_APART = 2


class BayesianSettings(BaseSettings):
    """What a search file may set.

    Attributes:
        start_points: how many points of an even spread come before the model has its say. None: two per dimension,
            between 8 and 40, at most a third of the budget. While earlier searches count, every other one is where
            they were good.
    """

    start_points: Annotated[int, Field(ge=1, le=MOST_POPULATION, strict=True)] | None = None


class BayesianOptimizer(Optimizer):
    """A scikit-optimize Gaussian process with a batch choice of its own.

    Scrambled Sobol points first. Then, for each `ask`: values are seen on the scale on which the process explains them
    best; it is conditioned on the told points and believes the pending ones to return what it predicts; the batch is
    chosen greedily by log expected improvement, points that are out at once keeping apart (`Spacing`). With several
    objectives each has processes of its own, and the improvement is that of the front's hypervolume.

    While there are few values two processes take turns, one with a quadratic trend and one without: with the trend it
    finds smooth optima sooner, without it looks around more where the trend is wrong (tables of many choices). Failed
    trials have no value; a process of their own learns where they lie, and the batch keeps away. What earlier searches
    expect comes first, and counts as much as the values told since bear out (`Transfer`).

    Hyper-parameters belong to a cut of the history: they are fitted from fixed starts on the trials up to the last
    refit that the number of trials calls for, so a rebuilt optimizer finds the very same ones. Nothing else is kept.
    """

    Settings = BayesianSettings
    settings: BayesianSettings
    several_objectives = True

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Lays out the features; see `Optimizer`."""
        super().__init__(space, **options)
        self.start_points = self.settings.start_points or default_start_points(len(space.dimensions), self.trials)
        self._features = FeatureMap(space)
        self._candidates = Candidates(space, self._features)
        self._told = Told(len(space.dimensions), self.objectives)
        self._earlier: dict[str, Table] = {}
        self._values = [
            ValuesLearner(self._features, self._told, objective, self.seed, self._earlier)
            for objective in range(self.objectives)
        ]
        self._outcomes = SuccessLearner(self._features, self._told, self.seed)

    def tell_earlier(self, source: str, trials: Iterable[Result]) -> None:
        """See `Optimizer.tell_earlier`."""
        super().tell_earlier(source, trials)
        told = Told(len(self.space.dimensions), self.objectives)
        for observation in self.earlier[source]:
            told.add(observation)
        self._earlier[source] = told.table(len(told))
        for learner in self._values:
            learner.forget()

    def _learn(self, observation: Observation) -> None:
        self._told.add(observation)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        with one_thread():
            table = self._told.table(len(self._told))
            good = len(table.good)
            has_model = good >= LEAST_VALUES or any(learner.transfer is not None for learner in self._values)
            earlier = [best for learner in self._values for best in learner.earlier_best(good)] if has_model else []
            starts = min(n, max(0, self.start_points - proposals.known)) if has_model else n
            if earlier:
                first = proposals.known + 1
                starts = sum(place % _STARTS_APART == 0 for place in range(first, first + starts))
            if starts:
                self._start(proposals, starts)
            if has_model and proposals.missing > 0:
                self._choose(proposals, table, pending, earlier)
        rng = stream(self.seed, "rest", proposals.known)
        return proposals.complete(rng, [*(observation.point for observation in self.history[-64:]), *pending])

    def _start(self, proposals: Proposals, count: int) -> None:
        """`count` points of an even spread, from where the known ones left off."""
        first, goal = proposals.known, len(proposals.points) + count
        tries = _TRIES_PER_START * count
        sobol = qmc.Sobol(len(self.space.dimensions), rng=array_stream(self.seed, "start"))
        for unit in sobol.random_base2(math.ceil(math.log2(first + tries + 1)))[first : first + tries].tolist():
            if len(proposals.points) >= goal:
                return
            proposals.offer(unit)

    def _choose(self, proposals: Proposals, table: Table, pending: list[Point], earlier: Sequence[Array]) -> None:
        """Fills the batch by the models."""
        rng = array_stream(self.seed, "choose", proposals.known)
        features = self._features.features(table.units)
        rows = table.most_telling(_CONDITIONED if self.objectives == 1 else _CONDITIONED_EACH, rng)
        earlier_best = np.concatenate([self._places([]), *earlier])
        out = self._features.features(self._places([*pending, *proposals.points]))
        surrogates = self._surrogates(table, rows, features[rows], out, self._features.features(earlier_best))
        caution = self._outcomes.caution(table, features, rng)
        best = np.concatenate([table.units[rows[surrogates[0].leaders]], earlier_best])
        feasible: list[tuple[float, ...]] = []
        if self.space.constraints:
            recent = [observation.point for observation in self.history[-64:]]
            feasible = list(placed(self.space, [*proposals.points, *pending, *recent]))
        candidates = self._candidates.draw(
            proposals.missing, best, feasible, rng, stream(self.seed, "feasible", proposals.known)
        )
        if len(candidates):
            turn, feasible_units = proposals.known, self._candidates.feasible
            chooser = BatchChooser(self._features, surrogates, features, out, turn, caution, feasible_units)
            chooser.fill(proposals, candidates)

    def _surrogates(self, table: Table, rows: Rows, data: Array, believed: Array, reach: Array) -> list[Surrogate]:
        """The models by which points are chosen: conditioned on `rows`, whose features are `data`, and `believed`."""
        by_objective = [learner.posteriors(table, rows, data) for learner in self._values]
        stopped = table.stopped[rows]
        if self.objectives == 1:
            return [ImprovementSurrogate.of_data(one, stopped, reach, believed) for one in by_objective[0]]
        together = zip(*by_objective, strict=True)
        first = int(np.searchsorted(rows, self.start_points))
        return [FrontSurrogate.of_data(posteriors, stopped, first, reach, believed) for posteriors in together]

    def _places(self, points: Iterable[Point]) -> Array:
        """The unit vectors of those points that have one, shape (n, n_dims)."""
        units = [unit for point in points if (unit := unit_vector(self.space, point)) is not None]
        return np.array(units).reshape(len(units), len(self.space.dimensions))
