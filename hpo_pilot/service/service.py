"""The steering service: many searches, woken by the server, by the optimizers and by users.

One loop says whose turn it is; a few threads carry the turns out. A search has one turn at a time, and searches take
turns in the order in which they have something to do: a slow call of one search delays no other search.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
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

#: How many searches are steered at one time, and how many optimizers are asked.
_SIDE_BY_SIDE = 8

#: How long calls that are under way are waited for at the end, in seconds; each is interrupted, and again.
_END_SECONDS = 60

#: How long a search is left alone after an error that should not have been, in seconds.
_ERROR_PAUSE = 2.0

log = logging.getLogger(__name__)


@dataclass
class _Seat:
    """One search, as the loop sees it.

    Attributes:
        state: as the store had it last; None: the search is over, or gone.
        version: the same.
        steering: None before the first turn, and after an error that leaves its picture in doubt.
        turn: that is under way, with what it comes to: the steering, and in how many seconds the next turn is due.
        due: when the next turn is due without news.
        rests: until when there is none in spite of news, after an error.
        changed: the tasks that may have changed since the last turn began; None: any.
        has_news: whether something else came up since then.
    """

    state: SearchState | None = None
    version: int = -1
    steering: SearchSteering | None = None
    turn: Future[tuple[SearchSteering | None, float]] | None = None
    due: float = 0.0
    rests: float = 0.0
    changed: set[int] | None = None
    has_news: bool = False

    def may_have_changed(self, tasks: set[int] | None) -> None:
        """The server reports changed tasks; None: any may have changed."""
        self.changed = None if tasks is None or self.changed is None else self.changed | tasks
        self.has_news = True

    @property
    def next_turn(self) -> float:
        """When the next turn may begin."""
        return max(self.rests, 0.0 if self.has_news else self.due)


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
        self._seats: dict[int, _Seat] = {}
        self._news: SimpleQueue[set[int] | int | str | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._lost_lease: LeaseLostError | None = None
        self._turns = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="steer")
        self._asks = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="ask")

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
                    now = time.monotonic()
                    if away_since is None or now - begun > _STORE_PATIENCE:
                        away_since = now
                    elif now - away_since > _STORE_PATIENCE:
                        raise
                    log.warning("%s", error)
                    self._stopping.wait(_STORE_PAUSE)
        finally:
            self._stopping.set()
            self._end_turns()
            self._asks.shutdown(wait=False, cancel_futures=True)
        if self._lost_lease is not None:
            raise self._lost_lease

    def _loop(self, until: Callable[[], bool]) -> None:
        poll_at = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= poll_at:
                self._supervise()
                self._read_states()
                if until():
                    return
                poll_at = time.monotonic() + _POLL_SECONDS
            self._begin_turns()
            dues = [seat.next_turn for seat in self._seats.values() if seat.turn is None and seat.state is not None]
            self._take_news(min([poll_at, *dues]) - time.monotonic())
            self._take_turns()

    def _end_turns(self) -> None:
        """Waits for the turns that are under way; what they wait for is interrupted."""
        self._turns.shutdown(wait=False, cancel_futures=True)
        turns = [seat.turn for seat in self._seats.values() if seat.turn is not None]
        under_way = [turn for turn in turns if not turn.cancelled()]
        for _ in range(_END_SECONDS):
            if not wait(under_way, timeout=1.0).not_done:
                return
            self._manager.interrupt()

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

    def _read_states(self) -> None:
        """Has a seat for each search that is not over, with its state and version of now."""
        states = self._store.search_states()
        wanted = {number: state for number, state in states.items() if self._only is None or number in self._only}
        for number in wanted.keys() - self._seats.keys() - self._elsewhere:
            bound = self._store.bind_server(number, self._server)
            if bound != self._server:
                self._elsewhere.add(number)
                log.warning(
                    "search %s has its tasks at the PanDA server %s and is left alone here, at %s",
                    self._store.search(number).name,
                    bound,
                    self._server,
                )
        for number, seat in list(self._seats.items()):
            seat.state = None
            if number not in wanted and seat.turn is None:
                del self._seats[number]
        for number, (state, version) in wanted.items():
            if number not in self._elsewhere:
                seat = self._seats.setdefault(number, _Seat())
                seat.has_news |= (state, version) != (seat.steering and seat.steering.state, seat.version)
                seat.state, seat.version = state, version

    def _begin_turns(self) -> None:
        """Begins the turn of each search that is due and has none under way."""
        now = time.monotonic()
        for number, seat in self._seats.items():
            if seat.turn is not None or seat.state is None or seat.next_turn > now:
                continue
            if seat.steering is not None and seat.steering.record.version != seat.version:
                seat.steering = None  # its owner has changed more than its state: it is loaded anew
                seat.changed = None
            seat.turn = self._turns.submit(self._turn, number, seat.steering, seat.changed, seat.state)
            seat.turn.add_done_callback(lambda _: self._news.put("turn"))
            seat.changed, seat.has_news = set(), False

    def _turn(
        self, number: int, steering: SearchSteering | None, changed: set[int] | None, state: SearchState
    ) -> tuple[SearchSteering | None, float]:
        """A search's turn, in a thread of its own.

        Raises:
            StoreAwayError: something could not be recorded, and the steering is of no use any more.
        """
        try:
            if steering is None:
                steering = self._load(number)
            with about(search=steering.record.name):
                return steering, steering.advance(changed, state)
        except StoreAwayError:
            raise
        except Exception as error:
            # A defect met by one search must not end the others; it is logged whole, and shown to the user.
            log.exception("search %d", number, extra={"search": steering.record.name if steering else number})
            name = self._store.search(number).name if steering is None else steering.record.name
            message = f"{internal_error(error)}; mended, `hpo-pilot resume {name}` goes on with it"
            if steering is not None:
                steering.abandon(message)
            else:
                self._store.set_state(number, SearchState.FAILED, "service", message)
            return steering, -1.0

    def _take_turns(self) -> None:
        """Takes what the turns that are over came to.

        Raises:
            StoreAwayError: the store is out of reach.
        """
        for seat in [seat for seat in self._seats.values() if seat.turn is not None and seat.turn.done()]:
            turn, seat.turn = seat.turn, None
            assert turn is not None
            try:
                seat.steering, seconds = turn.result()
            except StoreAwayError:
                # What is in memory may be ahead of the store: it is built anew once the store is back.
                seat.steering, seat.changed, seat.has_news = None, None, True
                raise
            now = time.monotonic()
            if seconds < 0:
                seat.rests = now + _ERROR_PAUSE
            seat.due = now + min(max(seconds, 0.0), _POLL_SECONDS)
            if seat.steering is None or seat.steering.state.is_over:
                seat.steering, seat.state, seat.changed = None, None, None
            elif seat.state is not None:
                seat.state = seat.steering.state

    def _load(self, number: int) -> SearchSteering:
        record = self._store.search(number)
        return SearchSteering(record, self._store, self._manager, self._asks, lambda: self._news.put(number))

    def _take_news(self, seconds: float) -> None:
        """Waits for news, at most `seconds`, and notes at each seat what concerns its search."""
        try:
            news = self._news.get(timeout=max(0.0, seconds))
            while True:
                if isinstance(news, int) and news in self._seats:
                    self._seats[news].has_news = True
                elif news is None or isinstance(news, set):
                    for seat in self._seats.values():
                        seat.may_have_changed(news)
                news = self._news.get_nowait()
        except Empty:
            return

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
