"""Calls that a real server has and that concern what this one does not: answered with its proper refusals.

``event/*`` (event service), ``data_carousel/*`` (tape), ``idds/*`` and ``workflow/*`` (workflows),
``async_process/*`` (logs of many machines). Whoever may call, which arguments are wanted, and what an unknown thing
gets are as on a real server.
"""

from __future__ import annotations

import json
from typing import Any

from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, PILOTS, USERS, Access, endpoint

NO_WORKFLOWS = "the embedded PanDA server has no workflow engine: hpo-pilot steers its searches itself"
NO_IDDS = "the embedded PanDA server has no iDDS: hpo-pilot steers its searches itself"
_NO_EVENTS = "the embedded PanDA server has no event service"
_NO_CAROUSEL = "failed to get corresponding request: the embedded PanDA server has no data carousel"
_MOST_SECONDS, _MOST_CHARACTERS = 60, 100  # of the sleep-and-echo request

# --- event: no job here has event ranges ---


@endpoint("event/get_available_event_range_count", "GET", PILOTS, Access.NOTHING)
def get_available_event_range_count(
    call: Call, *, job_id: int, jobset_id: int, task_id: int, timeout: int = 60
) -> Envelope:
    """How many event ranges a job may still get: none."""
    return success(0)


@endpoint("event/get_event_range_statuses", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_event_range_statuses(call: Call, *, job_task_ids: list[str]) -> Envelope:
    """The states of the event ranges of jobs: there are none."""
    return success({})


@endpoint("event/acquire_event_ranges", "POST", PILOTS, Access.NOTHING)
def acquire_event_ranges(
    call: Call,
    *,
    job_id: int,
    jobset_id: int,
    task_id: int | None = None,
    n_ranges: int = 10,
    timeout: int = 60,
    scattered: bool = False,
    segment_id: int | None = None,
) -> Envelope:
    """Event ranges for a job: none."""
    return success([])


@endpoint("event/update_single_event_range", "POST", PILOTS, Access.NOTHING)
def update_single_event_range(
    call: Call,
    *,
    event_range_id: str,
    event_range_status: str,
    core_count: int | None = None,
    cpu_consumption_time: float | None = None,
    object_store_id: int | None = None,
    timeout: int = 60,
) -> Envelope:
    """Refused: there is no such event range."""
    return failure(_NO_EVENTS)


@endpoint("event/update_event_ranges", "POST", USERS | PILOTS, Access.NOTHING, production=True)
def update_event_ranges(call: Call, *, event_ranges: str | list[Any], timeout: int = 120, version: int = 0) -> Envelope:
    """Refused: there are no such event ranges."""
    return failure(_NO_EVENTS)


# --- data_carousel: an operator's, and there is nothing to stage ---


def _carousel(request_id: int | None, dataset: str | None) -> Envelope:
    if request_id is None and dataset is None:
        return failure("either request_id or dataset must be provided")
    return failure(_NO_CAROUSEL)


def _target(call: Call, *, request_id: int | None = None, dataset: str | None = None) -> Envelope:
    """Refused: nothing is staged here."""
    return _carousel(request_id, dataset)


def _source(
    call: Call,
    *,
    request_id: int | None = None,
    dataset: str | None = None,
    cancel_fts: bool = False,
    change_src_expr: bool = False,
    source_rse: str | None = None,
) -> Envelope:
    """Refused: nothing is staged here."""
    return _carousel(request_id, dataset)


for _name, _handler in (
    ("change_staging_destination", _target),
    ("change_staging_source", _source),
    ("force_to_staging", _target),
    ("retire_unused", _target),
):
    for _prefix in ("", "submit_"):
        endpoint(f"data_carousel/{_prefix}{_name}", "POST", USERS, Access.NOTHING, production=True)(_handler)


# --- idds, workflow ---


def refuse_idds_workflow(command_name: str, kwargs: str | None) -> str:
    """Why a command to an iDDS workflow is refused, in the words of a real server."""
    command = command_name.split("+", maxsplit=1)[0]
    if command not in ("get_status", "abort", "suspend", "resume", "retry", "finish"):
        return f"{command} is unsupported"
    try:
        request = json.loads(kwargs) if kwargs else {}
    except (ValueError, RecursionError) as error:
        return f"server failed with {error}"
    request_id = request.get("request_id") if isinstance(request, dict) else None
    if request_id is None:
        return "request_id is missing"
    return f"request {request_id} is not found: {NO_IDDS}"


@endpoint("idds/relay_idds_command", "POST", ANYBODY_KNOWN, Access.NOTHING)
def relay_idds_command(
    call: Call,
    *,
    command_name: str,
    args: str | None = None,
    kwargs: str | None = None,
    manager: bool = False,
    json_outputs: bool = False,
) -> Envelope:
    """Refused: there is no iDDS behind this server."""
    return failure(f"failed to execute command with {NO_IDDS}")


@endpoint("idds/execute_idds_workflow_command", "POST", USERS, Access.NOTHING)
def execute_idds_workflow_command(
    call: Call, *, command_name: str, kwargs: str | None = None, json_outputs: bool = False
) -> Envelope:
    """Refused: there is no iDDS behind this server."""
    return failure(refuse_idds_workflow(command_name, kwargs))


@endpoint("workflow/submit_workflow_raw_request", "POST", USERS, Access.NOTHING)
def submit_workflow_raw_request(call: Call, *, params: dict[str, Any] | str) -> Envelope:
    """Refused: there is no workflow engine."""
    if isinstance(params, str):
        try:
            json.loads(params)
        except (ValueError, RecursionError) as error:
            return failure(f"Failed to parse params: {error}")
    return failure(f"Failed to submit raw workflow request: {NO_WORKFLOWS}")


@endpoint("workflow/submit_workflow", "POST", USERS, Access.NOTHING)
def submit_workflow(call: Call, *, workflow_definition: dict[str, Any]) -> Envelope:
    """Refused: there is no workflow engine."""
    return failure(f"Failed to submit workflow: {NO_WORKFLOWS}")


@endpoint("workflow/get_workflow_details", "GET", USERS, Access.NOTHING)
def get_workflow_details(call: Call, *, workflow_id: int) -> Envelope:
    """There is no such workflow. Asked for by panda-client 2.2.0; server 1.0.4 does not have the call yet."""
    return failure(f"workflow_id={workflow_id} not found: {NO_WORKFLOWS}")


# --- async_process: one machine, one log ---


@endpoint("async_process/submit_grep_request", "POST", USERS, Access.NOTHING)
def submit_grep_request(
    call: Call,
    *,
    pattern: str,
    log_filename: str,
    service_name: str | None = None,
    machine_name: str | None = None,
    max_matches: int | None = None,
    tail_bytes: int | None = None,
) -> Envelope:
    """Refused: nobody may search this server's log from outside."""
    return failure(f"'{call.caller.name}' is not authorized")


@endpoint("async_process/submit_sleep_echo_request", "POST", USERS, Access.NOTHING, production=True)
def submit_sleep_echo_request(call: Call, *, service_name: str, message: str, seconds: int = 10) -> Envelope:
    """Refused: no machine waits for such requests."""
    if not 0 <= seconds <= _MOST_SECONDS:
        return failure(f"invalid seconds: must be between 0 and {_MOST_SECONDS}")
    if len(message) > _MOST_CHARACTERS:
        return failure(f"invalid message: must be at most {_MOST_CHARACTERS} characters")
    if not service_name:
        return failure("service_name must be provided")
    return failure(f"no alive machines found for service '{service_name}'")


@endpoint("async_process/get_result", "GET", USERS, Access.NOTHING)
def get_result(call: Call, *, request_id: str) -> Envelope:
    """There is no such request."""
    return failure(f"request_id '{request_id}' not found")
