"""Figures as people see them: drawn by a real browser from the report, brushed by keyboard, written as PDF and PNG."""

from __future__ import annotations

import importlib.util
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_pilot.errors import GiveUpError, InputError
from hpo_pilot.report.catalogue import build, kinds
from hpo_pilot.report.figure_files import write_figures
from hpo_pilot.report.html import ReportFacts
from hpo_pilot.report.result_figures import FigureData
from hpo_pilot.search import EarlyStop, Trial, TrialState
from tests.real.processes import missing
from tests.report.figures.made_up import make_search, make_trial, make_trials, on_nodes, rendered


def subject(count: int = 60) -> FigureData:
    search = make_search()
    trials: list[Trial] = on_nodes(make_trials(search, count))
    stop = EarlyStop(1, "worse than the median", 9, 0.9, (0.8,))
    trials.append(make_trial(count + 1, None, state=TrialState.STOPPED, stop=stop))
    reports = {trial.number: {0: [(step, 2.0 / step) for step in range(1, 20)]} for trial in trials}
    return FigureData(search, trials, reports)


def needs_kaleido() -> None:
    if importlib.util.find_spec("kaleido") is None:
        missing("kaleido (tests/real/requirements.txt)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    drawn = subject()
    path.write_text(rendered(drawn.search, drawn.trials, [], ReportFacts(state="done"), drawn.reports))
    return path.as_uri()


def opened(browser: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """A page that has drawn all its figures, and what its console and its network said."""
    page = browser.new_context(**options).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(url)
    page.wait_for_selector("html[data-drawn]", timeout=600_000)
    page.wait_for_timeout(300)
    return page, said


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_figure_is_drawn(browser: Any, report: str, scheme: str, width: int) -> None:
    page, said = opened(browser, report, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out"
    places = page.query_selector_all(".plot")
    assert len(places) > 15
    for place in places:
        place.scroll_into_view_if_needed()
        assert len(colours(place.screenshot())) > 20, f"{place.get_attribute('id')} is empty"
    orange = colours(page.query_selector("#figure-convergence").screenshot()).get((224, 129, 11), 0)
    assert orange > 100, "the line of the best so far"
    page.context.close()


def test_parallel_coordinates_are_brushed_by_keyboard_and_pointer(browser: Any, report: str) -> None:
    page, said = opened(browser, report, viewport={"width": 1280, "height": 900})
    page.evaluate("addEventListener('hpo:brush', (event) => { window.brushed = event.detail.trials; })")
    place = page.query_selector("#figure-parallel")
    place.scroll_into_view_if_needed()
    before = colours(place.query_selector("canvas").screenshot())
    upper = page.get_by_role("slider", name="learning_rate, upper end of the brush")
    upper.focus()
    for _ in range(2):
        upper.press("PageDown")
    wanted = [t.number for t in subject().trials if t.point["learning_rate"] <= 10 ** (-1 - 3 * 10 / 40)]
    wanted = [number for number in wanted if number <= 60]
    assert sorted(page.evaluate("window.brushed")) == wanted
    assert f"{len(wanted)} of 60 trials within the brushes; the best of them: trial" in place.inner_text()
    assert float(upper.get_attribute("aria-valuetext")) == pytest.approx(10 ** (-1 - 3 * 10 / 40), rel=1e-3)
    page.wait_for_timeout(100)
    assert colours(place.query_selector("canvas").screenshot()) != before
    upper.press("Escape")
    assert page.evaluate("window.brushed") is None
    box = page.get_by_role("group", name="layers", exact=True).locator(".parallel-line").bounding_box()
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 0.55 * box["height"])
    page.mouse.down()
    page.mouse.move(x, box["y"] + 0.9 * box["height"], steps=4)
    page.mouse.up()
    twos = [t.number for t in subject().trials[:60] if t.point["layers"] == 2]
    assert sorted(page.evaluate("window.brushed")) == twos
    page.get_by_role("button", name="Clear brushes").click()
    assert page.evaluate("window.brushed") is None
    page.get_by_role("checkbox", name="failed trials").click()
    assert said == []
    page.context.close()


def test_parallel_coordinates_fit_screen_and_paper(browser: Any, tmp_path: Path) -> None:
    space = {f"a_parameter_of_a_long_name_{n}": {"type": "real", "low": 0, "high": 1} for n in (1, 2)}
    search = make_search(space=space, constraints=[])
    trials = [make_trial(n, 1.0 / n, point=dict.fromkeys(space, 1 / n)) for n in range(1, 9)]
    path = tmp_path / "report.html"
    path.write_text(rendered(search, trials, [], ReportFacts(state="done")))
    page, _ = opened(browser, path.as_uri(), viewport={"width": 1280, "height": 800})
    assert page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.parallel-scroll'))")
    # What a browser puts on paper is what is there when the event's listeners have ended.
    printed = page.evaluate("""() => {
      dispatchEvent(new Event("beforeprint"));
      const canvas = document.querySelector(".parallel canvas");
      const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return [canvas.style.width, data.some((channel) => channel > 0)];
    }""")
    assert printed == ["660px", True]
    page.context.close()


def test_where_there_is_nothing_to_draw_yet_a_small_box_says_why(browser: Any, tmp_path: Path) -> None:
    few = subject(5)
    path = tmp_path / "few.html"
    path.write_text(rendered(few.search, few.trials, [], ReportFacts(state="running"), few.reports))
    page, said = opened(browser, path.as_uri(), viewport={"width": 1280, "height": 900})
    place = page.query_selector("#figure-importance")
    says = "Needs 16 trials with different results; so far 5 finished and 1 stopped early with a projected value."
    assert place.inner_text() == says
    assert place.bounding_box()["height"] < 100
    enough = build("importance", subject())[0]
    change = "([place, spec]) => hpoFigures.update(place, spec)"
    words = page.evaluate("JSON.parse(document.getElementById('figures').textContent)['figure-importance']")
    page.evaluate(change, [place, enough.spec])
    assert place.bounding_box()["height"] > 200
    assert page.query_selector("#figure-importance .bars")
    page.evaluate(change, [place, words])
    assert place.inner_text().startswith("Needs 16")
    assert place.bounding_box()["height"] < 100
    assert said == []
    page.context.close()


def test_an_update_keeps_zoom_and_brushes(browser: Any, report: str) -> None:
    page, said = opened(browser, report, viewport={"width": 1280, "height": 900})
    upper = page.get_by_role("slider", name="alpha, upper end of the brush")
    upper.focus()
    upper.press("PageDown")
    kept = upper.get_attribute("aria-valuenow")
    page.evaluate("""async () => {
      const specs = JSON.parse(document.getElementById("figures").textContent);
      const convergence = document.getElementById("figure-convergence");
      await Plotly.relayout(convergence, {"xaxis.range": [5, 9]});
      for (const id of ["figure-convergence", "figure-parallel"])
        await hpoFigures.update(document.getElementById(id), specs[id]);
    }""")
    assert page.evaluate("document.getElementById('figure-convergence').layout.xaxis.range") == [5, 9]
    upper = page.get_by_role("slider", name="alpha, upper end of the brush")
    assert upper.get_attribute("aria-valuenow") == kept
    assert "within the brushes" in page.query_selector("#figure-parallel").inner_text()
    assert said == []
    page.context.close()


def test_value_axes_are_logarithmic_on_request(browser: Any, report: str) -> None:
    page, said = opened(browser, report, viewport={"width": 1280, "height": 900})
    switches = page.get_by_label("logarithmic value axis")
    assert switches.count() >= 2, "convergence and slices"
    axis = "document.getElementById('figure-convergence')._fullLayout.yaxis.type"
    section = page.locator("section", has=page.locator("#figure-convergence"))
    switch = section.get_by_label("logarithmic value axis")
    for checked in (not switch.is_checked(), switch.is_checked()):
        switch.set_checked(checked)
        page.wait_for_function(f"{axis} === '{'log' if checked else 'linear'}'")
    assert page.locator("section", has=page.locator("#figure-importance")).get_by_label("logarithmic").count() == 0
    assert said == []
    page.context.close()


def test_a_figure_is_saved_as_png_for_paper(browser: Any, report: str, tmp_path: Path) -> None:
    page, said = opened(browser, report, color_scheme="dark", viewport={"width": 1280, "height": 900})
    for key in ("convergence", "parallel", "correlations"):
        with page.expect_download() as saving:
            page.get_by_role("button", name=f"PNG of figure {key}").click()
        assert saving.value.suggested_filename == f"digits-mlp-{key}.png"
        saving.value.save_as(tmp_path / f"{key}.png")
        found = colours((tmp_path / f"{key}.png").read_bytes())
        assert max(found, key=found.__getitem__) == (255, 255, 255), "paper is white"
        assert len(found) > 50 and min(map(sum, found)) < 150, "with its lines, and dark texts"
    assert page.get_by_role("button", name="PNG of figure").count() == page.locator(".plot:not(.nothing)").count()
    assert said == []
    page.context.close()


def test_the_report_has_no_serious_accessibility_finding(browser: Any, report: str, barriers: Any) -> None:
    # The page's own policy keeps the checker's script out: it comes in before the policy counts.
    page, _ = opened(browser, report, bypass_csp=True, viewport={"width": 1280, "height": 900})
    assert barriers(page) == []
    page.context.close()


def test_figures_as_files(tmp_path: Path) -> None:
    needs_kaleido()
    drawn = subject()
    figures = [figure for kind in kinds(drawn.search) for figure in build(kind.key, drawn)]
    paths = write_figures(figures[:4], tmp_path / "pdf", "pdf")
    assert [path.name for path in paths[:3]] == ["convergence.pdf", "parallel.pdf", "importance.pdf"]
    for path in paths[:-1]:
        assert path.read_bytes().startswith(b"%PDF-")
    assert f"convergence.pdf: Convergence\n{figures[0].description}" in paths[-1].read_text()
    first, parallel, *_ = write_figures(figures[:2], tmp_path / "png", "png")
    for path in (first, parallel):
        assert len(colours(path.read_bytes())) > 50, "drawn, not empty"


def test_a_browser_that_does_not_draw_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_kaleido()
    false = shutil.which("false")
    assert false
    monkeypatch.setenv("BROWSER_PATH", false)
    with pytest.raises(GiveUpError, match="try another Chrome or Chromium in BROWSER_PATH"):
        write_figures(build("convergence", subject()), tmp_path, "png")


@pytest.mark.usefixtures("browser")
def test_the_command(tmp_path: Path) -> None:
    needs_kaleido()
    from hpo_pilot.cli.main import app
    from hpo_pilot.operations.client import SearchClient
    from tests.rest_api import add_results, write_search

    with SearchClient.local(tmp_path / "work") as client:
        client.submit(write_search(tmp_path, "digits"))
    command = ["report", "digits", "--figures", "png", "--workdir", str(tmp_path / "work")]
    nothing = CliRunner().invoke(app, command)
    assert nothing.exit_code == 1 and "nothing to draw yet" in nothing.output
    add_results(tmp_path / "work", "digits", 4)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    written = [Path(line) for line in done.stdout.splitlines()]
    assert written[0] == tmp_path / "work" / "reports" / "digits-figures" / "convergence.png"
    assert all(path.stat().st_size > 100 for path in written)
    with pytest.raises(InputError, match="the formats are pdf and png"):
        CliRunner().invoke(app, [*command[:3], "svg", *command[4:]], catch_exceptions=False)


def colours(png: bytes) -> dict[tuple[int, int, int], int]:
    """The number of pixels of each colour of a picture."""
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(png)).convert("RGB")
    return {colour: count for count, colour in image.getcolors(image.width * image.height)}
