from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from hpo_pilot.report.importance import separations
from hpo_pilot.search import Search, Trial, TrialState
from tests.report.figures.made_up import draw, make_search, make_trial

SPACE: dict[str, Any] = {
    "rate": {"type": "real", "low": 1e-5, "high": 1.0, "scale": "log"},
    "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
    "depth": {"type": "integer", "low": 1, "high": 5},
    "idle": {"type": "real", "low": 0.0, "high": 1.0},
}


def scanned(fails: Callable[[dict[str, Any]], bool], count: int = 200) -> tuple[Search, list[Trial]]:
    search = make_search(space=SPACE, constraints=[])
    rng = random.Random(9)
    points = [search.space.decode([rng.random() for _ in SPACE]) for _ in range(count)]
    return search, [make_trial(n, None if fails(point) else 0.5, point=point) for n, point in enumerate(points, 1)]


@pytest.mark.parametrize(
    ("fails", "name"),
    [
        (lambda point: point["rate"] > 0.05, "rate"),
        (lambda point: point["kind"] == "b", "kind"),
        (lambda point: point["depth"] >= 4, "depth"),
    ],
)
def test_the_parameter_that_decides_comes_first(fails: Callable[[dict[str, Any]], bool], name: str) -> None:
    search, trials = scanned(fails)
    good = [t for t in trials if t.state is TrialState.FINISHED]
    lost = [t for t in trials if t.state is TrialState.FAILED]
    found = separations(search, good, lost)
    assert found[0].name == name
    assert found[0].strength == pytest.approx(1.0)
    assert [one.name for one in found if one.beyond_chance] == [name]
    assert found == separations(search, good, lost)
    plane, first, *_ = draw("failures", search, trials)
    assert name in plane.title
    assert first.title == f"Failures over {name}"
    assert max(first.spec["data"][0]["y"]) == 100
    assert f"More than chance would separate: {name}" in plane.note


def test_chance_separates_nothing() -> None:
    rng = random.Random(1)
    search, trials = scanned(lambda _: rng.random() < 0.2)
    plane, first, *_ = draw("failures", search, trials)
    assert "no parameter separates failed from finished trials better than chance would" in plane.note.lower()
    assert "which may be chance" in first.note


def test_shares_and_their_whiskers_by_hand() -> None:
    search, trials = scanned(lambda point: point["kind"] == "b", 90)
    share = next(figure for figure in draw("failures", search, trials) if figure.title == "Failures over kind")
    (dots,) = share.spec["data"]
    assert dots["x"] == [0, 1, 2]
    assert dots["y"] == [0, 100, 0]
    lost = sum(trial.state is TrialState.FAILED for trial in trials)
    # Wilson's lower end for n of n is n / (n + z²).
    assert dots["error_y"]["arrayminus"][1] == pytest.approx(100 - 100 * lost / (lost + 1.959964**2), abs=0.01)
    assert dots["error_y"]["array"][1] == 0
    assert f"{lost} of {lost} failed\nkind b" in dots["text"]


@pytest.mark.parametrize(
    "space", [{"type": "integer", "low": -10, "high": -1}, {"type": "real", "low": -2, "high": -1}]
)
def test_the_largest_value_counts_also_below_zero(space: dict[str, Any]) -> None:
    search = make_search(space={"offset": space}, constraints=[])
    points = [{"offset": -(1 + n % 10 * (1 if space["type"] == "integer" else 0.1))} for n in range(100)]
    trials = [make_trial(n, None if n % 3 else 0.5, point=point) for n, point in enumerate(points, 1)]
    (share,) = draw("failures", search, trials)
    texts = share.spec["data"][0]["text"]
    assert sum(int(text.split(" of ")[1].split()[0]) for text in texts) == 100


def test_where_a_parameter_is_not_active_it_counts_for_nothing(search: Search, trials: list[Trial]) -> None:
    """Momentum is active for one of the two solvers, whose trials are all on one side here."""
    kept, lost = ([trial for trial in trials if trial.point["solver"] == solver] for solver in ("adam", "sgd"))
    strengths = {one.name: one.strength for one in separations(search, kept, lost)}
    assert (strengths["solver"], strengths["momentum"]) == (1, pytest.approx(0))


def test_stopped_early_is_no_failure_and_no_failures_no_figure(search: Search) -> None:
    trials = [make_trial(1, 0.5), make_trial(2, None, state=TrialState.STOPPED, error="stopped early")]
    assert draw("failures", search, trials) == []
    figures = draw("failures", search, [*trials, make_trial(3, None)])
    assert "1 failed trial among 3 trials" in figures[0].description
