"""The lease: one holder, gone with a dead process, kept by a live one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from sqlalchemy import update

from hpo_pilot.errors import TryAgainError
from hpo_pilot.store import lease
from hpo_pilot.store.database import writing
from hpo_pilot.store.tables import leases


def change(store, **columns):
    """The lease as another process may have left it."""
    with writing(store.engine) as connection:
        connection.execute(update(leases).values(**columns))


def elsewhere(store, expires):
    change(store, host=socket.gethostname() + "-other", expires=expires)


def test_a_live_holder_keeps_it(store):
    with lease.held_lease(store.engine, "serve"):
        with pytest.raises(lease.LeaseHeldError, match=f"process {os.getpid()}") as caught:
            lease.acquire(store.engine, "run")
        assert caught.value.mode == "serve"
    lease.acquire(store.engine, "run").release()


def test_a_dead_holder_loses_it_although_it_is_a_zombie(store):
    code = (
        "import os, sys, time; from hpo_pilot.store import Store; from hpo_pilot.store import lease; "
        "lease.acquire(Store.open(sys.argv[1]).engine, 'run', 'https://panda:25443'); "
        "print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, store.engine.url.render_as_string()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert lease.lease_holder(store.engine) == lease.Holder("run", "https://panda:25443")
        holder.kill()
        for _ in range(600):
            if lease.lease_holder(store.engine) is None:  # killed, and not waited for
                break
            time.sleep(0.05)
        lease.acquire(store.engine, "run").renew()


def test_of_two_that_find_the_same_dead_holder_one_takes_it(store, monkeypatch):
    lease.acquire(store.engine, "run")
    opened = []
    monkeypatch.setattr(lease, "writing", lambda engine: noted(writing(engine), opened))

    def dead(*_arguments):
        if opened:
            opened[0].execute(update(leases).values(holder="the other one"))  # its update came first
        return False

    monkeypatch.setattr(lease, "_is_live", dead)
    with pytest.raises(lease.LeaseHeldError, match="has just taken"):
        lease.acquire(store.engine, "run")


@contextmanager
def noted(block, opened):
    """The same block; what it opens is put into `opened`."""
    with block as connection:
        opened.append(connection)
        yield connection


def test_one_of_another_host_lasts_until_it_expires(store):
    lease.acquire(store.engine, "run")
    elsewhere(store, time.time() + 60)
    with pytest.raises(TryAgainError):
        lease.acquire(store.engine, "run")
    change(store, expires=time.time() - 1)
    lease.acquire(store.engine, "run")


def test_who_lost_it_is_told(store):
    mine = lease.acquire(store.engine, "run")
    change(store, holder="somebody else")
    with pytest.raises(TryAgainError, match="taken over"):
        mine.renew()


def test_who_was_halted_takes_a_free_lease_again(store):
    mine = lease.acquire(store.engine, "run", "embedded")
    mine.steer_only([3])
    before = lease.lease_holder(store.engine)
    elsewhere(store, time.time() - 100)
    other = lease.acquire(store.engine, "serve", "embedded")
    with pytest.raises(lease.LeaseLostError):
        mine.renew()
    other.release()
    assert not mine.renew(), "the store may have changed"
    assert lease.lease_holder(store.engine) == before
    assert mine.renew()


def test_a_take_over_that_cannot_be_leaves_the_lease(store):
    mine = lease.acquire(store.engine, "run")
    elsewhere(store, time.time() - 100)

    def refuse():
        raise TryAgainError("its server runs")

    with pytest.raises(TryAgainError, match="its server runs"):
        lease.acquire(store.engine, "serve", None, refuse)
    assert mine.renew()


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


def test_a_lease_that_is_renewed_a_little_late_still_counts_for_those_who_look(store):
    lease.acquire(store.engine, "serve")
    elsewhere(store, time.time() - lease.LATE_SECONDS / 2)
    assert lease.lease_holder(store.engine) == lease.Holder("serve", None)
    elsewhere(store, time.time() - 2 * lease.LATE_SECONDS)
    assert lease.lease_holder(store.engine) is None


def test_a_holder_of_some_searches_steers_no_others(store):
    mine = lease.acquire(store.engine, "run", "embedded")
    mine.steer_only([3, 5])
    holder = lease.lease_holder(store.engine)
    assert holder is not None
    assert (holder.steers(3, "embedded"), holder.steers(3, None), holder.steers(4, None)) == (True, True, False)
    assert not holder.steers(3, "https://panda:25443"), "its tasks are elsewhere"
    mine.renew()
    mine.release()
    assert lease.lease_holder(store.engine) is None
    other = lease.acquire(store.engine, "serve")
    assert lease.lease_holder(store.engine) == lease.Holder("serve", None), (
        "all searches: nothing is left of the others"
    )
    other.release()


def test_what_a_dead_holder_steered_goes_with_it(store):
    lease.acquire(store.engine, "run").steer_only([3])
    elsewhere(store, time.time() - 100)
    lease.acquire(store.engine, "serve")
    assert lease.lease_holder(store.engine) == lease.Holder("serve", None)
