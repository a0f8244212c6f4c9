from __future__ import annotations

import math
from typing import Any

from hpo_pilot.report.figure import FAILURE_LIMIT
from hpo_pilot.report.parameter_figures import CELL_LIMIT
from hpo_pilot.search import Search, Trial, TrialState
from tests.report.figures.made_up import draw, make_search, make_trial, make_trials


def axes(search: Search, trials: list[Trial], **options: Any) -> dict[str, dict[str, Any]]:
    figure = draw("parallel", search, trials)[0]
    scales = figure.spec["layout"]["meta"]["scales"]
    dimensions = figure.spec["data"][0]["dimensions"]
    return {d["label"]: {**d, "scale": scale} for d, scale in zip(dimensions, scales, strict=True)}


def test_each_kind_of_axis(search: Search, trials: list[Trial]) -> None:
    found = axes(search, trials)
    assert list(found) == [*search.space.names, "loss"]
    assert {name: axis["scale"] for name, axis in found.items()} == {
        "learning_rate": "log", "layers": "linear", "width": "log", "alpha": "log",
        "solver": "choice", "batch": "choice", "momentum": "linear", "loss": "log",
    }  # fmt: skip
    assert found["learning_rate"]["range"] == [-4, -1]
    assert found["learning_rate"]["ticktext"][0] == "1e-4"
    assert found["layers"]["ticktext"] == ["1", "2", "3", "4"]
    assert found["batch"]["range"] == [-0.25, 3.25]
    assert found["batch"]["ticktext"] == ["32", "64", "128", "256"]
    for axis in found.values():
        low, high = axis["range"]
        assert all(low <= value <= high for value in axis["values"])


def test_what_is_not_active_has_a_place_of_its_own(search: Search, trials: list[Trial]) -> None:
    axis = axes(search, trials)["momentum"]
    assert axis["ticktext"][0] == "–"
    assert axis["tickvals"][0] == axis["range"][0] < 0.5
    inactive = sum("momentum" not in trial.point for trial in trials)
    assert axis["values"].count(axis["range"][0]) == inactive > 0
    assert "the parameter is not active" in draw("parallel", search, trials)[0].note


def test_failed_trials_stand_beyond_the_worse_end_or_are_left_out(search: Search, trials: list[Trial]) -> None:
    for goal, end in (("minimize", -1), ("maximize", 0)):
        axis = axes(make_search(objective={"goal": goal}), trials)["loss"]
        assert axis["ticktext"][end] == "failed"
        assert axis["values"].count(axis["range"][end]) == 4
    figure = draw("parallel", search, [t for t in trials if t.value is not None])[0]
    assert len(figure.spec["data"][0]["customdata"]) == 44
    assert "failed" not in figure.spec["data"][0]["dimensions"][-1]["ticktext"]
    assert "failed" not in figure.note


def test_the_best_is_drawn_last_in_the_first_colour(search: Search, trials: list[Trial]) -> None:
    trace = draw("parallel", search, trials)[0].spec["data"][0]
    best = min((t for t in trials if t.value is not None), key=lambda t: t.value or 9)
    assert trace["customdata"][-1][0] == best.number
    assert trace["line"]["color"][-1] == 0
    assert trace["line"]["color"][:4] == [1.1] * 4
    assert trace["customdata"][0][1] == "trial 11 failed"


def test_many_are_thinned(search: Search) -> None:
    trials = make_trials(search, 5000)
    figure = draw("parallel", search, trials)[0]
    dimensions = figure.spec["data"][0]["dimensions"]
    assert sum(len(axis["values"]) for axis in dimensions) <= CELL_LIMIT + FAILURE_LIMIT * len(dimensions)
    assert f"shows {FAILURE_LIMIT} of 454 failed trials" in figure.note


def test_a_far_value_stands_at_the_end(search: Search) -> None:
    values = [*(0.1 * n - 1 for n in range(1, 20)), 1e30]
    trials = [make_trial(n, value) for n, value in enumerate(values, 1)]
    axis = axes(search, trials)["loss"]
    assert axis["range"][1] < 5
    assert max(axis["values"]) <= axis["range"][1]
    assert "1 far worse trial drawn at the end of the axis" in draw("parallel", search, trials)[0].note
    assert all(math.isfinite(value) for value in axis["values"])


def test_stopped_and_running_trials_are_no_lines(search: Search) -> None:
    trials = [
        make_trial(1, 0.5),
        make_trial(2, 0.1, state=TrialState.STOPPED),
        make_trial(3, 0.2, state=TrialState.RUNNING),
    ]
    assert [number for number, _ in draw("parallel", search, trials)[0].spec["data"][0]["customdata"]] == [1]


def test_a_narrow_axis_far_from_zero_keeps_its_differences() -> None:
    search = make_search(space={"seed": {"type": "integer", "low": 10**6, "high": 10**6 + 3}}, constraints=[])
    values = [-1234567.1 - n / 10 for n in range(4)]
    found = axes(search, [make_trial(n + 1, value, point={"seed": 10**6 + n}) for n, value in enumerate(values)])
    assert (found["seed"]["range"], found["seed"]["ticktext"][-1]) == ([10**6, 10**6 + 3], "1000003")
    for axis in found.values():
        assert len(set(axis["values"])) == 4
        assert len(set(axis["tickvals"])) == len(set(axis["ticktext"])) == len(axis["tickvals"]) > 1
