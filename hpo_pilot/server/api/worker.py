"""Workers and the machines they run on, as pilots report them."""

from __future__ import annotations

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.lost_jobs import WORKER_STATES, update_worker
from hpo_pilot.server.taskbuffer.worker_reports import note_gpu, note_node
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import PILOTS, Access, endpoint


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
    new = note_node(tx, site, host_name, cpu_model, description)
    return success(message="Inserted new worker node." if new else "Updated existing worker node.")


@endpoint("pilot/update_worker_node_gpu", "POST", PILOTS, Access.WRITE)
def update_worker_node_gpu(
    tx: Transaction,
    call: Call,
    *,
    site: str,
    host_name: str,
    vendor: str,
    model: str,
    count: int,
    vram: int | None = None,
    architecture: str | None = None,
    framework: str | None = None,
    framework_version: str | None = None,
    driver_version: str | None = None,
    timeout: int = 60,
) -> Envelope:
    """Keeps what a pilot says of the GPUs of its machine, one call for each kind of them."""
    description = {
        "count": count,
        "vram": vram,
        "architecture": architecture,
        "framework": framework,
        "framework_version": framework_version,
        "driver_version": driver_version,
    }
    new = note_gpu(tx, site, host_name, vendor, model, description)
    return success(message="Inserted new worker node GPU." if new else "Updated existing worker node GPU.")
