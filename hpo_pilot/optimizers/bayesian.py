"""Bayesian optimization: Gaussian processes model the objectives, and expected improvement chooses the points."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers.base import (
    BaseSettings,
    Observation,
    Optimizer,
    Recommendation,
    Told,
    array_stream,
    one_thread,
    stream,
)
from hpo_pilot.optimizers.feasible_region import feasible_region
from hpo_pilot.optimizers.phase import LEAST_VALUES, default_start_points
from hpo_pilot.optimizers.proposals import Proposals, feasible_units, placed, unit_vector
from hpo_pilot.search import Point, SearchSpace, point_key
from hpo_pilot.search.limits import MOST_POPULATION

if (
    TYPE_CHECKING
):  # scikit-learn and scipy take a second to load, and the check of a search file needs only the settings
    from hpo_pilot.optimizers.acquisition import Surrogate
    from hpo_pilot.optimizers.objective_models import Caution
    from hpo_pilot.optimizers.training_data import FeatureMap, Rows, Table

Array = npt.NDArray[np.float64]

#: In finite spaces up to this size, every point is a candidate.
LISTED = 2_000

#: Candidates from the whole space, and near the best points; wide batches get this many more per point.
_ANYWHERE, _NEARBY = 1_000, 600
_PER_POINT = 3

#: With constraints, each candidate costs about 20 µs: then fewer are drawn from the whole space.
_ANYWHERE_CONSTRAINED = 400


class Candidates:
    """Draws snapped unit vectors of feasible points."""

    def __init__(self, space: SearchSpace, features: FeatureMap) -> None:
        """Draws from `space`."""
        self._space = space
        self._cube = features.cube
        self._list: Array | None = None

    def draw(
        self,
        wanted: int,
        best: Array,
        anchors: Sequence[Sequence[float]],
        numbers: np.random.Generator,
        rng: random.Random,
    ) -> Array:
        """Returns candidates, shape (n, n_dims); n = 0 where no feasible point was found.

        Args:
            wanted: the size of the batch.
            best: unit vectors of the best known points, shape (k, n_dims).
            anchors: unit vectors of feasible points.
            numbers: the random stream.
            rng: the random stream for spaces with constraints.
        """
        if self._space.size <= LISTED:
            return self._listed()
        near = self._near(best, max(_NEARBY, wanted * _PER_POINT), numbers)
        if not self._space.constraints:
            anywhere = numbers.random((max(_ANYWHERE, wanted * _PER_POINT), len(self._space.names)))
            return np.concatenate([self._cube.snapped(anywhere), near])
        found = feasible_units(self._space, max(_ANYWHERE_CONSTRAINED, wanted), rng, anchors)
        if not len(found):
            return found
        return np.concatenate([self._cube.snapped(found), self.feasible(near)])

    def feasible(self, units: Array) -> Array:
        """Returns the rows of `units` that satisfy the constraints."""
        if not self._space.constraints:
            return units
        return np.asarray(units[feasible_region(self._space).mask(units)])

    def _listed(self) -> Array:
        if self._list is None:
            units = [self._space.encode(point) for point in self._space.all_points()]
            self._list = self._cube.snapped(np.array(units).reshape(len(units), len(self._space.names)))
        return self._list

    def _near(self, best: Array, count: int, numbers: np.random.Generator) -> Array:
        """Returns neighbours of `best`, shifted by a thousandth to a third of the range in some of the dimensions."""
        units = best[np.arange(count) % len(best)].clip(0.0, 1.0)
        share = max(0.3, min(1.0, 2.0 / units.shape[1]))
        return self._cube.snapped(self._cube.moved(units, numbers, (-3.0, -0.5), share))


def _distances(points: Array, others: Array) -> Array:
    """Returns the Euclidean distances, shape (number of points, number of others)."""
    from scipy.spatial.distance import cdist  # noqa: PLC0415 - see above

    return np.asarray(cdist(points, others))


#: The ascent starts from this many candidates, at least this far apart in length scales.
_STARTS, _APART = 4, 0.3

#: Steps of the ascent, at most, and the share of the value below which a step ends it.
_STEPS, _ENOUGH = 15, 1e-3


class Climber:
    """Finds a local maximum of the acquisition value plus a penalty, by gradient ascent.

    Attributes:
        map: the map from unit vectors to features.
    """

    def __init__(self, features: FeatureMap, feasible: Callable[[Array], Array]) -> None:
        """Prepares the ascent in a space.

        Args:
            features: the map from unit vectors.
            feasible: selects the unit vectors that satisfy the constraints.
        """
        self.map = features
        self._feasible = feasible

    def climb(
        self, surrogate: Surrogate, proposals: Proposals, starts: Array, penalty: Callable[[Array, Array], Array]
    ) -> Array | None:
        """Offers the best of the starts, their discrete neighbours and the ends of the gradient ascents from them.

        Args:
            surrogate: gives the acquisition values.
            proposals: takes the point.
            starts: unit vectors, shape (k, n_dims), k above 0.
            penalty: is added to the values at unit vectors and their features, shape (m, n_features); shape (m,).

        Returns:
            The features of the accepted point, shape (n_features,); None where none was accepted.
        """
        units = np.concatenate([self.map.neighbours(start) for start in starts])
        units = self._feasible(np.unique(units, axis=0))
        if not len(units):
            return None
        features = self.map.features(units)
        scores = surrogate.value(features) + penalty(units, features)
        best = units[np.argsort(-scores, kind="stable")[:_STARTS]]
        units = np.concatenate([units, self._feasible(self._uphill(surrogate, best))])
        features = self.map.features(units)
        scores = surrogate.value(features) + penalty(units, features)
        for index in np.argsort(-scores, kind="stable"):
            if proposals.offer(units[index].tolist()):
                return np.asarray(features[index])
        return None

    def _uphill(self, surrogate: Surrogate, units: Array) -> Array:
        """Returns the ends of L-BFGS ascents from `units`, done together so that they share matrix products."""
        features = self.map.features(units)
        free = np.zeros(features.shape, dtype=bool)
        free[:, self.map.columns] = (self.map.cube.active(units) & self.map.is_climbed)[:, self.map.ordered]
        if not free.any():
            return units[:0]

        from scipy.optimize import minimize  # noqa: PLC0415 - see above

        def descent(variables: Array) -> tuple[float, Array]:
            at = features.copy()
            at[free] = variables
            value, gradient = surrogate.gradient(at)
            return -float(value.sum()), -gradient[free]

        bounds = np.broadcast_to(self.map.bounds, (*features.shape, 2))[free]
        found = minimize(
            descent,
            features[free],
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _STEPS, "ftol": _ENOUGH},
        )
        features[free] = found.x
        return self.map.moved(units, features)


def starts_apart(features: Array, scores: Array, scales: Array) -> list[int]:
    """Returns the indices of the best candidates that are far enough apart, in length scales.

    Args:
        features: shape (m, n_features).
        scores: shape (m,).
        scales: shape (n_features,).
    """
    scaled = features / scales
    left = scores.copy()
    starts: list[int] = []
    while len(starts) < _STARTS:
        index = int(np.argmax(left))
        if left[index] == -np.inf:
            break
        starts.append(index)
        left[_distances(scaled[index : index + 1], scaled)[0] < _APART] = -np.inf
        left[index] = -np.inf
    return starts


#: Number of points of a batch that are found by gradient ascent; the rest are the best candidates. The cost of an
#: ascent grows with the square of the number of known points.
_MOST_CLIMBS, _LEAST_CLIMBS, _CLIMB_BUDGET = 16, 2, 4_000_000


@dataclass(frozen=True)
class Paused:
    """Points that may go on to their next levels.

    Attributes:
        keys: of the points.
        points: the points.
        units: their unit vectors, shape (n, n_dims).
        costs: what is left of a whole training, as a share of it, shape (n,).
    """

    keys: Sequence[str]
    points: Sequence[Point]
    units: Array
    costs: Array


class BatchChooser:
    """Chooses a batch greedily by expected improvement times the probability of success (kriging believer).

    Several models take turns, and each believes the points that the others chose. If one model is wrong, the points of
    the others reveal it.
    """

    def __init__(
        self,
        climber: Climber,
        surrogates: Sequence[Surrogate],
        turn: int,
        weigh: Callable[[Array, Array], Array],
    ) -> None:
        """Takes the models, which are changed.

        Args:
            climber: finds maxima.
            surrogates: the models.
            turn: selects the model that chooses first.
            weigh: returns what is added to the log improvement at unit vectors and their features; called for all
                candidates first.
        """
        self._climber = climber
        self._surrogates = surrogates
        self._turn = turn
        self._weigh = weigh

    def fill(self, proposals: Proposals, units: Array, paused: Paused) -> None:
        """Offers the best candidates until no point is missing, or no candidate is left.

        Args:
            proposals: takes the points.
            units: the candidates, snapped to values of the space, shape (m, n_dims).
            paused: points that may go on; not none if there are no candidates.
        """
        new = len(units)
        units = np.concatenate([units, paused.units])
        features = self._climber.map.features(units)
        for surrogate in self._surrogates:
            surrogate.look_at(features, proposals.missing)
        bonus = self._weigh(units, features)
        bonus[new:] -= np.log(paused.costs)
        climbs = int(np.clip(_CLIMB_BUDGET / max(1.0, self._surrogates[0].cost), _LEAST_CLIMBS, _MOST_CLIMBS))
        while proposals.missing > 0:
            chooses = self._surrogates[self._turn % len(self._surrogates)]
            scores = chooses.scores(bonus)
            index = int(np.argmax(scores))
            if scores[index] == -np.inf:
                return
            is_new = index < new
            if is_new and climbs > 0:
                climbs -= 1
                starts = units[starts_apart(features[:new], scores[:new], chooses.scales)]
                chosen = self._climber.climb(chooses, proposals, starts, self._weigh)
                if chosen is not None:
                    self._turn += 1
                    for surrogate in self._surrogates:
                        surrogate.assume(chosen)
                    continue
                climbs = 0  # from now on, only candidates are believed
            bonus[index] = -np.inf
            point = proposals.space.decode(units[index].tolist()) if is_new else paused.points[index - new]
            if proposals.offer_point(point, again=not is_new):
                self._turn += 1
                for surrogate in self._surrogates:
                    surrogate.assume(features[index]) if climbs > 0 else surrogate.assume_candidate(index)


#: Points on which a process is conditioned, at most, because the cost grows with the cube; fewer with several
#: objectives, which have one process each, and with levels, where a search asks after each result.
_CONDITIONED, _CONDITIONED_EACH, _CONDITIONED_LEVELS = 2_000, 1_500, 1_000

#: Start points that are tried per point wanted, before random points fill up: constraints and small spaces refuse many.
_TRIES_PER_START = 16

#: While earlier searches count, one of this many start points is evenly distributed; the others are near the best
#: earlier points.
_STARTS_APART = 2


#: The density of the user's beliefs counts to the power of this, or of the budget in trials divided by `_FADES`, over
#: the number of points so far (the values of piBO).
_BELIEF, _FADES = 10.0, 10.0

#: The predicted run time counts to this power. With power 1 (Snoek et al. 2012) the time to the same value grew by 8%
#: to 20% where the best point was among the dearest, also if the power fell to 0 with the budget (Lee et al. 2020).
#: With 1/2 it stayed about the same there, and was 0.90 over six problems (of real trainings 0.7); when 64 trials of
#: the plain acquisition were over, the best value was better in 14 and worse in 2 of 18 searches
#: (`python -m tests.performance run-times`, 3 seeds).
_COST = 0.5


class ModelSettings(BaseSettings):
    """Settings in the search file of optimizers with a model.

    Attributes:
        acquisition: `per_cost`: expected improvement over the square root of the predicted run time; `plain`: expected
            improvement. None: `per_cost` if run times differ by more than a factor of two and the model predicts this,
            else `plain`.
    """

    acquisition: Literal["plain", "per_cost"] | None = None


class BayesianSettings(ModelSettings):
    """Settings in the search file.

    Attributes:
        start_points: number of evenly distributed points before the model chooses. None: two per dimension, between 8
            and 40, at most a third of the budget. While earlier searches count, every second one is near their best
            points.
    """

    start_points: Annotated[int, Field(ge=1, le=MOST_POPULATION, strict=True)] | None = None


class BayesianOptimizer(Optimizer):
    """Bayesian optimization with scikit-optimize's Gaussian process and our own choice of batches.

    The first points are scrambled Sobol points. Then each `ask` does the following. Values are transformed to the scale
    on which the process explains them best. The process is conditioned on the told points, and believes that pending
    points return their predictions. The batch is chosen greedily by log expected improvement. With several objectives,
    each has its own processes, and the acquisition value is the expected hypervolume improvement.

    While there are few values, two processes take turns, one with a quadratic trend and one without. The trend finds
    smooth optima sooner; the other explores more where the trend is wrong (tables with many choices). Failed trials
    have no value: a separate process learns where trials fail, and the batch avoids these regions. Predictions from
    earlier searches are used first, with a weight that depends on how well they agree with the results of this search
    (`Transfer`).

    With levels of training, there is one process over points and levels (`level_process`). Points below the highest
    level are paused and may go on. They and new points are compared by the expected improvement at the highest level,
    divided by the part of a whole training that is left. (Swersky, Snoek, Adams 2014, "Freeze-thaw Bayesian
    optimization", and Klein et al. 2020, "Model-based asynchronous hyperparameter and neural architecture search", use
    such processes too.)

    Hyper-parameters are fitted on the first trials of the history; their number depends only on the length of the
    history (`refit_cut`), and so do the starts of a fit. So a rebuilt optimizer finds the same ones. No other state is
    kept.
    """

    Settings = BayesianSettings
    settings: BayesianSettings
    several_objectives = True
    uses_prior = True
    uses_levels = True

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Lays out the features; see `Optimizer`."""
        from hpo_pilot.optimizers.beliefs import Beliefs  # noqa: PLC0415 - see above
        from hpo_pilot.optimizers.level_process import LevelFeatures  # noqa: PLC0415 - see above
        from hpo_pilot.optimizers.training_data import FeatureMap  # noqa: PLC0415 - see above

        super().__init__(space, **options)
        self.start_points = self.settings.start_points or default_start_points(len(space.dimensions), self.trials)
        self._features = LevelFeatures(space, self.levels) if self.levels else FeatureMap(space)
        self._candidates = Candidates(space, self._features)
        self._climber = Climber(self._features, self._candidates.feasible)
        self._beliefs = Beliefs(space, self._features.cube)
        self._earlier: dict[str, Table] = {}
        several = _CONDITIONED if self.objectives == 1 else _CONDITIONED_EACH
        self._most_conditioned = _CONDITIONED_LEVELS if self.levels else several
        self._start_over()

    def _start_over(self) -> None:
        from hpo_pilot.optimizers.objective_models import (  # noqa: PLC0415 - see above
            LimitLearner,
            SuccessLearner,
            ValuesLearner,
        )
        from hpo_pilot.optimizers.run_times import RunTimeLearner  # noqa: PLC0415 - see above
        from hpo_pilot.optimizers.training_data import ToldTrials  # noqa: PLC0415 - see above

        dimensions = len(self.space.dimensions)
        self._told = ToldTrials(dimensions, self.objectives, levels=self.levels)
        self._reached: dict[str, tuple[Observation, int]] = {}  # by key; the highest level of each point
        self._values = [
            ValuesLearner(self._features, self._told, objective, self.seed, self._earlier)
            for objective in range(self.objectives)
        ]
        self._outcomes = SuccessLearner(self._features, self._told, self.seed)
        self._limits = [LimitLearner(self._features, dimensions, index, self.seed) for index in range(len(self.limits))]
        self._run_times = RunTimeLearner(self._features, dimensions, self.seed, self.levels)

    def tell_earlier(self, source: str, trials: Iterable[Told]) -> None:
        """See `Optimizer.tell_earlier`."""
        from hpo_pilot.optimizers.training_data import ToldTrials  # noqa: PLC0415 - see above

        super().tell_earlier(source, trials)
        told = ToldTrials(len(self.space.dimensions), self.objectives)
        for observation in self.earlier[source]:
            told.add(observation)
        self._earlier[source] = told.table(len(told))
        for learner in self._values:
            learner.forget()

    def recommend(self, count: int = 1) -> list[Recommendation]:
        """See `Optimizer.recommend`."""
        if self.objectives > 1:
            raise InputError("several objectives have no best point: choose one of the Pareto front")
        self._catch_up()
        table = self._told.table(len(self._told))
        rows = table.most_telling(self._most_conditioned, array_stream(self.seed, "recommend", len(self._told)))
        with one_thread():
            found = self._values[0].without_noise(table, rows, self._features.told(table, rows))
        means, errors = (table.values[rows, 0], None) if isinstance(found, str) else found
        keys, points = self._told.keys, {observation.key: observation.point for observation in self.history}
        recommended: list[Recommendation] = []
        for place in np.argsort(means, kind="stable").tolist():
            row = rows[place]
            within = not (table.stopped[row] or table.violations[row] or table.levels[row] < len(self.levels) - 1)
            within = within and ((table.units[row] >= 0.0) & (table.units[row] <= 1.0)).all()
            if len(recommended) < count and within and self.space.is_feasible(points[keys[row]]):
                error = None if errors is None else float(errors[place])
                reason = found if isinstance(found, str) else ""
                recommended.append(Recommendation(points[keys[row]], float(means[place]), error, reason))
        return recommended

    def _learn(self, observation: Observation) -> None:
        self._told.add(observation)
        if self.levels:
            level = self._told.level_of(observation)
            if level >= self._reached.get(observation.key, (observation, -1))[1]:
                self._reached[observation.key] = observation, level
        for limit in self._limits:
            limit.add(observation)
        self._run_times.add(observation)

    def _paused(self, pending: Sequence[Point]) -> Paused:
        """Returns the points that may go on."""
        out, top = {point_key(point) for point in pending}, len(self.levels) - 1
        found = [
            (key, seen.point, seen.unit, 1.0 - self.levels[level] / self.levels[top])
            for key, (seen, level) in self._reached.items()
            if level < top and seen.values is not None and seen.is_within_bounds and key not in out
        ]
        keys, points, units, costs = zip(*found, strict=True) if found else ((), (), (), ())
        return Paused(keys, points, np.array(units).reshape(len(found), len(self.space.dimensions)), np.array(costs))

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        paused = self._paused(pending)
        proposals = self._collect(n, pending, frozenset(paused.keys))
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
                self._choose(proposals, table, pending, earlier, paused)
        rng = stream(self.seed, "rest", proposals.known)
        return proposals.complete(rng, self._known_points(pending))

    def _choose_paused(self, n: int, pending: list[Point]) -> list[Point]:
        paused, table = self._paused(pending), self._told.table(len(self._told))
        proposals = self._collect(n, pending, frozenset(paused.keys))
        if paused.keys and len(table.good) >= LEAST_VALUES:
            with one_thread():
                self._choose(proposals, table, pending, [], paused, new=False)
        return proposals.points

    def _start(self, proposals: Proposals, count: int) -> None:
        """Offers the next `count` points of the Sobol sequence."""
        from scipy.stats import qmc  # noqa: PLC0415 - see above

        first, goal = proposals.known, len(proposals.points) + count
        tries = _TRIES_PER_START * count
        sobol = qmc.Sobol(len(self.space.dimensions), rng=array_stream(self.seed, "start"))
        units = sobol.random_base2(math.ceil(math.log2(first + tries + 1)))[first : first + tries]
        if self._beliefs:  # every other point, the first one where all beliefs are
            even = np.full_like(units, 0.5) if first == 0 else units
            even[1:] = units[1:]
            units[first % 2 :: 2] = self._beliefs.placed(even[first % 2 :: 2])
        for unit in units.tolist():
            if len(proposals.points) >= goal:
                return
            proposals.offer(unit)

    def _choose(
        self,
        proposals: Proposals,
        table: Table,
        pending: list[Point],
        earlier: Sequence[Array],
        paused: Paused,
        *,
        new: bool = True,
    ) -> None:
        """Fills the batch with points that the models choose; `new`: also with points that were not told."""
        turn = proposals.known + (len(self._told) if self.levels else 0)
        rng = array_stream(self.seed, "choose", turn)
        rows = table.most_telling(self._most_conditioned, rng)
        earlier_best = np.concatenate([self._places([]), *earlier])
        out = self._features.features(self._places([*pending, *proposals.points]))
        data = self._features.told(table, rows)
        surrogates = self._surrogates(table, rows, data, out, self._features.features(earlier_best))
        caution = self._outcomes.caution(table, self._features.features(table.units), rng)
        best = np.concatenate([table.units[rows[surrogates[0].leaders]], earlier_best])
        feasible: list[tuple[float, ...]] = []
        if self.space.constraints:
            recent = [observation.point for observation in self.history[-64:]]
            feasible = list(placed(self.space, [*proposals.points, *pending, *recent]))
        candidates = self._places([])
        if new:
            again = stream(self.seed, "feasible", proposals.known)
            candidates = self._candidates.draw(proposals.missing, best, feasible, rng, again)
        if len(candidates) or paused.keys:
            weigh = self._weigh(proposals.known, caution)
            BatchChooser(self._climber, surrogates, turn, weigh).fill(proposals, candidates, paused)

    def _weigh(self, known: int, caution: Caution) -> Callable[[Array, Array], Array]:
        """Returns what failures, run times and the user's beliefs add to the log improvement after `known` points."""
        weight = (self.trials / _FADES if self.trials else _BELIEF) / max(1, known)
        wanted = self.settings.acquisition
        times = None if wanted == "plain" else self._run_times.model(telling=wanted is None)

        def weigh(units: Array, features: Array) -> Array:
            total = caution.penalty(features)
            if self._beliefs:
                total += weight * self._beliefs.log_density(units)
            return total if times is None else total - _COST * times.logs(features)

        return weigh

    def _surrogates(self, table: Table, rows: Rows, data: Array, believed: Array, reach: Array) -> list[Surrogate]:
        """Returns the models, conditioned on `rows`, whose features are `data`, and assuming the points `believed`."""
        from hpo_pilot.optimizers.acquisition import Surrogate  # noqa: PLC0415 - see above

        models = zip(*(learner.posteriors(table, rows, data) for learner in self._values), strict=True)
        first = int(np.searchsorted(rows, self.start_points))
        limits = [found for limit in self._limits if (found := limit.threshold(_CONDITIONED_EACH))]
        stopped, violations = table.stopped[rows], table.violations[rows]
        stopped = stopped | (table.levels[rows] < len(self.levels) - 1)
        return [Surrogate.of_data(one, limits, stopped, violations, first, reach, believed) for one in models]

    def _places(self, points: Iterable[Point]) -> Array:
        """Returns the unit vectors of the points that have one, shape (n, n_dims)."""
        units = [unit for point in points if (unit := unit_vector(self.space, point)) is not None]
        return np.array(units).reshape(len(units), len(self.space.dimensions))
