"""Leases: a search has one holder, is free with a dead process, and only its holder may write."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest
from sqlalchemy import select, text, update

from hpo_pilot.errors import TryAgainError
from hpo_pilot.store import SearchState, SteeringStore, lease
from hpo_pilot.store.database import reading, writing
from hpo_pilot.store.tables import leases
from tests.made import made_search

URL = "https://panda:25443"


def change(store, of=None, **columns):
    """The row of a lease, or of all, as its process may have left it."""
    with writing(store.engine) as connection:
        rows = update(leases) if of is None else update(leases).where(leases.c.holder == of.holder)
        connection.execute(rows.values(**columns))


def elsewhere(store, seconds, of=None):
    """Moves a process to another host; its lease expires in so many seconds."""
    change(store, of, host=socket.gethostname() + "-other", expires=time.time() + seconds)


@pytest.fixture
def numbers(store):
    return [store.create_search(made_search(name), source="", sandbox=None, owner="me").id for name in ("a", "b", "c")]


@pytest.mark.parametrize(
    ("first", "second", "may"),
    [
        (("serve", URL), ("serve", URL), True),
        (("run", URL), ("serve", URL), True),
        (("run", URL), ("run", URL), True),
        (("serve", URL), ("run", URL), False),  # it watches
        (("serve", URL), ("stop", URL), False),
        (("serve", URL), ("serve", "https://other:25443"), False),
        (("serve", "embedded"), ("serve", URL), False),
        (("serve", "embedded"), ("serve", "embedded"), False),
        (("run", "embedded"), ("run", "embedded"), False),
    ],
)
def test_who_steers_side_by_side(store, first, second, may):
    with lease.held_lease(store.engine, *first):
        if may:
            with lease.held_lease(store.engine, *second) as other:
                assert len(other.live()) == 2
            return
        with pytest.raises(lease.LeaseHeldError, match=f"process {os.getpid()}") as caught:
            lease.acquire(store.engine, *second)
        assert caught.value.mode == first[0]
    lease.acquire(store.engine, *second).release()


def test_a_dead_process_loses_its_searches_although_it_is_a_zombie(store, numbers):
    code = (
        "import os, sys, time; from hpo_pilot.store import Store; from hpo_pilot.store import lease; "
        "held = lease.acquire(Store.open(sys.argv[1]).engine, 'run', 'embedded'); held.take_all([1]); "
        "print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, store.engine.url.render_as_string()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert lease.lease_holder(store.engine) == lease.Holder("run", "embedded", frozenset([1]))
        found = lease.steerer(store.engine, 1)
        assert (found["mode"], found["host"], found["pid"]) == ("run", socket.gethostname(), holder.pid)
        assert time.time() - 600 < found["since"] < time.time() + 600
        holder.kill()
        for _ in range(1200):
            if lease.lease_holder(store.engine) is None:  # killed, and not waited for
                break
            time.sleep(0.05)
        assert lease.steerer(store.engine, 1) is None
        assert lease.acquire(store.engine, "run", "embedded").take([1]) == {1}


def test_a_search_has_one_holder(store, numbers):
    one, other = (lease.acquire(store.engine, "run", URL) for _ in range(2))
    a, b, c = numbers
    assert one.take([a, b]) == {a, b}
    assert other.take(numbers) == {c}
    other.take_all([c])
    with pytest.raises(lease.LeaseHeldError, match=f"process {os.getpid()} .* is steering search 'a'"):
        other.take_all([a])
    one.let_go([a, c])
    assert other.take(numbers) == {a, c}
    one.release()
    assert other.take(numbers) == set(numbers)
    assert lease.lease_holder(store.engine) == lease.Holder("run", URL, frozenset(numbers))
    for number, state in ((a, SearchState.STOPPED), (b, SearchState.STOPPING)):
        store.set_state(number, state, "me")
    assert other.take(numbers) == {b, c}, "a search that is over needs nobody"


def test_one_of_another_host_lasts_until_it_expires(store, numbers):
    one, other = (lease.acquire(store.engine, "serve", URL) for _ in range(2))
    one.take(numbers)
    elsewhere(store, 60, one)
    assert other.take(numbers) == set()
    elsewhere(store, -1, one)
    assert other.take(numbers) == set(numbers)
    with pytest.raises(lease.LeaseHeldError):
        lease.acquire(store.engine, "run")


def test_a_halted_process_writes_nothing_once_another_has_the_search(store, numbers):
    one, other = (lease.acquire(store.engine, "serve", URL) for _ in range(2))
    a, b, _ = numbers
    one.take([a, b])
    change(store, one, expires=time.time() - 1)
    assert one.take(numbers) == set(), "it must renew its lease first"
    mine = store.held_by(one.holder)
    mine.record(a, events=["nobody has taken it yet"])
    assert other.take([a]) == {a}
    for write in (
        lambda: mine.record(a, events=["too late"]),
        lambda: mine.set_state(a, SearchState.FAILED, "service"),
        lambda: mine.task_submitted(1, 1),  # there is no such task
        lambda: mine.check_lease(a),
    ):
        with pytest.raises(lease.LeaseLostError):
            write()
    one.renew()
    mine.record(b, events=["still its own"])
    assert one.take(numbers) == {b, numbers[2]}
    assert [event.what for event in store.events(a)] == ["submitted", "nobody has taken it yet"]
    assert store.search(a).state is SearchState.SUBMITTED


def test_a_process_that_is_halted_within_a_batch_locks_nothing_for_long(store, numbers, monkeypatch):
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no batches")
    monkeypatch.setattr("hpo_pilot.databases._SILENT_SECONDS", 0.5)
    halted = lease.acquire(store.engine, "serve", URL)
    other = lease.acquire(store.engine, "serve", URL)
    halted.take(numbers[:1])
    change(store, halted, expires=time.time() - 1)
    session = store.engine.raw_connection()
    driver = session.driver_connection
    with pytest.raises(store.engine.dialect.loaded_dbapi.OperationalError), driver.pipeline():
        driver.execute("UPDATE searches SET holder = holder WHERE id = %s", numbers[:1])
        waits = text(
            "SELECT 1 FROM pg_stat_activity WHERE pid = :pid AND state = 'active' AND wait_event = 'ClientRead'"
        )
        with store.engine.connect() as connection:
            end = time.monotonic() + 600
            while not connection.execute(waits, {"pid": driver.info.backend_pid}).all() and time.monotonic() < end:
                connection.rollback()  # its view of other sessions is that of its transaction
                time.sleep(0.05)
        assert other.take(numbers) == set(numbers[1:]), "the first one is locked"
        end = time.monotonic() + 600
        while other.take(numbers) != set(numbers) and time.monotonic() < end:
            other.renew()
            time.sleep(0.1)
        assert other.take(numbers) == set(numbers)
    session.invalidate()


def test_who_was_halted_goes_on_if_nobody_else_has_come(store, numbers):
    mine = lease.acquire(store.engine, "run", "embedded")
    mine.take_all([1])
    elsewhere(store, -100)
    other = lease.acquire(store.engine, "serve", "embedded")
    with pytest.raises(lease.LeaseLostError, match="is steering this store"):
        mine.renew()
    other.release()
    mine.renew()
    assert lease.lease_holder(store.engine) == lease.Holder("run", "embedded", frozenset([1]))


def test_a_take_over_that_cannot_be_leaves_the_lease(store):
    mine = lease.acquire(store.engine, "run")
    elsewhere(store, -100)

    def refuse():
        raise TryAgainError("its server runs")

    with pytest.raises(TryAgainError, match="its server runs"):
        lease.acquire(store.engine, "serve", None, refuse)
    mine.renew()
    with reading(store.engine) as connection:
        assert connection.scalars(select(leases.c.holder)).all() == [mine.holder]


def test_a_clock_that_was_set_does_not_end_it(store):
    mine = lease.acquire(store.engine, "serve")
    change(store, pid_started=time.time() - 7200.0)
    with pytest.raises(lease.LeaseHeldError):
        lease.acquire(store.engine, "run")
    mine.renew()


def test_a_process_that_was_given_the_holders_number_does_not_keep_it(store):
    lease.acquire(store.engine, "serve")
    change(store, pid_started=time.time() - 7200.0, expires=time.time() - 1.0)
    lease.acquire(store.engine, "run").renew()


def test_while_a_service_is_halted_only_the_tasks_of_its_embedded_server_stay_its_own(store):
    mine = lease.acquire(store.engine, "serve", "embedded")
    change(store, expires=time.time() - 1.0)
    with pytest.raises(lease.LeaseHeldError):
        lease.acquire(store.engine, "serve", "embedded")
    mine.release()
    lease.acquire(store.engine, "serve", URL)
    change(store, expires=time.time() - 1.0)
    lease.acquire(store.engine, "serve", "https://other:25443")


def test_in_a_copy_of_the_file_nobody_steers(store, tmp_path):
    if store.engine.dialect.name != "sqlite":
        pytest.skip("a database without a file")
    lease.acquire(store.engine, "serve", "embedded")
    change(store, expires=time.time() - 100.0)
    assert lease.lease_holder(store.engine) is not None
    store.engine.dispose()  # all of it is in the file
    shutil.copy(store.engine.url.database, tmp_path / "copy.db")
    with closing(SteeringStore.open(f"sqlite:///{tmp_path / 'copy.db'}")) as copy:
        assert lease.lease_holder(copy.engine) is None


def test_a_lease_that_is_renewed_a_little_late_still_counts_for_those_who_look(store, numbers):
    mine = lease.acquire(store.engine, "serve")
    mine.take(numbers)
    elsewhere(store, -lease.LATE_SECONDS / 2)
    assert lease.lease_holder(store.engine) == lease.Holder("serve", None)
    assert lease.steerer(store.engine, 1) is not None
    elsewhere(store, -2 * lease.LATE_SECONDS)
    assert lease.lease_holder(store.engine) is None
    assert lease.steerer(store.engine, 1) is None


def test_holders_of_some_searches_steer_no_others(store, numbers):
    mine = lease.acquire(store.engine, "run", URL)
    mine.take_all(numbers[:2])
    holder = lease.lease_holder(store.engine)
    assert holder is not None
    assert [holder.steers(*asked) for asked in ((1, URL), (1, None), (3, URL))] == [True, True, False]
    assert not holder.steers(1, "embedded"), "its tasks are elsewhere"
    store.set_state(1, SearchState.DONE, "service")
    assert lease.lease_holder(store.engine) == lease.Holder("run", URL, frozenset([2]))
    with lease.held_lease(store.engine, "serve", URL):
        assert lease.lease_holder(store.engine) == lease.Holder("serve", URL), "all searches"
    mine.release()
    assert lease.lease_holder(store.engine) is None


def test_one_process_speaks_for_each_search(store, numbers):
    run, one, other = (lease.acquire(store.engine, mode, URL) for mode in ("run", "serve", "serve"))
    for held, speaks in ((run, run), (one, one), (other, other)):
        assert [each.speaks_for(held.holder) for each in (run, one, other)] == [
            each is speaks for each in (run, one, other)
        ]
    for nobody in (None, "gone"):
        assert [each.speaks_for(nobody) for each in (run, one, other)] == [False, True, False]
    one.release()
    assert other.speaks_for(one.holder)
