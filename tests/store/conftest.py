from __future__ import annotations

import os
import secrets

import pytest
from sqlalchemy import create_engine, make_url, text

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


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    if request.param == "sqlite":
        opened = SteeringStore.open(f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
        yield opened
        opened.close()
        return
    base = os.environ.get("HPO_PILOT_TEST_POSTGRESQL")
    if base is None:
        pytest.skip("HPO_PILOT_TEST_POSTGRESQL names no database; `make test-real` starts one")
    name = f"store_{secrets.token_hex(4)}"
    server = create_engine(base, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    opened = SteeringStore.open(make_url(base).set(database=name).render_as_string(hide_password=False))
    yield opened
    opened.close()
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()
