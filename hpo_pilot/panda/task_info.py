"""What panda-client's calls on one task answer, unwrapped: the one place that knows their shapes."""

from __future__ import annotations

import html
import re
from typing import Any

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import TaskRef, TaskState
from hpo_pilot.panda.client_process import ClientProcess

#: How much of a server's own words is kept, in characters.
_SHOWN = 500

#: Words of real servers for a task that mean one of ours (panda-server 1.0.4, `JediTaskSpec.py`); what else we need
#: not tell apart counts as running.
_STATES = {
    "staging": TaskState.PENDING,
    "assigning": TaskState.PENDING,
    "topreprocess": TaskState.READY,
    "preprocessing": TaskState.READY,
    "scouted": TaskState.SCOUTING,
    "toabort": TaskState.ABORTING,
    "finishing": TaskState.FINISHING,
    "prepared": TaskState.FINISHING,
}


def task_state(name: str) -> TaskState:
    """PanDA's word for a task's state as ours."""
    if name in _STATES:
        return _STATES[name]
    try:
        return TaskState(name)
    except ValueError:
        return TaskState.RUNNING


def task_details(client: ClientProcess, task_id: int) -> dict[str, Any] | None:
    """All about a task, however old; None where the server does not find it, or fails to look.

    Raises:
        TryAgainError: it does not answer.
    """
    status, answer = client.call("get_task_details_json", task_id)
    if status != 0 or not isinstance(answer, list):
        raise TryAgainError(f"the PanDA server {client.url} does not answer about task {task_id}")
    success, details = answer
    return details if success and isinstance(details, dict) else None


def submitted_parameters(client: ClientProcess, task_id: int) -> dict[str, Any] | None:
    """The parameters with which a task was submitted; None where the server has no such task.

    A real server has them from the submission on, long before the task itself shows.

    Raises:
        TryAgainError: it does not answer.
    """
    status, parameters = client.call("getTaskParamsMap", task_id)
    return parameters if status == 0 and isinstance(parameters, dict) else None


def finished_metadata(client: ClientProcess, ref: TaskRef) -> dict[str, object] | None:
    """The metadata of a task's finished jobs by PandaID; None where the server gives none.

    Raises:
        TryAgainError: it does not answer.
    """
    status, metadata = client.call("getUserJobMetadata", ref.jedi_task_id)
    return dict(metadata) if status == 0 and metadata is not None else None


def described_jobs(client: ClientProcess, ref: TaskRef) -> list[dict[str, Any]]:
    """The descriptions of all the task's jobs, every attempt on its own.

    Raises:
        TryAgainError: the server does not give them.
    """
    status, jobs = client.call("get_job_descriptions", ref.jedi_task_id)
    if status != 0 or jobs is None:
        raise TryAgainError(f"the server does not describe the jobs of task {ref.jedi_task_id}")
    return list(jobs)


def error_dialog(details: dict[str, Any]) -> str:
    """What the server says of a task that waits or ended badly, as plain text: it has links in it, for a monitor."""
    text = re.sub(r"<[^>]*>", "", str(details.get("errorDialog") or ""))
    return " ".join(html.unescape(text).split())[:_SHOWN]
