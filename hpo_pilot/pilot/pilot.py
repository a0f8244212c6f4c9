"""The pilot process: takes jobs while resources are free, until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from prometheus_client import Info, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hpo_pilot import __version__
from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.logs import about
from hpo_pilot.pilot.allocation import AllocationPool, AllocationWatch, ending_margin, find_allocation
from hpo_pilot.pilot.attempt import Attempts
from hpo_pilot.pilot.checkpoints import CheckpointShipping
from hpo_pilot.pilot.client import Backoff, CallRefused, Delivery, JobServer, TokenRefused
from hpo_pilot.pilot.execution import worker_mark
from hpo_pilot.pilot.job import CutOff, Job, JobFailure, PilotErrorCode
from hpo_pilot.pilot.job_files import FolderStorage, ServerStorage, Storage
from hpo_pilot.pilot.launch import LauncherOutage, probe_launcher
from hpo_pilot.pilot.machine import C, Claim, MachinePool, Pool, choose_gpus, find_gpus, machine_cores
from hpo_pilot.pilot.report import METRICS_REGISTRY
from hpo_pilot.pilot.settings import PilotSettings, Site, WorkDir, load_site
from hpo_pilot.pilot.staging import Staging
from hpo_pilot.pilot.watchdog import Heartbeats, Running, Watchdog
from hpo_pilot.transformation.process import GRACE, SHORT_GRACE, Keeper, end_leftovers

log = logging.getLogger(__name__)

_PAUSE = 5.0  # seconds between checks of a full disk


class Acquisition(threading.Thread):
    """Asks the server for jobs while resources are free, until the pilot drains."""

    def __init__(
        self,
        settings: PilotSettings,
        server: JobServer,
        workdir: WorkDir,
        room: Pool[C],
        *,
        draining: threading.Event,
        begin: Callable[[list[dict[str, Any]]], None],
        give_up: Callable[[HpoPilotError], None],
        remaining: Callable[[], int],
    ) -> None:
        """Prepares; `start` starts it.

        Args:
            settings: of the pilot.
            server: the PanDA server.
            workdir: its disk must not be full.
            room: resources that jobs run on.
            draining: is set when no more jobs are wanted.
            begin: starts the received jobs.
            give_up: is called when the server refuses this pilot for too long.
            remaining: returns the remaining seconds of the pilot; 0: not known.
        """
        super().__init__(name="acquire", daemon=True)
        self._settings, self._server, self._workdir, self._room = settings, server, workdir, room
        self._draining, self._begin, self._give_up, self._remaining = draining, begin, give_up, remaining
        self._trouble = ""  # with the disk

    def run(self) -> None:
        """Asks until the pilot drains or gives up."""
        backoff, idle = Backoff(), Backoff(0.2, self._settings.idle)
        refused_since: float | None = None
        while not self._draining.is_set():
            free = self._room.wait_for_some(self._draining)
            if self._draining.is_set() or not self._has_disk():
                continue
            asked = time.monotonic()
            wait = min(self._settings.poll, free.patience)
            try:
                found = self._server.acquire(free, wait, self._workdir.free_mb(), self._remaining())
            except TryAgainError as error:
                log.debug("no jobs: %s", error)
                backoff.pause(self._draining)
                continue
            except (TokenRefused, CallRefused, InputError) as error:
                refused_since = refused_since or asked
                if asked - refused_since >= self._settings.refused:
                    self._give_up(error if isinstance(error, InputError) else InputError(str(error)))
                    return
                log.warning("%s", error)
                backoff.pause(self._draining)
                continue
            refused_since = None
            backoff.reset()
            if found:
                idle.reset()
                self._begin(found)
            elif time.monotonic() - asked < min(1.0, wait / 2):  # this server does not wait
                idle.pause(self._draining)

    def _has_disk(self) -> bool:
        """Returns whether the disk has room for jobs; changes are logged."""
        trouble = self._workdir.trouble(self._settings.min_free_mb)
        if trouble != self._trouble:
            log.warning("%s", f"{trouble}: no jobs are taken" if trouble else "there is room again, and jobs are taken")
            self._trouble = trouble
        if trouble:
            self._draining.wait(_PAUSE)
        return not trouble


#: The metrics need no token, so the port is open on this machine only.
_HOST = "127.0.0.1"


class _Now(Collector):
    """Gauges that are computed at each request of Prometheus."""

    def __init__(self, room: Pool[Any], running: Running, workdir: WorkDir) -> None:
        self._room, self._running, self._workdir = room, running, workdir

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See Collector."""
        running = self._running.all()
        yield GaugeMetricFamily("hpo_pilot_pilot_jobs_running", "Jobs whose commands run.", len(running))
        yield GaugeMetricFamily("hpo_pilot_pilot_slots", "Jobs that may be here at a time.", self._room.most)
        free = self._workdir.free_mb() << 20
        yield GaugeMetricFamily("hpo_pilot_pilot_disk_free_bytes", "Free disk of the work folder.", free)
        if isinstance(self._room, AllocationPool):
            yield from _of_allocation(self._room)


def _of_allocation(room: AllocationPool) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    waiting, spent = room.counts()[1], room.usage().nodes
    yield GaugeMetricFamily("hpo_pilot_pilot_jobs_waiting", "Jobs that wait for nodes of the allocation.", waiting)
    yield GaugeMetricFamily("hpo_pilot_pilot_nodes_up", "Nodes of the allocation that are of use.", len(room.up))
    seconds = CounterMetricFamily(
        "hpo_pilot_pilot_node_seconds", "Seconds of the allocation's nodes; their rate is how many.", labels=["use"]
    )
    for use in ("used", "lost", "idle"):
        seconds.add_metric([use], getattr(spent, use))
    yield seconds


@contextmanager
def metrics_served(settings: PilotSettings, room: Pool[Any], running: Running, workdir: WorkDir) -> Iterator[None]:
    """Serves metrics for Prometheus during a block, if the settings name a port.

    Raises:
        TryAgainError: the port is taken.
    """
    if settings.metrics_port is None:
        yield
        return
    with _registered(settings, _Now(room, running, workdir)):
        where = f"{_HOST}:{settings.metrics_port}"
        try:
            server, thread = start_http_server(settings.metrics_port, _HOST, METRICS_REGISTRY)
        except OSError as error:
            raise TryAgainError(
                f"--metrics-port: {where} cannot be listened at: {error.strerror or error}; name another port"
            ) from error
        log.info("metrics are at http://%s:%d/metrics", _HOST, server.server_port)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def _registered(settings: PilotSettings, now: _Now) -> Iterator[None]:
    told = Info("hpo_pilot_pilot", "This pilot.", registry=None)
    told.info({"version": __version__, "queue": settings.queue, "worker": settings.worker_name})
    for collector in (told, now):
        METRICS_REGISTRY.register(collector)
    try:
        yield
    finally:
        for collector in (told, now):
            METRICS_REGISTRY.unregister(collector)


_LAST_REPORTS = 5.0  # seconds for unsent reports at the end; the others stay on disk for the next pilot


class Pilot:
    """One pilot process.

    Threads: one asks for jobs, one sends heartbeats, one repeats unsent reports, one sends checkpoints, one watches
    processes, one watches the allocation if there is one, and each running job has its own. The main thread waits for a
    reason to stop.
    """

    def __init__(self, settings: PilotSettings, server: JobServer | None = None) -> None:
        """Locks the work folder.

        Raises:
            InputError: settings, token file, work folder, site or allocation cannot be used.
            TryAgainError: a pilot with this name is running.
        """
        self._settings = settings
        self._site = load_site(settings.site) if settings.site is not None else None
        self._workdir = WorkDir(settings)
        self._server = server or JobServer(settings, self._workdir.key)
        self._draining = threading.Event()
        self._at_once = threading.Event()
        self._server_storage = ServerStorage(self._server, self._at_once)
        self._own_storage = FolderStorage(settings.storage_folder)
        self._delivery = Delivery(self._server, self._workdir)
        self._heartbeats = Heartbeats(settings, self._server)
        self._shipping = CheckpointShipping(settings, self._server)
        self._running = Running()
        self._watchdog = Watchdog(self._workdir, self._running.all)
        self._changed = threading.Condition()
        self._watch: AllocationWatch | None = None
        self._staging: Staging | None = None
        self._outage: LauncherOutage | None = None
        self._room: Pool[Any] = self._machine_room()
        if settings.allocation and self._site is not None:
            self._room = self._allocation_room(self._site)
        self._jobs = ThreadPoolExecutor(2 * self._room.most, "job")
        # Every runner holds the reading end; it sees the other end close when this process dies.
        self._lifeline, self._lifeline_kept = os.pipe()
        self._attempts: Attempts[Any] = Attempts(
            settings,
            self._site,
            self._server,
            self._workdir,
            self._room,
            running=self._running,
            delivery=self._delivery,
            heartbeats=self._heartbeats,
            shipping=self._shipping,
            storage=self._storage,
            staging=self._staging,
            outage=self._outage,
            has_started=self._watchdog.wake,
            draining=self._draining,
            lifeline=self._lifeline,
        )
        self._unreported = 0
        self._over = False
        self._fatal: HpoPilotError | None = None
        self._began = time.monotonic()

    def _machine_room(self) -> MachinePool:
        settings, found = self._settings, find_gpus()
        return MachinePool(
            settings.slots,
            settings.cores or max(settings.slots, machine_cores()),
            found if settings.gpus is None else choose_gpus(settings.gpus, found),
            # Without --gpus, a job that asked for no GPU sees all of them.
            shows_gpus=settings.gpus is None,
        )

    def _allocation_room(self, site: Site) -> AllocationPool:
        allocation = find_allocation(site, self._settings.lifetime)
        margin = ending_margin(allocation.seconds, self._settings.margin)
        names = [node.name for node in allocation.nodes]
        self._outage = outage = LauncherOutage(
            lambda nodes: probe_launcher(site, nodes, names),
            others=lambda: sorted(room.up),
            over=self._launcher_works,
            give_up=self._give_up_allocation,
        )
        room = AllocationPool(
            allocation, site, margin=margin, when_lost=self._running.stop, is_away=lambda: outage.is_on
        )
        self._watch = AllocationWatch(
            room, site, allocation, margin=margin, idle=self._settings.end_idle, end=lambda: self.stop(at_once=True)
        )
        if self._settings.staging and site.scratch:
            self._staging = Staging(
                site,
                self._workdir.staging,
                names,
                job=allocation.job,
                seconds=allocation.seconds,
                limit_mb=self._settings.staging_mb,
            )
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        log.info(
            "allocation of %d nodes (%s) for %.0f s; the first: %s",
            *(len(names), shown, allocation.seconds, allocation.nodes[0].shape),
        )
        return room

    def run(self) -> int:
        """Runs until it is stopped and its jobs have ended.

        Returns:
            The exit status, 0.

        Raises:
            InputError: the server refuses the token, or is not a PanDA server.
            GiveUpError: the allocation's launcher started nothing for too long.
        """
        settings = self._settings
        log.info(
            "pilot %s/%s: up to %d jobs at a time for queue %s of %s",
            *(settings.harvester_id, settings.worker_id, self._room.most, settings.queue, settings.server),
        )
        self._delivery.try_all()
        self._end_leftovers("an earlier pilot", GRACE)
        if self._workdir.stale or settings.lifeline_fd is not None:
            self._say_finished()  # jobs of an earlier pilot go back to the queue: none of them runs
        keeper = self._keeper()
        asking = Acquisition(
            settings,
            self._server,
            self._workdir,
            self._room,
            draining=self._draining,
            begin=self._begin,
            give_up=self._give_up,
            remaining=self._remaining,
        )
        for thread in (self._delivery, self._heartbeats, self._watchdog, self._shipping, asking, self._watch):
            if thread is not None:
                thread.start()
        if settings.lifeline_fd is not None:
            threading.Thread(target=self._watch_lifeline, args=[settings.lifeline_fd], daemon=True).start()
        self._draining.wait(settings.lifetime or None if self._watch is None else None)
        self._drain()
        self._end_leftovers("this pilot", SHORT_GRACE)
        os.close(self._lifeline_kept)
        if keeper is not None:
            keeper.wait()
        if self._staging is not None and isinstance(self._room, AllocationPool):
            self._staging.remove(self._room.up)
        self._watchdog.stop()
        if self._outage is not None:
            self._outage.stop()
        if self._watch is not None:
            self._watch.stop()
        if self._fatal is not None:
            raise self._fatal
        log.info("pilot ends")
        return 0

    def metrics_served(self) -> AbstractContextManager[None]:
        """Returns a block during which metrics are served, if the settings name a port."""
        return metrics_served(self._settings, self._room, self._running, self._workdir)

    def handle_signals(self) -> None:
        """Handles signals: SIGTERM and SIGINT drain, a second one ends the jobs, the site's own is a warning.

        Main thread only.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        warning = self._site.warning if self._site is not None else None
        if self._watch is not None and warning is not None:
            signal.signal(warning.number, self._on_warning)

    def stop(self, *, at_once: bool = False) -> None:
        """Takes no more jobs and lets `run` return; `at_once`: running jobs are ended now."""
        if at_once or self._draining.is_set():
            self._at_once.set()
        self._draining.set()
        self._room.wake()
        with self._changed:
            self._changed.notify_all()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        # The handler may interrupt this thread while it holds the lock that `stop` needs.
        threading.Thread(target=self.stop, daemon=True).start()

    def _on_warning(self, number: int, _: FrameType | None) -> None:
        if self._watch is not None:
            self._watch.warn()

    def _watch_lifeline(self, fd: int) -> None:
        while os.read(fd, 64):
            pass
        log.info("whoever started this pilot has ended")
        self.stop(at_once=True)

    # --- jobs ---

    def _begin(self, found: list[dict[str, Any]]) -> None:
        with self._changed:
            if not self._over:
                self._unreported += len(found)
                for data in found:
                    self._jobs.submit(self._run, data, self._room.claim(data))
                return
        log.info("%d jobs came when the pilot had ended, and go back to the queue", len(found))
        self._say_finished()

    def _run(self, data: dict[str, Any], claim: Claim) -> None:
        try:
            with about(panda_id=data.get("PandaID"), attempt=data.get("attemptNr")):
                self._attempts.run(data, claim)
        finally:
            with self._changed:  # comes last: a pilot that ends waits for it
                self._unreported -= 1
                self._changed.notify_all()

    def _storage(self, job: Job) -> Storage:
        return self._server_storage if job.server_stores else self._own_storage

    def _give_up(self, error: HpoPilotError) -> None:
        self._fatal = error
        self.stop()

    def _launcher_works(self) -> None:
        self._room.wake()

    def _give_up_allocation(self, error: HpoPilotError) -> None:
        """Drains after a launcher failure; running jobs may finish."""
        log.error("%s", error)
        self._fatal = error
        if self._watch is not None:
            self._watch.drain()

    def _remaining(self) -> int:
        if self._watch is not None:
            return self._watch.remaining
        if not self._settings.lifetime:
            return 0
        return max(1, int(self._settings.lifetime - (time.monotonic() - self._began)))

    # --- processes ---

    def _keeper(self) -> Keeper | None:
        """Starts the process that ends the jobs' processes if this pilot is killed."""
        try:
            return Keeper(worker_mark(self._settings), self._lifeline)
        except OSError as error:
            log.warning("if this pilot is killed, processes of its jobs may outlive it: %s", error)
            return None

    def _end_leftovers(self, whose: str, grace: float) -> None:
        ended = end_leftovers(worker_mark(self._settings), grace)
        if ended.found:
            log.warning("%d processes of jobs of %s were left and have been ended", ended.found, whose)
        if ended.left:
            log.error("processes %s of jobs of %s do not end, even when killed", ended.left, whose)

    # --- the end ---

    def _drain(self) -> None:
        """Waits for running jobs and their reports, ends the remaining jobs, and tells the server."""
        self._draining.set()
        settings = self._settings
        if self._unreported:
            log.info("no more jobs are taken; %d running jobs have %g s", self._unreported, settings.drain)
        self._wait_until_idle(settings.drain, or_at_once=True)
        for execution in self._running.all():
            execution.stop(self._last_failure())
        self._wait_until_idle(settings.grace + 5, or_at_once=False)
        end = time.monotonic() + _LAST_REPORTS
        while (left := self._delivery.try_all()) and time.monotonic() < end:
            time.sleep(0.2)
        if left:
            log.warning("%d reports stay in %s for the next pilot", left, self._workdir.root / "unsent")
        with self._changed:
            self._over = True
        self._jobs.shutdown(wait=False, cancel_futures=True)
        self._say_finished()

    def _last_failure(self) -> JobFailure:
        if self._watch is not None:
            return CutOff(PilotErrorCode.SIGTERM, "the allocation came to its end before the job did")
        return JobFailure(PilotErrorCode.SIGTERM, "the pilot was told to end")

    def _wait_until_idle(self, seconds: float, *, or_at_once: bool) -> None:
        end = time.monotonic() + seconds
        while self._unreported and (left := end - time.monotonic()) > 0:
            if or_at_once and self._at_once.is_set():
                return
            with self._changed:
                self._changed.wait(min(left, 0.2))

    def _say_finished(self) -> None:
        try:
            self._server.worker_finished()
        except HpoPilotError as error:
            log.info("the server was not told that this worker is idle: %s", error)
