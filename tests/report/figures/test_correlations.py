from __future__ import annotations

import random
from dataclasses import replace

import pytest
from scipy.stats import spearmanr

from hpo_pilot.report.correlations import parameter_columns
from tests.report.figures.made_up import TWO, draw, make_search, make_trials


def test_correlations_are_spearmans_among_the_trials_that_have_both() -> None:
    search = make_search(objective=TWO)
    rng = random.Random(1)
    trials = [
        replace(t, values=(t.value, t.point["alpha"] * (0.5 + rng.random())), stds=(0.1, 0.2))
        for t in make_trials(make_search(), 90)
        if t.value is not None
    ]
    (figure,) = draw("correlations", search, trials)
    cells, names = figure.spec["data"][0]["z"], figure.spec["layout"]["xaxis"]["ticktext"]
    assert names[:2] == ["loss", "speed"] and set(names[2:]) == {*search.space.names, "solver: sgd"} - {"solver"}
    at = {(one, other): cells[i][j] for i, one in enumerate(names) for j, other in enumerate(names)}
    assert all(at[one, other] == at[other, one] for one in names for other in names)
    assert at["speed", "alpha"] > 0.9 and at["loss", "loss"] is None
    having = [t for t in trials if "momentum" in t.point]
    expected = spearmanr([t.value for t in having], [t.point["momentum"] for t in having]).statistic
    assert at["loss", "momentum"] == pytest.approx(expected)
    assert at["solver: sgd", "momentum"] is None, "momentum is active for one solver alone"
    assert "negative correlation means that larger values are better" in figure.note
    strengths = [abs(at["loss", name] or 0) for name in names[2:]]
    assert strengths == sorted(strengths, reverse=True)


def test_choices_without_an_order_are_apart_and_many_are_left_out() -> None:
    space = {
        "few": {"type": "categorical", "choices": ["a", "b", "c"]},
        "many": {"type": "categorical", "choices": list(range(20))},
        "order": {"type": "ordinal", "choices": [1, 2, 4]},
    }
    search = make_search(space=space, constraints=[])
    trials = make_trials(search, 40)
    assert [name for name, _ in parameter_columns(search, trials)] == ["few: a", "few: b", "few: c", "order"]
    (few,) = draw("correlations", search, trials[:5])
    assert few.description.startswith("Needs 16 finished trials")
