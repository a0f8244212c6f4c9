"""The progress of a search, kept up to date trial by trial, is that which all its trials give."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.search import Trial, TrialState
from hpo_pilot.search.progress import ProgressTracker, SearchProgress
from hpo_pilot.search.ranking import convergence, ranked_by_folds
from hpo_pilot.search.trials import Spent
from tests.made import made_search

START = datetime(2026, 1, 1, tzinfo=UTC)
TWO = [{"metric": "loss", "goal": "minimize"}, {"metric": "speed", "goal": "maximize"}]
FIGURES = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0, float("inf")])
STATES = st.sampled_from([TrialState.FINISHED] * 4 + [TrialState.FAILED, TrialState.STOPPED])


def fresh(search, trials, seconds=0.0, generations=0) -> SearchProgress:
    known = sorted(trials.values(), key=lambda trial: (trial.told or 0, trial.number))
    return ProgressTracker(search, known, spent=Spent(seconds), generations=generations, confirmed=known).progress


@given(data=st.data(), several=st.booleans(), maximize=st.booleans())
def test_changes_one_by_one_give_what_all_trials_give(data, several, maximize):
    search = made_search(
        objective=TWO if several else {"goal": "maximize" if maximize else "minimize"},
        fidelity={"epochs": {"low": 1, "high": 9}},
    )
    trials: dict[int, Trial] = {}
    tracker = ProgressTracker(search, [], spent=Spent(), generations=0)
    told, seconds, generations = 0, 0.0, 0
    for step in range(data.draw(st.integers(0, 8))):
        good = [trial.number for trial in trials.values() if trial.values and trial.confirms is None]
        again = {trial.continues for trial in trials.values()}
        new: list[Trial] = []
        for number in range(len(trials) + 1, len(trials) + 1 + data.draw(st.integers(1, 3))):
            confirms = data.draw(st.sampled_from([None, None, *good]))
            level, paused = 1, [n for n in good if n not in again and (trials[n].level or 9) < 9]
            continues = data.draw(st.sampled_from([None, *paused])) if confirms is None else None
            if (before := confirms or continues) is not None:
                level = (trials[before].level or 1) * (1 if confirms else 3)
            again.add(continues)
            new.append(Trial(number, step, {"x": number}, confirms=confirms, continues=continues, level=level))
        tracker.add(new, [trials[trial.confirms] for trial in new if trial.confirms is not None])
        generations += 1
        trials |= {trial.number: trial for trial in new}
        open_trials = [trial for trial in trials.values() if not trial.state.is_over]
        started = [trial for trial in open_trials if data.draw(st.booleans())]
        trials |= {trial.number: with_state(trial, TrialState.RUNNING) for trial in started}
        ends = []
        for trial in [trials[trial.number] for trial in open_trials if data.draw(st.booleans())]:
            told += trial.confirms is None
            end = START + timedelta(seconds=told)
            state = data.draw(STATES)
            figures = tuple(data.draw(FIGURES) for _ in search.objectives) if state is TrialState.FINISHED else ()
            stds = tuple(data.draw(st.sampled_from([0.0, 0.1])) for _ in figures)
            place = told if trial.confirms is None else None
            ends.append(with_state(trial, state, values=figures, stds=stds, told=place, ended=end))
        tracker.change([trial.number for trial in started], ends, Spent(2.5))
        seconds += 2.5
        trials |= {trial.number: trial for trial in ends}
        now = tracker.progress
        assert now.agrees(fresh(search, trials, seconds, generations))
        assert not several or sorted(now.front) == sorted(set(now.front))
        if not several and data.draw(st.booleans()):  # as after a restart
            named = {now.best, now.last_failure, *(trial.confirms for trial in trials.values())}
            kept = {n: t for n, t in trials.items() if n in named or not t.state.is_over or t.confirms is not None}
            tracker = ProgressTracker.resumed(search, now, kept)
            assert tracker.progress == now
    now = tracker.stop_rest(Spent(1.0))
    stopped = {n: t if t.state.is_over else with_state(t, TrialState.STOPPED) for n, t in trials.items()}
    assert now.agrees(fresh(search, stopped, seconds + 1.0, generations))


def with_state(trial: Trial, state: TrialState, **more) -> Trial:
    return replace(trial, state=state, **more)


def test_both_bests_and_the_course_of_one_objective():
    search = made_search()
    values = [
        (1, None, 0.5),
        (2, None, 0.2),
        (3, None, None),
        (4, None, 0.2),
        (5, 2, 0.9),
        (6, 1, 0.6),
        (7, None, None),
    ]
    trials, told = {}, 0
    for number, confirms, value in values:
        told += confirms is None
        state = TrialState.FAILED if value is None else TrialState.FINISHED
        figures = () if value is None else (value,)
        place = told if confirms is None else None
        trials[number] = Trial(number, 1, {}, state, values=figures, confirms=confirms, told=place, ended=START)
    now = fresh(search, trials)
    assert (now.best, now.best_value, now.best_told, now.ties) == (2, 0.2, 2, 2)
    assert (now.confirmed, now.confirmed_value, now.confirmed_runs, now.since_best) == (1, 0.6, 1, 4)
    assert now.best_for_people == 1 and now.first_value == 0.5 and now.course == ((1, 0.5), (2, 0.2))
    assert (now.told, now.failures_in_a_row, now.last_failure, now.counted) == (5, 1, 7, 5)
    assert [now.failed_in_a_row(forgiven) for forgiven in (0, 4, 5)] == [1, 1, 0]


def test_results_of_the_highest_level_count_alone():
    search = made_search(fidelity={"epochs": {"low": 1, "high": 9}})
    tracker = ProgressTracker(search, [], spent=Spent(), generations=0)
    trials = {}
    for number, (level, continues, value) in enumerate(
        [(1, None, 0.3), (1, None, 0.2), (3, 2, 0.5), (1, None, 0.1), (3, 4, 0.6)], start=1
    ):
        trials[number] = Trial(number, 1, {"x": number}, level=level, continues=continues)
        tracker.add([trials[number]])
        trials[number] = with_state(trials[number], TrialState.FINISHED, values=(value,), told=number, ended=START)
        tracker.change([], [trials[number]], Spent())
    progress = tracker.progress
    assert (progress.best, progress.best_value, progress.first_value, progress.course) == (3, 0.5, 0.5, ((3, 0.5),))
    assert (progress.counted, progress.continuations) == (3, 2)
    assert [one.number for one in ranked_by_folds(search, trials.values())] == [3, 5, 4, 2, 1]
    assert convergence(search, list(trials.values())) == [(3, 0.5), (4, 0.5), (5, 0.5)]


def test_a_row_that_says_something_else_does_not_agree():
    search, trials = made_search(), {1: Trial(1, 1, {}, TrialState.FINISHED, values=(0.5,), told=1, ended=START)}
    now = fresh(search, trials, 3.0)
    assert now.agrees(fresh(search, trials, 3.0 + 1e-9))
    assert not now.agrees(fresh(search, trials, 3.1))
    assert not now.agrees(fresh(search, {}, 3.0))


@pytest.mark.parametrize("reference", [None, 4.0])
def test_the_front_and_its_hypervolume(reference):
    given_reference = [{**one, "reference": at} for one, at in zip(TWO, (4.0, 0.0), strict=True)]
    search = made_search(objective=TWO if reference is None else given_reference)
    rows = [(2.0, 2.0), (1.0, 1.0), (3.0, 1.5), (2.5, 5.0)]
    trials = {
        number: Trial(number, 1, {}, TrialState.FINISHED, values=row, told=number, ended=START)
        for number, row in enumerate(rows, start=1)
    }
    now = fresh(search, trials)
    assert now.front == (2, 1, 4) and now.best is None and now.best_for_people == 2 and now.since_best is None
    assert reference is None or now.hypervolume == pytest.approx(3 * 1 + 2 * 1 + 1.5 * 3)
    assert [told for told, _ in now.course] == ([1, 2, 4] if reference else [told for told, _ in now.course])
