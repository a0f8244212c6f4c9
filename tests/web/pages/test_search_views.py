"""The searches as the pages see them, always as the store has them and read once; figures are made once."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime

import pytest
from sqlalchemy import event

from hpo_pilot.search import Trial, TrialState
from hpo_pilot.store import SearchState
from hpo_pilot.web import search_views
from hpo_pilot.web.search_views import FigureCache, SearchCache, headline
from tests.made import made_end
from tests.rest_api import add_trials
from tests.web.pages.conftest import made_pages


def generation(store, name: str, numbers: list[int], generation: int) -> None:
    trials = [Trial(n, 1, {"x": n / 1000, "kind": "a"}, seed=n) for n in numbers]
    add_trials(store, name, trials, generation=generation)


def test_a_view_is_what_the_store_has_after_every_step(pages):
    name, store = pages.submit("steps"), pages.store
    library = SearchCache(store)

    def same() -> None:
        view = library.view(name)
        assert list(view.trials) == store.trials(view.record.id, folds=False)
        assert view.record == store.search(name)
        assert library.with_folds(view) == store.trials(view.record.id)
        assert {state: n for state, n in view.counts.items() if n} == store.counts(view.record.id)

    same()
    number = store.search(name).id
    generation(store, name, [1, 2], 1)
    same()
    now = time.time()
    store.record(number, [], [made_end(2, TrialState.FINISHED, 0.5, told=1, ended=now)])
    same()
    generation(store, name, [3], 2)
    same()
    ends = [made_end(1, TrialState.FAILED, error="broke", told=2, ended=now)]
    ends += [made_end(3, TrialState.FINISHED, 0.25, stds=(0.1,), told=3, ended=now)]
    store.record(number, [], ends)
    same()
    assert library.view(name).best.trial.number == 3
    store.set_state(number, SearchState.PAUSED, "alice")
    same()
    assert library.view(str(number)).record.name == name


def test_what_is_over_is_not_read_again(pages):
    name, store = pages.submit("quiet"), pages.store
    number = store.search(name).id
    generation(store, name, list(range(1, 51)), 1)
    ends = [made_end(n, TrialState.FINISHED, float(n), told=n, ended=time.time()) for n in range(1, 50)]
    store.record(number, [], ends)
    library = SearchCache(store)
    library.view(name)
    rows = []

    @event.listens_for(store.engine, "after_cursor_execute")
    def count(_connection, _cursor, statement, *_rest) -> None:
        if "FROM trials" in statement:
            rows.append(statement)

    try:
        library.view(name)
        assert len(rows) == 1  # the pulse
        store.record(number, [], [made_end(50, TrialState.FAILED, error="x", told=50, ended=time.time())])
        rows.clear()
        assert library.view(name).counts[TrialState.FAILED] == 1
        assert all("count(" in statement or "number" in statement for statement in rows)
    finally:
        event.remove(store.engine, "after_cursor_execute", count)


def test_a_page_of_the_list_reads_the_trials_of_its_rows_alone(tmp_path):
    with made_pages(tmp_path) as pages:
        for number in range(1, 61):
            pages.submit(f"many-{number}", owner="bob" if number % 2 else "alice")
        read: list[str] = []

        @event.listens_for(pages.store.engine, "after_cursor_execute")
        def count(_connection, _cursor, statement, parameters, *_rest) -> None:
            if "FROM trials" in statement:
                read.append(str(parameters))

        alice = pages.browser("alice")
        shown = alice.get("/?owner=bob&q=many-5").text
        assert sorted(re.findall(r'href="/searches/(many-\d+)"', shown)) == sorted(
            f"many-{n}" for n in (5, 51, 53, 55, 57, 59)
        )
        assert "60 searches: " in shown
        assert len(read) == 1  # the pulses
        assert read[0].count(",") < 20
        assert alice.get("/").text.count('<tr id="search-') == 50


@pytest.mark.parametrize("state", [SearchState.SUBMITTED, SearchState.PAUSED, SearchState.STOPPING])
def test_nothing_is_said_not_to_run_while_a_trial_runs(pages, state):
    name = pages.submit(f"runs-while-{state.value}")
    generation(pages.store, name, [1], 1)
    number = pages.store.search(name).id
    pages.store.set_state(number, state, "alice")
    view = SearchCache(pages.store).view(name)
    end = headline(view, datetime.now(UTC)).end
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
    monkeypatch.setattr(search_views, "_AGE", 0.0)
    monkeypatch.setattr(search_views, "_REST", 0.0)
    return built


def test_no_figure_waits_for_the_slow_one(pages, library, monkeypatch):
    name = pages.submit("slowly")
    pages.results(name)
    begun, go_on = threading.Event(), threading.Event()
    real = search_views.build

    def build(key, subject):
        if key == "importance":
            begun.set()
            assert go_on.wait(20)
        return real(key, subject)

    monkeypatch.setattr(search_views, "build", build)
    desk, view = FigureCache(library), library.view(name)
    slow = threading.Thread(target=desk.drawn, args=(view, "importance"))
    slow.start()
    assert begun.wait(20)
    answers: list[bytes] = []
    others = threading.Thread(target=lambda: answers.append(desk.drawn(view, "convergence").packed), daemon=True)
    others.start()
    others.join(20)
    assert answers
    assert slow.is_alive()
    go_on.set()
    slow.join(20)
    assert not slow.is_alive()


def test_the_slow_one_is_made_again_for_new_results_alone(pages, library, made):
    name = pages.submit("anew")
    pages.results(name, count=3)
    desk = FigureCache(library)
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
