"""What holds for figures of every kind; that plotly takes them is checked by plotly's own validation."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report.catalogue import build, kinds
from hpo_pilot.report.figure import Figure, FigureData, plotly_spec, same_question
from hpo_pilot.search import Search, TrialState
from tests.made import made_fold
from tests.report.figures.made_up import KEYS, TWO, make_search, make_trial, make_trials, on_nodes, strings

HOSTILE = "<img src=x onerror=alert(1)>%{y}\"'&</script>"


def all_of(subject: FigureData) -> dict[str, list[Figure]]:
    return {kind.key: build(kind.key, subject) for kind in kinds(subject.search)}


def assert_sound(drawn: dict[str, list[Figure]]) -> None:
    figures = [figure for group in drawn.values() for figure in group]
    keys = [figure.key for figure in figures]
    assert len(set(keys)) == len(keys)
    for figure in figures:
        assert re.fullmatch(r"[a-z0-9-]+", figure.key), figure.key
        assert figure.title
        assert figure.description.endswith("."), figure.description
        assert not figure.note or figure.note.endswith("."), figure.note
        assert len(json.dumps(figure.spec, allow_nan=False)) < 1_000_000, figure.key
        go.Figure(figure.spec)
        go.Figure(plotly_spec(figure, title=True))
        assert not [text for text in strings(figure.spec) if "<img" in text or "</script" in text], figure.key


def test_kinds_are_those_that_make_sense() -> None:
    assert [kind.key for kind in kinds(make_search())] == KEYS
    assert "folds" not in [kind.key for kind in kinds(make_search(folds=1))]
    single = make_search(space={"x": {"type": "real", "low": 0.0, "high": 1.0}}, constraints=[])
    assert "contours" not in [kind.key for kind in kinds(single)]
    several = kinds(make_search(objective=TWO))
    assert [kind.key for kind in several][:2] == ["convergence", "front"]
    assert several[0].title == "Hypervolume"


def test_an_unknown_kind_is_refused(search: Search) -> None:
    with pytest.raises(InputError, match="unknown figure 'pie'; the figures are convergence, front"):
        build("pie", FigureData(search, []))


@pytest.mark.parametrize("count", [0, 1, 2, 20, 120])
def test_any_number_of_trials(search: Search, count: int) -> None:
    subject = FigureData(search, on_nodes(make_trials(search, count)))
    drawn = all_of(subject)
    assert_sound(drawn)
    assert [key for key, figures in drawn.items() if figures] == {
        0: [],
        1: [key for key in KEYS if key not in ("curves", "failures")],
        2: [key for key in KEYS if key not in ("curves", "failures")],
        20: [key for key in KEYS if key != "curves"],
        120: [key for key in KEYS if key != "curves"],
    }[count]
    assert drawn == all_of(subject), "the same values give the same figures"


def test_thousands_of_trials_stay_small(search: Search) -> None:
    trials = on_nodes(make_trials(search, 3000))
    drawn = {kind.key: build(kind.key, FigureData(search, trials)) for kind in kinds(search)}
    assert_sound(drawn)
    assert "from 2,000 of 2,728 trials" in drawn["importance"][0].note
    assert "means over spans of" in drawn["slots"][0].note.lower()
    assert len(drawn["slots"]) == 1, "8,000 jobs cannot be told apart"


def test_no_trial_finished(search: Search) -> None:
    drawn = all_of(FigureData(search, [make_trial(1, None), make_trial(2, None)]))
    assert_sound(drawn)
    assert [key for key, figures in drawn.items() if figures] == ["failures"]
    assert "nothing to compare with" in drawn["failures"][0].note
    running = [make_trial(1, None, state=TrialState.RUNNING, error=None, told=None)]
    assert not any(all_of(FigureData(search, running)).values())


@pytest.mark.parametrize(
    "values",
    [[0.5] * 20, [0.0] * 20, [math.nan, math.inf, *[0.1 * n for n in range(1, 20)]], [1.7e308, -1.7e308] * 10,
     [5e-324, 1e-300, 1.0, 1e300] * 5, [-1.0, 0.0, 3.0, -1e9] * 5],
)  # fmt: skip
def test_values_of_every_kind(search: Search, values: list[float]) -> None:
    base = make_trials(search, len(values), fail_every=10**9)
    folds = [tuple(made_fold(fold.number, value) for fold in t.folds) for t, value in zip(base, values, strict=True)]
    trials = [
        replace(trial, values=(value,), stds=(math.nan,), folds=fold)
        for trial, value, fold in zip(base, values, folds, strict=True)
    ]
    assert_sound(all_of(FigureData(search, trials)))


def test_hostile_names_stay_text() -> None:
    space = {
        HOSTILE: {"type": "categorical", "choices": [HOSTILE, "b", "c"]},
        "<b>x</b>": {"type": "real", "low": 0.0, "high": 1.0},
    }
    search = make_search(space=space, constraints=[], objective={"metric": HOSTILE})
    trials = [
        make_trial(
            n,
            None if n % 4 == 0 else n / 40,
            point={HOSTILE: ["b", HOSTILE][n % 2], "<b>x</b>": n / 50},
            folds=(made_fold(0, 0.1, node=HOSTILE), made_fold(1, 0.2, node=HOSTILE)),
            error=HOSTILE,
        )
        for n in range(1, 40)
    ]
    drawn = all_of(FigureData(search, on_nodes(trials, HOSTILE)))
    assert_sound(drawn)
    assert all(drawn[key] for key in KEYS if key != "curves")


def test_trials_of_an_older_space_and_one_sided_parameters(search: Search) -> None:
    trials = make_trials(search, 40)
    old = [replace(t, point={"solver": "rmsprop", "layers": 9, "alpha": 7.0, "gone": 1}) for t in trials[:5]]
    assert_sound(all_of(FigureData(search, [*old, *trials[5:]])))
    same = [replace(t, point=trials[0].point) for t in trials]
    assert_sound(all_of(FigureData(search, same)))


def test_several_objectives_have_each_their_own() -> None:
    search = make_search(objective=TWO)
    trials = [
        t if t.value is None else replace(t, values=(t.value, 1 / t.value), stds=(0.1, 0.2))
        for t in make_trials(search, 40)
    ]
    drawn = all_of(FigureData(search, trials))
    assert_sound(drawn)
    named = [f"{key}-{index}" for index in (0, 1) for key in ("importance", "importance-best")]
    assert [figure.key for figure in drawn["importance"]] == named
    assert [figure.title.split(" for ")[1] for figure in drawn["importance"]] == ["loss", "loss", "speed", "speed"]
    assert [figure.title for figure in drawn["contours"]][1].startswith("speed: ")
    assert [d["label"] for d in drawn["parallel"][0].spec["data"][0]["dimensions"]][-2:] == ["loss", "speed"]


def test_a_hundred_parameters() -> None:
    search = make_search(
        space={f"p{n}": {"type": "real", "low": 0.0, "high": 1.0} for n in range(100)}, constraints=[], folds=1
    )
    drawn = all_of(FigureData(search, make_trials(search, 60)))
    assert_sound(drawn)
    assert len(drawn["parallel"][0].spec["data"][0]["dimensions"]) == 13
    assert "88 parameters not shown" in drawn["parallel"][0].note
    assert "shows 20 of 100 parameters" in drawn["importance"][0].note


def test_same_question() -> None:
    search = make_search()
    assert same_question(search, make_search(seed=8, search="other", folds=1))
    assert not same_question(search, make_search(constraints=[]))
    assert not same_question(search, make_search(objective={"goal": "maximize"}))


def test_every_mark_of_a_trial_names_its_trial() -> None:
    """A click on it opens the trial's page."""
    search = make_search(objective=TWO)
    trials = [trial for trial in on_nodes(make_trials(make_search(), 40)) if trial.point]
    values = {number: {0: [(1, 0.5), (2, 0.4)]} for number in range(1, 20)}
    single = all_of(FigureData(make_search(), trials, values))
    drawn = [figure for key, figures in single.items() if key not in ("importance", "parallel") for figure in figures]
    of_two = [replace(trial, values=(*trial.values, 1.0) if trial.values else ()) for trial in trials]
    drawn += build("front", FigureData(search, of_two))
    known = {trial.number for trial in trials}
    named = 0
    for figure in drawn:
        for trace in figure.spec["data"]:
            if "customdata" in trace:
                assert len(trace["customdata"]) == len(trace["x"]), (figure.key, trace["name"])
                assert set(trace["customdata"]) <= known | {None}, (figure.key, trace["name"])
                if "customdata" not in trace["hovertemplate"]:  # the text beside the pointer names the same trial
                    assert f"{trace['customdata'][0]}" in str((trace.get("text") or trace["x"])[0])
                named += 1
            elif trace.get("type") in ("scatter", "box") and "markers" in trace.get("mode", "markers"):
                assert trace["name"] == "share of failed trials", (figure.key, trace["name"])
    assert named > 15


def test_figures_of_merit_are_on_marked_axes_alone() -> None:
    """Pages offer a switch to a logarithmic scale for these."""
    search = make_search(folds=2)
    values = {number: {0: [(1, 0.5), (2, 0.4)]} for number in range(1, 20)}
    drawn = all_of(FigureData(search, on_nodes(make_trials(search, 40)), values))
    marked = {
        kind for kind, figures in drawn.items() for one in figures if "values" in one.spec["layout"].get("meta", {})
    }
    assert marked == {"convergence", "slices", "distribution", "timeline", "folds", "curves"}
    for kind in marked:
        for figure in drawn[kind]:
            for axis in figure.spec["layout"]["meta"]["values"]:
                assert figure.spec["layout"][axis]["title"]["text"] == "loss"
