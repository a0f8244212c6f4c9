"""The service's loop: a search that a defect meets harms no other, and is not tried all the time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from hpo_pilot.steering import service as service_module
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.steering.proposer import Proposer
from hpo_pilot.steering.service import Service
from hpo_pilot.store import SearchState, StoreAwayError
from hpo_pilot.store.lease import acquire, held_lease
from tests.made import made_search
from tests.steering.memory_panda import Panda

PANDA = "https://panda.example.org:25443"


class Defect(Panda):
    """A manager in which everything is wrong, and which tells of changes all the time."""

    tried = 0

    def submit(self, _task, *, maybe_submitted=False):
        self.tried += 1
        raise RuntimeError("no such luck")

    def wait(self, seconds):
        super().wait(seconds)
        return {1}


@pytest.fixture
def add(register):
    """Registers searches of four trials, two at once, by their names."""

    def create(*names, **document):
        for name in names:
            register(made_search(name, **{"budget": {"trials": 4, "parallel": 2}, **document}))

    return create


def _run_until(service, done):
    """Runs the service until `done` says so, or ten minutes are over."""
    give_up = threading.Timer(600, service.stop)
    give_up.start()
    try:
        service.run(done)
    finally:
        give_up.cancel()


def test_a_search_that_cannot_even_be_ended_is_left_alone_for_a_while(store, add, monkeypatch):
    add("demo")
    broken = []

    def kill_all(_self):
        broken.append(True)
        monkeypatch.setattr(service_module, "_ERROR_PAUSE", 600.0)
        threading.Timer(0.4, service.stop).start()
        raise RuntimeError("not that either")

    monkeypatch.setattr("hpo_pilot.steering.submissions.Submissions.kill_all", kill_all)
    monkeypatch.setattr(service_module, "_ERROR_PAUSE", 0.01)
    manager = Defect()
    with held_lease(store.engine, "serve") as lease:
        service = Service(store, manager, lease)
        service.run()
    assert (manager.tried, len(broken)) == (1, 1)
    monkeypatch.undo()
    with held_lease(store.engine, "serve") as lease:
        service = Service(store, manager, lease)
        service.run(lambda: store.search(1).state is SearchState.FAILED or manager.tried > 2)
    assert "no such luck" in store.search(1).message


def test_a_defect_of_one_search_fails_it_and_the_others_go_on(store, add, monkeypatch, caplog):
    add("broken", "sound")
    advance = SearchSteering.advance

    def defective(self, changed, state):
        if self.record.name == "broken" and not self._ending:
            raise AttributeError("no such attribute")
        return advance(self, changed, state)

    monkeypatch.setattr(SearchSteering, "advance", defective)
    monkeypatch.setattr(service_module, "_ERROR_PAUSE", 0.01)
    panda = Panda()
    with held_lease(store.engine, "serve") as lease:
        _run_until(Service(store, panda, lease), lambda: store.search("broken").state.is_over and bool(panda.tasks))
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
    with held_lease(store.engine, "serve") as lease:
        _run_until(Service(store, panda, lease), lambda: bool(store.trials(failed.id)))
    assert store.search("broken").state is SearchState.RUNNING


class Hanging(Panda):
    """A server whose calls for one search hang until they are let go; it tells of every change."""

    def __init__(self, search):
        super().__init__()
        self._search = search
        self.hangs = threading.Event()
        self.let_go = threading.Event()
        self._lock = threading.Lock()
        self._changed = set()

    def submit(self, task, *, maybe_submitted=False):
        if task.search == self._search:
            self.hangs.set()
            assert self.let_go.wait(600)
        with self._lock:
            ref = super().submit(task, maybe_submitted=maybe_submitted)
            for number in range(1, len(task.jobs) + 1):
                self.finish(ref.jedi_task_id, number)
            self._changed.add(ref.jedi_task_id)
        return ref

    def wait(self, seconds):
        super().wait(seconds)
        with self._lock:
            changed, self._changed = self._changed, set()
        return changed

    def interrupt(self):
        self.let_go.set()


def test_a_call_that_hangs_for_one_search_delays_no_other(store, add):
    add("slow", "quick")
    panda = Hanging("slow")
    seen = []

    def over():
        if store.search("quick").state.is_over and panda.hangs.is_set():
            seen.append((store.search("slow").state, panda.let_go.is_set()))
            panda.let_go.set()
        return bool(seen) and store.search("slow").state.is_over

    with held_lease(store.engine, "serve") as lease:
        _run_until(Service(store, panda, lease), over)
    assert seen[0] == (SearchState.RUNNING, False)
    assert [store.search(name).state for name in ("slow", "quick")] == [SearchState.DONE] * 2
    assert len(store.trials(store.search("quick").id)) == 4
    assert set(panda.forgotten) == {store.search(name).uid for name in ("slow", "quick")}, "no trial needs checkpoints"


def test_a_search_that_another_service_had_for_a_while_is_loaded_again(store, add, monkeypatch):
    """The service was halted, and the other one has let the search go."""
    add("demo")
    loaded, load = [], Service._load
    monkeypatch.setattr(Service, "_load", lambda service, number: (loaded.append(number), load(service, number))[1])
    panda, was_away = Panda(), []
    with held_lease(store.engine, "run", PANDA) as lease, held_lease(store.engine, "run", PANDA) as other:
        lease.take([1])

        def over():
            if len(loaded) == 1 and panda.tasks and not was_away:
                was_away.append(True)
                lease.let_go([1])
                other.take_all([1])
                store.held_by(other.holder).record(1, events=["written by the other one"])
                other.let_go([1])
            return len(loaded) == 2

        _run_until(Service(store, panda, lease, server=PANDA), over)
        lease.take_all([1])
    assert loaded == [1, 1]


@pytest.mark.parametrize("answers_between", [True, False])
def test_patience_with_a_store_begins_anew_when_it_has_answered(store, add, monkeypatch, answers_between):
    """Three outages that are together longer than the patience, each of them shorter."""
    add("demo")
    now, outages = [0.0], []
    monkeypatch.setattr(service_module, "_STORE_PAUSE", 0.0)

    def loop(service, _until):
        if len(outages) == 3:
            return
        outages.append(now[0])
        now[0] += 0.6 * service_module._STORE_PATIENCE
        if answers_between:
            service._renewed = now[0] - 1.0
        raise StoreAwayError("store: it is away")

    monkeypatch.setattr(Service, "_loop", loop)
    monkeypatch.setattr(Service, "_keep_lease", lambda _: None)
    monkeypatch.setattr(service_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with held_lease(store.engine, "run", PANDA) as lease:
        service = Service(store, Panda(), lease)
        with nullcontext() if answers_between else pytest.raises(StoreAwayError):
            service.run()
    assert len(outages) == 3


def test_two_services_divide_the_searches_and_one_takes_over_all(store):
    def add(*names):
        for name in names:
            store.create_search(made_search(name), source="", sandbox=None, owner="me")

    add(*(f"s{number}" for number in range(9)))
    panda, held = Panda(), {}
    leases = [acquire(store.engine, "serve", PANDA) for _ in range(2)]
    services = [Service(store, panda, lease, server=PANDA) for lease in leases]

    def holders():
        return Counter(one.holder for one in store.search_states().values())

    threads = [threading.Thread(target=service.run) for service in services]
    threads[0].start()
    try:
        held["first"] = _until(holders, lambda now: now.total() - now[None] == 5)
        threads[1].start()
        held["both"] = _until(holders, lambda now: None not in now and len(now) == 2)
        add(*(f"t{number}" for number in range(4)))
        held["more"] = _until(holders, lambda now: None not in now and now.total() == 13)
        services[0].stop()
        threads[0].join(600)
        leases[0].release()
        held["left"] = _until(holders, lambda now: len(now) == 1 and None not in now)
        names = _until(lambda: [task.name for task in list(panda.tasks.values())], lambda now: len(now) >= 13)
        newcomer = acquire(store.engine, "serve", PANDA)
        services[1]._sharing = True  # as after the next renewal
        held["let go"] = _until(holders, lambda now: now[None] > 0)
        newcomer.release()
    finally:
        for service in services:
            service.stop()
    one, other = (lease.holder for lease in leases)
    assert held["first"][one] == 5, "the other one has an equal share, although it has not begun"
    assert held["both"] == {one: 5, other: 4}
    assert abs(held["more"][one] - held["more"][other]) == 1
    assert held["left"] == {other: 13}
    assert held["let go"] == {other: 7, None: 6}
    assert len(names) == len(set(names)) == 13


def _until(look, is_right):
    """What was seen when it was right, within ten minutes."""
    end = time.monotonic() + 600
    while not is_right(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    return seen


def test_an_optimizer_that_thinks_for_long_delays_no_other_search(store, add, monkeypatch):
    add("slow", "quick")
    panda, thinks, let_go = Hanging("none"), threading.Event(), threading.Event()
    ask = Proposer._ask

    def pondering(self, *arguments):
        if self._search.name == "slow":
            thinks.set()
            assert let_go.wait(600)
        return ask(self, *arguments)

    monkeypatch.setattr(Proposer, "_ask", pondering)

    def over():
        return thinks.is_set() and store.search("quick").state.is_over

    with held_lease(store.engine, "serve") as lease:
        service = Service(store, panda, lease)
        try:
            _run_until(service, over)
            assert not let_go.is_set()
        finally:
            let_go.set()
    assert store.search("quick").state is SearchState.DONE
    assert not store.trials(store.search("slow").id)


def test_a_search_as_wide_as_may_be_leaves_the_service_to_others(store, add):
    add("wide", folds=1000, budget={"trials": 300, "parallel": 150})
    add("quick")
    panda = Hanging("none")
    panda.finish = lambda task_id, number: (
        Panda.finish(panda, task_id, number) if panda.tasks[task_id].search == "quick" else None
    )
    with held_lease(store.engine, "serve") as lease:
        _run_until(Service(store, panda, lease), lambda: store.search("quick").state.is_over)
    assert store.search("quick").state is SearchState.DONE
    widths = [len(task.jobs) for task in panda.tasks.values() if task.search == "wide"]
    assert not widths or max(widths) <= 1000
    assert sum(widths) < 150_000  # the first generation was not even out


def test_stopping_waits_for_no_call(store, add):
    add("slow")
    panda = Hanging("slow")
    with held_lease(store.engine, "serve") as lease:
        service = Service(store, panda, lease)
        _run_until(service, lambda: panda.hangs.is_set() and (service.stop() or True))
    assert panda.let_go.is_set()
    assert store.search("slow").state is SearchState.RUNNING
