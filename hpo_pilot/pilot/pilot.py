"""The pilot process: takes jobs while resources are free, until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

from prometheus_client import Info, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hpo_pilot import __version__
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError, TryAgainError
from hpo_pilot.logs import about
from hpo_pilot.pilot.agents import Agents
from hpo_pilot.pilot.allocation import AllocatedNodes, find_allocation
from hpo_pilot.pilot.allocation_pool import AllocationPool, AllocationReservation, nodes_text
from hpo_pilot.pilot.allocation_watch import AllocationWatch, ending_margin
from hpo_pilot.pilot.attempt import JobRun, PilotParts
from hpo_pilot.pilot.checkpoints import CheckpointShipping, remove_old
from hpo_pilot.pilot.client import Backoff, CallRefused, Delivery, GivingBack, JobServer
from hpo_pilot.pilot.isolation import Isolation
from hpo_pilot.pilot.job import CutOff, JobFailure, PilotErrorCode, parse_job
from hpo_pilot.pilot.job_files import FolderStorage, SandboxCache, ServerStorage
from hpo_pilot.pilot.launch import AvoidedTasks, LauncherOutage, probe_launcher
from hpo_pilot.pilot.machine import JobReservation, MachinePool, ResourcePool, choose_gpus, find_gpus, machine_cores
from hpo_pilot.pilot.report import METRICS_REGISTRY
from hpo_pilot.pilot.settings import PilotSettings, PilotWorkDir, Site, load_site, worker_mark
from hpo_pilot.pilot.staging import Staging
from hpo_pilot.pilot.warm import WarmInterpreters
from hpo_pilot.pilot.watchdog import Heartbeats, Watchdog
from hpo_pilot.transformation.job import TransformationFailure
from hpo_pilot.transformation.process import SHORT_GRACE, Keeper, end_leftovers

log = logging.getLogger(__name__)

_PAUSE = 5.0  # seconds between checks of a full disk
_POLL = 25.0  # seconds that a request for jobs may wait at the server
_IDLE = 30.0  # seconds at most between requests to a server that does not wait

#: The metrics need no token, so the port is open on this machine only.
_HOST = "127.0.0.1"


class _Gauges(Collector):
    """Gauges that are computed at each request of Prometheus."""

    def __init__(self, parts: PilotParts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        running, free = self._parts.watchdog.running(), self._parts.workdir.free_mb() << 20
        yield GaugeMetricFamily("hpo_pilot_pilot_jobs_running", "Jobs whose commands run.", len(running))
        yield GaugeMetricFamily("hpo_pilot_pilot_slots", "Jobs that may run at the same time.", self._parts.pool.most)
        yield GaugeMetricFamily("hpo_pilot_pilot_disk_free_bytes", "Free disk of the work folder.", free)
        yield from self._parts.pool.metrics()


@contextmanager
def metrics_served(parts: PilotParts) -> Iterator[None]:
    """Serves metrics for Prometheus during a block, if the settings name a port.

    Raises:
        TryAgainError: the port is taken.
    """
    settings = parts.settings
    if settings.metrics_port is None:
        yield
        return
    info = Info("hpo_pilot_pilot", "This pilot.", registry=None)
    info.info({"version": __version__, "queue": settings.queue, "worker": settings.worker_name})
    collectors = (info, _Gauges(parts))
    try:
        server, thread = start_http_server(settings.metrics_port, _HOST, METRICS_REGISTRY)
    except OSError as error:
        raise TryAgainError(
            f"--metrics-port: {_HOST}:{settings.metrics_port} cannot be opened: {error.strerror or error}; name "
            "another port"
        ) from error
    for collector in collectors:
        METRICS_REGISTRY.register(collector)
    log.info("metrics are at http://%s:%d/metrics", _HOST, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for collector in collectors:
            METRICS_REGISTRY.unregister(collector)


_PLACING = 8  # jobs of an allocation whose sandboxes are fetched or read at the same time
_LAST_SECONDS = 40.0  # after the jobs have saved: the last reports, the end of agents and of what is left
_LAST_REPORTS = 5.0  # seconds for unsent reports at the end; the others stay on disk for the next pilot


class Pilot:
    """One pilot process.

    Threads: one asks for jobs, one sends heartbeats, one repeats unsent reports, one sends checkpoints, one watches
    processes, one watches the allocation if there is one, and each running job has its own. The main thread waits for a
    reason to stop.
    """

    def __init__(
        self,
        settings: PilotSettings,
        server: JobServer | None = None,
        *,
        site: Site | None = None,
        pool: ResourcePool[Any] | None = None,
        checkpoints: CheckpointShipping | None = None,
        local_image: Callable[[str], str] = str,
    ) -> None:
        """Locks the work folder.

        Args:
            settings: settings of the pilot.
            server: the server; None: from the settings.
            site: the site; None: from the settings.
            pool: the resources of an agent; None: from the allocation or this machine.
            checkpoints: stores checkpoints; None: at the server.
            local_image: see PilotParts.

        Raises:
            InputError: settings, token file, work folder, site or allocation cannot be used.
            TryAgainError: a pilot with this name is running.
        """
        site = site or (load_site(settings.site) if settings.site is not None else None)
        workdir = PilotWorkDir(settings)
        self._settings = settings
        self._server = server or JobServer(settings, workdir.key, site.name if site else "")
        self._draining, self._at_once = threading.Event(), threading.Event()
        self._changed = threading.Condition()
        self._watch: AllocationWatch | None = None
        self._agents: Agents | None = None
        watchdog, delivery = Watchdog(), Delivery(self._server, workdir)
        outage, staging, allocation = None, None, None
        if settings.allocation and site is not None:
            allocation = find_allocation(site, settings.lifetime)
            pool, outage, staging = self._allocation(site, allocation, workdir, watchdog)
        pool = pool or _machine(settings, site)
        # Every runner holds the reading end; it sees the other end close when this process dies.
        lifeline, self._lifeline_kept = os.pipe()
        self._parts = PilotParts(
            settings=settings,
            site=site,
            workdir=workdir,
            sandboxes=SandboxCache(workdir.cache, self._server, limit_mb=settings.cache_mb),
            pool=pool,
            interpreters=WarmInterpreters(settings, workdir.interpreters, pool.most),
            isolation=Isolation(settings, workdir),
            watchdog=watchdog,
            heartbeats=Heartbeats(settings, self._server),
            delivery=delivery,
            giving_back=GivingBack(self._server),
            checkpoints=checkpoints or CheckpointShipping(settings, self._server),
            server_storage=ServerStorage(self._server, self._at_once),
            own_storage=FolderStorage(settings.storage_folder),
            staging=staging,
            outage=outage,
            watch=self._watch,
            avoided=AvoidedTasks(),
            draining=self._draining,
            lifeline=lifeline,
            local_image=local_image,
        )
        if isinstance(pool, AllocationPool) and pool.has_agents and site is not None and allocation is not None:
            self._agents = Agents(
                *(self._parts, self._server, pool, site, allocation.nodes),
                job=allocation.job,
                when_over=self._job_is_over,
            )
        self._placing = ThreadPoolExecutor(_PLACING, "placing")
        self._jobs = ThreadPoolExecutor(2 * pool.most, "job")
        self._unreported = 0
        self._saving = settings.grace + 5  # seconds for jobs that are told to end
        self._over = False
        self._fatal: HpoPilotError | None = None
        self._began = time.monotonic()
        self.disk_trouble = ""  #: why no jobs are taken; empty: they are

    def _allocation(
        self, site: Site, allocation: AllocatedNodes, workdir: PilotWorkDir, watchdog: Watchdog
    ) -> tuple[AllocationPool, LauncherOutage, Staging | None]:
        """Makes the pool, the outage detector and the staging of a pilot in an allocation, and the watch of its end."""
        settings = self._settings
        margin = ending_margin(allocation.seconds, settings.margin)
        names = [node.name for node in allocation.nodes]
        pool = AllocationPool(
            allocation,
            site,
            margin=margin,
            checkpointed=2 * settings.checkpoint_every,
            has_agents=settings.agents and site.launcher.has_agents,
            when_lost=lambda panda_id, failure: self._node_lost(watchdog, panda_id, failure),
            is_away=lambda: outage.is_on,
        )
        outage = LauncherOutage(
            lambda nodes: probe_launcher(site, nodes, names),
            others=lambda: sorted(pool.up),
            over=pool.wake,
            give_up=self._give_up_allocation,
        )
        self._watch = AllocationWatch(
            pool, site, allocation, margin=margin, idle=settings.end_idle, end=self._end_in_time
        )
        staging = None
        if settings.staging and site.scratch:
            seconds, limit = allocation.seconds, settings.staging_mb
            staging = Staging(site, workdir.staging, names, job=allocation.job, seconds=seconds, limit_mb=limit)
        first = allocation.nodes[0].shape
        log.info("allocation of %s for %.0f s; the first: %s", nodes_text(names), allocation.seconds, first)
        return pool, outage, staging

    def run(self) -> int:
        """Runs until it is stopped and its jobs have ended.

        Returns:
            The exit status, 0.

        Raises:
            InputError: the server refuses the token, or is not a PanDA server.
            TryAgainError: the port for metrics is taken.
            GiveUpError: the allocation's launcher started nothing for too long.
        """
        with metrics_served(self._parts):
            self._run()
        if self._fatal is not None:
            raise self._fatal
        log.info("pilot ends")
        return 0

    def _run(self) -> None:
        settings, parts = self._settings, self._parts
        log.info(
            "pilot %s/%s: up to %d jobs at a time for queue %s of %s",
            *(settings.harvester_id, settings.worker_id, parts.pool.most, settings.queue, settings.server),
        )
        unsent = parts.delivery.try_all()
        self._end_leftovers("an earlier pilot", settings.grace)
        remove_old(settings.checkpoint_root)
        if not unsent and (parts.workdir.stale or settings.lifeline_fd is not None):
            self._say_finished()  # jobs of an earlier pilot go back to the queue: none of them runs
        keeper = self._keeper()
        for thread in (parts.delivery, parts.heartbeats, parts.watchdog, parts.checkpoints, self._watch):
            if thread is not None:
                thread.start()
        if self._agents is not None:
            self._agents.start()
        threading.Thread(target=parts.workdir.remove_stale, name="remove", daemon=True).start()
        threading.Thread(target=self._acquire, name="acquire", daemon=True).start()
        if settings.lifeline_fd is not None:
            threading.Thread(target=self._watch_lifeline, args=[settings.lifeline_fd], daemon=True).start()
        self._draining.wait(settings.lifetime or None if self._watch is None else None)
        self._drain()
        if self._agents is not None:
            self._agents.close()
        parts.interpreters.close()
        parts.isolation.close()
        self._end_leftovers("this pilot", SHORT_GRACE)
        os.close(self._lifeline_kept)
        if keeper is not None:
            keeper.wait()
        if parts.staging is not None and isinstance(parts.pool, AllocationPool):
            parts.staging.remove(parts.pool.up)
        parts.watchdog.stop()
        if parts.outage is not None:
            parts.outage.stop()
        if self._watch is not None:
            self._watch.stop()

    def handle_signals(self) -> None:
        """Handles signals: SIGTERM and SIGINT drain, a second one ends the jobs, the site's own is a warning.

        An unexpected error in a thread ends the pilot too: half a pilot would lose its jobs, or keep its allocation
        without any. Main thread only.
        """
        threading.excepthook = self._on_defect
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        site, watch = self._parts.site, self._watch
        if site is not None and site.warning is not None and watch is not None:
            signal.signal(site.warning.number, lambda *_: watch.warn())

    def stop(self, *, at_once: bool = False, seconds: float = 0.0) -> None:
        """Takes no more jobs and lets `run` return.

        Args:
            at_once: running jobs are ended now.
            seconds: time for them to save, if there is more than their grace.
        """
        self._saving = max(self._saving, seconds)
        if at_once or self._draining.is_set():
            self._at_once.set()
        self._draining.set()
        self._parts.pool.wake()
        with self._changed:
            self._changed.notify_all()

    def _on_defect(self, caught: threading.ExceptHookArgs) -> None:
        name = caught.thread.name if caught.thread is not None else ""
        log.critical("a defect of the pilot, which ends: in %s", name, exc_info=caught.exc_value)
        self._fatal = self._fatal or GiveUpError(f"a defect of the pilot: {caught.exc_value!r} in {name}")
        self.stop()

    def _end_in_time(self) -> None:
        """Ends the pilot before its allocation, with the time that is left for the jobs to save."""
        left = self._watch.remaining if self._watch is not None else 0
        self.stop(at_once=True, seconds=min(left, self._settings.margin) - _LAST_SECONDS)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._watch is not None:
            self._watch.ask_soon()
        # The handler may interrupt this thread while it holds the lock that `stop` needs.
        threading.Thread(target=self.stop, daemon=True).start()

    def _watch_lifeline(self, fd: int) -> None:
        while os.read(fd, 64):
            pass
        log.info("the process that started this pilot has ended")
        self.stop(at_once=True)

    # --- jobs ---

    def _acquire(self) -> None:
        """Asks for jobs while resources are free, until the pilot drains or the server refuses it for too long."""
        settings, parts = self._settings, self._parts
        backoff, idle = Backoff(), Backoff(0.2, _IDLE)
        refused_since: float | None = None
        while not self._draining.is_set():
            free = parts.pool.wait_for_some(self._draining)
            if self._draining.is_set() or not self._has_disk():
                continue
            asked = time.monotonic()
            wait = min(_POLL, free.patience)
            try:
                disk_mb, remaining = parts.workdir.free_mb(), self._remaining()
                found = self._server.acquire(free, wait, disk_mb, remaining, parts.avoided.now(), parts.avoided.why)
            except (TryAgainError, OSError) as error:  # the server, or the disk, which is looked at again
                log.debug("no jobs: %s", error)
                refused_since = None if isinstance(error, TryAgainError) else refused_since
                backoff.pause(self._draining)
                continue
            except (CallRefused, InputError) as error:
                refused_since = refused_since or asked
                if asked - refused_since >= settings.refused:
                    self._fatal = error if isinstance(error, InputError) else InputError(str(error))
                    self.stop()
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
        """Returns whether the disk has space for jobs; changes are logged."""
        trouble = self._parts.workdir.trouble(self._settings.min_free_mb)
        if trouble != self.disk_trouble:
            log.warning(
                "%s", f"{trouble}: no jobs are taken" if trouble else "the disk has space again: jobs are taken"
            )
            self.disk_trouble = trouble
        if trouble:
            self._draining.wait(_PAUSE)
        return not trouble

    def _begin(self, found: list[dict[str, Any]]) -> None:
        with self._changed:
            if not self._over:
                self._unreported += len(found)
                for data in found:
                    reservation = self._parts.pool.reserve(data)
                    if self._agents is None:
                        self._jobs.submit(self._run_job, data, reservation)
                    else:
                        self._placing.submit(self._place, self._agents, data, reservation)
                return
        log.info("%d jobs came when the pilot had ended, and go back to the queue", len(found))
        try:
            self._server.give_back([(data["PandaID"], data["attemptNr"]) for data in found])
        except HpoPilotError as error:
            log.info("they do so later, without a heartbeat: %s", error)

    def _place(self, agents: Agents, data: dict[str, Any], reservation: AllocationReservation) -> None:
        """Gives a job to the agents if it takes no job step, or runs it here."""
        try:
            job = parse_job(data)
            document = self._parts.sandboxes.settings(job.arguments)
            if agents.takes(document):
                agents.run(job, data, document, reservation)
                return
        except (HpoPilotError, TransformationFailure, OSError) as error:
            log.debug("job %s: %s", data.get("PandaID"), error)  # it is found again, and reported
        except Exception:  # else its reservation would hold up all later jobs
            log.exception("job %s: a defect of the pilot", data.get("PandaID"))
        self._jobs.submit(self._run_job, data, reservation)

    def _run_job(self, data: dict[str, Any], reservation: JobReservation) -> None:
        try:
            with about(panda_id=data.get("PandaID"), attempt=data.get("attemptNr")):
                JobRun(self._parts, data, reservation).run()
        finally:
            self._parts.pool.note_report(reservation)
            self._job_is_over()

    def _job_is_over(self) -> None:
        with self._changed:  # comes last: a pilot that ends waits for it
            self._unreported -= 1
            self._changed.notify_all()

    def _node_lost(self, watchdog: Watchdog, panda_id: int, failure: JobFailure) -> None:
        watchdog.stop_job(panda_id, failure)
        if self._agents is not None:
            self._agents.lose(panda_id, failure)

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
            return Keeper(worker_mark(self._settings), self._parts.lifeline, self._settings.grace)
        except OSError as error:
            log.warning("if this pilot is killed, processes of its jobs may outlive it: %s", error)
            return None

    def _end_leftovers(self, whose: str, grace: float) -> None:
        ended = end_leftovers(worker_mark(self._settings), grace, adopted=True)
        if ended.found:
            log.warning("%d processes of jobs of %s were left and have been ended", ended.found, whose)
        if ended.left:
            log.error("processes %s of jobs of %s do not end, even when killed", ended.left, whose)

    # --- the end ---

    def _drain(self) -> None:
        """Waits for running jobs and their reports, ends the remaining jobs, and tells the server."""
        self._draining.set()
        settings = self._settings
        if self._agents is not None:
            self._agents.drain()
        if self._unreported:
            log.info("no more jobs are taken; %d running jobs have %g s", self._unreported, settings.drain)
        self._wait_until_idle(settings.drain, or_at_once=True)
        for execution in self._parts.watchdog.running():
            execution.stop(self._last_failure())
        if self._agents is not None:
            self._agents.stop(self._saving - _LAST_REPORTS)
        self._wait_until_idle(self._saving, or_at_once=False)
        self._parts.checkpoints.end()
        self._wait_until_idle(_LAST_REPORTS, or_at_once=False)
        end, delivery = time.monotonic() + _LAST_REPORTS, self._parts.delivery
        while (left := delivery.keep_all()) and time.monotonic() < end:
            delivery.try_all()
            time.sleep(0.2)
        if left:
            log.warning("%d reports stay in %s for the next pilot", left, self._parts.workdir.root / "unsent")
        with self._changed:
            self._over = True
        self._jobs.shutdown(wait=False, cancel_futures=True)
        if not left:  # else the jobs whose results are kept would be run again
            self._say_finished()

    def _last_failure(self) -> JobFailure:
        if self._watch is not None or self._settings.agent:
            return CutOff("the allocation came to its end before the job did")
        return JobFailure("the pilot was told to end", PilotErrorCode.SIGTERM)

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


def _machine(settings: PilotSettings, site: Site | None) -> MachinePool:
    """Returns the resources of this machine."""
    found = find_gpus()
    return MachinePool(
        settings.slots,
        settings.cores or max(settings.slots, machine_cores()),
        found if settings.gpus is None else choose_gpus(settings.gpus, found),
        # Without --gpus, a job that asked for no GPU sees all of them.
        shows_gpus=settings.gpus is None,
        mps=site is not None and site.mps,
    )
