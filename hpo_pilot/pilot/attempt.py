"""One job at a pilot, from the server's dictionary to the report of its end."""

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
from hpo_pilot.pilot import report as metrics
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

#: A batch system that cancels an allocation signals all of its processes; seconds until the last has heard.
_WORD_SECONDS = 1.0


class Attempts(Generic[C]):
    """Runs jobs; each in the thread that calls `run`, and nothing that goes wrong escapes."""

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
            site: where it is; None: nobody has said it.
            server: for sandboxes, and for jobs that go back.
            workdir: for job folders and inputs.
            room: what jobs run on.
            running: is told of each that runs.
            delivery: takes the final reports.
            heartbeats: tells the server of jobs that start or run.
            shipping: brings checkpoints from attempt to attempt.
            storage: says where a job's outputs go.
            staging: copies to the nodes what many jobs read; None: nothing is copied.
            outage: of the launcher; None: there is no allocation to be shared out by it.
            has_started: is called when one runs.
            draining: is set when the pilot wants to end.
            lifeline: a pipe's end that closes when the pilot dies.
        """
        self._settings, self._site, self._server, self._workdir, self._room = settings, site, server, workdir, room
        self._running, self._delivery, self._heartbeats, self._shipping = running, delivery, heartbeats, shipping
        self._storage, self._has_started, self._draining, self._lifeline = storage, has_started, draining, lifeline
        self._staging, self._outage, self._giving_back = staging, outage, GivingBack(server)
        self._cache = SandboxCache(workdir.cache, server, limit_mb=settings.cache_mb, unpack_mb=settings.unpack_mb)

    def run(self, data: Mapping[str, Any], claim: C) -> None:
        """Runs a job of the server's, and reports its end or puts it back into the queue."""
        root: Path | None = None
        claimed = True
        try:
            panda_id, attempt = job_identity(data)
            try:
                root = self._workdir.new_job_folder(panda_id, attempt)
                outcome, folder, stored = self._job(data, root, claim)
            except OSError as error:  # that it cannot be made says nothing of the job
                failure = GivenBack(PilotErrorCode.NO_LOCAL_SPACE, f"the pilot's folder cannot be used: {error}")
                outcome, folder, stored = Outcome(exit_code=None, failure=failure), self._workdir.root, {}
            self._room.give_back(claim, _ending(outcome, folder))  # the next is on its way while this one is reported
            claimed = False
            if not outcome.finished:
                log.info("job %s failed: %s", panda_id, outcome.failure or outcome.last_line)
            is_back = self._goes_back(panda_id, attempt, outcome.failure)
            metrics.count_job_end(outcome, given_back=is_back)
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
        """Whether the job is in the queue again, if it is one that shall be."""
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
        """Runs a job from its parameters to its stored outputs; nothing that goes wrong escapes.

        Returns:
            (how it ended, the folder where it ran, its stored files as `job_output_report` has them).
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
            # What it keeps matters where it may be cut off.
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
        """Waits for what a job runs on, and makes it ready; if that takes time, the server is told that it starts."""
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
            metrics.observe_stage_in(time.monotonic() - begun)
            return seat, prepared, wrapping
        except TransformationFailure as failure:
            raise starting.failure or JobFailure.of(failure) from failure
        finally:
            self._heartbeats.remove(starting)

    def _wrapping(self, job: Job, document: PayloadDocument, seat: Assignment) -> Wrapping:
        """What stands around the command: a container, and where the job has ranks or an allocation, a launcher."""
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
        """What an allocation's end, or a launch that failed, makes of the outcome.

        Args:
            outcome: as the runner left it.
            folder: where it ran.
            claim: the job's.
            wrapping: what stood around its command.
            has_gone_on: whether this attempt has kept a checkpoint: a job that never does must not come back for ever.
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
            if _is_good(outcome, folder):  # it came to its end all the same
                return replace(outcome, failure=None)
            if has_gone_on:
                return replace(outcome, failure=GivenBack(failure.code, f"{failure}; a checkpoint is kept"))
        return outcome

    def _is_ending(self, wrapping: Launched) -> bool:
        """Whether the allocation is being ended, of which a job's ranks and runner may hear before this pilot does."""
        return bool(wrapping.seat.allocation) and self._draining.wait(_WORD_SECONDS)

    def _launch_judged(self, outcome: Outcome, folder: Path, claim: C, wrapping: Launched) -> Outcome:
        """A launcher that failed is no verdict on the payload: the job is to run elsewhere."""
        verdict = read_verdict(folder)
        failed = None if verdict is not None and verdict.is_good else wrapping.launch_failure(folder)
        if failed is None:
            self._room.note_launch(claim, None)
            return outcome
        code, nodes = PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, wrapping.seat.nodes
        if self._outage is not None and not failed.nodes and (failed.is_away or self._outage.is_everywhere(nodes)):
            self._outage.begin(failed.why, nodes)
            return replace(outcome, failure=LauncherAway(code, f"the launcher starts nothing here: {failed.why}"))
        self._room.note_launch(claim, failed.nodes, failed.lost)
        kind = NodeLost if failed.lost else JobFailure
        return replace(outcome, failure=kind(code, f"the launcher failed, not the payload: {failed.why}"))


def _is_good(outcome: Outcome, folder: Path) -> bool:
    """Whether the command ended well; of our runner, whether the payload did."""
    verdict = read_verdict(folder)
    return outcome.exit_code == 0 and (verdict is None or verdict.is_good)


def _ending(outcome: Outcome, folder: Path) -> Ending:
    """How the job ended, for the books of an allocation."""
    failure = outcome.failure
    if failure is None:
        return Ending.FINISHED if _is_good(outcome, folder) else Ending.FAILED
    if isinstance(failure, NodeLost):
        return Ending.LOST
    if isinstance(failure, GivenBack) and outcome.started and not isinstance(failure, LauncherAway):
        return Ending.CHECKPOINTED
    return Ending.CUT if isinstance(failure, GivenBack | CutOff) else Ending.FAILED
