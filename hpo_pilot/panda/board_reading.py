"""From the embedded server's answers about jobs, pilots and queues to values; the one place that knows their keys.

The other end is `hpo_pilot/server/api/board.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.panda.board_values import (
    BoardFile,
    BoardJob,
    BoardJobView,
    BoardPage,
    BoardPilot,
    BoardQueue,
    PilotState,
)
from hpo_pilot.panda.job_report import error_text, reported_progress


def read_page(data: Mapping[str, Any]) -> BoardPage:
    """A page of jobs.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        counts = {JobState(state): int(count) for state, count in data["counts"].items()}
        return BoardPage(tuple(_job(one) for one in data["jobs"]), data["before"], counts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _nonsense("job_list", error) from error


def read_view(data: Mapping[str, Any]) -> BoardJobView:
    """All about one job.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        files = tuple(BoardFile(one["name"], one["dataset"], one["kind"], one["size"]) for one in data["files"])
        metrics = str(data["job"]["job_metrics"] or "")
        return BoardJobView(
            job=_job(data["job"]),
            attempts=tuple(_job(one) for one in data["attempts"]),
            files=files,
            progress=reported_progress(metrics),
            measures=dict(data["measures"]),
            metrics=metrics,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _nonsense("job_view", error) from error


def read_pilot(one: Mapping[str, Any]) -> BoardPilot:
    """One pilot.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        return BoardPilot(
            key=str(one["key"]),
            state=PilotState(one["state"]),
            host=str(one["host"]),
            queue=str(one["queue"]),
            kind=str(one["kind"]),
            version=str(one["version"]),
            since=_moment(one["since"]),
            heard=_moment(one["heard"]),
            slots=one["slots"],
            nodes=one["nodes"],
            jobs=tuple(one["jobs"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _nonsense("pilot_list", error) from error


def read_queue(one: Mapping[str, Any]) -> BoardQueue:
    """One queue.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        return BoardQueue(**one)
    except TypeError as error:
        raise _nonsense("queue_list", error) from error


def _job(one: Mapping[str, Any]) -> BoardJob:
    progress = reported_progress(str(one["job_metrics"] or ""))
    step, value = progress[-1] if progress else (None, None)
    return BoardJob(
        panda_id=one["panda_id"],
        task_id=one["task_id"],
        task=one["task"],
        user=one["user"],
        search=one["search"],
        uid=one["uid"],
        generation=one["generation"],
        members=tuple((trial, fold) for trial, fold in one["members"]),
        number=one["number"],
        attempt=one["attempt"],
        attempts=one["attempts"],
        state=JobState(one["state"]),
        sub_state=one["sub_state"] or "",
        queue=one["queue"] or "",
        node=one["node"] or "",
        pilot=one["pilot"] or "",
        created=_known(one["created"]),
        changed=_known(one["changed"]),
        started=_moment(one["started"]),
        ended=_moment(one["ended"]),
        heard=_moment(one["heard"]),
        nodes=one["nodes"],
        gpus=one["gpus"],
        cores=one["cores"],
        memory_mb=one["memory_mb"],
        minutes=one["seconds"] / 60,
        step=step,
        value=value,
        error=error_text(one["errors"]) or "",
        has_log=bool(one["has_log"]),
        payload_error=str(one["payload_error"]),
    )


def _known(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else _known(seconds)


def _nonsense(call: str, error: Exception) -> TryAgainError:
    return TryAgainError(
        f"the embedded PanDA server's answer to {call} makes no sense ({type(error).__name__}: {error}): "
        "is it of this version?"
    )
