"""What is said to the server about a job: the arguments of `update_job` of panda-server 1.0.4."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.progress import Progress
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.failure import TransformationFailure
from hpo_pilot.transformation.job_report import job_report
from hpo_pilot.transformation.payload_document import PayloadDocument

_DIAGNOSIS = 500  # characters that the server keeps


@dataclass(frozen=True)
class Outcome:
    """How a job ended at this pilot.

    Attributes:
        exit_code: of the command; negative: its signal. None: it never ran, or was stopped for `failure`.
        last_line: the last of what the runner itself said.
        failure: why the pilot calls it failed; None: the exit code decides.
        started: unix time, 0: never.
        cpu_seconds: of all its processes.
        max_rss_kb: of its largest process.
    """

    exit_code: int | None
    last_line: str = ""
    failure: JobFailure | None = None
    started: float = 0.0
    ended: float = field(default_factory=time.time)
    cpu_seconds: float = 0.0
    max_rss_kb: int = 0

    @property
    def finished(self) -> bool:
        """True where the server shall call it finished."""
        return self.failure is None and self.exit_code == 0


class Reported(Protocol):
    """A job that starts or runs."""

    phase: str
    job: Job
    started: float
    progress: Progress


def heartbeat(settings: PilotSettings, reported: Reported) -> dict[str, Any]:
    """A report on a job that starts or runs."""
    report = _report(settings, reported.job.panda_id, reported.job.attempt, reported.phase)
    report["start_time"] = _moment(reported.started)
    if metrics := reported.progress.text():
        report["job_metrics"] = metrics
    return report


def final(
    settings: PilotSettings,
    panda_id: int,
    attempt: int,
    outcome: Outcome,
    folder: Path | None,
    stored: Mapping[str, Any],
) -> dict[str, Any]:
    """The last report on a job.

    Args:
        settings: of this pilot.
        panda_id: the job.
        attempt: its attempt number.
        outcome: how it ended.
        folder: the job's; None: it had none.
        stored: output files as `job_output_report` lists them.
    """
    report = _report(settings, panda_id, attempt, "finished" if outcome.finished else "failed")
    report["end_time"] = _moment(outcome.ended)
    report["start_time"] = _moment(outcome.started or outcome.ended)
    report["cpu_consumption_time"] = round(outcome.cpu_seconds)
    report["cpu_consumption_unit"] = "s"
    if outcome.max_rss_kb:
        report["max_rss"] = outcome.max_rss_kb
    if outcome.exit_code is not None:
        report["trans_exit_code"] = outcome.exit_code if outcome.exit_code >= 0 else 128 - outcome.exit_code
    if outcome.failure is not None:
        report["pilot_error_code"] = int(outcome.failure.code)
        report["pilot_error_diag"] = str(outcome.failure)[:_DIAGNOSIS]
    elif not outcome.finished:
        said = outcome.last_line or f"the command ended with status {outcome.exit_code}"
        report["pilot_error_code"] = int(PilotErrorCode.PAYLOAD_EXECUTION_FAILURE)
        report["exe_error_code"] = report["trans_exit_code"]
        report["exe_error_diag"] = report["pilot_error_diag"] = said[:_DIAGNOSIS]
    if folder is not None:
        if metrics := _last_metrics(folder):
            report["job_metrics"] = metrics
        if outcome.finished:
            report["meta_data"] = job_report(str(folder))
    if stored:
        report["job_output_report"] = json.dumps(stored)
    return report


def _last_metrics(folder: Path) -> str:
    """What the payload had reported when it ended."""
    try:
        document = PayloadDocument.read(str(folder))
    except TransformationFailure:
        document = PayloadDocument()  # whose folder says so of itself already
    return Progress(folder, document).text()


def _report(settings: PilotSettings, panda_id: int, attempt: int, status: str) -> dict[str, Any]:
    return {
        "job_id": panda_id,
        "attempt_nr": attempt,
        "job_status": status,
        "node": settings.node,
        "site_name": settings.queue,
        "pilot_id": f"hpo-pilot|{settings.harvester_id}|{settings.worker_id}",
        "batch_id": str(settings.worker_id),
    }


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
