"""Every client of searches, and searches for them: a store in process, a service over TLS."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.here import User
from hpo_pilot.server.tokens import Role
from tests.rest_api import RunningApi, add_results, start_api, store_of, write_search


@dataclass
class Place:
    """Searches, and how to get at them; `folder` is the user's own."""

    folder: Path
    workdir: Path
    api: RunningApi | None

    def client(self, name: str = "alice", *, operator: bool = False) -> SearchClient:
        if self.api is None:
            return SearchClient.local(self.workdir, user=User.named(name, changes_all=operator))
        return self.api.client(name, Role.OPERATOR if operator else Role.USER)


@pytest.fixture(scope="session", params=["local", "rest over TLS"])
def world(request, tmp_path_factory) -> Iterator[tuple[Path, RunningApi | None]]:
    root = tmp_path_factory.mktemp("world")
    if request.param == "local":
        (root / "work").mkdir()
        store_of(root / "work").close()
        yield root / "work", None
        return
    with start_api(root, tls=True) as api:
        yield api.workdir, api


@pytest.fixture
def place(world, tmp_path, monkeypatch) -> Place:
    monkeypatch.delenv("HPO_PILOT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, *world)


@pytest.fixture
def client(place) -> Iterator[SearchClient]:
    with place.client() as opened:
        yield opened


@pytest.fixture
def name(request) -> str:
    """A search's name that no other test has."""
    return "s" + str(abs(hash(request.node.nodeid)) % 10**9)


@pytest.fixture(scope="session")
def shown(world, tmp_path_factory) -> str:
    """A search with results, only to be looked at."""
    with Place(world[0], *world).client() as client:
        client.submit(write_search(tmp_path_factory.mktemp("mine"), "shown"))
    add_results(world[0], "shown")
    return "shown"


@pytest.fixture
def searched(place, client, name) -> str:
    """A search with results, as its service left it."""
    client.submit(write_search(place.folder, name))
    add_results(place.workdir, name)
    return name


def sandbox_names(place: Place, name: str) -> dict[str, int]:
    """The user's files in a search's sandbox, with their modes."""
    store = store_of(place.workdir)
    try:
        archive = store.search(name).sandbox
    finally:
        store.close()
    assert archive is not None
    with tarfile.open(archive) as packed:
        modes = {member.name: member.mode for member in packed.getmembers()}
    ours = {name for name in modes if name.startswith("hpo_pilot_")}
    assert {"hpo_pilot_runner.py", "hpo_pilot_payload.json"} <= ours
    return {name: mode for name, mode in modes.items() if name not in ours}
