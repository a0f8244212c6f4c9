"""A whole search in the foreground, and the service in the foreground: what `run` and `serve` do."""

from __future__ import annotations

import contextlib
import logging
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from hpo_pilot.errors import TryAgainError
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.report import ReportFacts, best_trial, render_report
from hpo_pilot.search import Trial
from hpo_pilot.service.embedded import DEFAULT_QUEUE, EmbeddedPanda, default_slots
from hpo_pilot.service.registration import register
from hpo_pilot.service.service import Service
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, SteeringStore, Store
from hpo_pilot.store.lease import LeaseHeldError, held, is_held

Progress = Callable[[Store, SearchRecord], None]

log = logging.getLogger(__name__)


class InterruptedRunError(TryAgainError):
    """A run was asked to end before its search did; the same command goes on with it."""


@dataclass(frozen=True)
class RunResult:
    """What came of a search.

    Attributes:
        best: the best trial; None where there is none.
        report: the HTML report.
    """

    record: SearchRecord
    best: Trial | None
    trials: list[Trial]
    report: Path


def run(
    search_file: str | Path,
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    slots: int | None = None,
    on_progress: Progress = lambda _store, _record: None,
) -> RunResult:
    """Runs a search to its end, or goes on with one that was interrupted.

    Args:
        search_file: the search file.
        workdir: the work folder; default ./hpo-pilot.
        store: another store's SQLAlchemy URL.
        slots: how many jobs run side by side; default: what the machine's cores hold.
        on_progress: called about twice a second.

    Raises:
        InputError: the file or an option is wrong.
        TryAgainError: interrupted, or something is out of reach; the same call goes on.
        GiveUpError: the embedded server or the pilot cannot be kept alive.
    """
    folder = WorkDir.make(workdir)
    database = SteeringStore.open(folder.store_url(store))
    try:
        record = register(database, folder, Path(search_file), go_on=True)
        if not record.state.is_over:
            _steer_to_the_end(database, folder, record, slots, on_progress)
        record = database.search(record.id)
        on_progress(database, record)
        return result_of(database, folder, record)
    finally:
        database.close()


def _steer_to_the_end(
    store: SteeringStore, workdir: WorkDir, record: SearchRecord, slots: int | None, on_progress: Progress
) -> None:
    def over() -> bool:
        now = store.search(record.id)
        on_progress(store, now)
        return now.state.is_over

    while True:
        try:
            _steer(store, workdir, record, slots, over)
            return
        except LeaseHeldError as error:
            if error.mode != "serve":
                raise
        # A service has this store: it runs the search, we watch; if it ends first, we go on ourselves.
        if _watch(store, record, over):
            return


def _steer(
    store: SteeringStore, workdir: WorkDir, record: SearchRecord, slots: int | None, over: Callable[[], bool]
) -> None:
    with contextlib.ExitStack() as stack:
        workdir.check_space()
        lease = stack.enter_context(held(store.engine, "run"))
        count = slots or default_slots(record.search.resources.cores)
        panda = EmbeddedPanda(workdir, slots=count, queue=record.search.site.queue or DEFAULT_QUEUE)
        manager = stack.enter_context(_started(panda, workdir))

        def supervise() -> None:
            panda.check()
            workdir.check_space()

        service = Service(store, manager, lease, supervise=supervise, only=[record.id])
        with _signals(service) as stopped:
            service.run(over)
        if stopped.is_set() and not store.search(record.id).state.is_over:
            raise InterruptedRunError(
                f"interrupted; nothing is lost: the same command goes on with search {record.name!r}"
            )


def _watch(store: SteeringStore, record: SearchRecord, over: Callable[[], bool]) -> bool:
    """Watches a search that a service steers; True when it is over, False when nobody steers it any more."""
    with _watching() as stopped:
        while not over():
            if stopped.wait(0.5):
                raise InterruptedRunError(f"no longer watching; the service goes on with search {record.name!r}")
            if not is_held(store.engine):
                return False
    return True


def serve(
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    slots: int | None = None,
    port: int | None = None,
    on_ready: Callable[[EmbeddedPanda], None] = lambda _panda: None,
) -> None:
    """Steers every search of the store until it is told to stop, with the embedded PanDA server and a local pilot.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: another store's SQLAlchemy URL.
        slots: how many jobs the local pilot runs side by side; 0: no local pilot. Default: one per core.
        port: the embedded server's port; default: a free one.
        on_ready: called when everything runs.

    Raises:
        TryAgainError: another service has the store, or something is out of reach.
        GiveUpError: the embedded server or the pilot cannot be kept alive.
    """
    folder = WorkDir.make(workdir)
    database = SteeringStore.open(folder.store_url(store))
    try:
        with contextlib.ExitStack() as stack:
            lease = stack.enter_context(held(database.engine, "serve"))
            count = default_slots(1) if slots is None else slots
            panda = EmbeddedPanda(folder, slots=count, port=port)
            manager = stack.enter_context(_started(panda, folder))
            reports = _ReportWriter(database, folder)
            service = Service(database, manager, lease, supervise=panda.check)
            on_ready(panda)
            with _signals(service):
                service.run(reports.write_new)
    finally:
        database.close()


class _ReportWriter:
    """Writes the report of every search that ends while the service runs."""

    def __init__(self, store: Store, workdir: WorkDir) -> None:
        self._store = store
        self._workdir = workdir
        self._alive = set(store.search_states())

    def write_new(self) -> bool:
        """Writes the reports that are due; False, for the service goes on."""
        alive = set(self._store.search_states())
        for number in self._alive - alive:
            try:
                result_of(self._store, self._workdir, self._store.search(number))
            except TryAgainError as error:
                log.warning("%s", error)  # `hpo-pilot report` writes it later
        self._alive = alive
        return False


@contextlib.contextmanager
def _started(panda: EmbeddedPanda, workdir: WorkDir) -> Iterator[WorkflowManager]:
    panda.start()
    here = panda.server
    manager = workflow_manager("panda").connect(here.url, here.token_file, here.owner, workdir.log("panda-client"))
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


def result_of(store: Store, workdir: WorkDir, record: SearchRecord) -> RunResult:
    """A search's result so far, with its report written."""
    trials = store.trials(record.id)
    path = workdir.report(record.name)
    text = render(store, record, trials)
    temporary = path.with_suffix(f".{time.time_ns()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise TryAgainError(
            f"the search is {record.state.value}, but its report cannot be written to {path}: {error.strerror}; "
            f"`hpo-pilot report {record.name} -o FILE` writes it elsewhere"
        ) from error
    return RunResult(record, best_trial(record.search, trials), trials, path)


def render(store: Store, record: SearchRecord, trials: list[Trial]) -> str:
    """The search's HTML report."""
    seconds = store.job_seconds(record.id)
    facts = ReportFacts(
        started=record.started,
        ended=record.ended,
        state=record.state.value,
        message=record.message,
        command=f"hpo-pilot run {record.source}",
        versions=_versions(),
        job_seconds=seconds,
        gpu_hours=seconds * record.search.resources.gpus / 3600,
        store=store.engine.url.render_as_string(hide_password=True),
    )
    events = [(event.time, event.who, event.what) for event in store.events(record.id)]
    return render_report(record.search, trials, events, facts)


def _versions() -> dict[str, str]:
    packages = ("hpo-pilot", "panda-client", "scikit-optimize", "scikit-learn", "deap", "numpy", "scipy", "sqlalchemy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
