"""The report of a search with several objectives."""

from __future__ import annotations

import re

from hpo_pilot.report.html import ReportFacts, render_report
from tests.report.figures.made_up import draw
from tests.report.figures.test_several_objectives import ROWS, TWO, search_of, trials_of


def test_a_reference_that_no_trial_reaches_is_said():
    trials = trials_of(*ROWS)
    text = render_report(search_of([{**TWO[0], "reference": -100.0}, TWO[1]]), trials, [], ReportFacts(state="done"))
    assert "no trial is better than the reference point in every objective" in text
    assert "no trial is better" not in render_report(search_of(), trials, [], ReportFacts(state="done"))


def test_a_report_of_three_objectives():
    search = search_of([*TWO, {"metric": "memory"}])
    trials = trials_of(*[None if row is None else (*row, row[0] * row[1]) for row in ROWS])
    text = render_report(search, trials, [], ReportFacts(state="done"))
    assert "on the Pareto front: the lowest loss is 1 (trial 2), the highest speed is 9 (trial 1)" in text
    assert "minimize loss, maximize speed, minimize memory" in text
    for heading in ("Pareto front", "Hypervolume", "loss against each parameter", "memory against each parameter"):
        assert heading in text
    assert [figure.key for figure in draw("front", search, trials)] == ["front-0-1", "front-0-2", "front-1-2"]
    assert "reference point loss" in draw("convergence", search, trials)[0].note
    keys = re.findall(r'id="([\w-]+)" role="img"', text)
    assert len(keys) == len(set(keys))
    assert render_report(search, [], [], ReportFacts(state="running"))
    assert render_report(search, trials_of(None), [], ReportFacts(state="failed"))


def test_figures_near_the_largest_float_have_a_page():
    trials = trials_of(*[(n / 9, (-1e308, 1e308)[n % 2]) for n in range(9)])
    assert "hypervolume</dt><dd>" in render_report(search_of(), trials, [], ReportFacts(state="done"))
