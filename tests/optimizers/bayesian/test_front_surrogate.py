from __future__ import annotations

import numpy as np

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.acquisition import HypervolumeImprovement, Surrogate
from hpo_pilot.optimizers.bayesian import BatchChooser, Candidates
from hpo_pilot.optimizers.gaussian_process import Hyperparameters, Posterior
from hpo_pilot.optimizers.nondominated import costs_of, front, hypervolume
from hpo_pilot.optimizers.objective_models import Caution
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.optimizers.training_data import FeatureMap
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import REAL, run

SPACE = SearchSpace.from_dict(dict.fromkeys("abc", REAL))


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
    surrogate = Surrogate(posteriors, reached, reference, np.arange(0))
    batch = BatchChooser(
        features, [surrogate], units, units[:0], 0, Caution(None, 0.0), Candidates(SPACE, features).feasible
    )
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


def costs(point: dict[str, float]) -> tuple[float, float]:
    off = (point["b"] - 0.7) ** 2 + (point["c"] - 0.2) ** 2
    return point["a"] ** 2 + off, (1 - point["a"]) ** 2 + off


def test_it_finds_a_front_that_random_points_do_not() -> None:
    found = {}
    for name in ("random", "bayesian"):
        told = run(create_optimizer(name, SPACE, seed=1, trials=32, objectives=2), costs, 4)
        found[name] = hypervolume(costs_of([values for _, values in told]), (1.0, 1.0))
    assert found["bayesian"] > 0.80  # of 0.8333 that there are
    assert found["random"] < 0.75


def test_no_guess_of_a_stopped_trial_leads() -> None:
    units = np.random.default_rng(1).random((12, 3))
    fit = Hyperparameters(1.0, np.full(3, 0.4), 1e-4)
    posteriors = [Posterior.of_data(fit, units, units[:, 0] - 0.5), Posterior.of_data(fit, units, units[:, 1] - 0.5)]
    none = np.empty((0, 3))
    leaders = Surrogate.of_data(posteriors, np.zeros(12, dtype=bool), 12, none, none).leaders
    stopped = np.isin(np.arange(12), leaders[:1])
    others = Surrogate.of_data(posteriors, stopped, 12, none, none).leaders
    assert leaders[0] not in others
    assert len(others)
    assert set(Surrogate.of_data(posteriors, np.ones(12, dtype=bool), 12, none, none).leaders) == set(leaders)
