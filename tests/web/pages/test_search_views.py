"""The searches as the pages see them, always as the store has them; figures are made once."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
import time
from datetime import UTC, datetime

import httpx
import pytest
from anyio import to_thread

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report.figure import FigureData
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering.results import render_search_report
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState
from hpo_pilot.store.progress import progress_of
from hpo_pilot.web import search_views
from hpo_pilot.web.figure_worker import FigureWorker
from hpo_pilot.web.search_views import FigureCache, Headline, SearchCache, SearchView
from tests.made import made_end
from tests.rest_api import add_trials
from tests.web.pages.conftest import BASE


def generation(store, name: str, numbers: list[int], generation: int) -> None:
    trials = [Trial(n, 1, {"x": n / 1000, "kind": "a"}, seed=n) for n in numbers]
    add_trials(store, name, trials, generation=generation)


def test_a_view_changes_with_each_change_of_its_search(pages):
    name, store = pages.submit("steps"), pages.store
    library = SearchCache(store)
    number, tags = store.search(name).id, set()

    def view() -> SearchView:
        found = library.view(name)
        assert found.record == store.search(name)
        assert found.progress == progress_of(store.engine, number)
        assert found.tag not in tags
        tags.add(found.tag)
        return found

    assert library.best(view()) == []
    generation(store, name, [1, 2], 1)
    assert view().best_text == ""
    now = time.time()
    store.record(number, [], [made_end(2, TrialState.FINISHED, 0.5, told=1, ended=now)])
    view()
    generation(store, name, [3, 4], 2)
    view()
    ends = [made_end(1, TrialState.FAILED, error="broke", told=2, ended=now)]
    ends += [made_end(3, TrialState.FINISHED, 0.25, stds=(0.1,), told=3, ended=now)]
    store.record(number, [], ends)
    (best,) = library.best(view())
    assert (best.trial.number, best.value, best.confirmed) == (3, 0.25, False)
    store.set_state(number, SearchState.PAUSED, "alice")
    assert view().record.state is SearchState.PAUSED
    assert library.view(str(number)).record.name == name


def test_a_confirmed_best_trial_has_the_mean_of_its_runs(pages):
    name, store = pages.submit("confirmed", confirm={"top": 1, "repeats": 2}, folds=1), pages.store
    point = {"x": 0.5, "kind": "a"}
    trials = [Trial(n, 1, point, seed=n, confirms=2 if n > 2 else None) for n in (1, 2, 3, 4)]
    add_trials(store, name, trials)
    values = {1: 0.1, 2: 0.2, 3: 0.25, 4: 0.35}
    ends = [
        made_end(n, TrialState.FINISHED, value, told=3 - n if n < 3 else None, ended=time.time())
        for n, value in values.items()
    ]
    store.record(store.search(name).id, [], ends)
    library = SearchCache(store)
    view = library.view(name)
    (best,) = library.best(view)
    assert (best.trial.number, best.value, best.runs, view.best_text) == (2, pytest.approx(0.3), 2, "0.3")
    pages.state(name, SearchState.DONE)
    browser = pages.browser("alice")
    assert "0.2 to 0.1; confirmed, it is 0.3." in browser.get(f"/searches/{name}").text
    assert "with 0.3 as the mean of 2 confirmation runs" in browser.get(f"/searches/{name}/trials/2").text


def test_a_front_is_shown_with_the_means_of_confirmation_runs(pages):
    objectives = [{"metric": "loss"}, {"metric": "seconds"}]
    name, store = pages.submit("front", objective=objectives, folds=1), pages.store
    point = {"x": 0.5, "kind": "a"}
    trials = [Trial(n, 1, point, seed=n, confirms=1 if n == 4 else None) for n in (1, 2, 3, 4)]
    add_trials(store, name, trials)
    values = {1: (1.0, 3.0), 2: (2.0, 2.0), 3: (3.0, 3.0), 4: (1.5, 2.5)}
    ends = [
        made_end(n, TrialState.FINISHED, values=pair, told=n if n < 4 else None, ended=time.time())
        for n, pair in values.items()
    ]
    store.record(store.search(name).id, [], ends)
    library = SearchCache(store)
    view = library.view(name)
    assert [(one.trial.number, one.figures) for one in library.best(view)] == [(1, (1.5, 2.5)), (2, (2.0, 2.0))]
    assert view.best_text.startswith("2 trials on the front, hypervolume ")


def test_pages_read_no_more_trials_than_they_show(pages, monkeypatch):
    name = pages.submit("large", budget={"trials": 300, "parallel": 2})
    pages.results(name, count=230)
    browser, read = pages.browser("alice"), []
    assert browser.get(f"/searches/{name}").status_code == 200  # makes the row of progress
    made = Trial.__init__
    monkeypatch.setattr(Trial, "__init__", lambda trial, *a, **k: (read.append(trial), made(trial, *a, **k))[1])
    for path, most in {"/": 0, f"/searches/{name}": 1, f"/searches/{name}/trials?sort=value&page=2": 100}.items():
        read.clear()
        assert browser.get(path).status_code == 200
        assert len(read) <= most, path
    read.clear()
    assert browser.get(f"/searches/{name}/trials/7").status_code == 200
    assert [trial.number for trial in read] == [7]


@pytest.mark.parametrize("state", [SearchState.SUBMITTED, SearchState.PAUSED, SearchState.STOPPING])
def test_nothing_is_said_not_to_run_while_a_trial_runs(pages, state):
    name = pages.submit(f"runs-while-{state.value}")
    generation(pages.store, name, [1], 1)
    number = pages.store.search(name).id
    pages.store.set_state(number, state, "alice")
    view = SearchCache(pages.store).view(name)
    end = Headline(pages.store, view, datetime.now(UTC)).end
    assert "not running" not in end
    assert end in ("not started yet", "paused", "being stopped")


# --- figures ---


@pytest.fixture
def library(pages) -> SearchCache:
    return SearchCache(pages.store)


@pytest.fixture
def made(monkeypatch) -> list[str]:
    built: list[str] = []
    real = search_views.build

    def build(key, subject):
        built.append(key)
        return real(key, subject)

    monkeypatch.setattr(search_views, "build", build)
    monkeypatch.setattr(FigureWorker, "build", lambda _, key, subject: build(key, subject))
    monkeypatch.setattr(search_views, "_AGE", 0.0)
    monkeypatch.setattr(search_views, "_REST", 0.0)
    return built


def test_nothing_else_waits_for_slow_figures_and_reports(pages, made, monkeypatch):
    """They waited in the few threads of all pages and calls; quick figures are answered meanwhile."""
    name, alice = pages.submit("slowly"), pages.browser("alice")
    pages.results(name)
    importance, report = f"/searches/{name}/figures/importance", f"/searches/{name}/download/report"
    assert alice.get(importance).status_code == 200
    add_trials(pages.store, name, [Trial(4, 1, {"x": 0.5, "kind": "a"}, seed=1)], generation=4)
    number = pages.store.search(name).id
    pages.store.record(number, [], [made_end(4, TrialState.FINISHED, 0.1, told=4, ended=time.time())])
    begun, go_on = threading.Event(), threading.Event()

    def slow_report(*_: object) -> str:
        begun.set()
        assert go_on.wait(600)
        return "a report"

    monkeypatch.setattr(FigureWorker, "report", slow_report)

    async def scene() -> list[int]:
        to_thread.current_default_thread_limiter().total_tokens = 4
        transport, cookies = httpx.ASGITransport(app=pages.app), dict(alice.cookies)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, cookies=cookies) as browser:
            slow = [report] * 6 + [f"/searches/{name}/figures/correlations"] * 6
            sent = [asyncio.create_task(browser.get(path)) for path in slow]
            async with asyncio.timeout(600):
                await asyncio.to_thread(begun.wait, 60)
                quick = ("/help", f"/searches/{name}/figures/convergence")
                answers = [await browser.get(path) for path in quick]
                assert made == ["importance", "convergence"]
                go_on.set()
                return [answer.status_code for answer in [*answers, *await asyncio.gather(*sent)]]

    try:
        assert set(asyncio.run(scene())) == {200}
    finally:
        go_on.set()
    assert made == ["importance", "convergence", "correlations"]
    assert alice.get(importance).status_code == 200
    assert made[-1] == "importance"


def test_the_slow_one_is_made_again_for_new_results_alone(pages, library, made):
    name = pages.submit("anew")
    pages.results(name, count=3)
    desk = FigureCache(library, FigureWorker())
    for key in ("importance", "convergence"):
        desk.drawn(library.view(name), key)
        desk.drawn(library.view(name), key)
    assert made == ["importance", "convergence"]
    pages.state(name, SearchState.PAUSED)
    for key in ("importance", "convergence"):
        desk.drawn(library.view(name), key)
    assert made == ["importance", "convergence", "convergence"]
    number = library.view(name).record.id
    add_trials(pages.store, name, [Trial(4, 1, {"x": 0.5, "kind": "a"}, seed=1)], generation=4)  # it has no result yet
    desk.drawn(library.view(name), "importance")
    assert made.count("importance") == 1
    pages.store.record(number, [], [made_end(4, TrialState.FINISHED, 0.1, told=4, ended=time.time())])
    desk.drawn(library.view(name), "importance")
    assert made.count("importance") == 2


def test_chosen_axes_are_drawn_beside_the_important_ones(pages, library, made):
    name = pages.submit("chosen")
    pages.results(name, count=30)
    desk, view = FigureCache(library, FigureWorker()), library.view(name)
    for axes, title in (((), " and "), (("kind", "x"), "kind and x"), (("x", "kind"), "x and kind"), ((), " and ")):
        (figure,) = json.loads(gzip.decompress(desk.drawn(view, "ranks", axes).packed))["figures"]
        assert title in figure["title"]
    assert made == ["ranks"] * 3
    for wrong in (("x",), ("x", "x"), ("x", "nothing")):
        with pytest.raises(InputError, match="two different parameters of x, kind"):
            desk.drawn(view, "ranks", wrong)


def test_a_worker_draws_again_after_it_was_killed(pages, library):
    name = pages.submit("worker")
    pages.results(name)
    record = pages.store.find_search(name)
    data, worker = FigureData(record.search, pages.store.trials(record.id)), FigureWorker()
    for end in ("idle", "killed", "ended meanwhile", "wrong"):
        assert [figure.title for figure in worker.build("convergence", data)] == ["Convergence"], end
        assert worker._process.poll() is None
        if end == "killed":
            worker._process.kill()
            worker._process.wait()
        if end == "ended meanwhile":
            with pytest.raises(TryAgainError, match="the figure could not be drawn"):
                worker._call("the figure", os._exit, 1)
    with pytest.raises(InputError, match="no such figure"):
        worker.build("no such figure", data)
    with pytest.raises(RuntimeError, match="ValueError"):
        worker._call("the figure", int, "a defect")
    assert worker._process.poll() is None


def test_reports_are_drawn_by_the_worker(pages, monkeypatch):
    name = pages.submit("reported")
    pages.results(name)
    worker, place = FigureWorker(), WorkDir.at(pages.workdir).place()
    made = worker.report(pages.store, pages.store.find_search(name).id, place)
    assert made == render_search_report(pages.store, pages.store.find_search(name), place)
    monkeypatch.setattr(FigureWorker, "report", lambda *_: "drawn elsewhere")
    browser = pages.browser()
    assert browser.get(f"/searches/{name}/download/report").text == "drawn elsewhere"
