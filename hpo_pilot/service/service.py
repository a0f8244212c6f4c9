"""The steering service: many searches, one loop, woken by the server, by the optimizers and by users."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.logs import about
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.service.internal_error import internal_error
from hpo_pilot.service.steering import SearchSteering
from hpo_pilot.store import EMBEDDED, SearchState, SteeringStore, StoreAwayError
from hpo_pilot.store.lease import LEASE_SECONDS, Lease, LeaseLostError

#: How often the store is asked whether a user wants something, in seconds.
_POLL_SECONDS = 0.5

#: How long one wait for the server's changes lasts, in seconds.
_WAIT_SECONDS = 25.0

#: How long a store that is out of reach is waited for, and the pause between the tries, in seconds.
_STORE_PATIENCE = 120.0
_STORE_PAUSE = 2.0

#: How long a search is left alone after an error that should not have been, in seconds.
_ERROR_PAUSE = 2.0

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
        server: str = EMBEDDED,
    ) -> None:
        """Prepares.

        Args:
            store: the store.
            manager: takes tasks to PanDA.
            lease: held on the store's steering.
            supervise: called about twice a second; starts again what has ended.
            only: the numbers of the searches to steer; None: every one that is not over.
            server: where `manager` takes them; searches with tasks at another server are left alone.
        """
        self._store = store
        self._manager = manager
        self._lease = lease
        self._supervise = supervise
        self._only = None if only is None else set(only)
        self._server = server
        self._elsewhere: set[int] = set()
        self._steerings: dict[int, SearchSteering] = {}
        self._due: dict[int, float] = {}
        self._resting: dict[int, float] = {}  # until when, after an error
        self._news: SimpleQueue[set[int] | str | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._lost_lease: LeaseLostError | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ask")

    def stop(self) -> None:
        """Makes `run` return soon; callable from a signal handler and from any thread."""
        self._stopping.set()
        self._news.put("stop")
        self._manager.interrupt()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Steers until `stop` is called or `until` says so (asked about twice a second).

        Raises:
            TryAgainError: another process took the lease over, or the store is out of reach.
            GiveUpError: the server or the pilot cannot be kept alive.
        """
        for name, work in (("changes", self._wait_for_changes), ("lease", self._keep_lease)):
            threading.Thread(target=work, name=name, daemon=True).start()
        away_since: float | None = None
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                try:
                    self._loop(until)
                    break
                except StoreAwayError as error:
                    # What is in memory may be ahead of the store: it is built anew once the store is back.
                    self._steerings.clear()
                    self._due.clear()
                    now = time.monotonic()
                    if away_since is None or now - begun > _STORE_PATIENCE:
                        away_since = now
                    elif now - away_since > _STORE_PATIENCE:
                        raise
                    log.warning("%s", error)
                    self._stopping.wait(_STORE_PAUSE)
        finally:
            self._stopping.set()
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._lost_lease is not None:
            raise self._lost_lease

    def _loop(self, until: Callable[[], bool]) -> None:
        poll_at = 0.0
        changed: set[int] | None = None
        states: dict[int, tuple[SearchState, int]] = {}
        while not self._stopping.is_set():
            if time.monotonic() >= poll_at:
                self._supervise()
                states = self._wanted_states()
                if until():
                    return
                poll_at = time.monotonic() + _POLL_SECONDS
            self._advance(states, changed)
            changed = self._next_news(min([poll_at, *self._due.values()]) - time.monotonic())

    def _keep_lease(self) -> None:
        """Renews the lease in a thread of its own: a call to a slow server must not cost it."""
        while not self._stopping.wait(LEASE_SECONDS / 4):
            try:
                self._lease.renew()
            except LeaseLostError as error:
                self._lost_lease = error
                self.stop()
            except HpoPilotError as error:
                log.warning("the lease is not renewed now: %s", error)

    def _wanted_states(self) -> dict[int, tuple[SearchState, int]]:
        states = self._store.search_states()
        wanted = {number: state for number, state in states.items() if self._only is None or number in self._only}
        for number in wanted.keys() - self._steerings.keys() - self._elsewhere:
            bound = self._store.bind_server(number, self._server)
            if bound != self._server:
                self._elsewhere.add(number)
                log.warning(
                    "search %s has its tasks at the PanDA server %s and is left alone here, at %s",
                    self._store.search(number).name,
                    bound,
                    self._server,
                )
        return {number: state for number, state in wanted.items() if number not in self._elsewhere}

    def _advance(self, states: dict[int, tuple[SearchState, int]], changed: set[int] | None) -> None:
        for number, (state, version) in list(states.items()):
            if self._resting.get(number, 0.0) > time.monotonic():
                continue
            steering = self._steerings.get(number)
            if steering is not None and steering.record.version != version and not steering.state.is_over:
                steering = None  # its owner has changed more than its state: it is loaded anew
            try:
                if steering is None:
                    steering = self._steerings[number] = self._load(number)
                if steering.state.is_over:
                    continue  # it ended since the states were read
                with about(search=steering.record.name):
                    self._due[number] = time.monotonic() + steering.advance(changed, state)
                states[number] = (steering.state, version)
            except StoreAwayError:
                raise
            except Exception as error:
                # A defect met by one search must not end the others; it is logged whole, and shown to the user.
                log.exception("search %d", number, extra={"search": steering.record.name if steering else number})
                self._resting[number] = self._due[number] = time.monotonic() + _ERROR_PAUSE
                message = f"{internal_error(error)}; mended, `hpo-pilot resume` goes on with it"
                if steering is not None:
                    steering.abandon(message)
                else:
                    self._store.set_state(number, SearchState.FAILED, "service", message)
        for number in [n for n, s in self._steerings.items() if s.state.is_over or n not in states]:
            del self._steerings[number]
            self._due.pop(number, None)
            self._resting.pop(number, None)
            states.pop(number, None)

    def _load(self, number: int) -> SearchSteering:
        record = self._store.search(number)
        return SearchSteering(record, self._store, self._manager, self._executor, lambda: self._news.put("asked"))

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
            try:
                changed = self._manager.wait(_WAIT_SECONDS)
            except Exception:  # without this thread searches would only be looked at now and then
                log.exception("waiting for changes")
                self._stopping.wait(_STORE_PAUSE)
                changed = None
            if changed is None or changed:
                self._news.put(changed)
