"""The monitor in a real browser, over a running search and over finished ones.

HPO_PILOT_PICTURES names a folder for screenshots; `make pictures` copies from there those that the manual shows.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.real.processes import running, until
from tests.report.figures.made_up import KEYS

with suppress(ImportError):  # `browser` says what is missing
    from PIL import Image
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
    from playwright.sync_api import Error as PlaywrightError

_HPO = str(Path(sys.executable).parent / "hpo-pilot")

_TRAINING = """
import json, os, sys, time
point = json.load(open("input.json"))
fold, rate = int(os.environ["HPO_PILOT_FOLD"]), point["rate"]
if rate > 0.3:
    print("step 1: loss is nan")
    sys.exit("the loss is no number any more: rate %g" % rate)
final = (abs(rate - 0.01) ** 0.5 + 0.05 * abs(point["layers"] - 2) + 0.02 * fold
         + (0.1 if point["kind"].startswith("<") else 0) + 0.1 * point.get("momentum", 0.5))
with open("progress.jsonl", "w") as progress:
    for step in range(1, 7):
        progress.write(json.dumps({"step": step, "loss": final + 1.0 / step}) + "\\n")
        progress.flush()
        time.sleep(float(os.environ.get("HPO_PILOT_NODES") and PACE))
open("roc.svg", "w").write(SVG)
open("report.html", "w").write(HTML)
json.dump({"status": 0, "loss": final, "message": ""}, open("output.json", "w"))
"""

#: A picture and a page that try to reach what they can; `said` has what the page found.
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="200" height="100" onload="fetch('/attack/svg')">
<script>fetch('/attack/script')</script><image href="http://127.0.0.1:9/attack"/><rect width="90" height="90"/></svg>"""
_HTML = """<!doctype html><p id="said">no script</p><img src="/attack/img"><link rel="stylesheet" href="/attack/css">
<iframe src="/attack/frame"></iframe><script src="/attack/js"></script>
<form method="post" action="/searches/calo-scan/stop"></form><script>
const said = {origin: origin};
for (const [name, look] of Object.entries({cookie: () => document.cookie, storage: () => localStorage.length,
  parent: () => parent.document.title, top: () => { top.location = "/attack/top"; },
  opened: () => open("/attack/open")})) {
  try { said[name] = String(look()); } catch (error) { said[name] = "refused"; }
}
document.forms[0].submit();
navigator.sendBeacon("/attack/beacon");
new Worker("/attack/worker");
</script><script>
fetch("/api/v1/searches").then(() => { said.fetch = "done"; }, () => { said.fetch = "refused"; })
  .then(() => { document.getElementById("said").textContent = JSON.stringify(said); });
</script><script>setTimeout(() => { location = "http://127.0.0.1:9/attack/away"; }, 1000);</script>"""

#: A choice that would be markup where it is not escaped.
_HOSTILE = "<img src=x onerror=alert(1)>"

_SPACE = {
    "rate": {"type": "real", "low": 1e-4, "high": 1.0, "scale": "log"},
    "layers": {"type": "integer", "low": 1, "high": 6},
    "kind": {"type": "categorical", "choices": ["sgd", "adam", _HOSTILE]},
    "momentum": {"type": "real", "low": 0.1, "high": 0.9, "when": {"kind": "sgd"}},
}


@dataclass
class Site:
    """A service with its pages: searches `calo-scan` and `calo-scan-2`, finished, and `live`, which runs on and on."""

    workdir: Path
    url: str
    environment: dict[str, str]

    def command(self, *words: str) -> str:
        done = subprocess.run(
            [_HPO, *words, "--workdir", str(self.workdir)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def status(self, search: str) -> dict[str, Any]:
        return json.loads(self.command("status", search, "--json"))

    def link(self) -> str:
        return self.command("monitor", "--link").strip()


def _write_search(folder: Path, name: str, pace: float, trials: int, seed: int, folds: int) -> Path:
    payload = folder / f"payload-{name}"
    payload.mkdir()
    (payload / "train.py").write_text(
        _TRAINING.replace("PACE", str(pace)).replace("SVG", repr(_SVG)).replace("HTML", repr(_HTML))
    )
    search = {
        "search": name,
        "space": _SPACE,
        "objective": {"metric": "loss", "goal": "minimize"},
        "budget": {"trials": trials, "parallel": 4, "failures": 1000},
        "folds": folds,
        "seed": seed,
        "payload": {
            "files": payload.name,
            "command": "python train.py --lr {rate}",
            "outputs": ["roc.svg", "report.html"],
        },
        "resources": {"cores": 1, "memory_mb": 200, "minutes": 5},
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(search))  # JSON is YAML
    return file


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("monitor")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HPO_PILOT_", "PANDA"))}
    workdir = folder / "work"
    for file in (
        _write_search(folder, "calo-scan", 0.0, 40, 1, 2),
        _write_search(folder, "calo-scan-2", 0.0, 12, 2, 1),
    ):
        command = [_HPO, "run", str(file), "--workdir", str(workdir), "--slots", "4"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    log = folder / "serve.log"
    with running([_HPO, "serve", "--workdir", str(workdir), "--slots", "4"], environment, log):
        until(lambda: "the monitor is at" in log.read_text(), log)
        found = re.search(r"the monitor is at (\S+)", log.read_text())
        assert found is not None
        here = Site(workdir, found[1].rstrip("/"), environment)
        here.command("submit", str(_write_search(folder, "live", 0.25, 5000, 3, 1)))
        yield here


@dataclass
class Watched:
    """A page and what it complained of."""

    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        best = self.site.status("calo-scan")["best"]["number"] if "/best" in path else ""
        self.page.goto(self.site.url + path.replace("/best", f"/{best}"))
        assert self.page.title().endswith("hpo-pilot")

    def drawn(self) -> None:
        """Waits for the figures, if there are some."""
        self.page.wait_for_load_state("domcontentloaded")  # a page that a click opens has its address before its text
        if self.page.locator("[data-kind]").count():
            for section in self.page.locator("[data-kind]").all():
                section.scroll_into_view_if_needed()
            self.page.wait_for_selector("html[data-drawn=true]", state="attached", timeout=600_000)
            self.page.evaluate("scrollTo(0, 0)")
            self.page.wait_for_timeout(300)

    def check(self) -> None:
        assert self.complaints == []
        assert self.outside == []


@pytest.fixture(scope="module")
def sign_in(site: Site, browser: Browser) -> Callable[..., Any]:
    """Opens a page as the service's user; several at once have sessions of their own."""

    @contextmanager
    def begin(
        width: int = 1280, *, scheme: str = "light", scripts: bool = True, bypass_csp: bool = False
    ) -> Iterator[Watched]:
        context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": 900 if width > 600 else 844},
            color_scheme=scheme,
            java_script_enabled=scripts,
            bypass_csp=bypass_csp,
            reduced_motion="reduce",
        )
        context.set_default_timeout(600_000)  # milliseconds; the pages are slow on a busy machine
        watched = Watched(context.new_page(), site)
        watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        watched.page.on(
            "console", lambda said: watched.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        watched.page.on(
            "request",
            lambda request: (
                None if request.url.startswith((site.url, "data:", "blob:")) else watched.outside.append(request.url)
            ),
        )
        watched.page.goto(site.link())
        expect(watched.page).to_have_url(site.url + "/")
        try:
            yield watched
        finally:
            context.close()

    return begin


def _keep(picture: bytes, name: str) -> None:
    """Keeps a screenshot where pictures are wanted."""
    if folder := os.environ.get("HPO_PILOT_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Image.open(io.BytesIO(picture)).quantize(128).save(Path(folder) / f"{name}.png", optimize=True)


def _colours(picture: bytes) -> int:
    """How many of a picture's pixels are not of its commonest colour."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    counts = sorted(count for count, _ in image.getcolors(image.width * image.height))
    return sum(counts[:-1])


_PAGES = {
    "searches": "/",
    "search": "/searches/calo-scan",
    "running": "/searches/live",
    "trials": "/searches/calo-scan/trials",
    "trial": "/searches/calo-scan/trials/3",
    "files": "/searches/calo-scan/trials/best/files",
    "chosen": "/searches/calo-scan/trials?where=loss+%3C+1&sort=value&col=value&col=p.rate&col=started",
    "new": "/new?like=calo-scan",
    "errors": "/searches/calo-scan/errors",
    "compare": "/compare?search=calo-scan&search=calo-scan-2",
    "jobs": "/jobs",
    "pilots": "/pilots",
    "extend": "/searches/live/extend",
    "add": "/searches/live/add",
    "help": "/help",
    "tutorial": "/help/tutorial",
}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_page_is_clean(sign_in, width, scheme):
    with sign_in(width, scheme=scheme) as watched:
        for name, path in _PAGES.items():
            watched.open(path)
            if name != "running":
                watched.drawn()
            shape = "phone" if width < 600 else "desktop"
            _keep(watched.page.screenshot(full_page=name == "search"), f"{name}-{shape}-{scheme}")
            wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{name} is {wide} pixels too wide"
        watched.check()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_no_page_has_a_barrier(sign_in, barriers, width, scheme):
    # axe is a script of its own: the pages' policy would not let it in.
    with sign_in(width, scheme=scheme, bypass_csp=True) as watched:
        for name, path in _PAGES.items():
            watched.open(path)
            if name == "search":
                watched.drawn()
            assert not barriers(watched.page), name


def test_a_long_name_stays_in_its_place(sign_in):
    with sign_in(390) as watched:
        watched.open("/searches/calo-scan")
        watched.drawn()
        for place in (".kind figcaption h4", "dl.point dt"):
            name = watched.page.locator(place).first
            name.evaluate("element => { element.textContent = 'name_'.repeat(20); }")
            assert name.evaluate("element => element.scrollWidth - element.clientWidth") <= 0, place
            assert watched.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place


def test_every_figure_is_drawn(sign_in):
    with sign_in() as watched:
        watched.open("/searches/calo-scan")
        watched.drawn()
        for key in KEYS:
            plots = watched.page.locator(f"#kind-{key} .plot")
            assert plots.count(), key
            plot = plots.first
            plot.scroll_into_view_if_needed()
            watched.page.wait_for_timeout(200)
            picture = plot.screenshot()
            _keep(picture, key)
            assert _colours(picture) > 1500, f"{key} is empty"
            assert len(plot.get_attribute("aria-label") or "") > 20, key
        # A choice of the search space that is markup stays a text, in figures too.
        assert watched.page.locator("img[src=x]").count() == 0
        watched.check()


def test_the_parameters_of_a_plane_are_chosen_and_in_the_address(sign_in):
    with sign_in() as watched:
        page = watched.page
        watched.open("/searches/calo-scan")
        watched.drawn()
        planes = page.locator("#kind-contours")
        assert planes.locator(".plot").count() == 3
        planes.get_by_label("horizontal").select_option("momentum")
        assert planes.locator(".plot").count() == 3, "one parameter is no plane"
        planes.get_by_label("vertical").select_option("rate")
        expect(planes.locator(".plot")).to_have_count(1)
        expect(page).to_have_url(re.compile(r"\?contours-x=momentum&contours-y=rate$"))
        assert page.locator("#kind-ranks .plot").count() == 3
        page.reload()
        watched.drawn()
        assert planes.get_by_label("vertical").input_value() == "rate"
        assert "momentum and rate" in planes.locator(".plot").get_attribute("aria-label")
        watched.open("/searches/calo-scan?ranks-x=nothing&ranks-y=rate")
        watched.drawn()
        assert page.locator("#kind-ranks .plot").count() == 3
        watched.check()


def test_printing_waits_for_every_figure(sign_in):
    with sign_in() as watched:
        page = watched.page
        page.add_init_script("print = () => { window.printed = document.querySelectorAll('.drawn').length }")
        watched.open("/searches/calo-scan")
        page.keyboard.press("Control+p")
        page.wait_for_function("() => window.printed", timeout=600_000)
        assert page.evaluate("document.documentElement.dataset.drawn") == "true"
        assert page.locator(".drawn:empty").count() == 0
        watched.check()


def test_the_files_of_a_trial_reach_nothing(sign_in, site):
    with sign_in() as watched:
        page, reached = watched.page, []
        page.context.on("requestfinished", lambda request: reached.append(request.url))
        page.context.on("page", lambda popup: reached.append(popup.url + "/attack"))
        watched.open("/searches/calo-scan/trials/best")
        picture = page.locator(".images img").first
        picture.scroll_into_view_if_needed()
        until(lambda: picture.evaluate("image => image.complete && image.naturalWidth"), "the picture is not shown")
        before, title = page.url, page.title()
        page.locator(".shown summary", has_text="report.html").first.click()
        said = json.loads(
            page.frame_locator("iframe").first.locator("#said", has_text="fetch").inner_text(timeout=600_000)
        )
        assert said == {
            "origin": "null",
            **dict.fromkeys(("cookie", "storage", "parent", "top", "fetch"), "refused"),
            "opened": "null",
        }
        page.wait_for_timeout(2000)  # it tries to leave
        assert (page.url, page.title()) == (before, title)
        assert [url for url in reached if "attack" in url] == []
        assert site.status("calo-scan")["state"] == "done"
        file = page.locator(".images img").first.get_attribute("src") or ""
        with page.expect_download() as loaded, suppress(PlaywrightError):
            page.goto(site.url + file)
        assert loaded.value.suggested_filename == "roc.svg"


def test_a_search_is_started_in_the_browser(sign_in, site, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "go.py").write_text("print('loss=0.5')\n")
    with tarfile.open(tmp_path / "mine.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "mine", "mine")
    search = """search: typed
space: {x: {type: reel, low: 0, high: 1}}
budget: {trials: 2, parallel: 2}
payload: {files: mine, command: "python go.py {x}", result: {stdout: 'loss=(.*)'}}
resources: {minutes: 5}
"""
    with sign_in() as watched:
        page = watched.page
        page.get_by_role("link", name="New search…").click()
        page.get_by_label("Search file").fill(search)
        page.get_by_role("button", name="Validate").click()
        expect(page.get_by_role("alert")).to_contain_text("line 2, column 19")
        page.get_by_label("Search file").fill(search.replace("reel", "real"))
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("alert")).to_contain_text("payload.files")
        page.get_by_label("Packed folder").set_input_files(tmp_path / "mine.tar.gz")
        page.get_by_role("button", name="Submit").click()
        expect(page).to_have_url(re.compile(r"/searches/typed\?done=submit$"))
        until(lambda: site.status("typed")["state"] == "done", "it does not run")
        assert site.status("typed")["best"]["value"] == 0.5


def click_mark(page: Page, plot: Locator, mark: Locator) -> str:
    """Clicks a mark of a plot when the plot shows what the pointer is on; returns that text."""
    plot.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    box = mark.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
    shown = plot.locator(".hoverlayer")
    until(shown.text_content, "the plot does not notice the pointer")
    said = shown.text_content() or ""
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    return said


def test_a_plotted_point_leads_to_its_trial(sign_in):
    with sign_in() as watched:
        watched.open("/searches/calo-scan")
        watched.drawn()
        page = watched.page
        plot = page.locator("#kind-convergence .plot")
        said = click_mark(page, plot, plot.locator(".points path").first)  # lines are not parted: trial 4, then 0.22
        expect(page).to_have_url(re.compile(r"/searches/calo-scan/trials/\d+$"))
        assert f"trial {page.url.rpartition('/')[2]}" in said
        watched.check()


def test_searches_are_compared(sign_in):
    with sign_in() as watched:
        page = watched.page
        for name in ("calo-scan", "calo-scan-2"):
            page.get_by_label(f"Compare {name}", exact=True).check()
        page.get_by_role("button", name="Compare").click()
        expect(page).to_have_url(re.compile(r"/compare\?search=calo-scan(-2)?&search=calo-scan(-2)?$"))
        watched.drawn()
        expect(page.locator("#kind-best .plot")).to_have_count(3)
        plot = page.locator("#kind-best .plot").nth(1)
        click_mark(page, plot, plot.locator(".points path").last)
        expect(page).to_have_url(re.compile(r"/searches/calo-scan(-2)?/trials/\d+$"))
        watched.check()


def test_a_running_search_changes_while_one_looks(sign_in):
    with sign_in() as watched:
        watched.open("/searches/live")
        page = watched.page
        before = page.locator("#f-progress").inner_text()
        until(lambda: page.locator("#f-progress").inner_text() != before, "the page stands still")
        # Values that trials report while they run come too, and no reload is needed for the figures.
        until(lambda: page.locator("#kind-convergence .plot").count() > 0, "no figure comes")
        assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
        until(lambda: page.evaluate("Number(document.documentElement.dataset.live)") > 5, "the news stop")
        _keep(page.screenshot(), "running")
        watched.check()


def test_selected_text_stays_until_it_is_selected_no_longer(sign_in):
    with sign_in() as watched:
        watched.open("/searches/live")
        page = watched.page
        page.evaluate("getSelection().selectAllChildren(document.getElementById('f-progress'))")
        is_late = "document.getElementById('f-progress').dataset.late !== undefined"
        until(lambda: page.evaluate(is_late), "the selected part changes")
        page.evaluate("getSelection().removeAllRanges()")  # moves no focus
        assert not page.evaluate(f"new Promise((next) => setTimeout(() => next({is_late}), 50))")


def test_actions(sign_in, site):
    with sign_in() as watched:
        page = watched.page
        watched.open("/searches/live")
        page.get_by_role("button", name="Pause").click()
        assert site.status("live")["state"] == "paused"
        page.get_by_role("button", name="Resume").click()
        assert site.status("live")["state"] == "running"

        budget = site.status("live")["budget"]
        page.get_by_role("link", name="Extend…").click()
        page.get_by_label("More trials").fill("many")
        page.get_by_role("button", name="Extend").click()
        expect(page.get_by_role("alert")).to_contain_text("many")
        expect(page.get_by_label("More trials")).to_have_value("many")  # nothing that was typed is lost
        page.get_by_label("More trials").fill("7")
        page.get_by_role("button", name="Extend").click()
        assert site.status("live")["budget"]["trials"] == budget["trials"] + 7

        page.get_by_role("link", name="Try a point…").click()
        page.get_by_label("rate").fill("0.0123")
        page.get_by_label("layers").fill("2")
        page.get_by_label("kind").select_option(label="adam")
        page.get_by_label("momentum").fill("")
        page.get_by_role("button", name="Try it").click()
        expect(page).to_have_url(re.compile(r"/searches/live\?done=add$"))
        wished = {"rate": 0.0123, "layers": 2, "kind": "adam"}
        until(
            lambda: any(trial["point"] == wished for trial in json.loads(site.command("trials", "live", "--json"))),
            "the point is not tried",
        )

        watched.open("/searches/live")
        page.get_by_role("link", name="Stop…").click()
        page.get_by_role("button", name="Stop it").click()
        until(lambda: site.status("live")["state"] == "stopped", "it does not stop")
        who = page.locator("#user").inner_text()
        expect(page.locator("#f-events")).to_contain_text(who)
        # A console error would be the browser's word on the form that was wrong: status 422.
        assert [one for one in watched.complaints if "422" not in one] == []
        # The next tests want it running.
        watched.open("/searches/live")
        page.get_by_role("button", name="Resume").click()


def test_without_scripts_all_but_figures_is_there(sign_in, site):
    with sign_in(scripts=False) as watched:
        watched.open("/searches/calo-scan")
        assert (
            "Done" in watched.page.locator("#f-verdict").inner_text()
            or watched.page.locator("#f-progress").inner_text()
        )
        expect(watched.page.get_by_role("link", name="table of trials")).to_be_visible()
        watched.open("/searches/calo-scan/trials")
        assert watched.page.locator("table tbody tr").count() >= 20
        watched.open("/searches/live")
        watched.page.get_by_role("button", name="Pause").click()
        assert site.status("live")["state"] == "paused"
        watched.page.get_by_role("button", name="Resume").click()
        assert site.status("live")["state"] == "running"


def test_the_keyboard_reaches_everything(sign_in):
    with sign_in() as watched:
        watched.open("/searches/calo-scan")
        page = watched.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        seen = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.textContent.trim()"))
        assert {"Extend…", "CSV", "Retry failed…"} <= seen
