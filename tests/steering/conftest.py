"""A store, a workflow manager in memory, and the steering of a search by them.

After each test, every invariant of the store must hold.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.store import SteeringStore
from hpo_pilot.store.invariants import check
from tests.made import made_search
from tests.postgresql import BASE, new_database
from tests.steering.memory_panda import AtOnce, Panda


@pytest.fixture
def store(tmp_path, request, postgresql):
    opened = SteeringStore.open(postgresql or f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
    yield opened
    if not hasattr(request.module, "TRIALS_WITHOUT_JOBS"):
        assert check(opened) == []
    opened.close()


@pytest.fixture
def panda_place(tmp_path):
    """Where the database of the embedded server is."""
    with new_database() if BASE else nullcontext(tmp_path / "panda.db") as place:
        yield place


@pytest.fixture
def register(store):
    """Registers a search."""

    def create(search=None):
        return store.create_search(search or made_search(), source="demo.yaml", sandbox="/sandbox.tar.gz", owner="me")

    return create


@pytest.fixture
def panda():
    return Panda()


@pytest.fixture
def steer(store, register, panda):
    """Makes the steering of a search; called again, of the same search after a restart."""

    def make(document=None, **budget):
        record = store.find_search("demo")
        if record is None:
            record = register(made_search(**{"budget": {"queued": 0, **budget}, **(document or {})}))
        return SearchSteering(record, store, panda, AtOnce(), lambda: None)

    return make
