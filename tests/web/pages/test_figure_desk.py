"""Figures are made once, and a slow one keeps no other waiting."""

from __future__ import annotations

import threading
import time

import pytest

from hpo_pilot.jobs import Member
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.store import NewTask, SearchState
from hpo_pilot.web import search_views as desk_module
from hpo_pilot.web.search_views import FigureCache, SearchCache
from tests.made import made_end


@pytest.fixture
def library(pages) -> SearchCache:
    return SearchCache(pages.store)


@pytest.fixture
def made(monkeypatch) -> list[str]:
    built: list[str] = []
    real = desk_module.build

    def build(key, subject):
        built.append(key)
        return real(key, subject)

    monkeypatch.setattr(desk_module, "build", build)
    monkeypatch.setattr(desk_module, "_AGE", 0.0)
    monkeypatch.setattr(desk_module, "_REST", 0.0)
    return built


def test_no_figure_waits_for_the_slow_one(pages, library, monkeypatch):
    name = pages.submit("slowly")
    pages.results(name)
    begun, go_on = threading.Event(), threading.Event()
    real = desk_module.build

    def build(key, subject):
        if key == "importance":
            begun.set()
            assert go_on.wait(20)
        return real(key, subject)

    monkeypatch.setattr(desk_module, "build", build)
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
    out = Trial(4, 1, {"x": 0.5, "kind": "a"}, seed=1)
    task = NewTask("anew4", 4, 0, ((Member(4, 0, 1),),))
    pages.store.add_generation(number, history=3, pending=[], trials=[out], task=task)  # it has no result yet
    desk.drawn(library.view(name), "importance")
    assert made.count("importance") == 1
    pages.store.record(number, [], [made_end(4, TrialState.FINISHED, 0.1, told=4, ended=time.time())])
    desk.drawn(library.view(name), "importance")
    assert made.count("importance") == 2
