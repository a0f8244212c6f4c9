"""The steering service: many searches, one loop, woken by the server, by the optimizers and by users."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.service.steering import SearchSteering
from hpo_pilot.store import SearchState, SteeringStore, StoreAwayError
from hpo_pilot.store.lease import LEASE_SECONDS, Lease

#: How often the store is asked whether a user wants something, in seconds.
_POLL_SECONDS = 0.5

#: How long one wait for the server's changes lasts, in seconds.
_WAIT_SECONDS = 25.0

#: How long a store that is out of reach is waited for, and the pause between the tries, in seconds.
_STORE_PATIENCE = 120.0
_STORE_PAUSE = 2.0

log = logging.getLogger(__name__)


class Service:
    """Steers searches until it is told to stop."""

    def __init__(
        self,
        store: SteeringStore,
        manager: WorkflowManager,
        lease: Lease,
        *,
        supervise: Callable[[], None] = lambda: None,
        only: Iterable[int] | None = None,
    ) -> None:
        """Prepares.

        Args:
            store: the store.
            manager: takes tasks to PanDA.
            lease: held on the store's steering.
            supervise: called about twice a second; starts again what has ended.
            only: the numbers of the searches to steer; None: every one that is not over.
        """
        self._store = store
        self._manager = manager
        self._lease = lease
        self._supervise = supervise
        self._only = None if only is None else set(only)
        self._steerings: dict[int, SearchSteering] = {}
        self._due: dict[int, float] = {}
        self._news: SimpleQueue[set[int] | str | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ask")

    def stop(self) -> None:
        """Makes `run` return soon; callable from a signal handler and from any thread."""
        self._stopping.set()
        self._news.put("stop")

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Steers until `stop` is called or `until` says so (asked about twice a second).

        Raises:
            TryAgainError: another process took the lease over, or the store is out of reach.
            GiveUpError: the server or the pilot cannot be kept alive.
        """
        waiter = threading.Thread(target=self._wait_for_changes, name="changes", daemon=True)
        waiter.start()
        away_since: float | None = None
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                try:
                    return self._loop(until)
                except StoreAwayError as error:
                    # What is in memory may be ahead of the store: it is built anew once the store is back.
                    self._steerings.clear()
                    self._due.clear()
                    if away_since is None or time.monotonic() - begun > _STORE_PATIENCE:
                        away_since = begun
                    elif time.monotonic() - away_since > _STORE_PATIENCE:
                        raise
                    log.warning("%s", error)
                    self._stopping.wait(_STORE_PAUSE)
        finally:
            self._stopping.set()
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _loop(self, until: Callable[[], bool]) -> None:
        renew_at = poll_at = 0.0
        changed: set[int] | None = None
        states: dict[int, SearchState] = {}
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= renew_at:
                self._lease.renew()
                renew_at = now + LEASE_SECONDS / 4
            if now >= poll_at:
                self._supervise()
                states = self._wanted_states()
                if until():
                    return
                poll_at = now + _POLL_SECONDS
            self._advance(states, changed)
            changed = self._next_news(min([poll_at, *self._due.values()]) - time.monotonic())

    def _wanted_states(self) -> dict[int, SearchState]:
        states = self._store.search_states()
        return {number: state for number, state in states.items() if self._only is None or number in self._only}

    def _advance(self, states: dict[int, SearchState], changed: set[int] | None) -> None:
        for number, state in states.items():
            steering = self._steerings.get(number)
            if steering is None:
                record = self._store.search(number)
                steering = SearchSteering(
                    record, self._store, self._manager, self._executor, lambda: self._news.put("asked")
                )
                self._steerings[number] = steering
            elif steering.state.is_over:
                continue  # it ended since the states were read
            try:
                self._due[number] = time.monotonic() + steering.advance(changed, state)
            except HpoPilotError:
                raise
            except Exception as error:
                # A defect met by one search must not end the others; it is logged whole, and shown to the user.
                log.exception("search %s", steering.record.name)
                steering.abandon(f"internal error: {type(error).__name__}: {error}; please report it with the log")
            if steering.state is not state:
                states[number] = steering.state
        for number in [n for n, s in self._steerings.items() if s.state.is_over or n not in states]:
            del self._steerings[number]
            self._due.pop(number, None)
            states.pop(number, None)

    def _next_news(self, seconds: float) -> set[int] | None:
        """What came up: changed tasks; None where any may have changed. Waits at most `seconds`."""
        changed: set[int] = set()
        try:
            news = self._news.get(timeout=max(0.0, seconds))
            while True:
                if news is None:
                    return None
                if isinstance(news, set):
                    changed |= news
                news = self._news.get_nowait()
        except Empty:
            return changed

    def _wait_for_changes(self) -> None:
        while not self._stopping.is_set():
            changed = self._manager.wait(_WAIT_SECONDS)
            if changed is None or changed:
                self._news.put(changed)
