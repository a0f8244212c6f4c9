"""How well trainings used their ranks, in the page."""

from __future__ import annotations

from hpo_pilot.report.html import ReportFacts, render_report
from tests.report.figures.made_up import make_search, make_trial
from tests.report.figures.test_efficiency import measured
from tests.report.test_render import assert_sound


def test_the_page_shows_them():
    trials = [measured(1, {}), make_trial(2, 0.5)]
    page = assert_sound(render_report(make_search(), trials, [], ReportFacts()))
    text = page.by_id("ranks").text
    assert text == "Use of the ranks"
    (table,) = [element for element in page.all("table") if "load balance" in element.text]
    assert "75%" in table.text and "80%" in table.text and "60%" in table.text and "10%" in table.text
    assert "rank 0 on n1: 33% longer than the mean" in table.text


def test_a_page_without_measurements_has_no_such_section():
    document = render_report(make_search(), [make_trial(1, 0.5)], [], ReportFacts())
    assert "Use of the ranks" not in document
