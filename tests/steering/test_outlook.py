"""What a search's optimizer does, in words, and how far the search is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.trials import NO_COST
from hpo_pilot.steering.status import optimizer_words, outlook
from hpo_pilot.store import SearchState
from tests.made import made_search

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def search(**more) -> Search:
    space = {f"x{i}": {"type": "real", "low": 0, "high": 1} for i in range(8)}
    return made_search(**{"space": space, "optimizer": "bayesian", "budget": {"trials": 96, "parallel": 4}, **more})


def trials(over: int, out: int = 0) -> list[Trial]:
    """Trials that ended one minute after another, the last of them now, and others that run."""
    found = []
    for number in range(1, over + out + 1):
        point = {f"x{i}": number / 1000 for i in range(8)}
        if number > over:
            found.append(Trial(number, 1, point, TrialState.RUNNING, started=NOW))
        else:
            end = NOW - timedelta(minutes=over - number)
            times = {"submitted": end - timedelta(minutes=4), "started": end - timedelta(minutes=4), "ended": end}
            found.append(Trial(number, 1, point, TrialState.FINISHED, values=(1 / number,), told=number, **times))
    return found


def words(state: SearchState = SearchState.RUNNING, found: list[Trial] | None = None, **more) -> str:
    return optimizer_words(search(**more), state, trials(10, 2) if found is None else found)


def test_start_points_are_told_and_out():
    assert words() == "exploring: 12 of 16 start points"
    assert words(found=trials(20, 2)) == "modelling: goes where a model of 20 results expects improvement"


def test_the_files_own_start_points_come_first():
    start = [{f"x{i}": value for i in range(8)} for value in (0.001, 0.9)]
    assert words(found=trials(0, 1), start=start) == "trying the start points of its file: 1 of 2 are submitted"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (SearchState.SUBMITTED, "waiting for a service to take the search up"),
        (SearchState.PAUSED, "paused: proposes no points; 2 trials still out"),
        (SearchState.STOPPING, "stopping; 2 trials still out"),
        (SearchState.DONE, "at its end: proposes no more points"),
        (SearchState.FAILED, "at its end: proposes no more points"),
    ],
)
def test_words_by_state(state, said):
    assert words(state) == said


def test_the_last_trials_and_their_confirmation():
    budget = {"trials": 12, "parallel": 4}
    assert words(budget=budget) == "all trials are submitted: the last 2 are not over"
    again = [*trials(12), Trial(13, 2, {}, TrialState.FINISHED, confirms=1), Trial(14, 2, {}, confirms=1)]
    assert words(found=again, budget=budget) == "confirming: 1 of 2 fresh runs of the best points are over"


def test_progress_and_the_end():
    found = outlook(
        search(), SearchState.RUNNING, trials(48, 4), clock=NOW - timedelta(hours=1), cost=NO_COST, best=45, now=NOW
    )
    assert (found.over, found.planned, found.since_best, found.limit) == (48, 96, 3, "trials")
    assert timedelta(minutes=30) < found.end - NOW < timedelta(minutes=75)
    paused = outlook(search(), SearchState.PAUSED, trials(48), clock=NOW, cost=NO_COST, best=None, now=NOW)
    assert (paused.end, paused.since_best) == (None, None)
    done = outlook(search(), SearchState.DONE, trials(40), clock=NOW, cost=NO_COST, best=40, now=NOW)
    assert (done.over, done.planned) == (40, 40)
