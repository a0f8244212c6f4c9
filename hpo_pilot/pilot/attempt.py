"""Runs one attempt of a job, from the server's dictionary to its final report."""

from __future__ import annotations

import functools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.logs import log_end
from hpo_pilot.pilot import report
from hpo_pilot.pilot.allocation_watch import AllocationWatch
from hpo_pilot.pilot.checkpoints import CheckpointShipping, kept_checkpoint
from hpo_pilot.pilot.client import Delivery, GivingBack
from hpo_pilot.pilot.execution import LOG_FILE, CommandWrapper, Execution, InContainer
from hpo_pilot.pilot.isolation import Confinement, Isolation
from hpo_pilot.pilot.job import (
    CutLate,
    CutOff,
    GivenBack,
    Job,
    JobFailure,
    LauncherAway,
    LauncherMissing,
    NodeLost,
    PilotErrorCode,
    job_identity,
    parse_job,
)
from hpo_pilot.pilot.job_files import FolderStorage, SandboxCache, ServerStorage, store_log, store_outputs
from hpo_pilot.pilot.launch import STEP_CANCELLED, AvoidedTasks, LauncherOutage, LaunchFailure, WithLauncher
from hpo_pilot.pilot.machine import AssignedResources, JobReservation, ResourcePool
from hpo_pilot.pilot.report import Outcome, StartingJob, failed_folds, note_metric, note_remarks, payload_succeeded
from hpo_pilot.pilot.settings import PilotSettings, PilotWorkDir, Site
from hpo_pilot.pilot.staging import LARGE_FILE, Staging
from hpo_pilot.pilot.warm import WarmInterpreters
from hpo_pilot.pilot.watchdog import AttemptClosed, Heartbeats, Watchdog
from hpo_pilot.transformation.container import choose_runtime, image_fault
from hpo_pilot.transformation.job import ImageFault, PayloadSettings, TransformationFailure, refuse_payload
from hpo_pilot.transformation.stage_in import StageIn
from hpo_pilot.transformation.transformation import Prepared, prepare

log = logging.getLogger(__name__)

#: A batch system that cancels an allocation signals all its processes. Seconds until the last one has its signal.
_SIGNAL_SECONDS = 1.0

_LOG_READ = 64 * 1024  # bytes read from the end of the runner's log


@dataclass(frozen=True, kw_only=True)
class PilotParts:
    """The parts of a pilot that its jobs use.

    Attributes:
        settings: settings of the pilot.
        site: profile of the site; None: not given.
        workdir: for job folders and inputs.
        sandboxes: unpacked sandboxes.
        pool: resources that jobs run on.
        interpreters: interpreters from which jobs are forked.
        isolation: hides the pilot's files from jobs.
        watchdog: watches running jobs.
        heartbeats: reports on jobs that start or run.
        delivery: sends the final reports.
        giving_back: puts jobs back into the server's queue.
        checkpoints: sends checkpoints to the server and fetches them.
        server_storage: for outputs, at a server that stores them.
        own_storage: for outputs, at other servers.
        staging: copies files that many jobs read to the nodes; None: nothing is copied.
        outage: detects that the launcher does not work; None: the pilot has no allocation.
        watch: watches the allocation; None: the pilot has none.
        avoided: tasks whose launcher is missing.
        draining: is set when the pilot is about to end.
        lifeline: reading end of a pipe that closes when the pilot dies.
        local_image: returns the copy of an image on the node's own disk, or the image if there is none.
    """

    settings: PilotSettings
    site: Site | None
    workdir: PilotWorkDir
    sandboxes: SandboxCache
    pool: ResourcePool[Any]
    interpreters: WarmInterpreters
    isolation: Isolation
    watchdog: Watchdog
    heartbeats: Heartbeats
    delivery: Delivery
    giving_back: GivingBack
    checkpoints: CheckpointShipping
    server_storage: ServerStorage
    own_storage: FolderStorage
    staging: Staging | None
    outage: LauncherOutage | None
    watch: AllocationWatch | None
    avoided: AvoidedTasks
    draining: threading.Event
    lifeline: int
    local_image: Callable[[str], str] = str


class JobRun:
    """One attempt of a job, while it runs at this pilot. Errors are reported, not raised."""

    def __init__(self, parts: PilotParts, data: Mapping[str, Any], reservation: JobReservation) -> None:
        """Makes the attempt; `run` runs it.

        Args:
            parts: parts of the pilot.
            data: the job, as the server describes it.
            reservation: reservation of its resources in `parts.pool`.
        """
        self._parts, self._data, self._reservation = parts, data, reservation
        self._folder = parts.workdir.root  # where the command runs
        self._confinement = Confinement()
        self._outcome = Outcome(exit_code=None)
        self._stored: dict[str, Any] = {}  # entries of `job_output_report`
        self._archive, self._copied = "", 0.0  # name of the sandbox, and when it was copied
        self._resumes = False  # whether the attempt goes on from a checkpoint
        self._job: Job | None = None
        self._failed: set[tuple[int, int]] = set()  # (trial, fold) without a figure of merit
        self._unkept: dict[tuple[int, int], str] = {}  # why their checkpoint is only here

    def run(self) -> None:
        """Runs the job, then sends its final report or puts it back into the queue."""
        parts, root, is_reserved = self._parts, None, True
        try:
            panda_id, attempt = job_identity(self._data)
            try:
                self._confinement = parts.isolation.of(self._data)
                root = self._folder = parts.workdir.new_job_folder(panda_id, attempt, self._confinement.name)
                self._run_in(root)
            except OSError as error:  # the job is not at fault
                why = GivenBack(f"the pilot's folder cannot be used: {error}", PilotErrorCode.NO_LOCAL_SPACE)
                self._outcome = Outcome(exit_code=None, failure=why)
            finally:
                if self._job is not None:
                    parts.heartbeats.remove(self._job.identity)
            outcome = self._outcome
            # The next job starts while this one is reported.
            ending = _ending(outcome, self._folder)
            resumed = self._resumes and ending is Ending.FINISHED
            parts.pool.free(self._reservation, Ending.RESUMED if resumed else ending)
            is_reserved = False
            report_end(parts, panda_id, attempt, outcome, self._folder, self._stored)
            if self._job is not None and outcome.finished:
                parts.checkpoints.drop(self._job, self._failed, self._unkept)
        except HpoPilotError as error:
            log.error("%s", error)
        except Exception:
            log.exception("job %s: a defect of the pilot; its server will count it as lost", self._data.get("PandaID"))
        finally:
            if is_reserved:
                parts.pool.free(self._reservation)
            if self._job is not None:
                parts.checkpoints.leave(self._job.identity)
            if root is not None and not parts.settings.keep:
                shutil.rmtree(root, ignore_errors=True)

    def _run_in(self, root: Path) -> None:
        """Runs the job in its folder, from its parameters to its outputs. Errors become the outcome's failure.

        Heartbeats report on it all the time, uploads included: a server takes a silent job for lost.
        """
        parts, draining = self._parts, self._parts.draining
        try:
            if not parts.pool.enter(self._reservation, draining) or draining.is_set():
                raise GivenBack("the pilot was about to end when the job came")
            self._job = job = parse_job(self._data)
            starting = StartingJob(job, root, draining)
            parts.heartbeats.add(starting)
            self._archive, self._copied = job.arguments.archive, time.monotonic()
            large = parts.sandboxes.copy_to(job.arguments, root, LARGE_FILE if parts.staging is not None else 0)
            document = PayloadSettings.read(str(root))
            assignment, prepared, wrapper = self._prepare(starting, document, root, large)
            self._folder = Path(prepared.folder)
            if assignment.seconds and not job.walltime:
                job = replace(job, walltime=assignment.seconds)
            parts.checkpoints.begin(job)
            # Only an allocation may end before its jobs, so only there the checkpoints matter.
            in_allocation = parts.settings.allocation or parts.settings.agent
            kept = kept_checkpoint(job, parts.settings.checkpoint_root) if in_allocation else None
            before = kept.signature() if kept else ()
            self._resumes = bool(before)
            given = (parts.settings, job, document, prepared, root, parts.lifeline, assignment.variables)
            self._execute(Execution(*given, wrapper), starting)
            if isinstance(wrapper, InContainer) and (fault := self._image_fault(job)):
                self._execute(Execution(*given, _refused(self._folder, fault, self._confinement)), starting)
            ended_in, self._folder = self._folder, parts.workdir.root  # until it is known that it is no link
            parts.isolation.guard(ended_in, self._confinement)
            self._folder = ended_in
            if isinstance(wrapper, WithLauncher):
                self._judge_launch(wrapper)
            failed_alone = parts.settings.agent and self._outcome.failure is None and self._outcome.exit_code
            if failed_alone and draining.wait(_SIGNAL_SECONDS):  # the job may be signalled before its agent
                self._outcome = replace(self._outcome, failure=CutOff("the allocation was ended"))
            if isinstance(self._outcome.failure, CutOff):
                has_gone_on = kept is not None and kept.signature() not in (before, ())
                if has_gone_on and parts.settings.agent and not _is_good(self._outcome, self._folder):
                    # Its disk is of no use to the next attempt: what counts is on the storage that nodes share.
                    has_gone_on = parts.checkpoints.keep(job, self._outcome.failure)
                self._judge_cut_off(has_gone_on=has_gone_on, is_late=assignment.is_late)
            self._judge_sandbox()
            storage = parts.server_storage if job.server_stores else parts.own_storage
            if self._outcome.finished:
                self._stored = store_outputs(storage, job, self._folder)
                self._failed = failed_folds(self._folder)
                self._unkept = parts.checkpoints.finish(job, self._failed)
                note_remarks(self._folder, self._unkept)
                return
            parts.checkpoints.keep(job, self._outcome.failure)
            if not isinstance(self._outcome.failure, AttemptClosed | GivenBack):
                self._stored = store_log(storage, job, self._folder)
        except JobFailure as failure:
            if isinstance(failure, LauncherMissing):
                parts.avoided.add(parse_job(self._data).task_id, str(failure))
            self._fail(failure)
        except TransformationFailure as failure:
            self._fail(JobFailure.of(failure))
        except OSError as error:
            self._fail(JobFailure(f"the job folder cannot be used: {error}", PilotErrorCode.NO_LOCAL_SPACE))

    def _fail(self, failure: JobFailure) -> None:
        self._outcome = replace(self._outcome, failure=failure, ended=time.time())
        self._judge_sandbox()

    def _judge_sandbox(self) -> None:
        """Gives a failed job back if its sandbox was damaged in the cache: the payload is not at fault."""
        failure = self._outcome.failure
        stopped = failure is not None and failure.code in (PilotErrorCode.SIGTERM, PilotErrorCode.PANDA_KILL)
        if stopped or (failure is None and _is_good(self._outcome, self._folder)):
            return
        if self._parts.sandboxes.is_damaged(self._archive, self._copied):
            why = GivenBack(f"{self._archive} was damaged in the pilot's cache", PilotErrorCode.STAGE_IN_FAILED)
            self._outcome = replace(self._outcome, failure=why)

    def _prepare(
        self, starting: StartingJob, document: PayloadSettings, root: Path, large: Sequence[Path]
    ) -> tuple[AssignedResources, Prepared, CommandWrapper]:
        """Waits for a job's resources and fetches its inputs."""
        parts, job = self._parts, starting.job
        stage_in = StageIn(str(parts.workdir.inputs), parts.settings.input_cache_mb << 20, starting.is_over)
        try:
            assignment = parts.pool.assign(self._reservation, job, document, starting)
            begun = time.monotonic()
            prepared = prepare(job.arguments, str(root), str(root), stage_in)
            if hidden := next(filter(parts.isolation.hides, map(Path, prepared.elsewhere)), None):
                raise JobFailure(f"payload.inputs: {hidden} is hidden from payloads", PilotErrorCode.STAGE_IN_FAILED)
            wrapper = self._wrapper(job, document, assignment, Path(prepared.folder))
            if parts.staging is not None and isinstance(wrapper, WithLauncher):
                staged = parts.staging.stage(wrapper, root, Path(prepared.folder), large, starting)
                parts.pool.note_staging(self._reservation, staged.seconds or 0.0)
                wrapper, prepared = replace(wrapper, staged=staged), staged.beside(prepared)
            report.STAGE_IN.observe(time.monotonic() - begun)
            return assignment, prepared, wrapper
        except TransformationFailure as failure:
            raise starting.failure or JobFailure.of(failure) from failure

    def _wrapper(
        self, job: Job, document: PayloadSettings, assignment: AssignedResources, folder: Path
    ) -> CommandWrapper:
        """Returns the wrapper of the command: a container, and a launcher for jobs with ranks or in an allocation."""
        settings, site = self._parts.settings, self._parts.site
        runtime = settings.container_runtime
        if site is not None and runtime == "auto":
            runtime = site.runtime
        try:
            image = self._parts.local_image(job.container)
            choose_runtime(runtime, image)
        except ImageFault as fault:
            return _refused(folder, str(fault), self._confinement)
        if site is None:
            if document.ranks_per_node:
                raise LauncherMissing(
                    f"the job has {document.ranks_per_node} ranks per node, and this pilot does not know the launcher: "
                    "start the pilot with --site"
                )
            return InContainer(runtime, image, confinement=self._confinement)
        container = InContainer(runtime, image, site.inside(gpus=any(assignment.gpus.values())))
        if document.ranks_per_node or assignment.allocation:
            return WithLauncher(site, job, assignment, document, container)
        return replace(container, confinement=self._confinement)

    def _execute(self, execution: Execution, starting: StartingJob) -> None:
        """Runs the command to its end, in a kept interpreter if it is a function; the watchdog checks it meanwhile."""
        parts, arguments = self._parts, execution.job.arguments
        parts.watchdog.add(execution)
        try:
            copy = functools.partial(parts.sandboxes.copy_to, arguments)
            execution.warm_up(parts.interpreters, copy, starting.is_over)
            if starting.failure is not None:
                raise starting.failure
            execution.start()
            parts.heartbeats.add(execution)  # instead of the starting one
            self._outcome = execution.wait()
        finally:
            execution.keep_interpreter()
            parts.watchdog.remove(execution)

    def _image_fault(self, job: Job) -> str:
        """Returns why the job's container did not start if its image is the reason; else an empty text."""
        outcome = self._outcome
        if not job.container or outcome.exit_code in (None, 0) or outcome.failure is not None:
            return ""
        if payload_succeeded(self._folder) is not None:
            return ""
        fault = image_fault(log_end(self._folder / LOG_FILE, _LOG_READ).decode(errors="replace"))
        return fault and f"the image {job.container!r} cannot be used: {fault}"

    def _judge_launch(self, launched: WithLauncher) -> None:
        """Finds out whether the launcher or the end of the allocation made the job fail; ends the rest of its step."""
        if self._outcome.exit_code != 0:
            launched.end_step(self._folder)
        if launched.staged.seconds is not None:
            note_metric(self._folder, "stage_in_seconds", launched.staged.seconds)
        if self._outcome.failure is not None:
            return
        failed = None if payload_succeeded(self._folder) else launched.launch_failure(self._folder)
        if not _is_good(self._outcome, self._folder) and (why := self._cut_off(launched, failed)):
            self._outcome = replace(self._outcome, failure=CutOff(why))
        elif failed is not None:
            self._outcome = replace(self._outcome, failure=self._of_launcher(launched, failed))
        else:
            self._parts.pool.note_launch(self._reservation, None)

    def _cut_off(self, launched: WithLauncher, failed: LaunchFailure | None) -> str:
        """Returns why the job was cut off; empty: it was not. Its ranks may get a signal before this pilot.

        Args:
            launched: the job's ranks.
            failed: a failure of the launcher, such as a lost node, after which it cancels the step itself.
        """
        watch, draining = self._parts.watch, self._parts.draining
        if watch is None or not launched.assignment.allocation:
            return ""
        if failed is None and self._outcome.last_line.endswith(STEP_CANCELLED) and not draining.is_set():
            job = kept_checkpoint(launched.job, self._parts.settings.checkpoint_root)
            return "its job step was cancelled" if watch.is_cut_off(job) else ""
        # Slurm's line about the cancelled step is lost if the step ends at once.
        if failed is None and not draining.is_set() and launched.were_terminated(self._folder) and watch.ends_soon():
            return "the allocation ends soon"
        return "the allocation was ended" if draining.wait(_SIGNAL_SECONDS) else ""

    def _of_launcher(self, launched: WithLauncher, failed: LaunchFailure) -> JobFailure:
        """Returns a failure that lets the job run elsewhere; the payload is not judged."""
        nodes, outage = launched.assignment.nodes, self._parts.outage
        if outage is not None and not failed.nodes and (failed.is_away or outage.is_everywhere(nodes)):
            outage.begin(failed.why, nodes)
            return LauncherAway(f"the launcher starts nothing here: {failed.why}")
        self._parts.pool.note_launch(self._reservation, failed.nodes, failed.lost)
        kind = NodeLost if failed.lost else JobFailure
        return kind(f"the launcher failed, not the payload: {failed.why}")

    def _judge_cut_off(self, *, has_gone_on: bool, is_late: bool) -> None:
        """Corrects the outcome of a job that the end of the allocation has stopped.

        Args:
            has_gone_on: whether this attempt has kept a checkpoint. A job without progress must not be given back for
                ever.
            is_late: whether it began late in the allocation, which would not be its fault.
        """
        failure = self._outcome.failure
        if _is_good(self._outcome, self._folder):  # it finished in time
            self._outcome = replace(self._outcome, failure=None)
        elif has_gone_on:
            why = GivenBack(f"{failure}; a checkpoint is kept")
            self._outcome = replace(self._outcome, failure=why)
        elif is_late:
            self._outcome = replace(self._outcome, failure=CutLate(str(failure)))


def report_end(
    parts: PilotParts, panda_id: int, attempt: int, outcome: Outcome, folder: Path, stored: Mapping[str, Any]
) -> None:
    """Sends the final report of a job that has ended, or puts the job back into the queue if its failure asks for that.

    Args:
        parts: parts of the pilot.
        panda_id: PandaID of the job.
        attempt: attempt number.
        outcome: how it ended.
        folder: where its command ran.
        stored: entries of `job_output_report`.
    """
    failure = outcome.failure
    if not outcome.finished:
        log.info("job %s failed: %s", panda_id, failure or outcome.last_line)
    is_back = failure is not None and failure.is_given_back and _goes_back(parts, panda_id, attempt)
    report.count_job_end(outcome, given_back=is_back)
    if not isinstance(failure, AttemptClosed) and not is_back:
        parts.delivery.send(report.final_report(parts.settings, panda_id, attempt, outcome, folder, stored))


def _goes_back(parts: PilotParts, panda_id: int, attempt: int) -> bool:
    """Puts a job back into the queue; returns whether it is there."""
    try:
        given = parts.giving_back.give(panda_id, attempt)
    except HpoPilotError as error:
        log.info("job %s cannot be given back, and is reported failed: %s", panda_id, error)
        return False
    if given:
        log.info("job %s is in the queue again", panda_id)
    return given


def _refused(folder: Path, reason: str, confinement: Confinement) -> InContainer:
    """Makes the runner report a reason in place of the payload: further attempts would fail too."""
    if not refuse_payload(str(folder), reason):
        raise JobFailure(reason, PilotErrorCode.NO_CONTAINER_RUNTIME)
    return InContainer("none", "", confinement=confinement)


def _is_good(outcome: Outcome, folder: Path) -> bool:
    """Returns whether the command, or under our runner the payload, succeeded."""
    return outcome.exit_code == 0 and payload_succeeded(folder) is not False


def _ending(outcome: Outcome, folder: Path) -> Ending:
    """Returns how the job ended, for the usage figures of an allocation."""
    failure = outcome.failure
    if failure is None:
        return Ending.FINISHED if _is_good(outcome, folder) else Ending.FAILED
    if isinstance(failure, NodeLost):
        return Ending.LOST
    if isinstance(failure, GivenBack) and outcome.started and failure.code is PilotErrorCode.SIGTERM:
        return Ending.CHECKPOINTED
    return Ending.CUT if isinstance(failure, GivenBack | CutOff) else Ending.FAILED
