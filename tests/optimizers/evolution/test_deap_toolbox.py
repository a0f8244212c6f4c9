"""Operators by name: each works in any space, and a wrong argument is refused before the search."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.evolutionary import DEAP_OPERATORS
from hpo_pilot.search import SearchSpace

ONE = SearchSpace.from_dict({"x": {"type": "real", "low": 0, "high": 1}})
TWO = SearchSpace.from_dict(
    {"x": {"type": "real", "low": 0, "high": 1}, "c": {"type": "categorical", "choices": ["a", "b", "c"]}}
)


@pytest.mark.parametrize("space", [ONE, TWO])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in DEAP_OPERATORS for name in DEAP_OPERATORS[kind]])
def test_every_operator_in_spaces_of_one_and_two(kind: str, name: str, space: SearchSpace) -> None:
    optimizer = create_optimizer("evolutionary", space, settings={"population": 4, kind: name}, trials=24)
    for _ in range(3):
        points = optimizer.ask(4, [])
        for point in points:
            space.canonical(point)
        optimizer.tell([(point, point["x"]) for point in points])


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("select", {"name": "selTournament", "tournsize": 0}),
        ("select", {"name": "selTournament", "tournsize": "two"}),
        ("mate", {"name": "cxBlend", "alpha": "wide"}),
        ("mate", {"name": "cxSimulatedBinary", "eta": -1.0}),
        ("mutate", {"name": "mutGaussian", "sigma": None}),
        ("mutate", {"name": "mutGaussian", "mu": float("nan"), "indpb": 1.0}),
        ("mutate", {"name": "mutPolynomialBounded", "low": [0.0]}),
    ],
)
def test_wrong_values_are_refused(kind: str, operator: dict[str, Any]) -> None:
    state = random.getstate()
    with pytest.raises(InputError, match=operator["name"]):
        create_optimizer("evolutionary", TWO, settings={kind: operator})
    assert random.getstate() == state
