"""What a search's optimizer does, in words, and how far the search is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hpo_pilot.jobs import Member
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.progress import ProgressTracker
from hpo_pilot.search.trials import Spent
from hpo_pilot.steering.status import expected_end, optimizer_words
from hpo_pilot.store import NewTask, SearchState
from hpo_pilot.store.progress import progress_of
from tests.made import made_search

#: Its stores have results that no job gave, and so break invariants.
TRIALS_WITHOUT_JOBS = True

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
    known, scan = trials(10, 2) if found is None else found, search(**more)
    progress = ProgressTracker(scan, known, spent=Spent(), generations=1, confirmed=known).progress
    return optimizer_words(scan, state, progress, lambda limit: [one.point for one in known if one.counts][:limit])


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


def test_a_running_search_ends_at_its_present_pace(store, register):
    record = register(search())
    assert expected_end(store, record, progress_of(store.engine, record.id), 0.0) is None
    found = trials(48, 4)
    store.add_generation(record.id, history=0, pending=[], trials=found, task=NewTask("t", 1, 0, ((Member(1, 0, 0),),)))
    started = [(trial.number, trial.started.timestamp()) for trial in found]
    store.record(record.id, ends=[trial for trial in found if trial.state.is_over], started=started)
    store.set_state(record.id, SearchState.RUNNING, "service")
    record, progress = store.search(record.id), progress_of(store.engine, record.id)
    assert progress.extent(record.planned_trials, is_done=False).planned == 96
    expected = expected_end(store, record, progress, NOW.timestamp())
    assert expected.limit == "trials" and 30 * 60 < expected.seconds < 75 * 60
    assert expected_end(store, record, progress, NOW.timestamp(), steered=False) is None
    store.set_state(record.id, SearchState.PAUSED, "me")
    assert expected_end(store, store.search(record.id), progress, NOW.timestamp()) is None
    done = progress_of(store.engine, record.id).extent(record.planned_trials, is_done=True)
    assert (done.over, done.planned) == (48, 48)
