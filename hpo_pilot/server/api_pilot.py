"""``pilot/*``: the calls of pilots, new API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select, update

from hpo_pilot.jobs import JobState
from hpo_pilot.server.api_hpo_pilot import MAX_WAIT
from hpo_pilot.server.call import Call
from hpo_pilot.server.database import Transaction, in_slices
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.endpoints import PILOTS, TABLE, Access, ArgumentError, endpoint
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.lost_jobs import WORKER_STATES, update_worker
from hpo_pilot.server.tables import jobs, worker_nodes
from hpo_pilot.server.updates import JobReport, update_job

#: Seconds that a pilot is willing to wait for a job; ours alone, a real server ignores it.
WAIT_HEADER = "X-HPO-Pilot-Wait"
#: Cores that a pilot has for one job; PanDA's own arguments cannot say it.
CORES_HEADER = "X-HPO-Pilot-Cores"

_OK, _INVALID = 0, 50  # StatusCode
_REPORTABLE = frozenset(
    {
        JobState.RUNNING,
        JobState.FAILED,
        JobState.FINISHED,
        JobState.HOLDING,
        JobState.STARTING,
        JobState.TRANSFERRING,
    }
)
_INTEGER = 2**31 - 1


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
    """Hands jobs to a pilot; with `WAIT_HEADER` the answer waits for one."""
    cores = call.header(CORES_HEADER)
    request = JobRequest(
        site=site_name,
        n_jobs=n_jobs,
        label=prod_source_label or "",
        memory=max(0, memory or 0),
        cores=int(cores) if cores.isdecimal() and len(cores) < 10 else 0,
        remaining_time=max(0, int(remaining_time or 0)),
        resource_type=resource_type or "",
        task_id=task_id or 0,
        user_name=prod_user_id or "",
        node=node or "",
        computing_element=computing_element or "",
        harvester_id=(harvester_id or scheduler_id or "")[:128],
        worker_id="" if worker_id is None else str(worker_id)[:128],
        scheduler_id=scheduler_id or "",
    )
    found = await _acquire(call, request, time.monotonic() + call.seconds(WAIT_HEADER, MAX_WAIT))
    if not found:
        return failure("No jobs in PanDA")
    call.server.watch.job_went_out()
    return success({"StatusCode": _OK, "jobs": [{"StatusCode": _OK, **job} for job in found]})


async def _acquire(call: Call, request: JobRequest, end: float) -> list[dict[str, Any]]:
    pilots = call.server.pilots
    waiter = pilots.enter(request.site)
    try:
        while True:
            pilots.looks(waiter)
            if found := await call.server.database.write(lambda tx: acquire(tx, request)):
                return found
            pilots.found_nothing(waiter)
            if not await pilots.wait(waiter, end - time.monotonic()):
                return []
            # A job given to a pilot that has gone meanwhile would be silent until it counts as lost.
            if await call.request.is_disconnected():
                return []
    finally:
        pilots.leave(waiter)


def _text(limit: int) -> Callable[[Any], str]:
    return lambda value: str(value)[:limit]


def _whole(value: Any) -> int:
    return max(-_INTEGER, min(int(value), _INTEGER))


def _time(value: str) -> float:
    return datetime.strptime(value, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _kilobytes(value: float) -> float:
    return min(10**10 - 1, int(value) / 1024)


#: Arguments that become columns, with how long or large they may be.
_COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "node": ("node", _text(128)),
    "trans_exit_code": ("trans_exit_code", _whole),
    "pilot_error_code": ("pilot_error_code", lambda value: abs(_whole(value))),
    "pilot_error_diag": ("pilot_error_diag", _text(500)),
    "exe_error_code": ("exe_error_code", _whole),
    "exe_error_diag": ("exe_error_diag", _text(500)),
    "job_metrics": ("job_metrics", _text(500)),
    "scheduler_id": ("scheduler_id", _text(128)),
    "pilot_id": ("pilot_id", _text(200)),
    "batch_id": ("batch_id", _text(80)),
    "job_sub_status": ("sub_status", _text(80)),
    "start_time": ("started", _time),
    "end_time": ("ended", _time),
}
#: Arguments that become fields of the description alone.
_MEASURES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cpu_consumption_time": ("cpuConsumptionTime", int),
    "cpu_consumption_unit": ("cpuConsumptionUnit", str),
    "cpu_architecture_level": ("cpu_architecture_level", _text(20)),
    "cpu_conversion_factor": ("cpuConversion", float),
    "pilot_timing": ("pilotTiming", _text(100)),
    "n_events": ("nEvents", int),
    "n_input_files": ("nInputFiles", int),
    "core_count": ("actualCoreCount", int),
    "mean_core_count": ("meanCoreCount", float),
    "grid": ("grid", _text(50)),
    "source_site": ("sourceSite", _text(36)),
    "destination_site": ("destinationSite", _text(36)),
    **{
        f"{how}_{what.lower()}": (f"{how}{what}", int)
        for how in ("max", "avg")
        for what in ("RSS", "VMEM", "SWAP", "PSS")
    },
    **{
        f"{how}_{what.lower()}": (f"{how}{what}", _kilobytes)
        for how in ("tot", "rate")
        for what in ("RCHAR", "WCHAR", "RBYTES", "WBYTES")
    },
}
_DOCUMENTS = {
    "meta_data": "meta_data",
    "job_output_report": "output_report",
    "pilot_log": "pilot_log",
    "stdout": "stdout",
}


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
    return _update(tx, locals())


def _update(tx: Transaction, arguments: Mapping[str, Any]) -> Envelope:
    """`arguments` as `update_one` declares them, and whatever else is in the mapping."""
    try:
        status = JobState(arguments["job_status"])
    except ValueError:
        status = JobState.DEFINED
    if status not in _REPORTABLE:
        return failure(f"Invalid job status: {arguments['job_status']}", {"StatusCode": _INVALID})
    report = JobReport(
        panda_id=arguments["job_id"],
        status=status,
        attempt_nr=arguments.get("attempt_nr"),
        columns=_taken(_COLUMNS, arguments),
        measures=_taken(_MEASURES, arguments),
        documents={column: arguments[name] for name, column in _DOCUMENTS.items() if arguments.get(name)},
    )
    return success({"StatusCode": _OK, "command": update_job(tx, report)})


def _taken(table: Mapping[str, tuple[str, Callable[[Any], Any]]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    taken = {}
    for name, (field, convert) in table.items():
        value = arguments.get(name)
        if value is None or value == "":
            continue
        try:
            taken[field] = convert(value)
        except (ValueError, OverflowError):
            continue  # one odd number or time must not cost the job's result; a real server skips it too
    return taken


@endpoint("pilot/update_jobs_bulk", "POST", PILOTS, Access.WRITE)
def update_jobs_bulk(
    tx: Transaction, call: Call, *, job_list: list[dict[str, Any]], harvester_id: str | None = None
) -> Envelope:
    """Reports on many jobs, all or none; data holds one envelope for each."""
    declared = TABLE["pilot/update_job"]
    checked = []
    try:
        for job in job_list:
            given = dict(job)
            if "meta_data" in given and not isinstance(given["meta_data"], str):
                given["meta_data"] = json.dumps(given["meta_data"])
            checked.append(declared.check(given, from_query=False))
    except ArgumentError as error:
        return failure(f"failed with {error}", [])
    return success([_update(tx, arguments) for arguments in checked])


@endpoint("pilot/get_job_status", "GET", PILOTS, Access.READ)
def get_job_status(tx: Transaction, call: Call, *, job_ids: list[int], timeout: int = 60) -> Envelope:
    """State and attempt of each job."""
    query = select(jobs.c.panda_id, jobs.c.status, jobs.c.attempt_nr)
    found = {
        row.panda_id: row
        for some in in_slices(job_ids)
        for row in tx.connection.execute(query.where(jobs.c.panda_id.in_(some)))
    }
    answer = []
    for panda_id in job_ids:
        job = found.get(panda_id)
        status, attempt = (job.status, job.attempt_nr) if job else ("not found", 0)
        answer.append({"job_id": panda_id, "status": status, "attempt_number": attempt})
    return success(answer)


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
    update_worker(tx, harvester_id[:128], str(worker_id)[:128], status, node_id[:128] if node_id else None)
    return success()


@endpoint("pilot/update_worker_node", "POST", PILOTS, Access.WRITE)
def update_worker_node(
    tx: Transaction,
    call: Call,
    *,
    site: str,
    host_name: str,
    cpu_model: str,
    panda_queue: str | None = None,
    n_logical_cpus: int | None = None,
    n_sockets: int | None = None,
    cores_per_socket: int | None = None,
    threads_per_core: int | None = None,
    cpu_architecture: str | None = None,
    cpu_architecture_level: str | None = None,
    clock_speed: float | None = None,
    total_memory: int | None = None,
    total_local_disk: int | None = None,
    timeout: int = 60,
) -> Envelope:
    """Keeps what a pilot says of the machine it runs on."""
    description = {
        "panda_queue": panda_queue,
        "n_logical_cpus": n_logical_cpus,
        "n_sockets": n_sockets,
        "cores_per_socket": cores_per_socket,
        "threads_per_core": threads_per_core,
        "cpu_architecture": cpu_architecture,
        "cpu_architecture_level": cpu_architecture_level,
        "clock_speed": clock_speed,
        "total_memory": total_memory,
        "total_local_disk": total_local_disk,
    }
    # "slot1@node" and "node" are the same machine.
    key = {"site": site[:128], "host_name": host_name.rsplit("@", 1)[-1][:128], "cpu_model": cpu_model[:128]}
    values = {"description": json.dumps(description), "last_seen": tx.now}
    table = worker_nodes.c
    same = (table.site == key["site"]) & (table.host_name == key["host_name"]) & (table.cpu_model == key["cpu_model"])
    if tx.connection.execute(update(worker_nodes).where(same).values(values)).rowcount:
        return success(message="Updated existing worker node")
    tx.connection.execute(insert(worker_nodes).values(**key, **values))
    return success(message="Inserted new worker node")
