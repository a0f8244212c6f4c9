from __future__ import annotations

import pytest

from hpo_pilot.search import Search, Trial
from tests.report.figures.made_up import make_search, make_trials


@pytest.fixture
def search() -> Search:
    return make_search()


@pytest.fixture
def trials(search: Search) -> list[Trial]:
    return make_trials(search, 48)
