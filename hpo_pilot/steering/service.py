"""The steering service, and the commands `run` and `serve` that use it.

`Service` steers many searches at once. Its loop decides which search has its turn; a pool of threads runs the turns. A
turn is one call of `SearchSteering.advance`. A search has at most one turn at a time, so a slow call of one search does
not delay the others. The server, the optimizers and the users wake the loop.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from hpo_pilot.advice import command
from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.logs import about
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.server.database import Database
from hpo_pilot.steering.embedded import (
    EmbeddedPanda,
    bind_to_server,
    check_steered,
    chosen_server,
    connected_manager,
    default_slots,
    started_manager,
)
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.steering.metrics import snapshots
from hpo_pilot.steering.notifications import ANY_HOST, LAST_PAUSES, Notifier
from hpo_pilot.steering.recommendation import optimizer_of
from hpo_pilot.steering.registration import PackedSearch, check_family, pack_searches, register_family
from hpo_pilot.steering.results import ReportWriter, RunResult, internal_error, result_of
from hpo_pilot.steering.search_file import load_search
from hpo_pilot.steering.server_processes import ApiProcess, NetworkOptions, security_warnings, stop_signals
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir, nickname
from hpo_pilot.store import EMBEDDED, SearchRecord, SearchState, SteeringStore, Store, StoreAwayError
from hpo_pilot.store.lease import LEASE_SECONDS, Lease, LeaseHeldError, LeaseLostError, held_lease, lease_holder
from hpo_pilot.store.store import OpenSearch

#: Seconds between two looks at the store for changes by users.
_POLL_SECONDS = 0.5

#: Length of one wait for changes at the server, in seconds.
_WAIT_SECONDS = 25.0

#: Seconds to wait for a store that does not answer, and the pause between two tries.
_STORE_PATIENCE = 120.0
_STORE_PAUSE = 2.0

#: Number of threads for turns, and number of threads for optimizers.
_SIDE_BY_SIDE = 8

#: Seconds to wait at the end for turns that are under way; their calls to the server are interrupted each second.
_END_SECONDS = 60

#: Seconds before the next turn of a search after an internal error.
_ERROR_PAUSE = 2.0

#: A service keeps this multiple of its equal share of the searches, and one more; it lets the rest go.
_FAR_MORE = 1.25

log = logging.getLogger(__name__)


@dataclass
class _Entry:
    """One search in the loop. Times are on the monotonic clock.

    Attributes:
        state: state of the search in the store at the last look; None: the search is over or deleted.
        version: its version at the last look.
        steering: None before the first turn, and after an error that may have left it ahead of the store.
        turn: the turn under way. It returns the steering and the seconds until the next turn.
        due: time of the next turn if nothing happens.
        rests: no turn before this time, after an internal error.
        changed: tasks that may have changed since the last turn began; None: any task.
        has_news: whether something happened since then.
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
        """Marks tasks as changed; None: any task may have changed."""
        self.changed = None if tasks is None or self.changed is None else self.changed | tasks
        self.has_news = True

    @property
    def next_turn(self) -> float:
        """Time of the next turn."""
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
        """Makes the service; `run` steers.

        Args:
            store: the store.
            manager: submits tasks to PanDA.
            lease: the lease of this process, which takes searches and lets them go.
            supervise: called about twice a second; restarts processes that have ended.
            only: numbers of the searches to steer; None: every search that is not over.
            server: the server of `manager`. Searches bound to another server are left alone.
        """
        self._store = store.held_by(lease.holder)
        self._manager = manager
        self._lease = lease
        self._supervise = supervise
        self._only = None if only is None else set(only)
        self._server = server
        self._elsewhere: set[int] = set()
        self._sharing = False
        self._entries: dict[int, _Entry] = {}
        self._news: SimpleQueue[set[int] | int | str | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._renewed = time.monotonic()
        self._lost_lease: LeaseLostError | None = None
        self._turns = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="steer")
        self._asks = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="ask")

    def stop(self) -> None:
        """Makes `run` return soon. Safe in a signal handler and from any thread."""
        self._stopping.set()
        self._news.put("stop")
        self._manager.interrupt()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Steers until `stop` is called or `until` returns True (called twice a second and after the end of a search).

        Raises:
            TryAgainError: another process took over the lease, or the store does not answer.
            GiveUpError: the server or the pilot ends again and again.
        """
        for name, work in (("changes", self._wait_for_changes), ("lease", self._keep_lease)):
            threading.Thread(target=work, name=name, daemon=True).start()
        away_since: float | None = None
        try:
            while not self._stopping.is_set():
                try:
                    self._loop(until)
                    break
                except StoreAwayError as error:
                    now = time.monotonic()
                    if away_since is None or self._renewed > away_since:  # it has answered since the last time
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
            dues = [
                entry.next_turn for entry in self._entries.values() if entry.turn is None and entry.state is not None
            ]
            self._take_news(min([poll_at, *dues]) - time.monotonic())
            if self._take_turns():
                poll_at = 0.0

    def _end_turns(self) -> None:
        """Waits for the turns that are under way, and interrupts their calls to the server."""
        self._turns.shutdown(wait=False, cancel_futures=True)
        turns = [entry.turn for entry in self._entries.values() if entry.turn is not None]
        under_way = [turn for turn in turns if not turn.cancelled()]
        for _ in range(_END_SECONDS):
            if not wait(under_way, timeout=1.0).not_done:
                return
            self._manager.interrupt()

    def _keep_lease(self) -> None:
        """Renews the lease in a thread of its own, so that a slow call to a server cannot let it expire."""
        while not self._stopping.wait(LEASE_SECONDS / 4):
            try:
                self._lease.renew()
                self._renewed = time.monotonic()
                self._sharing = True  # look whether a service has come
            except LeaseLostError as error:
                self._lost_lease = error
                self.stop()
            except HpoPilotError as error:
                log.warning("the lease is not renewed now: %s", error)

    def _read_states(self) -> None:
        """Reads the searches that are not over; takes some or lets some go; adds and removes entries."""
        states = self._store.search_states()
        mine = {number for number, one in states.items() if one.holder == self._lease.holder}
        mine |= self._divide(states, mine)
        for number in sorted(mine - self._entries.keys()):
            if (bound := self._store.bind_server(number, self._server)) != self._server:
                self._leave_elsewhere(number, bound)
                self._lease.let_go([number])
        for number, entry in list(self._entries.items()):
            entry.state = None
            if number not in mine and entry.turn is None:
                del self._entries[number]
        for number in sorted(mine - self._elsewhere):
            state, version, *_ = states[number]
            entry = self._entries.setdefault(number, _Entry())
            entry.has_news |= (state, version) != (entry.steering and entry.steering.state, entry.version)
            entry.state, entry.version = state, version

    def _divide(self, states: Mapping[int, OpenSearch], mine: set[int]) -> set[int]:
        """Takes free searches up to an equal share, or lets some go if there are far more.

        Only searches without an entry are taken, and without a turn under way are let go: nothing in memory is older
        than the lease.

        Args:
            states: the searches that are not over.
            mine: the numbers of those that this process has; those that it lets go are removed.

        Returns:
            The numbers of the taken ones.
        """
        others = [n for n in states if n not in mine and n not in self._elsewhere and n not in self._entries]
        if self._only is not None:
            others = [number for number in others if number in self._only]
        for number in others:
            if (bound := states[number].server) not in (None, self._server):
                self._leave_elsewhere(number, str(bound))
        others = [number for number in others if number not in self._elsewhere]
        live = self._lease.live() if others or self._sharing else {}
        self._sharing = len(live) > 1
        free = [number for number in others if states[number].holder not in live]
        if self._only is None and self._sharing:
            services = [name for name, mode in live.items() if mode == "serve"]
            runs = sum(live.get(states[number].holder or "", "serve") != "serve" for number in others)
            share = math.ceil((len(others) - runs + len(mine)) / max(1, len(services)))
            if len(mine) > _FAR_MORE * share + 1:
                idle = [n for n in sorted(mine) if (entry := self._entries.get(n)) is None or entry.turn is None]
                gone = set(idle[share - len(mine) :])
                self._lease.let_go(gone)
                mine -= gone
            free = [n for n in free if (path := states[n].sandbox) is None or Path(path).is_file()]
            free = free[: max(0, share - len(mine))]
        return self._lease.take(free) if free else set()

    def _leave_elsewhere(self, number: int, bound: str) -> None:
        self._elsewhere.add(number)
        name = self._store.search(number).name
        text = "search %s has its tasks at the PanDA server %s and is left alone here, at %s"
        log.warning(text, name, bound, self._server)

    def _begin_turns(self) -> None:
        """Begins the turn of each search that is due and has no turn under way."""
        now = time.monotonic()
        for number, entry in self._entries.items():
            if entry.turn is not None or entry.state is None or entry.next_turn > now:
                continue
            if entry.steering is not None and entry.steering.record.version != entry.version:
                entry.steering = None  # A user has changed the search: load it again.
                entry.changed = None
            entry.turn = self._turns.submit(self._turn, number, entry.steering, entry.changed, entry.state)
            entry.turn.add_done_callback(lambda _: self._news.put("turn"))
            entry.changed, entry.has_news = set(), False

    def _turn(
        self, number: int, steering: SearchSteering | None, changed: set[int] | None, state: SearchState
    ) -> tuple[SearchSteering | None, float]:
        """Runs the turn of a search in a thread of the pool.

        Returns:
            The steering, and the seconds until the next turn; negative after an internal error.

        Raises:
            StoreAwayError: a change could not be committed. The search must be loaded again.
        """
        try:
            if steering is None:
                steering = self._load(number)
            with about(search=steering.record.name):
                seconds = steering.advance(changed, state)
                if steering.state is SearchState.DONE:  # stopped and failed ones may be resumed
                    self._store.check_lease(number)
                    self._manager.forget(steering.record.uid, steering.waiting_points())
                return steering, seconds
        except StoreAwayError:
            raise
        except Exception as error:
            # A bug that one search meets must not end the others. The log has the traceback, the user sees a line.
            log.exception("search %d", number, extra={"search": steering.record.name if steering else number})
            name = self._store.search(number).name if steering is None else steering.record.name
            message = f"{internal_error(error)}; mended, `hpo-pilot resume {name}` continues it"
            if steering is not None:
                steering.abandon(message)
            else:
                self._store.set_state(number, SearchState.FAILED, "service", message)
            return steering, -1.0

    def _take_turns(self) -> bool:
        """Takes the results of the turns that are over. Returns whether a search has ended.

        Raises:
            StoreAwayError: the store does not answer.
        """
        has_ended = False
        for entry in [entry for entry in self._entries.values() if entry.turn is not None and entry.turn.done()]:
            turn, entry.turn = entry.turn, None
            assert turn is not None
            try:
                entry.steering, seconds = turn.result()
            except LeaseLostError as error:
                log.warning("search %s: %s", entry.steering.record.name if entry.steering else "", error)
                entry.steering, entry.state, entry.changed = None, None, None
                continue
            except StoreAwayError:
                # The steering may be ahead of the store. Load it again when the store is back.
                entry.steering, entry.changed, entry.has_news = None, None, True
                raise
            now = time.monotonic()
            if seconds < 0:
                entry.rests = now + _ERROR_PAUSE
            entry.due = now + min(max(seconds, 0.0), _POLL_SECONDS)
            if entry.steering is None or entry.steering.state.is_over:
                entry.steering, entry.state, entry.changed = None, None, None
                has_ended = True
            elif entry.state is not None:
                entry.state = entry.steering.state
        return has_ended

    def _load(self, number: int) -> SearchSteering:
        record = self._store.search(number)
        return SearchSteering(record, self._store, self._manager, self._asks, lambda: self._news.put(number))

    def _take_news(self, seconds: float) -> None:
        """Waits for news, at most `seconds`, and marks the entries concerned."""
        try:
            news = self._news.get(timeout=max(0.0, seconds))
            while True:
                if isinstance(news, int) and news in self._entries:
                    self._entries[news].has_news = True
                elif news is None or isinstance(news, set):
                    for entry in self._entries.values():
                        entry.may_have_changed(news)
                news = self._news.get_nowait()
        except Empty:
            return

    def _wait_for_changes(self) -> None:
        """Waits for changes at the server in a thread of its own."""
        while not self._stopping.is_set():
            try:
                changed = self._manager.wait(_WAIT_SECONDS)
            except Exception:  # This thread must go on: without it results would come late.
                log.exception("waiting for changes")
                self._stopping.wait(_STORE_PAUSE)
                changed = None
            if changed is None or changed:
                self._news.put(changed)


Progress = Callable[[Store, SearchRecord], None]


class InterruptedRunError(TryAgainError):
    """A run was interrupted before its search ended. The same command resumes it."""


def run(search_file: str | Path, workdir: str | Path | None = None, **options: Any) -> RunResult:
    """Runs a search to its end, or resumes one that was interrupted; for arguments and errors see `run_all`.

    Raises:
        InputError: the file has segments.
    """
    segments = load_search(search_file).segments
    if segments:
        raise InputError(f"{search_file} has {len(segments)} segments, each a search: call run_all, which returns all")
    (result,) = run_all(search_file, workdir, **options)
    return result


def run_all(
    search_file: str | Path,
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    slots: int | None = None,
    server: str | None = None,
    on_server: Callable[[str], None] = lambda _server: None,
    on_progress: Progress = lambda _store, _record: None,
) -> list[RunResult]:
    """Runs the searches of all segments of a file at once, or its one search; resumes what was interrupted.

    Args:
        search_file: the search file.
        workdir: the work folder; default ./hpo-pilot.
        store: SQLAlchemy URL of another store.
        slots: number of jobs at once; default: as many as fit on the machine's cores.
        server: URL of the PanDA server, or `embedded`; default: the server of the search's tasks, else the server of
            PANDA_URL_SSL, else the embedded one.
        on_server: called with the chosen server before anything is sent there.
        on_progress: called about twice a second.

    Returns:
        Their results, in the order of the file.

    Raises:
        InputError: the file or an option is wrong.
        TryAgainError: the run was interrupted, or a server does not answer; the same call resumes the search.
        GiveUpError: the embedded server or the pilot ends again and again.
    """
    folder = WorkDir.make(workdir)
    with contextlib.closing(SteeringStore.open(folder.store_url(store))) as database:
        if lease_holder(database.engine) is None:  # else another process may read them where they are
            database.note_sandboxes(folder.sandboxes)
        whole = _Run(database, folder, pack_searches(Path(search_file), folder))
        if whole.goes_on:
            target = chosen_server(server, whole.bound)
            _check_slots(target, slots)
            if whole.is_asked and target != EMBEDDED:
                raise InputError(f"payload: none: {target} cannot give trials to clients: use --server embedded")
            if whole.is_asked and slots:
                raise InputError("--slots: clients run the trials of a search with payload: none: leave --slots out")
            whole.named_server = target if server is not None else None
            on_server(target)
            whole.to_the_end(target, slots, on_progress)
        holder = lease_holder(database.engine)
        if holder is None or holder.searches is not None:  # else a service sends them
            numbers = [record.id for record in whole.registered()]
            notifier = Notifier(database, only=numbers, hosts=ANY_HOST, pauses=LAST_PAUSES)
            while notifier.look():
                time.sleep(1.0)
        results: list[RunResult] = []
        failures: list[HpoPilotError] = []
        for record in [database.search(record.id) for record in whole.registered()]:
            on_progress(database, record)
            try:
                results.append(result_of(database, folder, record))
            except HpoPilotError as error:
                failures.append(error)  # Write the reports of the others first.
        if failures:
            raise failures[0]
        return results


class _Run:
    """A run of the searches of a file. They are registered only after every check has passed."""

    def __init__(self, store: SteeringStore, workdir: WorkDir, packed: Sequence[PackedSearch]) -> None:
        """Checks the searches and registers none.

        Raises:
            InputError: a search differs from the registered one in more than a larger budget.
        """
        self._store = store
        self._workdir = workdir
        self._packed = packed
        self._records: list[SearchRecord] | None = None
        known = check_family(store, packed, go_on=True)
        #: Registered searches that this run resumes.
        self.bound = [
            record
            for record, one in zip(known, packed, strict=True)
            if record is not None and (record.state is not SearchState.DONE or record.filed.budget != one.search.budget)
        ]
        #: Whether there is anything to run.
        self.goes_on = bool(self.bound) or None in known
        #: Whether clients ask for the trials, so that no pilot runs them; the searches have the same payload.
        self.is_asked = packed[0].search.payload.is_none
        #: The server of the --server option, to which the searches will be bound; None: not given.
        self.named_server: str | None = None

    def registered(self) -> list[SearchRecord]:
        """Returns all searches; the first call registers them."""
        if self._records is None:
            self._records = register_family(self._store, self._packed, go_on=True, who=nickname())
            if self.named_server is not None:  # before a service that has this store takes them elsewhere
                going_on = [record for record in self._records if not record.state.is_over]
                bind_to_server(self._store, going_on, self.named_server)
        return self._records

    def _now(self) -> list[SearchRecord]:
        """Returns all searches as the store has them now."""
        return [self._store.search(record.id) for record in self.registered()]

    def to_the_end(self, server: str, slots: int | None, on_progress: Progress) -> None:
        """Steers the searches, or watches the service that does, until all are over."""

        def over() -> bool:
            now = self._now()
            for record in now:
                on_progress(self._store, record)
            return all(record.state.is_over for record in now)

        while self._records is None or not over():
            try:
                self._steer(server, slots, over)
                return
            except LeaseHeldError as error:
                if error.mode != "serve":
                    raise
            # A service holds this store and steers the search, so only watch. If the service ends first, steer here.
            if self._watch(over):
                return

    def _steer(self, server: str, slots: int | None, over: Callable[[], bool]) -> None:
        workdir, first = self._workdir, self._packed[0]  # the searches have the same resources and site
        needs, site = first.search.resources, first.search.site
        with contextlib.ExitStack() as stack:
            workdir.check_space()
            lease = stack.enter_context(_held_lease(self._store, workdir, "run", server))
            aside = ThreadPoolExecutor(1)
            stack.callback(aside.shutdown, wait=False)
            aside.submit(optimizer_of, first.search, ())  # its libraries take a second to load, while the server starts
            supervise: Callable[[], None] = workdir.check_space
            if server == EMBEDDED:
                count = 0 if self.is_asked else slots or default_slots(needs.cores)
                queue = (site.queue or DEFAULT_QUEUE).split(",")[0]
                panda = EmbeddedPanda(workdir, slots=count, queue=queue, site=site.profile)
                manager = stack.enter_context(started_manager(panda, workdir))

                def check() -> None:
                    panda.check()
                    workdir.check_space()

                supervise = check
            else:
                manager = stack.enter_context(connected_manager(server, workdir))
            # Register only now: a run that is refused must leave nothing in the store.
            records = [record for record in self._now() if not record.state.is_over]
            bind_to_server(self._store, records, server)
            numbers = [record.id for record in records]
            lease.renew()  # the connection may have taken longer than the lease
            lease.take_all(numbers)
            service = Service(self._store, manager, lease, supervise=supervise, only=numbers, server=server)
            stack.enter_context(Notifier(self._store, only=numbers, hosts=ANY_HOST).working())
            with stop_signals(service.stop) as stopped:
                service.run(over)
            if stopped.is_set() and not all(self._store.search(number).state.is_over for number in numbers):
                again = f"the same call, or {command('run', first.file)}, continues search {_names(records)}"
                raise InterruptedRunError(f"interrupted; nothing is lost: {again}")

    def _watch(self, over: Callable[[], bool]) -> bool:
        """Watches searches that a service steers. Returns True when they are over, False when the service has ended.

        Raises:
            InputError: the service will not steer a search, because the search is bound to another server.
        """
        bound = {record.name: record.server for record in self.bound}
        servers = {one.search.name: self.named_server or bound.get(one.search.name) for one in self._packed}
        with stop_signals() as stopped:
            while (service := lease_holder(self._store.engine)) is not None and service.searches is None:
                check_steered(servers, service.server)
                if over():
                    return True
                if stopped.wait(0.5):
                    names = _names(self.registered())
                    raise InterruptedRunError(f"no longer watching; the service continues search {names}")
        return False


def _check_slots(server: str, slots: int | None) -> None:
    if server != EMBEDDED and slots:
        raise InputError(f"--slots {slots}: the jobs run where {server} sends them; no pilot is started here")


def _held_lease(
    store: SteeringStore, workdir: WorkDir, mode: str, server: str
) -> contextlib.AbstractContextManager[Lease]:
    """Holds the lease. Takes over an expired one only if its embedded server has ended: its service may go on."""

    def check_server() -> None:
        if server == EMBEDDED:
            Database(workdir.server_database).close()

    return held_lease(store.engine, mode, server, check_server)


#: Seconds in which `stop` tries to kill the jobs of a search that nothing steers.
_STOP_SECONDS = 60.0


def end_stopping(store: str, workdir: WorkDir, records: Sequence[SearchRecord]) -> None:
    """Ends `stopping` searches that nothing steers: steers them until their jobs are killed.

    A search stays `stopping` if that takes longer than a minute, or if another process begins to steer meanwhile.

    Args:
        store: SQLAlchemy URL of the store.
        workdir: work folder of the embedded server that may have their jobs.
        records: the searches.

    Raises:
        TryAgainError: the server of their jobs does not answer.
        InputError: the user's settings for that server are wrong.
    """
    with contextlib.closing(SteeringStore.open(store)) as database:
        stopping = [now for record in records if (now := database.search(record.id)).state is SearchState.STOPPING]
        by_server: dict[str, list[int]] = {}
        for record in stopping:
            by_server.setdefault(record.server or EMBEDDED, []).append(record.id)
        for server, numbers in by_server.items():
            _end_at(database, workdir, server, numbers)


def _end_at(store: SteeringStore, workdir: WorkDir, server: str, numbers: Sequence[int]) -> None:
    end = time.monotonic() + _STOP_SECONDS

    def over() -> bool:
        return time.monotonic() > end or all(store.search(number).state.is_over for number in numbers)

    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(_held_lease(store, workdir, "stop", server))
        except LeaseHeldError:
            return  # Another process has just begun to steer, and ends them.
        lease.take(numbers)
        if server == EMBEDDED:
            manager = stack.enter_context(started_manager(EmbeddedPanda(workdir, slots=0), workdir))
        else:
            manager = stack.enter_context(connected_manager(server, workdir))
        service = Service(store, manager, lease, only=numbers, server=server)
        with stop_signals(service.stop):
            service.run(over)


def _names(records: Sequence[SearchRecord]) -> str:
    return ", ".join(repr(record.name) for record in records)


def serve(
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    slots: int | None = None,
    reach: NetworkOptions | None = None,
    queues: Path | None = None,
    processes: int = 1,
    server: str | None = None,
    api_port: int | None = None,
    notify_hosts: Sequence[str] = (),
    on_ready: Callable[[EmbeddedPanda | str, ApiProcess], None] = lambda _panda, _api: None,
    on_warning: Callable[[str], None] = log.warning,
) -> None:
    """Steers every search of the store until SIGINT or SIGTERM.

    The tasks go to the embedded PanDA server with a local pilot, or to another PanDA server with the pilots of its
    sites. Searches bound to another server are left alone.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: SQLAlchemy URL of another store.
        slots: number of jobs that the local pilot runs at once; 0: no local pilot. Default: one per core.
        reach: network options of the embedded server; default: this machine only, a free port.
        queues: queue file of the embedded server; default: any name is a queue.
        processes: number of processes of the embedded server; more than one needs PostgreSQL.
        server: URL of the PanDA server, or `embedded`; default: the server of PANDA_URL_SSL, else the embedded one.
        api_port: port of the REST API; default: a free port.
        notify_hosts: the only hosts that get notifications; default: every host with a public address.
        on_ready: called when everything runs, with the embedded server or the URL of another server, and the REST API.
        on_warning: called with warnings for the operator.

    Raises:
        TryAgainError: another process has the store and does not steer beside this one, or a server does not answer.
        GiveUpError: the embedded server or the pilot ends again and again.
    """
    target = chosen_server(server)
    _check_slots(target, slots)
    if queues is not None and target != EMBEDDED:
        raise InputError(f"--queues describes the embedded server's queues; {target} has its own")
    if processes > 1 and target != EMBEDDED:
        raise InputError(f"--server-processes is for the embedded server; {target} has its own")
    folder = WorkDir.make(workdir)
    with contextlib.closing(SteeringStore.open(folder.store_url(store))) as database, contextlib.ExitStack() as stack:
        lease = stack.enter_context(_held_lease(database, folder, "serve", target))
        if len(lease.live()) == 1:  # another service may read them where they are
            database.note_sandboxes(folder.sandboxes)
        # Reports have one thread: what the largest one took stays with malloc for its thread, 200 MB and more.
        waiting, writing = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(2))
        api = ApiProcess(folder, store=store, reach=reach or NetworkOptions(), port=api_port)
        stack.callback(api.stop)
        api.start()
        supervise: Callable[[], None] = lambda: None  # noqa: E731 - one of two
        ready: EmbeddedPanda | str = target
        if target == EMBEDDED:
            count = default_slots(1) if slots is None else slots
            panda = EmbeddedPanda(folder, slots=count, reach=reach, queues=queues, processes=processes, isolated=True)
            ready = panda
            manager = stack.enter_context(started_manager(panda, folder))
            supervise = panda.check
            for warning in security_warnings(folder, reach or NetworkOptions(), count):
                on_warning(warning)
        else:
            manager = stack.enter_context(connected_manager(target, folder))
        reports = ReportWriter(database, folder)
        snapshot = stack.enter_context(snapshots(folder.steering_metrics))
        # Searches do not wait for the API, which may take long to start on a machine under load.
        answering = [waiting.submit(api.wait, math.inf)]

        def check() -> None:
            supervise()
            if not answering:
                api.check()
            elif answering[0].done():
                answering.pop().result()
                on_ready(ready, api)
            snapshot.loop_went_round()

        pages = api.url if reach is not None and reach.is_open else None
        stack.enter_context(Notifier(database, server=target, hosts=notify_hosts, pages=pages, lease=lease).working())
        service = Service(database, manager, lease, supervise=check, server=target)
        with stop_signals(service.stop):
            service.run(_aside(writing, reports.write_new))
            writing.submit(reports.write_new).result()  # of searches that ended in the last moment


def _aside(executor: ThreadPoolExecutor, work: Callable[[], bool]) -> Callable[[], bool]:
    """Returns a function that runs `work` in another thread, so that a long report does not delay searches.

    The function does nothing while `work` still runs. It returns False, or raises the error of the previous run.
    """
    last: list[Future[bool]] = []

    def ask() -> bool:
        if not last or last[0].done():
            before = last.pop() if last else None
            last.append(executor.submit(work))
            if before is not None:
                return before.result()
        return False

    return ask
