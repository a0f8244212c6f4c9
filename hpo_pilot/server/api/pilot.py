"""``pilot/*``: the calls of pilots, new API."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.ownership import NotThePilotsJob
from hpo_pilot.server.brokerage.hardware import GpuOffer, HardwareError, offered_gpus
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.dispatch import JobRequest
from hpo_pilot.server.taskbuffer.job_reports import record_report, reported_state
from hpo_pilot.server.taskbuffer.lost_jobs import WORKER_STATES, update_worker
from hpo_pilot.server.taskbuffer.points import CAPABILITY_KEY
from hpo_pilot.server.web.acquisition import UnknownQueue, cores_said, openings_said
from hpo_pilot.server.web.acquisition import acquire_jobs as acquire_for
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import PILOTS, Access, endpoint

log = logging.getLogger(__name__)

_OK, _INVALID, _NO_PERMISSION = 0, 50, 70  # StatusCode


@endpoint("pilot/acquire_jobs", "POST", PILOTS, Access.WAIT)
async def acquire_jobs(
    call: Call,
    *,
    site_name: str,
    timeout: int = 60,
    memory: int | None = None,
    disk_space: int | None = None,
    prod_source_label: str | None = None,
    node: str | None = None,
    computing_element: str | None = None,
    prod_user_id: str | None = None,
    get_proxy_key: str | bool | None = None,
    task_id: int | None = None,
    n_jobs: int = 1,
    background: bool | None = None,
    resource_type: str | None = None,
    harvester_id: str | None = None,
    worker_id: int | str | None = None,
    scheduler_id: str | None = None,
    job_type: str | None = None,
    via_topic: bool | None = None,
    remaining_time: int | float | None = None,
    target_architecture: dict[str, Any] | str | None = None,
) -> Envelope:
    """Hands jobs to a pilot; with `acquisition.WAIT_HEADER` the answer waits for one.

    A pilot in a batch allocation says with `acquisition.OPENINGS_HEADER` what it has room for.
    """
    try:
        gpus, wish = _gpus(target_architecture), openings_said(call)
    except InputError as error:
        return failure(str(error))
    request = JobRequest(
        site=site_name,
        n_jobs=n_jobs,
        label=prod_source_label or "",
        memory=max(0, memory or 0),
        cores=cores_said(call),
        disk_mb=max(0, disk_space or 0),
        gpus=gpus,
        remaining_time=max(0, int(remaining_time or 0)),
        resource_type=resource_type or "",
        task_id=task_id or 0,
        user_name=prod_user_id or "",
        node=node or "",
        computing_element=computing_element or "",
        harvester_id=(harvester_id or scheduler_id or "")[:128],
        worker_id="" if worker_id is None else str(worker_id)[:128],
        scheduler_id=scheduler_id or "",
        wish=wish,
    )
    try:
        found = await acquire_for(call, request)
    except UnknownQueue as error:
        return failure(str(error))
    if not found:
        return failure("No jobs in PanDA")
    return success({"StatusCode": _OK, "jobs": [_handed_out(call, job) for job in found]})


def _handed_out(call: Call, job: Mapping[str, Any]) -> dict[str, Any]:
    return {"StatusCode": _OK, **job, CAPABILITY_KEY: call.server.capabilities.of(job["PandaID"])}


def _gpus(target_architecture: dict[str, Any] | str | None) -> tuple[GpuOffer, ...] | None:
    if not target_architecture:
        return None
    if isinstance(target_architecture, str):
        try:
            target_architecture = json.loads(target_architecture)
        except (ValueError, RecursionError) as error:
            raise HardwareError(f"failed to parse target_architecture with {error}") from error
    if not isinstance(target_architecture, dict):
        raise HardwareError("target_architecture must be a JSON object")
    return offered_gpus(target_architecture)


@endpoint("pilot/update_job", "POST", PILOTS, Access.WRITE)
def update_one(
    tx: Transaction,
    call: Call,
    *,
    job_id: int,
    job_status: str,
    job_output_report: str = "",
    node: str | None = None,
    cpu_consumption_time: int | float | None = None,
    cpu_consumption_unit: str | None = None,
    scheduler_id: str | None = None,
    pilot_id: str | None = None,
    site_name: str | None = None,
    pilot_log: str = "",
    meta_data: str = "",
    cpu_conversion_factor: float | None = None,
    trans_exit_code: int | None = None,
    pilot_error_code: int | None = None,
    pilot_error_diag: str | None = None,
    exe_error_code: int | None = None,
    exe_error_diag: str | None = None,
    pilot_timing: str | None = None,
    start_time: str | None = None,
    end_time: str | None = None,
    n_events: int | None = None,
    n_input_files: int | None = None,
    batch_id: str | None = None,
    attempt_nr: int | None = None,
    job_metrics: str | None = None,
    stdout: str = "",
    job_sub_status: str | None = None,
    core_count: int | None = None,
    max_rss: float | None = None,
    max_vmem: float | None = None,
    max_swap: float | None = None,
    max_pss: float | None = None,
    avg_rss: float | None = None,
    avg_vmem: float | None = None,
    avg_swap: float | None = None,
    avg_pss: float | None = None,
    tot_rchar: float | None = None,
    tot_wchar: float | None = None,
    tot_rbytes: float | None = None,
    tot_wbytes: float | None = None,
    rate_rchar: float | None = None,
    rate_wchar: float | None = None,
    rate_rbytes: float | None = None,
    rate_wbytes: float | None = None,
    corrupted_files: str | None = None,
    mean_core_count: float | None = None,
    cpu_architecture_level: str | None = None,
    grid: str | None = None,
    source_site: str | None = None,
    destination_site: str | None = None,
    timeout: int = 60,
) -> Envelope:
    """A pilot's report on one job: a heartbeat, or the final one."""
    return _update(tx, call, locals())


def _update(tx: Transaction, call: Call, arguments: Mapping[str, Any]) -> Envelope:
    if (status := reported_state(arguments["job_status"])) is None:
        return failure(f"Invalid job status: {arguments['job_status']}", {"StatusCode": _INVALID})
    try:
        return success({"StatusCode": _OK, "command": record_report(tx, status, arguments, call.pilot)})
    except NotThePilotsJob as error:
        log.warning("a report by %s is refused: %s", call.caller.name, error)
        return failure(str(error), {"StatusCode": _NO_PERMISSION, "command": "tobekilled"})


@endpoint("pilot/update_worker_status", "POST", PILOTS, Access.WRITE)
def update_worker_status(
    tx: Transaction,
    call: Call,
    *,
    worker_id: int | str,
    harvester_id: str,
    status: str,
    timeout: int = 60,
    node_id: str | None = None,
) -> Envelope:
    """Notes that a worker started or ended; the jobs still at one that ended are lost at once."""
    if status not in WORKER_STATES:
        return failure(f"Invalid worker state. The worker state has to be in {WORKER_STATES}")
    node = node_id[:128] if node_id else None
    update_worker(tx, call.pilot, harvester_id[:128], str(worker_id)[:128], status, node)
    return success()


@endpoint("pilot/update_worker_node", "POST", PILOTS, Access.NOTHING, any_argument=True)
def update_worker_node(call: Call, *, arguments: dict[str, Any]) -> Envelope:
    """Takes what a Pilot 3 says of its machine; nothing is kept of it."""
    return success()


@endpoint("pilot/update_worker_node_gpu", "POST", PILOTS, Access.NOTHING, any_argument=True)
def update_worker_node_gpu(call: Call, *, arguments: dict[str, Any]) -> Envelope:
    """Takes what a Pilot 3 says of its GPUs; nothing is kept of it."""
    return success()
