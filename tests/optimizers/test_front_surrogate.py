from __future__ import annotations

import numpy as np

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.batch import BatchChooser
from hpo_pilot.optimizers.candidates import Candidates
from hpo_pilot.optimizers.features import FeatureMap
from hpo_pilot.optimizers.front_surrogate import FrontSurrogate
from hpo_pilot.optimizers.gaussian_process import Hyperparameters
from hpo_pilot.optimizers.hypervolume_improvement import HypervolumeImprovement
from hpo_pilot.optimizers.nondominated import costs_of, front, hypervolume
from hpo_pilot.optimizers.posterior import Posterior
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.optimizers.success import Caution
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict({name: {"type": "real", "low": 0.0, "high": 1.0} for name in ("a", "b", "c")})


def test_the_lazy_choice_is_the_greedy_one() -> None:
    """Without climbs: each point is the best of all candidates, had all of them been computed again."""
    rng = np.random.default_rng(1)
    units, candidates = rng.random((12, 3)), rng.random((300, 3))
    costs = np.stack([units[:, 0] + units[:, 2], 1 - units[:, 0] + units[:, 1]], axis=1)
    fit = Hyperparameters(1.0, np.full(3, 0.4), 1e-4)
    posteriors = [Posterior.of_data(fit, units, column - column.mean()) for column in costs.T]
    reached = np.stack([posterior.fitted() for posterior in posteriors], axis=1)
    reference = reached.max(axis=0)

    features, proposals = FeatureMap(SPACE), Proposals(SPACE, 12, [], [])
    surrogate = FrontSurrogate(posteriors, reached, reference, np.arange(0))
    batch = BatchChooser(features, [surrogate], 0, Caution(None, 0.0), Candidates(SPACE, features).feasible)
    batch._climber.climb = lambda *_: None  # type: ignore[method-assign]
    batch.fill(proposals, candidates)

    known, believed, left = reached, posteriors, list(range(len(candidates)))
    for point in proposals.points:
        moments = [posterior.predict(candidates[left]) for posterior in believed]
        means, variances = (np.stack(columns, axis=1) for columns in zip(*moments, strict=True))
        scores = HypervolumeImprovement(known[front(known)], reference).log_value(means, variances)
        index = int(np.argmax(scores))
        chosen = candidates[left.pop(index)]
        assert list(point.values()) == chosen.tolist()
        known = np.concatenate([known, means[index][None, :]])
        believed = [posterior.believing(chosen[None, :]) for posterior in believed]


def test_it_finds_a_front_that_random_points_do_not() -> None:
    def costs(point: dict[str, float]) -> tuple[float, float]:
        off = (point["b"] - 0.7) ** 2 + (point["c"] - 0.2) ** 2
        return point["a"] ** 2 + off, (1 - point["a"]) ** 2 + off

    found = {}
    for name in ("random", "bayesian"):
        optimizer, told = create_optimizer(name, SPACE, seed=1, trials=32, objectives=2), []
        for _ in range(4):
            points = optimizer.ask(8, [])
            optimizer.tell([(point, costs(point)) for point in points])
            told += [costs(point) for point in points]
        found[name] = hypervolume(costs_of(told), (1.0, 1.0))
    assert found["bayesian"] > 0.80  # of 0.8333 that there are
    assert found["random"] < 0.75
