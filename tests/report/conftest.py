"""How searches ran, made up but plausible; the searches are those of the tests of figures."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from hpo_pilot.report.html import ReportFacts
from hpo_pilot.search.trials import Cost
from tests.report.figures.conftest import search, trials
from tests.report.figures.made_up import START

__all__ = ["search", "trials"]


@pytest.fixture
def facts() -> ReportFacts:
    return ReportFacts(
        started=START,
        ended=START + timedelta(seconds=192),
        state="finished",
        message="The budget of 48 trials is spent.",
        command="hpo-pilot run payloads/digits/search.yaml",
        versions={"hpo-pilot": "0.1.0", "Python": "3.11.7"},
        cost=Cost(341.0, 0.0, 341.0 / 3600, None, None),
        store="sqlite:///hpo-pilot/hpo-pilot.db",
    )


@pytest.fixture
def events() -> list[tuple[datetime, str, str]]:
    whats = ("submitted the search", "generation 1: 4 trials", "the budget of 48 trials is spent")
    return [(START + timedelta(seconds=10 * i), "me", what) for i, what in enumerate(whats)]
