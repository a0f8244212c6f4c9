"""Which trial is recommended, and which are confirmed, where results are noisy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.search.ranking import ranked_by_folds
from hpo_pilot.steering import recommendation
from hpo_pilot.steering.recommendation import confirmation_runs, modelled_trials, recommend, told_result
from hpo_pilot.store.progress import progress_of
from tests.made import made_attempt, made_end, made_search
from tests.store.test_trial_queries import filled

TRIALS_WITHOUT_JOBS = True


def trials(noise: float, sign: int) -> list[Trial]:
    """30 trials on a parabola with its best point at x = 0.3, and a lucky one at x = 0.9."""
    dice, found = random.Random(1), []
    for number in range(1, 31):
        x = 0.9 if number == 30 else number / 30
        value = -1.0 if number == 30 and noise else 4 * (x - 0.3) ** 2 + noise * dice.gauss(0, 1)
        values = (sign * value,)
        found.append(Trial(number, 1, {"x": x}, seed=1, state=TrialState.FINISHED, values=values, told=number))
    return found


def test_the_run_time_of_a_trial_that_was_stopped_early_is_not_told():
    """It is that of a part of a training; some of its folds may have ended."""
    stop = EarlyStop(1, "worse than the median", step=3, value=0.5, projected=(0.4,))
    done, stopped = (made_end(1, TrialState.FINISHED, 0.3, 1), made_end(2, TrialState.STOPPED, told=2, stop=stop))
    told = [told_result(made_search(), trial, 60.0) for trial in (done, stopped)]
    assert [(one.values, one.stopped, one.seconds) for one in told] == [((0.3,), False, 60.0), ((0.4,), True, None)]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_with_noise_the_trials_that_the_model_ranks_first_are_confirmed(goal, noise):
    search = made_search("s", objective={"metric": "loss", "goal": goal}, confirm={"top": 2, "repeats": 2})
    done = trials(noise, search.objective.sign)
    runs = confirmation_runs(search, done, ())
    lowest, second = ranked_by_folds(search, done)[:2]
    if noise == 0.0:
        assert runs == [lowest, lowest, second, second]
    else:
        assert lowest.number == 30
        assert all(abs(trial.point["x"] - 0.3) < 0.2 for trial in runs)
        assert len(runs) == 4
    # Confirmation runs change nothing of the ranking.
    again = [
        Trial(31 + i, 2, run.point, seed=2, state=TrialState.FINISHED, values=(9.0,), confirms=run.number)
        for i, run in enumerate(runs)
    ]
    assert confirmation_runs(search, [*done, *again[:3]], ()) == runs[3:]
    assert recommend(search, [*done, *again], ())[0][0] == runs[0]


@pytest.mark.parametrize(
    ("kept", "confirmed"),
    [(None, [1, 2]), ({2, 3, 4}, [2, 3]), ({4}, [4, 1]), (set(), [1, 2]), ({5}, [1, 2])],
    ids=["all alike", "those with outputs", "and others where they are too few", "none has any", "not a lower level"],
)
def test_trials_with_outputs_are_confirmed_first(kept, confirmed):
    search = made_search(fidelity={"epochs": {"low": 1, "high": 3}}, confirm={"top": 2, "repeats": 1})
    done = [
        Trial(n, 1, {"x": n / 9}, state=TrialState.FINISHED, values=(n / 9,), told=n, level=1 if n == 5 else 3)
        for n in range(1, 6)
    ]
    assert [trial.number for trial in confirmation_runs(search, done, (), kept)] == confirmed


def test_nothing_is_modelled_where_nothing_is_confirmed(monkeypatch):
    monkeypatch.setattr("hpo_pilot.steering.recommendation.recommend", None)
    assert confirmation_runs(made_search("s"), trials(0.1, 1), ()) == []


def test_levels_of_a_sample_and_figures_that_were_not_read():
    """A trial may be read without the one that it goes on from, and without its metrics."""
    search = made_search("s", fidelity={"epochs": {"low": 1, "high": 3}}, limits={"size": "<= 1"})
    done = [replace(trial, level=3, continues=100 + trial.number) for trial in trials(0.0, 1)]
    assert recommend(search, done, ())[0][0].number == 9


@pytest.mark.parametrize("most", [44, 20])
def test_confirmation_runs_do_not_change_the_trials_that_the_model_sees(store, monkeypatch, most):
    """Else further trials would be confirmed after the first ones were."""
    filled(store)
    monkeypatch.setattr(recommendation, "_MODELLED", most)
    record, progress = store.search(1), progress_of(store.engine, 1)
    before = modelled_trials(store, record, replace(progress, finished=progress.finished - 6))
    assert [one.number for one in modelled_trials(store, record, progress)] == [one.number for one in before]


def test_the_model_of_a_large_search_sees_the_noise_of_the_folds(store, monkeypatch):
    filled(store)
    folds = [made_attempt(1, 3, fold, 1, JobState.FINISHED, 0.4 + fold / 5) for fold in (0, 1)]
    store.record(1, folds, [made_end(3, TrialState.FINISHED, 0.5, told=3, stds=(0.2,))])
    monkeypatch.setattr(recommendation, "_MODELLED", 20)
    seen = modelled_trials(store, store.search(1), progress_of(store.engine, 1), [3])
    assert {one.number: told_result(store.search(1).search, one).errors for one in seen}[3] == (0.2 / 2**0.5,)
