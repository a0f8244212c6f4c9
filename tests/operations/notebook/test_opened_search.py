from __future__ import annotations

import io
from pathlib import Path

import plotly.graph_objects as go
import pytest

from hpo_pilot import open_search
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.notebook import ProgressDisplay, live_figure, peers_of, search_of, show_progress
from hpo_pilot.report.documents import ProgressDocument
from tests.rest_api import start_api, steered

PLOTS = ("convergence", "parallel", "importance", "correlations", "slices", "contours", "folds", "curves", "slots")
PLOTS += ("front", "failures", "ranks", "distribution", "timeline")


def drawn(found: object) -> list[go.Figure]:
    figures = found if isinstance(found, list) else [found]
    assert all(isinstance(figure, go.Figure) for figure in figures)
    return figures


def test_a_stored_search(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workdir.parent)
    with open_search("digits", workdir) as search:
        assert (search.name, search.state) == ("digits", "done")
        assert search.best is not None and search.best["number"] == 2
        assert search.best["point"] == {"x": 0.0002, "kind": "a"}
        assert len(search.trials) == 20
        assert search.trials["value"].idxmin() == 2
        assert len(search.folds) == 40
        assert search.front.index.tolist() == [2]
        assert len(search.intermediate) == 0
        assert search.definition.space.names == ("x", "kind")
        assert search.report().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("plot", PLOTS)
def test_every_figure(workdir: Path, plot: str) -> None:
    for name in ("digits", "fresh", "pareto"):
        with open_search(name, workdir) as search:
            figures = drawn(getattr(search, f"plot_{plot}")())
            if plot in ("slices", "contours", "failures", "ranks"):
                assert bool(figures) == (name == "digits")
                continue
            (figure,) = figures
            if name == "digits" and plot not in ("curves", "front"):
                assert len(figure.data) > 0
            else:
                assert figure.layout.annotations[0].text == "There is nothing to draw yet."


def test_a_slice_by_name(workdir: Path) -> None:
    with open_search("digits", workdir) as search:
        (figure,) = drawn(search.plot_slices("x"))
        assert figure.layout.title.text == "x"
        with pytest.raises(InputError, match="no parameter 'y'; there is x, kind"):
            search.plot_slices("y")


def test_importance_and_axes_by_name(workdir: Path) -> None:
    with open_search("digits", workdir) as search:
        titles = [search.plot_importance(method).layout.title.text for method in ("permutation", "ped-anova")]
        assert titles == ["Permutation importance", "PED-ANOVA importance"]
        assert search.plot_ranks("kind", "x")[0].layout.title.text == "kind and x"
        for wrong in (lambda: search.plot_importance("fanova"), lambda: search.plot_contours("x")):
            with pytest.raises(InputError, match=r"ped-anova|two different parameters of x, kind"):
                wrong()


def test_through_a_service_it_is_the_same(workdir: Path) -> None:
    with (
        start_api(workdir.parent) as api,
        open_search("digits", service=api.url, token_file=api.token_file("me")) as far,
        open_search("digits", workdir) as near,
    ):
        assert far.trials.equals(near.trials)
        assert far.folds.equals(near.folds)
        assert far.best == near.best
        assert drawn(far.plot_convergence())[0] == drawn(near.plot_convergence())[0]
        assert drawn(far.plot_slots())[0] == drawn(near.plot_slots())[0]


@pytest.mark.parametrize(("name", "peers"), [("fresh", ["digits"]), ("digits", []), ("pareto", [])])
def test_peers_are_searches_of_the_same_question_that_have_results(workdir: Path, name: str, peers: list[str]) -> None:
    with SearchClient.local(workdir) as client:
        status = client.status(name)
        assert [peer.name for peer in peers_of(client, status, search_of(status))] == peers


def test_what_is_wrong_is_said(workdir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing-here"):
        open_search("nothing-here", workdir)
    with pytest.raises(InputError, match="token_file is missing"):
        open_search("digits", service="https://127.0.0.1:1")
    with pytest.raises(InputError, match="give its URL as service"):
        open_search("digits", workdir, token_file=tmp_path / "token")
    with open_search("pareto", workdir) as search, pytest.raises(InputError, match=r"look at \.front"):
        assert search.best


def test_it_shows_itself(workdir: Path) -> None:
    with open_search("digits", workdir) as search:
        assert repr(search).startswith(
            "<search 'digits'; state: done; trials: 20 of 20 over, 1 failed; best loss: 2.50 ± 0.70"
        )
        page = search._repr_html_()
        assert page.startswith("<table>") and '<td style="text-align:left">0.0002</td>' in page
    with open_search("fresh", workdir) as search:
        assert "nothing steers it now" in repr(search)
        assert f"--workdir {workdir}`" in repr(search)
        with steered(workdir):
            assert ".watch() shows its progress" in repr(search)


def test_texts_of_others_stay_texts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = "<img src=x onerror=alert(1)>"
    with open_search("digits", workdir) as search:
        monkeypatch.setattr(search, "_facts", lambda: [(attack, attack)])
        assert "<img" not in search._repr_html_()


def test_watching_in_a_script_prints_lines(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_search("digits", workdir) as search:
        search.watch()
    failure, line = capsys.readouterr().out.splitlines()
    assert failure == "digits: trial 1 failed: fold 0: exit status 1"
    assert line == "digits: done, 20 of 20 trials, 1 failed, best loss 2.50 ± 0.70 (trial 2)"


def test_the_live_figure_is_drawn_for_new_results_and_never_in_the_way(workdir: Path) -> None:
    with open_search("digits", workdir) as search, pytest.raises(InputError, match="convergence, front, distribution"):
        search.watch("slots")
    drawn: list[int] = []

    def draw(now: ProgressDocument) -> str:
        drawn.append(now["over"])
        if len(drawn) == 2:
            raise TryAgainError("the store is away")
        return f"<svg>{len(drawn)}</svg>"

    display = ProgressDisplay(io.StringIO(), draw=draw)
    with SearchClient.local(workdir) as client:
        (done,) = client.watch("digits")
    assert live_figure(client)(done).count("<circle") == 19, "one trial failed"
    early, later = ({**done, "state": "running", "over": n} for n in (3, 4))
    assert [display._figure_at(now) for now in (early, early, {**later, "state": "done"}, done)] == [
        "<svg>1</svg>", "<svg>1</svg>", "<svg>1</svg>", "<svg>3</svg>"
    ]  # fmt: skip
    assert drawn == [3, 4, 20]


def test_an_interrupt_ends_the_watching(capsys: pytest.CaptureFixture[str]) -> None:
    def news():
        yield {"name": "s", "state": "running", "metric": "loss", "trials": {}, "over": 1, "total": 4, "best": None}
        raise KeyboardInterrupt

    show_progress(news())
    said = ["s: running, 1 of 4 trials, no result yet", "no longer watching; the search continues"]
    assert capsys.readouterr().out.splitlines() == said
