from __future__ import annotations

import pytest

from hpo_pilot.search import Search
from hpo_pilot.store import SteeringStore


@pytest.fixture
def search() -> Search:
    return Search.model_validate(
        {
            "search": "demo",
            "space": {
                "x": {"type": "real", "low": 0.0, "high": 1.0},
                "kind": {"type": "categorical", "choices": [1, True, "1"]},
            },
            "budget": {"trials": 4},
            "folds": 2,
            "payload": {"command": "true"},
        }
    )


@pytest.fixture
def store(tmp_path):
    opened = SteeringStore.open(f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
    yield opened
    opened.close()
