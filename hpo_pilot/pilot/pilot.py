"""The pilot: slots that are filled with jobs until somebody says stop."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.pilot import report
from hpo_pilot.pilot.client import Backoff, CallRefused, HttpJobServer, JobServer, TokenRefused
from hpo_pilot.pilot.delivery import Delivery
from hpo_pilot.pilot.execution import Execution
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.gpus import choose_gpus, find_gpus, visible
from hpo_pilot.pilot.heartbeat import Forgotten, Heartbeats
from hpo_pilot.pilot.job import Job, identity, needed_cores, parse_job
from hpo_pilot.pilot.report import Outcome
from hpo_pilot.pilot.room import Claim, Room, machine_cores
from hpo_pilot.pilot.sandbox import SandboxCache
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.pilot.stage_out import store_log, store_outputs
from hpo_pilot.pilot.starting import Starting
from hpo_pilot.pilot.storage import FolderStorage, ServerStorage, Storage
from hpo_pilot.pilot.watchdog import Watchdog
from hpo_pilot.pilot.workdir import WorkDir
from hpo_pilot.transformation.failure import TransformationFailure
from hpo_pilot.transformation.payload_document import PayloadDocument
from hpo_pilot.transformation.preparation import Prepared, prepare
from hpo_pilot.transformation.stage_in import StageIn, wanted_inputs

log = logging.getLogger(__name__)

_LAST_WORDS = 5.0  # seconds that unsent reports get at the end; then they stay on disk for the next pilot


class Pilot:
    """One pilot process.

    Threads: one asks for jobs, one sends heartbeats, one sends again what could not be sent, one watches processes,
    and each running job has one of its own. The main thread waits for the reasons to stop.
    """

    def __init__(self, settings: PilotSettings, server: JobServer | None = None) -> None:
        """Takes the work folder.

        Raises:
            InputError: settings, token file or work folder cannot be used.
            TryAgainError: a pilot of this name runs.
        """
        self._settings = settings
        self._server = server or HttpJobServer(settings)
        self._workdir = WorkDir(settings)
        self._draining = threading.Event()
        self._at_once = threading.Event()
        self._cache = SandboxCache(
            self._workdir.cache, self._server, limit_mb=settings.cache_mb, unpack_mb=settings.unpack_mb
        )
        self._server_storage = ServerStorage(self._server, self._at_once)
        self._own_storage = FolderStorage(settings.storage_folder)
        self._delivery = Delivery(self._server, self._workdir)
        self._heartbeats = Heartbeats(settings, self._server)
        self._watchdog = Watchdog(settings, self._workdir, self._executions)
        self._jobs = ThreadPoolExecutor(2 * settings.slots, "job")
        self._changed = threading.Condition()
        found = find_gpus()
        self._room = Room(
            settings.slots,
            settings.cores or max(settings.slots, machine_cores()),
            found if settings.gpus is None else choose_gpus(settings.gpus, found),
        )
        self._unreported = 0
        self._over = False
        self._running: dict[int, Execution] = {}
        self._stopped = threading.Event()
        self._fatal: HpoPilotError | None = None
        self._began = time.monotonic()
        # Every runner holds the reading end; it closes when this process dies, however it dies.
        self._lifeline, self._lifeline_kept = os.pipe()

    def run(self) -> int:
        """Runs until it is told to stop, and until its jobs have ended.

        Returns:
            The exit status, 0.

        Raises:
            InputError: the server refuses the token, or is none.
        """
        settings = self._settings
        log.info(
            "pilot %s/%s: %d slots for queue %s of %s",
            *(settings.harvester_id, settings.worker_id, settings.slots, settings.queue, settings.server),
        )
        self._delivery.try_all()
        if self._workdir.stale:
            self._say_finished()  # the jobs of the pilot before us go back to the queue now
        for thread in (self._delivery, self._heartbeats, self._watchdog):
            thread.start()
        threading.Thread(target=self._acquire, name="acquire", daemon=True).start()
        if settings.lifeline_fd is not None:
            threading.Thread(target=self._watch_lifeline, args=[settings.lifeline_fd], daemon=True).start()
        self._draining.wait(settings.lifetime or None)
        self._drain()
        self._watchdog.stop()
        if self._fatal is not None:
            raise self._fatal
        log.info("pilot ends")
        return 0

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT drain; the second one ends at once. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def stop(self, *, at_once: bool = False) -> None:
        """Takes no more jobs and lets `run` return; `at_once`: the running ones are ended now."""
        if at_once or self._draining.is_set():
            self._at_once.set()
        self._draining.set()
        self._room.wake()
        with self._changed:
            self._changed.notify_all()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        # A handler interrupts this thread anywhere, perhaps where it holds the lock that `stop` wants.
        threading.Thread(target=self.stop, daemon=True).start()

    def _watch_lifeline(self, fd: int) -> None:
        while os.read(fd, 64):
            pass
        log.info("whoever started this pilot has ended")
        self.stop(at_once=True)

    # --- asking for jobs ---

    def _acquire(self) -> None:
        """Fills free slots until the pilot drains."""
        backoff, idle = Backoff(), Backoff(0.2, self._settings.idle)
        refused_since: float | None = None
        while not self._draining.is_set():
            free = self._room.wait_for_some(self._draining)
            if self._draining.is_set() or not self._has_disk():
                continue
            asked = time.monotonic()
            wait = min(self._settings.poll, free.patience)
            try:
                found = self._server.acquire(free, wait, self._workdir.free_mb(), self._remaining(asked))
            except TryAgainError as error:
                log.debug("no jobs: %s", error)
                backoff.pause(self._draining)
                continue
            except (TokenRefused, CallRefused, InputError) as error:
                refused_since = refused_since or asked
                if asked - refused_since >= self._settings.refused:
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
        free = self._workdir.free_mb()
        if free >= self._settings.min_free_mb:
            return True
        log.warning("only %d MB of disk are free in %s: no jobs are taken", free, self._workdir.root)
        self._draining.wait(10)
        return False

    def _remaining(self, now: float) -> int:
        if not self._settings.lifetime:
            return 0
        return max(1, int(self._settings.lifetime - (now - self._began)))

    def _begin(self, found: list[dict[str, Any]]) -> None:
        with self._changed:
            if not self._over:
                self._unreported += len(found)
                for data in found:
                    self._jobs.submit(self._run, data, self._room.claim(needed_cores(data)))
                return
        log.info("%d jobs came when the pilot had ended, and go back to the queue", len(found))
        self._say_finished()

    # --- one job, in a thread of its own ---

    def _run(self, data: dict[str, Any], claim: Claim) -> None:
        root: Path | None = None
        claimed = True
        try:
            panda_id, attempt = identity(data)
            root = self._workdir.new_job_folder(panda_id, attempt)
            outcome, folder, stored = self._job(data, root, claim)
            self._room.give_back(claim)  # the next job is on its way while this one is reported
            claimed = False
            if not isinstance(outcome.failure, Forgotten):
                self._delivery.send(report.final(self._settings, panda_id, attempt, outcome, folder, stored))
            if not outcome.finished:
                log.info("job %s failed: %s", panda_id, outcome.failure or outcome.last_line)
        except HpoPilotError as error:
            log.error("%s", error)
        except Exception:
            log.exception("job %s: a defect of the pilot; its server will count it as lost", data.get("PandaID"))
        finally:
            if claimed:
                self._room.give_back(claim)
            if root is not None and not self._settings.keep:
                shutil.rmtree(root, ignore_errors=True)
            with self._changed:  # last of all: a pilot that ends waits for it
                self._unreported -= 1
                self._changed.notify_all()

    def _job(self, data: dict[str, Any], root: Path, claim: Claim) -> tuple[Outcome, Path, dict[str, Any]]:
        """Runs a job from its parameters to its stored outputs; nothing that goes wrong escapes.

        Returns:
            (how it ended, the folder where it ran, its stored files as `job_output_report` has them).
        """
        outcome, folder = Outcome(exit_code=None), root
        try:
            if not self._room.wait(claim, self._draining) or self._draining.is_set():
                raise JobFailure(PilotErrorCode.SIGTERM, "the pilot was about to end when the job came")
            job = parse_job(data)
            self._cache.copy_to(job.arguments, root)
            prepared = self._prepare(job, root)
            folder = Path(prepared.folder)
            outcome = self._execute(job, prepared, root, self._gpu_variables(job, root, claim))
            storage: Storage = self._server_storage if job.server_stores else self._own_storage
            if outcome.finished:
                return outcome, folder, store_outputs(storage, job, folder)
            if not isinstance(outcome.failure, Forgotten):
                return outcome, folder, store_log(storage, job, folder)
            return outcome, folder, {}
        except JobFailure as failure:
            why = failure
        except TransformationFailure as failure:
            why = JobFailure.of(failure)
        except OSError as error:
            why = JobFailure(PilotErrorCode.NO_LOCAL_SPACE, f"the job folder cannot be used: {error}")
        return replace(outcome, failure=why, ended=time.time()), folder, {}

    def _prepare(self, job: Job, root: Path) -> Prepared:
        """Makes a job ready; while its inputs are on their way the server is told that it starts."""
        starting = Starting(job, root, self._draining)
        stage_in = StageIn(str(self._workdir.inputs), self._settings.input_cache_mb << 20, starting.is_over)
        if wanted_inputs(str(root)):
            self._heartbeats.add(starting)
        try:
            return prepare(job.arguments, str(root), str(root), stage_in)
        except TransformationFailure as failure:
            raise starting.failure or JobFailure.of(failure) from failure
        finally:
            self._heartbeats.remove(starting)

    def _gpu_variables(self, job: Job, root: Path, claim: Claim) -> dict[str, str]:
        """Gives a job the GPUs that it asked for, by the variables that show it those alone."""
        count = PayloadDocument.read(str(root)).gpus or int(job.wants_gpu)
        if count and self._room.take_gpus(claim, count, self._draining):
            return visible(claim.gpus)
        if count and self._draining.is_set():
            raise JobFailure(PilotErrorCode.SIGTERM, "the pilot was about to end while the job waited for a GPU")
        # Unless --gpus says that this pilot shares them out, a job may use what nobody was promised.
        return visible(()) if self._settings.gpus is not None else {}

    def _execute(self, job: Job, prepared: Prepared, root: Path, variables: dict[str, str]) -> Outcome:
        execution = Execution(self._settings, job, prepared, root, self._lifeline, variables)
        with self._changed:
            self._running[job.panda_id] = execution
        try:
            execution.start()
            self._heartbeats.add(execution)
            self._watchdog.wake()
            return execution.wait()
        finally:
            self._heartbeats.remove(execution)
            with self._changed:
                del self._running[job.panda_id]

    def _executions(self) -> list[Execution]:
        with self._changed:
            return list(self._running.values())

    # --- the end ---

    def _drain(self) -> None:
        """Waits for running jobs and their reports, then ends them, then says goodbye."""
        self._draining.set()
        settings = self._settings
        if self._unreported:
            log.info("no more jobs are taken; %d running jobs have %g s", self._unreported, settings.drain)
        self._wait_until_idle(settings.drain, or_at_once=True)
        for execution in self._executions():
            execution.stop(JobFailure(PilotErrorCode.SIGTERM, "the pilot was told to end"))
        self._wait_until_idle(settings.grace + 5, or_at_once=False)
        end = time.monotonic() + _LAST_WORDS
        while (left := self._delivery.try_all()) and time.monotonic() < end:
            time.sleep(0.2)
        if left:
            log.warning("%d reports stay in %s for the next pilot", left, self._workdir.root / "unsent")
        with self._changed:
            self._over = True
        self._jobs.shutdown(wait=False, cancel_futures=True)
        self._say_finished()

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
