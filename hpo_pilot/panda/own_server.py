"""Reading tasks at a server of ours: it tells of every change, so that each look finds something new."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobReport, JobState, TaskRef, TaskState
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.job_report import finished_report, read_description, read_verdicts
from hpo_pilot.panda.task_info import described_jobs, error_dialog, finished_metadata, task_details, task_state
from hpo_pilot.panda.workflow_manager import UnknownTaskError


class OwnServerReader:
    """What became of tasks, in as few calls as there can be."""

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self._waiting: dict[int, str] = {}

    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        """The states of the tasks that the server knows."""
        states: dict[int, TaskState] = {}
        for ref in refs:
            status, name = self._client.call("getTaskStatus", ref.jedi_task_id)
            if status == 0 and name:
                states[ref.jedi_task_id] = task_state(str(name))
            elif self._knows(ref):
                raise TryAgainError(f"the server does not tell the status of task {ref.jedi_task_id}")
        return states

    def _knows(self, ref: TaskRef) -> bool:
        """Whether the server has the task; panda-client answers alike for an unknown task and for a lost connection."""
        filters = {"jediTaskID": str(ref.jedi_task_id)}
        status, tasks = self._client.call("get_tasks_detailed_info_since", None, filters, 1)
        if status != 0 or tasks is None:
            raise TryAgainError("the PanDA server does not answer")
        return any(str(task.get("taskName", ref.name)).rstrip("/") == ref.name.rstrip("/") for task in tasks)

    def why_waits(self, ref: TaskRef) -> str:
        """What the server said of the task when it had no jobs yet."""
        return self._waiting.get(ref.jedi_task_id, "")

    def _described(self, ref: TaskRef) -> list[dict[str, Any]]:
        """The descriptions of the task's jobs; where there are none the server is asked why."""
        jobs = described_jobs(self._client, ref)
        self._waiting.pop(ref.jedi_task_id, None)
        details = {} if jobs else task_details(self._client, ref.jedi_task_id) or {}
        if details and task_state(str(details.get("status"))).is_waiting:
            self._waiting[ref.jedi_task_id] = error_dialog(details)
        return jobs

    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        """What is known of the jobs in `missing`, at least."""
        if values:
            return self._with_values(ref, missing)
        metadata = self._metadata(ref)
        verdicts = {int(panda_id): read_verdicts(document) for panda_id, document in metadata.items()}
        finished = [finished_report(panda_id, found) for panda_id, found in verdicts.items() if found]
        if len(finished) == len(verdicts) and set(missing) <= {report.number for report in finished}:
            return finished  # nothing else to learn: saves the larger call for every short task
        jobs = self._described(ref)
        if any(job["jobStatus"] == "finished" and str(job["PandaID"]) not in metadata for job in jobs):
            metadata = self._metadata(ref)  # it finished between the two calls
        return [read_description(job, metadata.get(str(job["PandaID"]))) for job in jobs]

    def _with_values(self, ref: TaskRef, missing: Collection[int]) -> list[JobReport]:
        """The same where running jobs are what is asked for: results, which are larger, only where one is new."""
        jobs = self._described(ref)
        if not jobs and not self._knows(ref):
            raise UnknownTaskError(f"the server does not know task {ref.jedi_task_id} ({ref.name})")
        reports = [read_description(job, None) for job in jobs]
        ended = [report.state is JobState.FINISHED for report in reports]
        metadata: dict[str, object] = {}
        if any(over and report.number in missing for over, report in zip(ended, reports, strict=True)):
            metadata = self._metadata(ref)
        return [
            read_description(job, metadata.get(str(report.panda_id))) if over else report
            for over, report, job in zip(ended, reports, jobs, strict=True)
            if not over or report.number in missing
        ]

    def _metadata(self, ref: TaskRef) -> dict[str, object]:
        """The metadata of the task's finished jobs, by PandaID."""
        metadata = finished_metadata(self._client, ref)
        if metadata is not None:
            return metadata
        if not self._knows(ref):
            raise UnknownTaskError(f"the server does not know task {ref.jedi_task_id} ({ref.name})")
        raise TryAgainError(f"the server does not give the results of task {ref.jedi_task_id}")
