"""The steering service: many searches at once, and `run` and `serve` in the foreground."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.logs import about
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.search import Search
from hpo_pilot.steering.embedded import (
    EmbeddedPanda,
    bind_to_server,
    check_steered,
    chosen_server,
    connected_manager,
    default_slots,
)
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.steering.metrics import snapshots
from hpo_pilot.steering.registration import PackedSearch, check_family, pack_searches, register_family
from hpo_pilot.steering.results import ReportWriter, RunResult, internal_error, result_of
from hpo_pilot.steering.search_file import load_search
from hpo_pilot.steering.server_processes import ApiProcess, NetworkOptions, security_warnings
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir, nickname
from hpo_pilot.store import EMBEDDED, SearchRecord, SearchState, SteeringStore, Store, StoreAwayError
from hpo_pilot.store.lease import LEASE_SECONDS, Lease, LeaseHeldError, LeaseLostError, held_lease, lease_holder

# The steering service: many searches, woken by the server, by the optimizers and by users.
#
# One loop says whose turn it is; a few threads carry the turns out. A search has one turn at a time, and searches
# take
# turns in the order in which they have something to do: a slow call of one search delays no other search.

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


Progress = Callable[[Store, SearchRecord], None]


class InterruptedRunError(TryAgainError):
    """A run was asked to end before its search did; the same command goes on with it."""


def run(
    search_file: str | Path,
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    slots: int | None = None,
    server: str | None = None,
    on_server: Callable[[str], None] = lambda _server: None,
    on_progress: Progress = lambda _store, _record: None,
) -> RunResult:
    """Runs a search to its end, or goes on with one that was interrupted.

    Args:
        search_file: the search file.
        workdir: the work folder; default ./hpo-pilot.
        store: another store's SQLAlchemy URL.
        slots: how many jobs run side by side; default: what the machine's cores hold.
        server: the PanDA server's URL, or `embedded`; default: where the search's tasks are already, else the one that
            PANDA_URL_SSL names, else the embedded one.
        on_server: called with the server that was found, before anything is sent there.
        on_progress: called about twice a second.

    Raises:
        InputError: the file or an option is wrong.
        TryAgainError: interrupted, or something is out of reach; the same call goes on.
        GiveUpError: the embedded server or the pilot cannot be kept alive.
    """
    segments = load_search(search_file).segments
    if segments:
        raise InputError(f"{search_file} has {len(segments)} segments, each a search: call run_all, which returns all")
    options = {"store": store, "slots": slots, "server": server}
    (result,) = run_all(search_file, workdir, **options, on_server=on_server, on_progress=on_progress)  # type: ignore[arg-type]
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
    """Runs the searches of all segments of a file side by side; of a file without segments its one search.

    Arguments and errors are those of `run`.

    Returns:
        Their results, in the order of the file.
    """
    folder = WorkDir.make(workdir)
    database = SteeringStore.open(folder.store_url(store))
    try:
        family = _Family(database, pack_searches(Path(search_file), folder))
        if family.goes_on:
            target = chosen_server(server, family.bound)
            _check_slots(target, slots)
            family.server = target if server is not None else None
            on_server(target)
            _steer_to_the_end(database, folder, family, target, slots, on_progress)
        results: list[RunResult] = []
        failures: list[HpoPilotError] = []
        for record in [database.search(record.id) for record in family.registered()]:
            on_progress(database, record)
            try:
                results.append(result_of(database, folder, record))
            except HpoPilotError as error:
                failures.append(error)  # of the others' reports each that can be written is
        if failures:
            raise failures[0]
        return results
    finally:
        database.close()


class _Family:
    """The searches of a file, which are registered once all that could refuse them has been asked."""

    def __init__(self, store: SteeringStore, packed: Sequence[PackedSearch]) -> None:
        """Checks them and registers nothing.

        Raises:
            InputError: one of them differs from a registered search in more than a larger budget.
        """
        self._store = store
        self._packed = packed
        self._records: list[SearchRecord] | None = None
        known = check_family(store, packed, go_on=True)
        #: Those that the store has and that are to go on.
        self.bound = [
            record
            for record, one in zip(known, packed, strict=True)
            if record is not None and (record.state is not SearchState.DONE or record.filed.budget != one.search.budget)
        ]
        #: Whether any is to run.
        self.goes_on = bool(self.bound) or None in known
        #: The server that they are to be tied to, where one was asked for.
        self.server: str | None = None

    @property
    def search(self) -> Search:
        """The first of them; those of a family need and name the same."""
        return self._packed[0].search

    @property
    def servers(self) -> dict[str, str | None]:
        """The server that each is tied to, or will be, by name."""
        bound = {record.name: record.server for record in self.bound}
        return {one.search.name: self.server or bound.get(one.search.name) for one in self._packed}

    @property
    def is_registered(self) -> bool:
        """Whether `registered` was called."""
        return self._records is not None

    def registered(self) -> list[SearchRecord]:
        """All of them, registered with the first call."""
        if self._records is None:
            self._records = register_family(self._store, self._packed, go_on=True, who=nickname())
            if self.server is not None:
                going_on = [record for record in self._records if not record.state.is_over]
                bind_to_server(
                    self._store, going_on, self.server
                )  # before a service that has this store takes them elsewhere
        return self._records

    def going_on(self) -> list[SearchRecord]:
        """Those that are not over, as they are now."""
        now = [self._store.search(record.id) for record in self.registered()]
        return [record for record in now if not record.state.is_over]


def _check_slots(server: str, slots: int | None) -> None:
    if server != EMBEDDED and slots:
        raise InputError(f"--slots {slots}: the jobs run where {server} sends them; no pilot is started here")


def _steer_to_the_end(
    store: SteeringStore,
    workdir: WorkDir,
    family: _Family,
    server: str,
    slots: int | None,
    on_progress: Progress,
) -> None:
    def over() -> bool:
        now = [store.search(record.id) for record in family.registered()]
        for record in now:
            on_progress(store, record)
        return all(record.state.is_over for record in now)

    while not (family.is_registered and over()):
        try:
            _steer(store, workdir, family, server, slots, over)
            return
        except LeaseHeldError as error:
            if error.mode != "serve":
                raise
        # A service has this store: it runs the search, we watch; if it ends first, we go on ourselves.
        if _watch(store, family, over):
            return


def _steer(
    store: SteeringStore,
    workdir: WorkDir,
    family: _Family,
    server: str,
    slots: int | None,
    over: Callable[[], bool],
) -> None:
    first = family.search
    with contextlib.ExitStack() as stack:
        workdir.check_space()
        lease = stack.enter_context(held_lease(store.engine, "run", server))
        supervise: Callable[[], None] = workdir.check_space
        if server == EMBEDDED:
            count = slots or default_slots(first.resources.cores)
            queue = (first.site.queue or DEFAULT_QUEUE).split(",")[0]
            panda = EmbeddedPanda(workdir, slots=count, queue=queue)
            manager = stack.enter_context(_started(panda, workdir))

            def check() -> None:
                panda.check()
                workdir.check_space()

            supervise = check
        else:
            manager = stack.enter_context(connected_manager(server, workdir))
        # Not before: a run that is refused, for whatever reason, leaves nothing in the store.
        records = family.going_on()
        bind_to_server(store, records, server)
        numbers = [record.id for record in records]
        lease.steer_only(numbers)
        service = Service(store, manager, lease, supervise=supervise, only=numbers, server=server)
        with _signals(service) as stopped:
            service.run(over)
        if stopped.is_set() and not all(store.search(number).state.is_over for number in numbers):
            raise InterruptedRunError(
                f"interrupted; nothing is lost: the same command goes on with search {_names(records)}"
            )


#: How long `stop` tries to end the jobs of a search that nothing steers, in seconds.
_STOP_SECONDS = 60.0


def end_stopping(store: str, workdir: WorkDir, records: Sequence[SearchRecord]) -> None:
    """Ends searches that are `stopping` and that nothing steers: steers them until their jobs are killed.

    Where that is not possible within a minute, or another process begins to steer meanwhile, they stay `stopping`.

    Args:
        store: the store's SQLAlchemy URL.
        workdir: whose embedded server has their jobs, where these are not at another.
        records: the searches.

    Raises:
        TryAgainError: their server does not answer; the message says so.
        InputError: the user's settings for that server do not do.
    """
    database = SteeringStore.open(store)
    try:
        stopping = [now for record in records if (now := database.search(record.id)).state is SearchState.STOPPING]
        by_server: dict[str, list[int]] = {}
        for record in stopping:
            by_server.setdefault(record.server or EMBEDDED, []).append(record.id)
        for server, numbers in by_server.items():
            _end_at(database, workdir, server, numbers)
    finally:
        database.close()


def _end_at(store: SteeringStore, workdir: WorkDir, server: str, numbers: Sequence[int]) -> None:
    end = time.monotonic() + _STOP_SECONDS

    def over() -> bool:
        return time.monotonic() > end or all(store.search(number).state.is_over for number in numbers)

    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(held_lease(store.engine, "stop", server))
        except LeaseHeldError:
            return  # what has just begun to steer ends them
        lease.steer_only(numbers)
        if server == EMBEDDED:
            manager = stack.enter_context(_started(EmbeddedPanda(workdir, slots=0), workdir))
        else:
            manager = stack.enter_context(connected_manager(server, workdir))
        service = Service(store, manager, lease, only=numbers, server=server)
        with _signals(service):
            service.run(over)


def _names(records: Sequence[SearchRecord]) -> str:
    return ", ".join(repr(record.name) for record in records)


def _watch(store: SteeringStore, family: _Family, over: Callable[[], bool]) -> bool:
    """Watches searches that a service steers; True when they are over, False when nobody steers them any more.

    Raises:
        InputError: the service takes tasks to another server than theirs, so that there would be nothing to see.
    """
    with _watching() as stopped:
        while (service := lease_holder(store.engine)) is not None:
            check_steered(family.servers, service.server)
            if over():
                return True
            if stopped.wait(0.5):
                names = _names(family.registered())
                raise InterruptedRunError(f"no longer watching; the service goes on with search {names}")
    return False


def serve(
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    slots: int | None = None,
    reach: NetworkOptions | None = None,
    queues: Path | None = None,
    server: str | None = None,
    api_port: int | None = None,
    on_ready: Callable[[EmbeddedPanda | str, ApiProcess], None] = lambda _panda, _api: None,
    on_warning: Callable[[str], None] = log.warning,
) -> None:
    """Steers every search of the store until it is told to stop.

    At the embedded PanDA server, with a local pilot, or at another, whose pilots are the sites'. Searches whose tasks
    are at another server than that are left alone.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: another store's SQLAlchemy URL.
        slots: how many jobs the local pilot runs side by side; 0: no local pilot. Default: one per core.
        reach: where the embedded server listens; default: this machine alone, on a free port.
        queues: the embedded server's queue file; default: any name is a queue.
        server: the PanDA server's URL, or `embedded`; default: the one that PANDA_URL_SSL names, else the embedded one.
        api_port: the REST API's port; default: a free one.
        on_ready: called when everything runs, with the embedded server, or the other one's URL, and with the REST API.
        on_warning: called with what whoever runs the service should know.

    Raises:
        TryAgainError: another service has the store, or something is out of reach.
        GiveUpError: the embedded server or the pilot cannot be kept alive.
    """
    target = chosen_server(server)
    _check_slots(target, slots)
    if queues is not None and target != EMBEDDED:
        raise InputError(f"--queues describes the embedded server's queues; {target} has its own")
    folder = WorkDir.make(workdir)
    database = SteeringStore.open(folder.store_url(store))
    try:
        with contextlib.ExitStack() as stack:
            lease = stack.enter_context(held_lease(database.engine, "serve", target))
            api = ApiProcess(folder, store=store, reach=reach or NetworkOptions(), port=api_port)
            stack.callback(api.stop)
            api.start()
            supervise: Callable[[], None] = lambda: None  # noqa: E731 - one of two
            ready: EmbeddedPanda | str = target
            if target == EMBEDDED:
                count = default_slots(1) if slots is None else slots
                ready = panda = EmbeddedPanda(folder, slots=count, reach=reach, queues=queues)
                manager = stack.enter_context(_started(panda, folder))
                supervise = panda.check
                for warning in security_warnings(folder, reach or NetworkOptions(), count):
                    on_warning(warning)
            else:
                manager = stack.enter_context(connected_manager(target, folder))
            write_reports = _aside(stack.enter_context(ThreadPoolExecutor(1)), ReportWriter(database, folder).write_new)
            api.wait()

            snapshot = stack.enter_context(snapshots(folder.steering_metrics))

            def check() -> None:
                supervise()
                api.check()
                snapshot.loop_went_round()

            service = Service(database, manager, lease, supervise=check, server=target)
            on_ready(ready, api)
            with _signals(service):
                service.run(write_reports)
    finally:
        database.close()


def _aside(executor: ThreadPoolExecutor, work: Callable[[], bool]) -> Callable[[], bool]:
    """Does `work` in another thread, again whenever it is asked and has ended: a long report delays no search.

    Returns:
        What asks for it: False, or what the last time raised.
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


@contextlib.contextmanager
def _started(panda: EmbeddedPanda, workdir: WorkDir) -> Iterator[WorkflowManager]:
    panda.start()
    here = panda.server
    manager = workflow_manager("panda").connect(
        here.url, here.token_file, here.owner, workdir.log("panda-client"), here.authorities
    )
    try:
        yield manager
    finally:
        manager.close()
        panda.stop()


@contextlib.contextmanager
def _signals(service: Service) -> Iterator[threading.Event]:
    """SIGINT and SIGTERM end the service in order; the event says that one came."""
    with _watching(service.stop) as stopped:
        yield stopped


@contextlib.contextmanager
def _watching(action: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    stopped = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        stopped.set()
        action()

    if threading.current_thread() is not threading.main_thread():
        yield stopped  # only the main thread may handle signals: a caller in a notebook's thread does it itself
        return
    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
