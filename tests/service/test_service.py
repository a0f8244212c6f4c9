"""The service's loop: a search that a defect meets harms no other, and is not tried all the time."""

from __future__ import annotations

import threading
import time

import pytest

from hpo_pilot.panda.workflow_manager import EAGER
from hpo_pilot.search import Search
from hpo_pilot.service import service as service_module
from hpo_pilot.service.service import Service
from hpo_pilot.service.steering import SearchSteering
from hpo_pilot.store import SearchState, SteeringStore
from hpo_pilot.store.lease import held
from tests.service.memory_panda import Panda


class Defect:
    """A manager in which everything is wrong."""

    owner = "me"
    manners = EAGER

    def __init__(self):
        self.tried = 0

    def submit(self, _task, *, maybe_submitted=False):
        self.tried += 1
        raise RuntimeError("no such luck")

    def find(self, _name):
        return None

    def wait(self, seconds):
        time.sleep(min(seconds, 0.01))
        return {1}

    def interrupt(self):
        """Nothing waits."""


class Waiting(Panda):
    """A server at which nothing ever changes."""

    def wait(self, seconds):
        time.sleep(min(seconds, 0.01))
        return set()

    def interrupt(self):
        """Nothing waits for long."""


@pytest.fixture
def store(tmp_path):
    opened = SteeringStore.open(f"sqlite:///{tmp_path / 'hpo-pilot.db'}")
    yield opened
    opened.close()


def test_a_search_that_cannot_even_be_ended_is_left_alone_for_a_while(store, monkeypatch):
    document = {
        "search": "demo",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "optimizer": "random",
        "payload": {"command": "true"},
    }
    store.create_search(Search.model_validate(document), source="s", sandbox="/s", owner="me")
    broken = []

    def kill_all(_self):
        broken.append(True)
        raise RuntimeError("not that either")

    monkeypatch.setattr("hpo_pilot.service.submissions.Submissions.kill_all", kill_all)
    monkeypatch.setattr(service_module, "_ERROR_PAUSE", 0.8)
    manager = Defect()
    with held(store.engine, "serve") as lease:
        service = Service(store, manager, lease)
        threading.Timer(1.3, service.stop).start()
        service.run()
    assert (manager.tried, len(broken)) == (1, 1)
    monkeypatch.undo()
    with held(store.engine, "serve") as lease:
        service = Service(store, manager, lease)
        service.run(lambda: store.search(1).state is SearchState.FAILED or manager.tried > 2)
    assert "no such luck" in store.search(1).message


def test_a_defect_of_one_search_fails_it_and_the_others_go_on(store, monkeypatch, caplog):
    for name in ("broken", "sound"):
        document = {
            "search": name,
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "optimizer": "random",
            "payload": {"command": "true"},
        }
        store.create_search(Search.model_validate(document), source="s", sandbox="/s", owner="me")
    advance = SearchSteering.advance

    def defective(self, changed, state):
        if self.record.name == "broken" and not self._ending:
            raise AttributeError("no such attribute")
        return advance(self, changed, state)

    monkeypatch.setattr(SearchSteering, "advance", defective)
    monkeypatch.setattr(service_module, "_ERROR_PAUSE", 0.01)
    panda = Waiting()
    with held(store.engine, "serve") as lease:
        service = Service(store, panda, lease)
        give_up = threading.Timer(20, service.stop)
        give_up.start()
        service.run(lambda: store.search("broken").state.is_over and bool(panda.tasks))
        give_up.cancel()
    failed, sound = store.search("broken"), store.search("sound")
    assert failed.state is SearchState.FAILED
    assert "internal error: AttributeError: no such attribute: this is a bug of hpo-pilot" in failed.message
    assert "hpo-pilot resume" in failed.message
    assert failed.message in store.events(failed.id)[-1].what
    assert "Traceback" in caplog.text
    assert sound.state is SearchState.RUNNING
    # Mended, it goes on where it was.
    monkeypatch.undo()
    store.reopen(failed.id, "me", "resumed", only_from=(SearchState.FAILED,))
    with held(store.engine, "serve") as lease:
        service = Service(store, panda, lease)
        give_up = threading.Timer(20, service.stop)
        give_up.start()
        service.run(lambda: bool(store.trials(failed.id)))
        give_up.cancel()
    assert store.search("broken").state is SearchState.RUNNING
