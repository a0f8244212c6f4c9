from __future__ import annotations

import numpy as np
import pytest

from hpo_pilot.optimizers.training_data import FeatureMap
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict(
    {
        "child": {"type": "real", "low": 0, "high": 1, "when": {"kind": ["b", "c"]}},
        "kind": {"type": "categorical", "choices": ["a", "b", "c"], "when": {"flag": True}},
        "flag": {"type": "categorical", "choices": [1, True, "1"]},
        "yes": {"type": "categorical", "choices": [False, True]},
        "only": {"type": "categorical", "choices": ["one"]},
        "lr": {"type": "real", "low": 1e-4, "high": 1.0, "scale": "log"},
        "step": {"type": "real", "low": 0, "high": 0.5, "step": 0.05},
        "width": {"type": "integer", "low": 1, "high": 200, "scale": "log"},
        "layers": {"type": "integer", "low": 1, "high": 4},
        "of_layers": {"type": "ordinal", "choices": [8, 16], "when": {"layers": 2}},
    }
)


def test_snapped_is_what_the_space_makes_of_a_unit_vector() -> None:
    units = np.random.default_rng(1).random((400, len(SPACE.dimensions)))
    units[0], units[1] = 0.0, 1.0
    features = FeatureMap(SPACE)
    expected = np.array([SPACE.encode(SPACE.decode(unit)) for unit in units.tolist()])
    assert features.cube.snapped(units) == pytest.approx(expected)
    assert np.array_equal(features.cube.snapped(features.cube.snapped(units)), features.cube.snapped(units))


def test_features_have_a_column_per_choice() -> None:
    features = FeatureMap(SPACE)
    units = features.cube.snapped(np.random.default_rng(1).random((50, len(SPACE.dimensions))))
    rows = features.features(units)
    assert rows.shape == (50, features.size)
    assert features.size == 1 + 3 + 3 + 1 + 1 + 5  # child, kind, flag, yes, only, and five ordered ones
    assert np.array_equal(rows[:, features.columns], units[:, features.ordered])
    flags = rows[:, 4:7]
    assert np.array_equal(np.argmax(flags, axis=1), np.floor(units[:, 2] * 3))
    assert np.all(flags.sum(axis=1) == 1)
    assert features.features(units[:0]).shape == (0, features.size)


def test_inactive_dimensions_have_no_influence() -> None:
    features = FeatureMap(SPACE)
    units = np.full((2, len(SPACE.dimensions)), 0.3)
    units[:, 2] = 0.1  # flag is 1, so neither kind nor child is there
    units[1, :2] = 0.9
    first, second = features.features(features.cube.snapped(units))
    assert np.array_equal(first, second)


def test_neighbours_differ_in_one_stepwise_dimension() -> None:
    features = FeatureMap(SPACE)
    unit = features.cube.snapped(np.full((1, len(SPACE.dimensions)), 0.5))[0]
    points = [SPACE.decode(u) for u in features.neighbours(unit).tolist()]
    here = SPACE.decode(unit.tolist())
    assert {p["layers"] for p in points} == {1, 2, 3, 4}
    assert {p["step"] for p in points} == set(SPACE.dimensions["step"].grid(11))
    assert {p["lr"] for p in points} == {here["lr"]}
