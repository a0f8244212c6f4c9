from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.operations.client import SearchClient
from hpo_pilot.store import SearchState
from tests.rest_api import add_results, set_state, write_search


@pytest.fixture(scope="session")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with searches: `digits` is done, `fresh` has no trial, so has `pareto`, of two objectives."""
    root = tmp_path_factory.mktemp("notebook")
    folder = root / "work"
    with SearchClient.local(folder) as client:
        client.submit(write_search(root, "digits"))
        client.submit(write_search(root, "fresh"))
        client.submit(write_search(root, "pareto", objective=[{"metric": "loss"}, {"metric": "speed"}]))
    add_results(folder, "digits", 20)
    set_state(folder, "digits", SearchState.DONE)
    return folder
