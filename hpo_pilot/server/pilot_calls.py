"""Calls of pilots, new API: taking jobs and reporting on them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import JobRequest as Wish
from hpo_pilot.server.attempts import (
    REPORT_FIELDS,
    WORKER_STATES,
    NotThePilotsJob,
    record_report,
    reported_state,
    update_worker,
)
from hpo_pilot.server.brokerage import GpuOffer, HardwareError, offered_gpus
from hpo_pilot.server.calls import MAX_WAIT, PILOTS, Access, Call, Envelope, Parameter, endpoint, failure, success
from hpo_pilot.server.database import Transaction
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.points import CAPABILITY_KEY

#: Seconds that a pilot is willing to wait for a job; ours alone, a real server ignores it.
WAIT_HEADER = "X-HPO-Pilot-Wait"
#: Free room of a pilot in a batch allocation (`JobRequest.to_text`). Only such a pilot gets jobs of several nodes.
OPENINGS_HEADER = "X-HPO-Pilot-Openings"
#: Cores that a pilot has for the jobs of one answer together; PanDA's own arguments cannot say it.
CORES_HEADER = "X-HPO-Pilot-Cores"


class UnknownQueue(Exception):
    """The pilot names a queue that is not there; the message says so."""


def cores_said(call: Call) -> int:
    """Returns the cores that the pilot has for the requested jobs together; 0: not stated."""
    cores = call.header(CORES_HEADER)
    return int(cores) if cores.isdecimal() and len(cores) < 10 else 0


def openings_said(call: Call) -> Wish | None:
    """Returns the free room of the pilot's allocation; None: it has no allocation.

    Raises:
        InputError: what it says makes no sense.
    """
    text = call.header(OPENINGS_HEADER)
    return Wish.from_text(text) if text else None


async def wait_for_jobs(call: Call, request: JobRequest) -> list[dict[str, Any]]:
    """Hands jobs to a pilot; where its header says so, the answer waits for one.

    Returns:
        PanDA's job dictionaries; none: nothing fits.

    Raises:
        UnknownQueue: there is no such queue.
    """
    queue = call.server.queues.find(request.site)
    if queue is None:
        raise UnknownQueue(call.server.queues.unknown((request.site,)))
    request = replace(request, queue=queue, pilot=call.pilot)
    call.server.known_pilots.asked(request, call.header("user-agent"))
    begun = time.monotonic()
    end = begun + call.seconds(WAIT_HEADER, MAX_WAIT)
    pilots = call.server.pilots
    waiter = pilots.enter(request.site)
    try:
        while True:
            pilots.looks(waiter)
            now = replace(request, waited=time.monotonic() - begun)
            if found := await call.server.database.write(partial(acquire, request=now)):
                call.server.watch.job_went_out()
                return found
            pilots.found_nothing(waiter)
            if not await pilots.wait(waiter, end - time.monotonic()):
                return []
            # A job given to a pilot that has gone meanwhile would be silent until it counts as lost.
            if await call.request.is_disconnected():
                return []
    finally:
        pilots.leave(waiter)


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
    """Hands jobs to a pilot; with `WAIT_HEADER` the answer waits for one.

    A pilot in a batch allocation states its free room with `OPENINGS_HEADER`.
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
        node=node or "",
        computing_element=computing_element or "",
        harvester_id=(harvester_id or scheduler_id or "")[:128],
        worker_id="" if worker_id is None else str(worker_id)[:128],
        scheduler_id=scheduler_id or "",
        wish=wish,
    )
    try:
        found = await wait_for_jobs(call, request)
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


@endpoint(
    "pilot/update_job",
    "POST",
    PILOTS,
    Access.WRITE,
    more=[Parameter(one.name, (one.kind,), None, required=False, default=None) for one in REPORT_FIELDS],
)
def update_one(
    tx: Transaction,
    call: Call,
    *,
    job_id: int,
    job_status: str,
    attempt_nr: int | None = None,
    site_name: str | None = None,
    corrupted_files: str | None = None,
    timeout: int = 60,
    **report: Any,
) -> Envelope:
    """Takes a pilot's report on one job: a heartbeat, or the final one; `report` has `attempts.REPORT_FIELDS`."""
    if (status := reported_state(job_status)) is None:
        return failure(f"Invalid job status: {job_status}", {"StatusCode": _INVALID})
    report |= {"job_id": job_id, "attempt_nr": attempt_nr}
    try:
        return success({"StatusCode": _OK, "command": record_report(tx, status, report, call.pilot)})
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


@endpoint("pilot/update_worker_node", "POST", PILOTS, Access.NOTHING, raw_body=True)
@endpoint("pilot/update_worker_node_gpu", "POST", PILOTS, Access.NOTHING, raw_body=True)
def update_worker_node(call: Call) -> Envelope:
    """Accepts a Pilot 3's description of its machine or GPUs, and keeps nothing of it."""
    return success()
