"""Runs one attempt of a job, from the server's dictionary to its final report."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.pilot import report
from hpo_pilot.pilot.checkpoints import CheckpointShipping, kept_checkpoint
from hpo_pilot.pilot.client import Delivery, GivingBack, JobServer
from hpo_pilot.pilot.execution import Execution, InContainer, Wrapping
from hpo_pilot.pilot.job import (
    CutOff,
    GivenBack,
    Job,
    JobFailure,
    LauncherAway,
    NodeLost,
    PilotErrorCode,
    job_identity,
    parse_job,
)
from hpo_pilot.pilot.job_files import SandboxCache, Storage, store_log, store_outputs
from hpo_pilot.pilot.launch import Launched, LauncherOutage
from hpo_pilot.pilot.machine import Assignment, C, Pool
from hpo_pilot.pilot.report import Outcome, Starting, read_verdict
from hpo_pilot.pilot.settings import PilotSettings, Site, WorkDir
from hpo_pilot.pilot.staging import LARGE_FILE, Staging, note_stage_in
from hpo_pilot.pilot.watchdog import Forgotten, Heartbeats, Running
from hpo_pilot.transformation.job import PayloadDocument, TransformationFailure
from hpo_pilot.transformation.stage_in import StageIn, wanted_inputs
from hpo_pilot.transformation.transformation import Prepared, prepare

log = logging.getLogger(__name__)

#: A batch system that cancels an allocation signals all its processes. Seconds until the last one has its signal.
_SIGNAL_SECONDS = 1.0


class Attempts(Generic[C]):
    """Runs jobs, each in the thread that calls `run`. Errors are reported, not raised."""

    def __init__(
        self,
        settings: PilotSettings,
        site: Site | None,
        server: JobServer,
        workdir: WorkDir,
        room: Pool[C],
        *,
        running: Running,
        delivery: Delivery,
        heartbeats: Heartbeats,
        shipping: CheckpointShipping,
        storage: Callable[[Job], Storage],
        staging: Staging | None,
        outage: LauncherOutage | None,
        has_started: Callable[[], None],
        draining: threading.Event,
        lifeline: int,
    ) -> None:
        """Prepares.

        Args:
            settings: of the pilot.
            site: profile of the site; None: not given.
            server: for sandboxes, and for jobs that are given back.
            workdir: for job folders and inputs.
            room: resources that jobs run on.
            running: the list of running jobs.
            delivery: sends the final reports.
            heartbeats: reports on jobs that start or run.
            shipping: sends checkpoints to the server and fetches them.
            storage: returns the storage for a job's outputs.
            staging: copies files that many jobs read to the nodes; None: nothing is copied.
            outage: detects that the launcher does not work; None: the pilot has no allocation.
            has_started: is called when a job runs.
            draining: is set when the pilot is about to end.
            lifeline: reading end of a pipe that closes when the pilot dies.
        """
        self._settings, self._site, self._server, self._workdir, self._room = settings, site, server, workdir, room
        self._running, self._delivery, self._heartbeats, self._shipping = running, delivery, heartbeats, shipping
        self._storage, self._has_started, self._draining, self._lifeline = storage, has_started, draining, lifeline
        self._staging, self._outage, self._giving_back = staging, outage, GivingBack(server)
        self._cache = SandboxCache(workdir.cache, server, limit_mb=settings.cache_mb, unpack_mb=settings.unpack_mb)

    def run(self, data: Mapping[str, Any], claim: C) -> None:
        """Runs a job, then sends its final report or puts it back into the queue."""
        root: Path | None = None
        claimed = True
        try:
            panda_id, attempt = job_identity(data)
            try:
                root = self._workdir.new_job_folder(panda_id, attempt)
                outcome, folder, stored = self._job(data, root, claim)
            except OSError as error:  # the job is not at fault
                failure = GivenBack(PilotErrorCode.NO_LOCAL_SPACE, f"the pilot's folder cannot be used: {error}")
                outcome, folder, stored = Outcome(exit_code=None, failure=failure), self._workdir.root, {}
            self._room.give_back(claim, _ending(outcome, folder))  # the next job starts while this one is reported
            claimed = False
            if not outcome.finished:
                log.info("job %s failed: %s", panda_id, outcome.failure or outcome.last_line)
            is_back = self._goes_back(panda_id, attempt, outcome.failure)
            report.count_job_end(outcome, given_back=is_back)
            if not isinstance(outcome.failure, Forgotten) and not is_back:
                self._delivery.send(report.final_report(self._settings, panda_id, attempt, outcome, folder, stored))
        except HpoPilotError as error:
            log.error("%s", error)
        except Exception:
            log.exception("job %s: a defect of the pilot; its server will count it as lost", data.get("PandaID"))
        finally:
            if claimed:
                self._room.give_back(claim)
            if root is not None and not self._settings.keep:
                shutil.rmtree(root, ignore_errors=True)

    def _goes_back(self, panda_id: int, attempt: int, failure: JobFailure | None) -> bool:
        """Puts the job back into the queue if its failure asks for that; returns whether it is there."""
        if failure is None or not failure.is_given_back:
            return False
        try:
            given = self._giving_back.give(panda_id, attempt)
        except HpoPilotError as error:
            log.info("job %s cannot be given back, and is reported failed: %s", panda_id, error)
            return False
        if given:
            log.info("job %s is in the queue again", panda_id)
        return given

    def _job(self, data: Mapping[str, Any], root: Path, claim: C) -> tuple[Outcome, Path, dict[str, Any]]:
        """Runs a job from its parameters to its stored outputs. Errors become the outcome's failure.

        Returns:
            (outcome, folder where it ran, its stored files for `job_output_report`).
        """
        outcome, folder = Outcome(exit_code=None), root
        try:
            if not self._room.enter(claim, self._draining) or self._draining.is_set():
                raise GivenBack(PilotErrorCode.SIGTERM, "the pilot was about to end when the job came")
            job = parse_job(data)
            large = self._cache.copy_to(job.arguments, root, LARGE_FILE if self._staging is not None else 0)
            document = PayloadDocument.read(str(root))
            seat, prepared, wrapping = self._ready(job, document, root, claim, large)
            folder = Path(prepared.folder)
            if seat.seconds and not job.walltime:
                job = replace(job, walltime=seat.seconds)
            self._shipping.begin(job)
            # Only an allocation may end before its jobs, so only there the checkpoints matter.
            kept = kept_checkpoint(job, self._settings.checkpoint_root) if self._settings.allocation else None
            before = kept.signature() if kept else ()
            outcome = self._execute(job, prepared, root, seat, wrapping)
            has_gone_on = kept is not None and kept.signature() not in (before, ())
            outcome = self._judged(outcome, folder, claim, wrapping, has_gone_on=has_gone_on)
            storage = self._storage(job)
            if outcome.finished:
                stored = store_outputs(storage, job, folder)
                self._shipping.drop(job)
                return outcome, folder, stored
            self._shipping.keep(job, outcome.failure)
            if isinstance(outcome.failure, Forgotten | GivenBack):
                return outcome, folder, {}
            return outcome, folder, store_log(storage, job, folder)
        except JobFailure as failure:
            why = failure
        except TransformationFailure as failure:
            why = JobFailure.of(failure)
        except OSError as error:
            why = JobFailure(PilotErrorCode.NO_LOCAL_SPACE, f"the job folder cannot be used: {error}")
        finally:
            self._shipping.leave(job_identity(data)[0])
        return replace(outcome, failure=why, ended=time.time()), folder, {}

    def _ready(
        self, job: Job, document: PayloadDocument, root: Path, claim: C, large: Sequence[Path]
    ) -> tuple[Assignment, Prepared, Wrapping]:
        """Waits for a job's resources and fetches its inputs; heartbeats report it as starting meanwhile."""
        starting = Starting(job, root, self._draining)
        stage_in = StageIn(str(self._workdir.inputs), self._settings.input_cache_mb << 20, starting.is_over)
        if self._settings.allocation or wanted_inputs(str(root)):
            self._heartbeats.add(starting)
        try:
            seat = self._room.take(claim, job, document, starting)
            begun = time.monotonic()
            prepared = prepare(job.arguments, str(root), str(root), stage_in)
            wrapping = self._wrapping(job, document, seat)
            if self._staging is not None and isinstance(wrapping, Launched):
                staged = self._staging.stage(wrapping, root, Path(prepared.folder), large, starting)
                self._room.note_staging(claim, staged.seconds or 0.0)
                wrapping, prepared = replace(wrapping, staged=staged), staged.beside(prepared)
            report.observe_stage_in(time.monotonic() - begun)
            return seat, prepared, wrapping
        except TransformationFailure as failure:
            raise starting.failure or JobFailure.of(failure) from failure
        finally:
            self._heartbeats.remove(starting)

    def _wrapping(self, job: Job, document: PayloadDocument, seat: Assignment) -> Wrapping:
        """Returns the wrapping of the command: a container, and a launcher for jobs with ranks or in an allocation."""
        settings, site = self._settings, self._site
        has_gpus = any(seat.gpus.values())
        if site is None:
            if document.ranks_per_node:
                raise JobFailure(
                    PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                    f"the job has {document.ranks_per_node} ranks a node, and this pilot does not know what starts "
                    "them: start it with --site",
                )
            return InContainer(settings.container_runtime, job.container)
        runtime = settings.container_runtime if settings.container_runtime != "auto" else site.runtime
        container = InContainer(runtime, job.container, site.inside(gpus=has_gpus))
        if document.ranks_per_node or seat.allocation:
            return Launched(site, job, seat, document, container)
        return container

    def _execute(self, job: Job, prepared: Prepared, root: Path, seat: Assignment, wrapping: Wrapping) -> Outcome:
        execution = Execution(self._settings, job, prepared, root, self._lifeline, seat.variables, wrapping)
        self._running.add(execution)
        try:
            execution.start()
            self._heartbeats.add(execution)
            self._has_started()
            return execution.wait()
        finally:
            self._heartbeats.remove(execution)
            self._running.remove(execution)

    def _judged(self, outcome: Outcome, folder: Path, claim: C, wrapping: Wrapping, *, has_gone_on: bool) -> Outcome:
        """Corrects the outcome for the end of an allocation or a failed launch.

        Args:
            outcome: of the command.
            folder: where it ran.
            claim: the job's.
            wrapping: of its command.
            has_gone_on: whether this attempt has kept a checkpoint. A job without progress must not be given back for
                ever.
        """
        if isinstance(wrapping, Launched):
            if outcome.exit_code != 0:
                wrapping.end_step(folder)
            if wrapping.staged.seconds is not None:
                note_stage_in(folder, wrapping.staged.seconds)
            if outcome.failure is None and not _is_good(outcome, folder) and self._is_ending(wrapping):
                outcome = replace(outcome, failure=CutOff(PilotErrorCode.SIGTERM, "the allocation was ended"))
            if outcome.failure is None:
                outcome = self._launch_judged(outcome, folder, claim, wrapping)
        failure = outcome.failure
        if isinstance(failure, CutOff):
            if _is_good(outcome, folder):  # it finished in time
                return replace(outcome, failure=None)
            if has_gone_on:
                return replace(outcome, failure=GivenBack(failure.code, f"{failure}; a checkpoint is kept"))
        return outcome

    def _is_ending(self, wrapping: Launched) -> bool:
        """Returns whether the allocation is ending; a job's ranks may get the signal before this pilot."""
        return bool(wrapping.assignment.allocation) and self._draining.wait(_SIGNAL_SECONDS)

    def _launch_judged(self, outcome: Outcome, folder: Path, claim: C, wrapping: Launched) -> Outcome:
        """Turns a failure of the launcher into a failure that lets the job run elsewhere; the payload is not judged."""
        verdict = read_verdict(folder)
        failed = None if verdict is not None and verdict.is_good else wrapping.launch_failure(folder)
        if failed is None:
            self._room.note_launch(claim, None)
            return outcome
        code, nodes = PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, wrapping.assignment.nodes
        if self._outage is not None and not failed.nodes and (failed.is_away or self._outage.is_everywhere(nodes)):
            self._outage.begin(failed.why, nodes)
            return replace(outcome, failure=LauncherAway(code, f"the launcher starts nothing here: {failed.why}"))
        self._room.note_launch(claim, failed.nodes, failed.lost)
        kind = NodeLost if failed.lost else JobFailure
        return replace(outcome, failure=kind(code, f"the launcher failed, not the payload: {failed.why}"))


def _is_good(outcome: Outcome, folder: Path) -> bool:
    """Returns whether the command, or under our runner the payload, succeeded."""
    verdict = read_verdict(folder)
    return outcome.exit_code == 0 and (verdict is None or verdict.is_good)


def _ending(outcome: Outcome, folder: Path) -> Ending:
    """Returns how the job ended, for the usage figures of an allocation."""
    failure = outcome.failure
    if failure is None:
        return Ending.FINISHED if _is_good(outcome, folder) else Ending.FAILED
    if isinstance(failure, NodeLost):
        return Ending.LOST
    if isinstance(failure, GivenBack) and outcome.started and not isinstance(failure, LauncherAway):
        return Ending.CHECKPOINTED
    return Ending.CUT if isinstance(failure, GivenBack | CutOff) else Ending.FAILED
