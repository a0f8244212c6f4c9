"""A store, a workflow manager in memory, and the steering of a search by them."""

from __future__ import annotations

import pytest

from hpo_pilot.search import Search
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.store import SteeringStore
from tests.steering.memory_panda import AtOnce, Panda


@pytest.fixture
def store(tmp_path):
    opened = SteeringStore.open(f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
    yield opened
    opened.close()


@pytest.fixture
def panda():
    return Panda()


@pytest.fixture
def steer(store, panda):
    """Makes the steering of a search; called again, of the same search after a restart."""

    def make(document=None, **budget):
        record = store.find_search("demo")
        if record is None:
            search = Search.model_validate(
                {
                    "search": "demo",
                    "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
                    "optimizer": "random",
                    "budget": {"queued": 0, **budget},
                    "payload": {"command": "true"},
                    **(document or {}),
                }
            )
            record = store.create_search(search, source="demo.yaml", sandbox="/sandbox.tar.gz", owner="me")
        return SearchSteering(record, store, panda, AtOnce(), lambda: None)

    return make
