from __future__ import annotations

from collections.abc import Callable

import pytest

from hpo_pilot.search import Search, Trial
from tests.report.figures.made_up import make_search, make_trial, make_trials


@pytest.fixture
def search() -> Search:
    return make_search()


@pytest.fixture
def trials(search: Search) -> list[Trial]:
    return make_trials(search, 48)


@pytest.fixture
def search_of() -> Callable[..., Search]:
    return make_search


@pytest.fixture
def trial_of() -> Callable[..., Trial]:
    return make_trial


@pytest.fixture
def trials_of() -> Callable[..., list[Trial]]:
    return make_trials
