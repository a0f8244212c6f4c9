"""A whole search in the foreground, and the service in the foreground: what `run` and `serve` do."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hpo_pilot.config import load_search
from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.search import Search
from hpo_pilot.service.api_process import ApiProcess
from hpo_pilot.service.embedded import EmbeddedPanda, default_slots
from hpo_pilot.service.exposure import exposures
from hpo_pilot.service.families import check_family, register_family
from hpo_pilot.service.local_queue import DEFAULT_QUEUE
from hpo_pilot.service.metrics import snapshots
from hpo_pilot.service.nickname import nickname
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.registration import PackedSearch, pack_searches
from hpo_pilot.service.result import ReportWriter, RunResult, result_of
from hpo_pilot.service.service import Service
from hpo_pilot.service.target import bind, check_steered, chosen_server, connected
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, SearchRecord, SearchState, SteeringStore, Store
from hpo_pilot.store.lease import LeaseHeldError, held, holder

Progress = Callable[[Store, SearchRecord], None]

log = logging.getLogger(__name__)


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
                bind(self._store, going_on, self.server)  # before a service that has this store takes them elsewhere
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
        lease = stack.enter_context(held(store.engine, "run", server))
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
            manager = stack.enter_context(connected(server, workdir))
        # Not before: a run that is refused, for whatever reason, leaves nothing in the store.
        records = family.going_on()
        bind(store, records, server)
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
            lease = stack.enter_context(held(store.engine, "stop", server))
        except LeaseHeldError:
            return  # what has just begun to steer ends them
        lease.steer_only(numbers)
        if server == EMBEDDED:
            manager = stack.enter_context(_started(EmbeddedPanda(workdir, slots=0), workdir))
        else:
            manager = stack.enter_context(connected(server, workdir))
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
        while (service := holder(store.engine)) is not None:
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
    reach: Reach | None = None,
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
            lease = stack.enter_context(held(database.engine, "serve", target))
            api = ApiProcess(folder, store=store, reach=reach or Reach(), port=api_port)
            stack.callback(api.stop)
            api.start()
            supervise: Callable[[], None] = lambda: None  # noqa: E731 - one of two
            ready: EmbeddedPanda | str = target
            if target == EMBEDDED:
                count = default_slots(1) if slots is None else slots
                ready = panda = EmbeddedPanda(folder, slots=count, reach=reach, queues=queues)
                manager = stack.enter_context(_started(panda, folder))
                supervise = panda.check
                for warning in exposures(folder, reach or Reach(), count):
                    on_warning(warning)
            else:
                manager = stack.enter_context(connected(target, folder))
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
