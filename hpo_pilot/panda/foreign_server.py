"""Reading tasks at a real PanDA server: one call per task and look, more only where something has changed.

What such servers do that ours does not: a task shows only when JEDI has looked at it; a job that has ended passes
through `holding`; a retried job has a new PandaID and other file names; what is asked for too often is refused.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from typing import Any

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobReport, JobState, TaskRef, TaskState
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.job_report import output_did, read_description
from hpo_pilot.panda.task_info import (
    described_jobs,
    error_dialog,
    finished_metadata,
    submitted_parameters,
    task_details,
    task_state,
)
from hpo_pilot.panda.watches import Watches
from hpo_pilot.panda.workflow_manager import UnknownTaskError

#: A finished job whose metadata is not there yet counts as holding for so long, in seconds.
METADATA_SECONDS = 900.0

#: A task that the server finds no more, nor its parameters, is given up after so long, in seconds: it may
#: be the server's database that had a bad moment.
UNKNOWN_SECONDS = 3600.0

#: Jobs that the server has made and keeps from all pilots are told of after so long, in seconds. They wait for ever
#: where the server stopped while JEDI made them, unless its own daemon ends them (panda-server 1.0.4, `copyArchive.py`:
#: after an hour), whereupon JEDI makes new ones.
KEPT_BACK_SECONDS = 300.0

#: So many of them are named.
_NAMED = 5

#: What a look found is good for the calls that follow it at once, in seconds. A newer state than that from before the
#: jobs were read would not go with them: a task that is done has jobs that nobody has heard of.
_FRESH = 10.0

#: What shows of a task that its jobs have changed.
_FACE = ("status", "modificationTime", "nFiles", "nFilesFinished", "nFilesFailed", "errorDialog")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Look:
    at: float
    state: TaskState
    face: Hashable
    dialog: str = ""


class ForeignServerReader:
    """What became of tasks, asked for politely."""

    def __init__(self, client: ClientProcess, watches: Watches, clock: Callable[[], float] = time.monotonic) -> None:
        """Knows nothing yet.

        Args:
            client: panda-client.
            watches: is told of every look.
            clock: in seconds.
        """
        self._client = client
        self._watches = watches
        self._clock = clock
        self._looks: dict[int, _Look] = {}
        self._unknown_since: dict[int, float] = {}
        self._bare_since: dict[int, float] = {}
        self._kept_back: dict[int, dict[int, tuple[float, str]]] = {}  # by task: since when a job is, and its state

    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        """The states of the tasks that the server knows."""
        found = {}
        for ref in refs:
            with contextlib.suppress(UnknownTaskError):
                found[ref.jedi_task_id] = self._recent(ref).state
        return found

    def why_waits(self, ref: TaskRef) -> str:
        """What the server said of the task at the last look, if it waited; else what is to say of jobs that wait."""
        look = self._looks.get(ref.jedi_task_id)
        if look is not None and look.state.is_waiting:
            return look.dialog
        kept = self._kept_back.get(ref.jedi_task_id, {})
        now = self._clock()
        long = {job: state for job, (since, state) in sorted(kept.items()) if now - since >= KEPT_BACK_SECONDS}
        if not long:
            return ""
        named = ", ".join(map(str, list(long)[:_NAMED])) + (", …" if len(long) > _NAMED else "")
        return (
            f"the server has made {len(long)} of the task's jobs ({named}) and does not release them to pilots (state "
            f"{', '.join(sorted(set(long.values())))}). A PanDA server ends such jobs after an hour and makes new "
            "ones; if they wait for longer, ask its operators"
        )

    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        """What is known of the jobs, where that has changed; nothing where it has not and the task goes on."""
        look = self._look(ref)
        over = look.state.is_over
        waits = look.state.is_waiting or bool(self._kept_back.get(ref.jedi_task_id))
        if not self._watches.looked(ref.jedi_task_id, look.face, missing, values=values, waits=waits) and not over:
            return []
        metadata = finished_metadata(self._client, ref)
        if metadata is None:
            raise TryAgainError(f"the server does not give the results of task {ref.jedi_task_id}")
        jobs = described_jobs(self._client, ref)
        reports = [self._report(job, metadata.get(str(job["PandaID"]))) for job in jobs]
        self._note_kept_back(ref, reports, jobs)
        # A job leaves these states without its task's being any different.
        unready = any(report.state in (JobState.HOLDING, JobState.TRANSFERRING) for report in reports)
        told = {number for report in reports if report.verdicts and (number := report.number) is not None}
        self._watches.read(ref.jedi_task_id, look.face, told, unready=unready)
        self._looks[ref.jedi_task_id] = replace(look, at=self._clock())
        if over and all(report.state.is_over for report in reports):
            self._watches.forget(ref.jedi_task_id)
        return reports

    def _note_kept_back(self, ref: TaskRef, reports: list[JobReport], jobs: list[dict[str, Any]]) -> None:
        before, now = self._kept_back.pop(ref.jedi_task_id, {}), self._clock()
        kept = {
            report.panda_id: (before.get(report.panda_id, (now, ""))[0], str(job.get("jobStatus")))
            for report, job in zip(reports, jobs, strict=True)
            if report.state is JobState.DEFINED
        }
        if kept:
            self._kept_back[ref.jedi_task_id] = kept

    def _report(self, job: dict[str, Any], metadata: object) -> JobReport:
        report = replace(read_description(job, metadata), output=output_did(job))
        if report.state is not JobState.FINISHED or report.verdicts:
            self._bare_since.pop(report.panda_id, None)
            return report
        # Its metadata may be on its way from one table to another.
        self._bare_since.setdefault(report.panda_id, self._clock())
        return replace(report, state=JobState.HOLDING) if self._awaited(report.panda_id) else report

    def _awaited(self, panda_id: int) -> bool:
        """Whether a finished job's metadata may still come."""
        since = self._bare_since.get(panda_id)
        return since is not None and self._clock() - since < METADATA_SECONDS

    def _recent(self, ref: TaskRef) -> _Look:
        look = self._looks.get(ref.jedi_task_id)
        return look if look and self._clock() - look.at < _FRESH else self._look(ref)

    def _look(self, ref: TaskRef) -> _Look:
        """One call, where all is well.

        Raises:
            UnknownTaskError: the server has said for long that it does not know the task.
            TryAgainError: the server does not answer.
        """
        task_id = ref.jedi_task_id
        details = task_details(self._client, task_id)
        if details is not None:
            face = tuple(str(details.get(name)) for name in _FACE)
            look = _Look(self._clock(), task_state(str(details.get("status"))), face, error_dialog(details))
        elif submitted_parameters(self._client, task_id) is not None:
            look = _Look(self._clock(), TaskState.REGISTERED, "registered")
        else:
            return self._unknown(ref)
        self._unknown_since.pop(task_id, None)
        self._looks[task_id] = look
        return look

    def _unknown(self, ref: TaskRef) -> _Look:
        now = self._clock()
        since = self._unknown_since.setdefault(ref.jedi_task_id, now)
        if now - since >= UNKNOWN_SECONDS:
            raise UnknownTaskError(f"the server does not know task {ref.jedi_task_id} ({ref.name})")
        log.warning("the server does not find task %d (%s) now; it is asked again", ref.jedi_task_id, ref.name)
        return _Look(now, TaskState.REGISTERED, "unknown")
