from __future__ import annotations

import pytest

from hpo_pilot.search import Search
from hpo_pilot.store import SteeringStore
from tests.postgresql import BASE, new_database


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


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    if request.param == "sqlite":
        opened = SteeringStore.open(f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
        yield opened
        opened.close()
        return
    if BASE is None:
        pytest.skip("HPO_PILOT_TEST_POSTGRESQL names no database; `make test-real` starts one")
    with new_database() as url:
        opened = SteeringStore.open(url)
        yield opened
        opened.close()
