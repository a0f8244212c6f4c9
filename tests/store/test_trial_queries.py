"""Pages, ranks and samples of trials are the same as of all trials in memory."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.report.summary import failure_groups
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.ranking import best_confirmed_first, convergence, ranking
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.trial_expressions import condition_of
from hpo_pilot.store.trial_queries import (
    TrialFilter,
    TrialOrder,
    best_numbers,
    count_trials,
    failed_trials,
    failed_without_retry,
    neighbours,
    page_of_trials,
    rank_of,
    results_of,
    sampled_trials,
    trials_told,
)
from tests.made import made_attempt, made_end, made_search
from tests.rest_api import add_trials

#: Values of a parameter; None: the trial does not have it.
CHOICES = [3, 0.5, "b", "B", "10", True, False, None, "ä", 2, "", 1e300]


def filled(store, runs: int = 6, **document: Any) -> Search:
    """A search whose trials have all kinds of values; `runs`: number of confirmation runs of trials 1 to 4."""
    search = made_search("demo", **{"budget": {"trials": 60}, "confirm": {"top": 3, "repeats": 2}, **document})
    number = store.create_search(search, source="x", sandbox=None, owner="me").id
    dice, several = random.Random(1), len(search.objectives) > 1
    trials = [Trial(n, 1 + n // 9, {"η x": CHOICES[n % 12], "x": n / 60}, seed=n) for n in range(1, 41)]
    trials = [trial if n % 5 else Trial(n, 1, {}, seed=n, retries=n - 1) for n, trial in enumerate(trials, 1)]
    again = [Trial(40 + n, 9, trials[n].point, seed=n, confirms=n // 2 + 1) for n in range(1, runs + 1)]
    task = add_trials(store, "demo", [*trials, *again], folds=2)
    ends, now = [], time.time()
    for told, trial in enumerate([*trials[:36], *again], 1):
        value = round(dice.random(), 1)
        end = made_end(
            trial.number,
            TrialState.FAILED if told % 7 == 0 else TrialState.FINISHED,
            values=() if told % 7 == 0 else (value, 1 - value + dice.random() / 9) if several else (value,),
            told=None if trial.confirms else told,
            ended=now + told,
            error=f"100% Wrong_{told}" if told % 7 == 0 else None,
        )
        ends.append(end)
    lost = {"error": "lost", "seconds": 2.0}
    jobs = [made_attempt(task, 1, 0, 1, JobState.FAILED, **lost), made_attempt(task, 1, 0, 2, JobState.FINISHED, 0.1)]
    jobs += [made_attempt(task, 2, 1, 1, JobState.FAILED, **lost)]
    store.record(number, jobs, ends, started=[(n, now - n % 4) for n in range(1, 40)])
    store.annotate(number, 3, "me", note="Strange", tags=["Überall"])
    return search


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("key", ["number", "state", "value", "value2", "seconds", "generation", "p.x", "p.η x", 'p."'])
def test_a_table_is_sorted(store, key, descending):
    filled(store, objective=[{"metric": "a"}, {"metric": "b"}], confirm={})

    def value(trial: Trial) -> Any:
        if key in ("value", "value2"):
            return trial.values[key == "value2"] if trial.values else None
        if key == "seconds":
            return (trial.ended - trial.started).total_seconds() if trial.ended and trial.started else None
        return trial.point.get(key[2:]) if key.startswith("p.") else getattr(trial, key)

    trials = store.trials(1)
    found = {trial.number: value(trial) for trial in trials}
    with_value = [number for number, one in found.items() if one is not None]
    with_value.sort(key=lambda n: (isinstance(found[n], str), found[n]), reverse=descending)
    expected = with_value + [number for number, one in found.items() if one is None]
    pages = [page_of_trials(store.engine, 1, TrialFilter(), TrialOrder(key, descending), at, 20) for at in (0, 20, 40)]
    assert [trial.number for page in pages for trial in page] == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (TrialFilter(TrialState.FAILED), [7, 14, 21, 28, 35, 46]),
        (TrialFilter(text="wrong_2"), [21, 28]),
        (TrialFilter(TrialState.FAILED, "0% WRONG_7"), [7]),
        (TrialFilter(text="über"), [3]),
        (TrialFilter(TrialState.FAILED, "strange"), []),
    ],
)
def test_a_table_is_filtered(store, wanted, expected):
    filled(store)
    order = TrialOrder("number", descending=False)
    assert [trial.number for trial in page_of_trials(store.engine, 1, wanted, order, 0, 50)] == expected
    assert count_trials(store.engine, 1, wanted) == len(expected)


SPACE = {
    "x": {"type": "real", "low": 0.0, "high": 1.0},
    "η x": {"type": "categorical", "choices": [choice for choice in CHOICES if choice is not None]},
}
TWO = {"space": SPACE, "objective": [{"metric": "val-loss"}, {"metric": "b"}], "confirm": {}}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("x < 0.3", lambda p, v: "x" in p and p["x"] < 0.3),
        ("not (x < 0.3)", lambda p, v: "x" in p and p["x"] >= 0.3),
        ("0.1 < x <= 0.3 or x > 29/30 - 1/60", lambda p, v: "x" in p and (0.1 < p["x"] <= 0.3 or p["x"] > 28.5 / 30)),
        ("val-loss < 0.5 and b < 0.6", lambda p, v: v and v[0] < 0.5 and v[1] < 0.6),
        ("value == val-loss and b >= 0", lambda p, v: v),
        ("val-loss == None", lambda p, v: not v),
        ("x is not None and b is None", lambda p, v: "x" in p and not v),
        ("state == 'failed' and error != 'x' or val-loss == None", lambda p, v: not v),
        ("η x == 'b' or η x == 3", lambda p, v: p.get("η x") in ("b", 3)),
        ("η x in ['b', 0.5, 'ä', '']", lambda p, v: p.get("η x") in ("b", 0.5, "ä", "")),
        ("η x not in ['b', 0.5]", lambda p, v: p.get("η x") not in (None, "b", 0.5)),
        ("η x != 'b'", lambda p, v: p.get("η x") not in (None, "b")),
        ("η x > 1", lambda p, v: _is_number(p.get("η x")) and p["η x"] > 1),
        ("η x == True or η x == '10'", lambda p, v: p.get("η x") in (1, "10")),
        ("-x * 2 + 1 > abs(x - 1) / 2", lambda p, v: "x" in p and -p["x"] * 2 + 1 > abs(p["x"] - 1) / 2),
        ("1 / (x - x) > 0 or x / 0 < 1 or x in []", lambda p, v: False),
        ("x + 1 and b", lambda p, v: "x" in p and v),
    ],
)
def test_a_table_is_filtered_by_an_expression(store, expression, holds):
    search = filled(store, **TWO)
    wanted = TrialFilter(where=condition_of(store.engine, search, expression))
    found = page_of_trials(store.engine, 1, wanted, TrialOrder("number", descending=False), 0, 50)
    expected = [trial.number for trial in store.trials(1) if holds(trial.point, trial.values)]
    assert [trial.number for trial in found] == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("x = 3", "write =="),
        ("x < 1 && b < 1", "write and"),
        ("x < bb", "did you mean b"),
        ("x < '1'", "compares a text"),
        ("x == 'one'", "compares a text with a number: x and 'one'"),
        ("x in [1, 'one']", "compares a text"),
        ("state != 1", "compares a text"),
        ("'a' + x < 1", "the text 'a'"),
        ("x in 3", "write a list"),
        ("log(x) < 1", "there is abs"),
        ("x < 1 if b else x > 1", "filter cannot"),
        ("x.y < 1", "filter cannot"),
        ("__import__('os')", "not a function"),
        ("b == true", "write quotes"),
        ("x < 1" + "0" * 400, "too large to convert"),
        ("error == '\\0'", "not printable"),
        ("x < 1 and " * 200 + "x < 1", "longer than"),
        ("('" * 300, "not a valid"),
    ],
)
def test_wrong_expressions_are_refused_with_a_remedy(store, expression, words):
    with pytest.raises(InputError, match=words) as wrong:
        condition_of(store.engine, made_search("demo", **TWO), expression)
    assert str(wrong.value).startswith("where: ")


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("runs", [0, 6])
def test_each_trial_has_its_rank(store, goal, runs):
    search = filled(store, runs, objective={"metric": "loss", "goal": goal})
    trials, progress = store.trials(1), progress_of(store.engine, 1)
    order = [standing.trial.number for standing in ranking(search, trials)]
    ranks = {trial.number: rank_of(store.engine, 1, search, progress, trial) for trial in trials}
    assert ranks == {
        trial.number: (order.index(trial.number) + 1 if trial.number in order else 0, len(order)) for trial in trials
    }


def test_neighbours_and_failures(store):
    filled(store)
    assert neighbours(store.engine, 1, 1) == (None, 2)
    assert neighbours(store.engine, 1, 46) == (45, None)
    assert failure_groups(failed_trials(store.engine, 1)) == failure_groups(store.trials(1))
    assert failed_without_retry(store.engine, 1) == 5  # 15 tries 14 again


def test_results_and_samples_have_what_the_best_value_needs(store):
    search = filled(store)
    progress, trials = progress_of(store.engine, 1), store.trials(1)
    results = results_of(store.engine, 1, search, None)
    assert [result.told for result in results] == list(range(1, 37))
    assert results[-1].job_seconds == 4.0
    assert results_of(store.engine, 1, search, [1, 36]) == [results[0], results[-1]]
    best = best_numbers(store.engine, 1, search, 2)
    sample = sampled_trials(store.engine, 1, progress, best, 4)
    assert len(sample) < len(trials)
    assert convergence(search, sample)[-1] == convergence(search, trials)[-1]
    assert best_confirmed_first(search, sample) == best_confirmed_first(search, store.trials(1, folds=False))
    places = [place for place, _ in progress.course]
    assert [trial.told for trial in trials_told(store.engine, 1, places)] == places


def test_samples_have_the_whole_front(store):
    """Also trials beyond the reference point, with which no hypervolume has grown."""
    filled(store, runs=0, objective=[{"metric": name, "reference": 0.0} for name in ("loss", "time")])
    progress = progress_of(store.engine, 1)
    sample = sampled_trials(store.engine, 1, progress, [], 4)
    assert {*progress.front} <= {trial.number for trial in sample}
