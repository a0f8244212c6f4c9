"""Reports that cannot be made or written: the search is as it was, somebody is told, and nothing else ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering import results as result_module
from hpo_pilot.steering.results import ReportFailedError, ReportWriter, result_of
from hpo_pilot.steering.service import run
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState, SteeringStore
from tests.made import made_end
from tests.rest_api import add_results, add_trials, write_search


@pytest.fixture
def workdir(tmp_path) -> WorkDir:
    return WorkDir.make(tmp_path / "work")


@pytest.fixture
def store(workdir):
    opened = SteeringStore.open(workdir.store_url())
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path, store, workdir):
    from hpo_pilot.operations.client import SearchClient

    path = write_search(tmp_path, "demo")
    with SearchClient.local(workdir.root) as client:
        client.submit(path)
    return path


@pytest.fixture
def broken(monkeypatch):
    def render(*_given):
        raise KeyError("a column\nthat is not there")

    monkeypatch.setattr(result_module, "render_report", render)


def test_a_result_prints_as_one_line(file, store, workdir):
    result = result_of(store, workdir, store.search(1))
    report = workdir.report("demo")
    assert repr(result) == f"<search 'demo'; submitted; 0 trials; no result; report: {report}>"
    add_results(workdir.root, "demo")
    result = result_of(store, workdir, store.search(1))
    assert repr(result) == f"<search 'demo'; running; 3 trials; best loss: 2.5 (trial 2); report: {report}>"
    assert repr(result.trials) == "<3 trials: 2 finished, 1 failed; .dataframe() has a row for each>"
    assert list(result.trials.dataframe().index) == [trial.number for trial in result.trials]
    several = replace(result, best=None, front=result.trials[1:])
    assert "; 2 trials on the front of loss; " in repr(several)


def test_folds_that_all_gave_the_same_value_are_noted(file, store, workdir):
    """The training ignores HPO_PILOT_FOLD, and "± 0" would look like certainty."""
    add_trials(store, "demo", [Trial(n, 1, {"x": n / 10, "kind": "a"}, seed=n) for n in range(1, 6)], folds=2)

    def noted(number, std):
        store.record(1, [], [made_end(number, TrialState.FINISHED, 0.5, number, stds=(std,))])
        result = result_of(store, workdir, store.search(1))
        assert ("HPO_PILOT_FOLD" in result.report.read_text()) == bool(result.remarks)
        return result.remarks

    assert noted(1, 0.0) == noted(2, 0.0) == []
    assert ["in each of 3 finished trials all folds gave exactly" in note for note in noted(3, 0.0)] == [True]
    assert noted(4, 0.25) == []


def test_a_report_that_cannot_be_made_ends_neither_the_search_nor_the_service(file, store, workdir, broken, caplog):
    writer = ReportWriter(store, workdir)
    assert writer.write_new() is False
    store.set_state(1, SearchState.DONE, "service")
    assert writer.write_new() is False
    assert store.search(1).state is SearchState.DONE
    assert store.search(1).message in (None, "")
    event = store.events(1)[-1]
    assert "the search is done, but its report could not be made: internal error: KeyError: " in event.what
    assert "\n" not in event.what
    assert any(record.exc_info for record in caplog.records), "the traceback is in the log"
    assert writer.write_new() is False
    assert store.events(1)[-1] == event, "once"


def test_a_report_that_cannot_be_written_is_an_event_too(file, store, workdir):
    writer = ReportWriter(store, workdir)
    path = workdir.report("demo")
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(parents=True)  # a folder is in its place
    store.set_state(1, SearchState.DONE, "service")
    writer.write_new()
    assert "its report cannot be written to" in store.events(1)[-1].what
    with pytest.raises(TryAgainError, match="cannot be written"):
        result_of(store, workdir, store.search(1))


def test_a_search_that_cannot_be_read_ends_nothing(file, store, workdir, monkeypatch, caplog):
    writer = ReportWriter(store, workdir)
    store.set_state(1, SearchState.DONE, "service")

    def unreadable(_number):
        raise ValueError("of another version")

    monkeypatch.setattr(store, "search", unreadable)
    monkeypatch.setattr(store, "record", unreadable)
    assert writer.write_new() is False
    assert "an event could not be noted" in caplog.text


def test_a_run_says_it_and_leaves_the_search_done(file, store, workdir, broken):
    store.set_state(1, SearchState.DONE, "service")
    with pytest.raises(ReportFailedError, match="the search is done, but its report could not be made") as caught:
        run(file, workdir.root)
    assert "hpo-pilot best demo" in str(caught.value)
    assert store.search(1).state is SearchState.DONE
