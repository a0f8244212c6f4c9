from __future__ import annotations

import numpy as np

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.bayesian import Spacing
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict({name: {"type": "real", "low": 0.0, "high": 1.0} for name in ("a", "b")})


def test_too_near_is_a_share_of_the_distance_to_what_is_known() -> None:
    spacing = Spacing(np.ones(1), np.array([[0.0]]), np.array([[0.5]]))
    assert spacing.crowded(np.array([[0.51], [0.55], [0.001], [0.499]])).tolist() == [True, False, False, True]
    spacing.look_at(np.array([[0.51], [0.9], [0.901]]))
    assert spacing.crowded_candidates().tolist() == [True, False, False]
    spacing.add(np.array([0.9]))
    assert spacing.crowded_candidates().tolist() == [True, True, True]


def test_where_nothing_is_known_or_out_nothing_is_crowded() -> None:
    point, none = np.array([[0.3]]), np.empty((0, 1))
    assert not Spacing(np.ones(1), point, none).crowded(point).any()
    assert not Spacing(np.ones(1), none, none).crowded(point).any()


def test_a_batch_has_no_point_twice() -> None:
    """Four values that a bowl explains without a rest: a model so sure would go to one place only."""
    optimizer = create_optimizer("bayesian", SPACE, seed=0, trials=16)
    points = create_optimizer("random", SPACE, seed=4).ask(4)
    optimizer.tell([(point, (point["a"] - 0.4) ** 2) for point in points])
    asked = np.array([list(point.values()) for point in optimizer.ask(6, points[:1])])
    distances = np.abs(asked[:, None] - asked[None]).max(axis=2) + np.eye(len(asked))
    assert distances.min() > 2e-3
