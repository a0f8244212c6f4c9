"""Data of figures from a store: samples of a large search, folds where a figure needs them, other searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpo_pilot.advice import Place
from hpo_pilot.report import figure_data
from hpo_pilot.report.catalogue import build
from hpo_pilot.report.figure_data import FigureReader
from hpo_pilot.search.ranking import convergence, ranked_by_folds
from hpo_pilot.steering import results
from hpo_pilot.steering.results import render_search_report
from hpo_pilot.store import SteeringStore
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.trial_queries import repeated_attempts
from tests.performance.many_trials import make
from tests.rest_api import store_of

_TRIALS, _SAMPLE, _LAST = 200, 50, 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("searches")
    make(root, 256, 4, share=_TRIALS / 256)
    return root


@pytest.fixture
def store(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SteeringStore]:
    monkeypatch.setattr(figure_data, "SAMPLE", _SAMPLE)
    monkeypatch.setattr(figure_data, "_BEST", 5)
    monkeypatch.setattr(results, "SAMPLE", _SAMPLE)
    monkeypatch.setattr(results, "_SLOT_TRIALS", _LAST)
    with closing(store_of(root / "work")) as store:
        yield store


def reader(store: SteeringStore, name: str) -> FigureReader:
    record = store.search(name)
    progress = progress_of(store.engine, record.id)
    return FigureReader(store, record, progress, lambda: store.searches()[::-1], _LAST, None)


def test_a_large_search_is_drawn_from_a_sample_with_its_best_trials(store: SteeringStore) -> None:
    data = reader(store, "scan").data("slices")
    best = ranked_by_folds(data.search, store.trials(1))[:5]
    numbers = {trial.number for trial in data.trials}
    assert {trial.number for trial in best} <= numbers
    assert _SAMPLE <= len(numbers) < _TRIALS
    assert all(f"{len(numbers)} of {_TRIALS} trials" in figure.note for figure in build("slices", data))
    even = reader(store, "scan").data("importance")
    assert [trial.number for trial in even.trials] == list(range(4, _TRIALS + 1, 4)), "the best ones would bias it"
    assert "an even sample: 50 of 200 trials" in even.note
    whole = reader(store, "scan2").data("slices")
    assert not whole.note
    assert len(whole.trials) == progress_of(store.engine, 3).trials


def test_slots_and_folds_have_folds(store: SteeringStore) -> None:
    data = reader(store, "scan").data("slots")
    assert [trial.number for trial in data.trials] == list(range(_TRIALS - _LAST + 1, _TRIALS + 1))
    assert f"the last {_LAST} of {_TRIALS} trials" in build("slots", data)[0].note
    of_best = reader(store, "scan").data("folds").trials
    assert of_best
    assert all(trial.folds for trial in of_best if trial.state.is_over)


def test_curves_are_of_the_trials_that_are_drawn(store: SteeringStore) -> None:
    data = reader(store, "scan").data("curves")
    assert set(data.reports) <= {trial.number for trial in data.trials}
    assert reader(store, "scan").data("slices").reports == {}


def test_peers_have_the_same_space_and_objectives_and_their_best_values(store: SteeringStore) -> None:
    peers = reader(store, "scan").data("convergence").peers
    assert [peer.name for peer in peers] == ["scan2", "scan3"]
    for peer in peers:
        whole = convergence(peer.search, store.trials(store.search(peer.name).id))
        assert set(convergence(peer.search, peer.trials)) <= set(whole)
        assert convergence(peer.search, peer.trials)[-1] == whole[-1]
    assert reader(store, "scan1").data("convergence").peers == []


def test_the_report_of_a_large_search_counts_all_its_trials(store: SteeringStore) -> None:
    record, progress = store.search("scan"), progress_of(store.engine, 1)
    document = render_search_report(store, record, Place())
    assert f"{progress.good} of {progress.counted} trials finished" in document
    assert f"found by trial {progress.best_for_people}" in document
    assert f"the last {_LAST} of {_TRIALS} trials" in document
    again = sum(fold.attempt - 1 for trial in store.trials(1) for fold in trial.folds)
    assert repeated_attempts(store.engine, 1) == again > 0
