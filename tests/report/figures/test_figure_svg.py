from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from hpo_pilot.report.figure import Figure
from hpo_pilot.report.figure_svg import SVG_KINDS, figure_svg
from tests.report.figures.made_up import ROWS, TWO, draw, make_search, make_trial, make_trials, several_trials

HOSTILE = "</text><script>&\"'"


def parsed(figure: Figure) -> ET.Element:
    return ET.fromstring(str(figure_svg(figure)))  # noqa: S314 - our own


@pytest.mark.parametrize("kind", SVG_KINDS)
@pytest.mark.parametrize("count", [1, 3, 120])
def test_every_kind_is_sound_and_inside_its_frame(kind: str, count: int) -> None:
    search = make_search(objective=[{"metric": HOSTILE}, TWO[1]] if kind == "front" else {"metric": HOSTILE})
    trials = several_trials(*(ROWS[0], *ROWS[1:count])) if kind == "front" else make_trials(search, count)
    reports = {n: {0: [(1, 2.0), (2, float("inf")), (300, 1e-3)]} for n in range(1, count + 1)}
    for figure in draw(kind, search, trials, reports=reports):
        picture = parsed(figure)
        assert HOSTILE in "".join(picture.itertext()) and figure.description == picture.get("aria-label")
        for path in picture.iter("path"):
            numbers = [float(text) for text in re.findall(r"\d+\.?\d*", path.get("d", ""))]
            assert all(0 <= number <= 640 for number in numbers)


def test_points_are_where_their_values_are() -> None:
    search = make_search()
    figure = draw("convergence", search, [make_trial(n, value) for n, value in enumerate((4.0, 3.0, 2.0), start=1)])[0]
    picture = parsed(figure)
    places = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in picture.iter("circle")]
    assert [x for x, _ in places] == [70, 350, 630]
    heights = [y for _, y in places]
    assert heights == sorted(heights) and heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)
