from __future__ import annotations

import random

import pytest

from hpo_pilot.search import Search, Trial
from tests.report.figures.made_up import draw, make_search, make_trial, make_trials

UNIT = {"type": "real", "low": 0.0, "high": 1.0}


def bowl(count: int = 300, goal: str = "minimize") -> tuple[Search, list[Trial]]:
    """Trials over three parameters; the third does nothing."""
    search = make_search(space={"x": UNIT, "y": UNIT, "idle": UNIT}, constraints=[], objective={"goal": goal})
    rng = random.Random(3)
    trials = []
    for number in range(1, count + 1):
        x, y = rng.random(), rng.random()
        figure = search.objective.sign * (1 + (x - 0.25) ** 2 + (y - 0.75) ** 2)
        trials.append(make_trial(number, figure, point={"x": x, "y": y, "idle": rng.random()}))
    return search, trials


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_the_surface_is_the_local_mean_and_dark_is_better(goal: str) -> None:
    search, trials = bowl(goal=goal)
    figure = draw("contours", search, trials)[0]
    surface, dots, star = figure.spec["data"]
    assert {"x", "y"} == set(figure.title.split(" and "))
    assert surface["type"] == "contour"
    x, y = (surface["x"], surface["y"]) if figure.title == "x and y" else (surface["y"], surface["x"])
    known = [
        (value * search.objective.sign, i, j)
        for j, row in enumerate(surface["z"])
        for i, value in enumerate(row)
        if value is not None
    ]
    _, i, j = min(known)
    if figure.title != "x and y":
        i, j = j, i
    assert x[i] == pytest.approx(0.25, abs=0.15) and y[j] == pytest.approx(0.75, abs=0.15)
    colours = [colour for _, colour in surface["colorscale"]]
    assert colours[0 if goal == "minimize" else -1] == "#08306b"
    assert [at for at, _ in surface["colorscale"]] == sorted(at for at, _ in surface["colorscale"])
    assert len(dots["x"]) == 300
    assert len(star["x"]) == 1


def test_where_no_trial_is_there_is_no_surface() -> None:
    search, trials = bowl()
    corner = [t for t in trials if t.point["x"] < 0.4 or t.point["y"] < 0.4]
    figure = next(f for f in draw("contours", search, corner) if "idle" not in f.title)
    surface = figure.spec["data"][0]["z"]
    assert surface[-1][-1] is None
    assert surface[0][0] is not None
    assert "it has holes where no trial is near" in figure.note


def test_choices_and_few_integers_are_not_mixed(search: Search) -> None:
    small = make_search(
        space={"n": {"type": "integer", "low": 1, "high": 3}, "kind": {"type": "categorical", "choices": ["a", "b"]}},
        constraints=[],
    )
    trials = [
        make_trial(i, {"a": 1.0, "b": 2.0}[kind] + n, point={"n": n, "kind": kind})
        for i, (n, kind) in enumerate([(n, k) for n in (1, 2, 3) for k in "ab"] * 4, 1)
    ]
    (figure,) = draw("contours", small, trials)
    surface = figure.spec["data"][0]
    assert surface["type"] == "heatmap"
    values = {
        (x, y): z
        for y, row in zip(surface["y"], surface["z"], strict=True)
        for x, z in zip(surface["x"], row, strict=True)
    }
    place = (lambda n, k: (n, k)) if figure.title == "n and kind" else (lambda n, k: (k, n))
    assert values[place(1, 0)] == pytest.approx(2.0) and values[place(2, 1)] == pytest.approx(4.0)


def test_decades_are_averaged_as_powers(search: Search) -> None:
    figure = draw("contours", search, make_trials(search, 300))[0]
    assert "geometric mean" in figure.note
    bar = figure.spec["data"][0]["colorbar"]
    assert len(bar["tickvals"]) == len(bar["ticktext"]) == 5
    assert bar["tickvals"][0] < 0 < float(bar["ticktext"][0])


def test_ranks_are_the_trials_in_colours_and_axes_are_those_that_were_chosen() -> None:
    search, trials = bowl(goal="maximize")
    (figure,) = draw("ranks", search, trials, axes=("idle", "y"))
    dots, star = figure.spec["data"]
    assert figure.title == "idle and y"
    assert dots["marker"]["color"][-1] == 0 and dots["marker"]["color"][0] == 1, "the best is on top"
    best = max(trials, key=lambda trial: trial.value or 0)
    assert dots["customdata"][-1] == star["customdata"][0] == best.number
    assert (star["x"], star["y"]) == ([pytest.approx(best.point["idle"])], [pytest.approx(best.point["y"])])
    assert [one.title for one in draw("contours", search, trials, axes=("y", "idle"))] == ["y and idle"]


def test_three_pairs_at_most_and_few_trials_say_why(search: Search) -> None:
    figures = draw("contours", search, make_trials(search, 200))
    assert [figure.key for figure in figures] == ["contours-0", "contours-1", "contours-2"]
    (few,) = draw("contours", search, make_trials(search, 9))
    assert few.description.startswith("Needs 16 finished trials")
