"""A whole search in the foreground, and the service in the foreground: what `run` and `serve` do."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hpo_pilot.config import load_search
from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.service.api_process import ApiProcess
from hpo_pilot.service.embedded import EmbeddedPanda, default_slots
from hpo_pilot.service.exposure import exposures
from hpo_pilot.service.families import register_all
from hpo_pilot.service.local_queue import DEFAULT_QUEUE
from hpo_pilot.service.metrics import snapshots
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.result import ReportWriter, RunResult, result_of
from hpo_pilot.service.service import Service
from hpo_pilot.service.target import bind, check_steered, chosen_server, connected
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, SearchRecord, SteeringStore, Store
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
        records = register_all(database, folder, Path(search_file), go_on=True)
        going_on = [record for record in records if not record.state.is_over]
        if going_on:
            target = chosen_server(server, going_on)
            _check_slots(target, slots)
            if server is not None:
                bind(database, going_on, target)  # before a service that has this store takes them elsewhere
            on_server(target)
            _steer_to_the_end(database, folder, going_on, target, slots, on_progress)
        results: list[RunResult] = []
        failures: list[HpoPilotError] = []
        for record in [database.search(record.id) for record in records]:
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


def _check_slots(server: str, slots: int | None) -> None:
    if server != EMBEDDED and slots:
        raise InputError(f"--slots {slots}: the jobs run where {server} sends them; no pilot is started here")


def _steer_to_the_end(
    store: SteeringStore,
    workdir: WorkDir,
    records: Sequence[SearchRecord],
    server: str,
    slots: int | None,
    on_progress: Progress,
) -> None:
    def over() -> bool:
        now = [store.search(record.id) for record in records]
        for record in now:
            on_progress(store, record)
        return all(record.state.is_over for record in now)

    while True:
        try:
            _steer(store, workdir, records, server, slots, over)
            return
        except LeaseHeldError as error:
            if error.mode != "serve":
                raise
        # A service has this store: it runs the search, we watch; if it ends first, we go on ourselves.
        if _watch(store, records, over):
            return


def _steer(
    store: SteeringStore,
    workdir: WorkDir,
    records: Sequence[SearchRecord],
    server: str,
    slots: int | None,
    over: Callable[[], bool],
) -> None:
    first = records[0].search  # those of a family need and name the same
    with contextlib.ExitStack() as stack:
        workdir.check_space()
        lease = stack.enter_context(held(store.engine, "run", server))
        bind(store, records, server)
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
        service = Service(
            store, manager, lease, supervise=supervise, only=[record.id for record in records], server=server
        )
        with _signals(service) as stopped:
            service.run(over)
        if stopped.is_set() and not all(store.search(record.id).state.is_over for record in records):
            raise InterruptedRunError(
                f"interrupted; nothing is lost: the same command goes on with search {_names(records)}"
            )


def _names(records: Sequence[SearchRecord]) -> str:
    return ", ".join(repr(record.name) for record in records)


def _watch(store: SteeringStore, records: Sequence[SearchRecord], over: Callable[[], bool]) -> bool:
    """Watches searches that a service steers; True when they are over, False when nobody steers them any more.

    Raises:
        InputError: the service takes tasks to another server than theirs, so that there would be nothing to see.
    """
    with _watching() as stopped:
        while not over():
            service = holder(store.engine)
            if service is None:
                return False
            check_steered([store.search(record.id) for record in records], service.server)
            if stopped.wait(0.5):
                raise InterruptedRunError(f"no longer watching; the service goes on with search {_names(records)}")
    return True


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
