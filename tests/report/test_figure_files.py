"""Figures as files: what is said where they cannot be drawn. Drawing itself: tests/real/test_figures.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report.figure import message_figure, plotly_spec
from hpo_pilot.report.figure_files import write_figures

FIGURE = message_figure("importance", "Importance <b>", "Needs 16 finished trials.")


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown figure format 'svg'; the formats are pdf and png"):
        write_figures([FIGURE], tmp_path / "none", "svg")
    assert not (tmp_path / "none").exists()


def test_without_a_browser_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kaleido")
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"apt install chromium.*BROWSER_PATH"):
        write_figures([FIGURE], tmp_path / "none", "pdf")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-such-program"))
    with pytest.raises(InputError, match=r"is .*no-such-program, which is not an executable"):
        write_figures([FIGURE], tmp_path / "none", "pdf")
    assert not (tmp_path / "none").exists()


def test_without_kaleido_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(InputError, match=r"pip install 'hpo-pilot\[figures\]'"):
        write_figures([FIGURE], tmp_path, "pdf")


def test_a_title_is_text_and_lines_break() -> None:
    assert plotly_spec(FIGURE, title=True)["layout"]["title"]["text"] == "Importance &lt;b&gt;"
    assert "title" not in plotly_spec(FIGURE)["layout"]
    figure = message_figure("k", "t", "x")
    figure.spec["data"].append({"type": "scatter", "text": ["a\nb", 3]})
    assert plotly_spec(figure)["data"][0]["text"] == ["a<br>b", "3"]
    assert figure.spec["data"][0]["text"] == ["a\nb", 3], "the specification itself stays"
