"""``file_server/*``, the rest: logs of operators, checkpoints of hyper-parameter points, requests to daemons.

Logs lie in a folder of their own and are read under ``/cache/jedilog/``. Checkpoints lie in the cache as
``hpo_cp_<task>_<point>``. Of the daemons that a real server leaves requests to there are none here, so that requests
are refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Awaitable, Callable

from sqlalchemy import select

from hpo_pilot.server.access.auth import Role
from hpo_pilot.server.access.ownership import check_owner
from hpo_pilot.server.api.absent import NO_WORKFLOWS
from hpo_pilot.server.api.file_server import ERROR_SIZE_LIMIT, content_length, register_file
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.file_store import (
    CACHE_LIMIT,
    CHECKPOINT_LIMIT,
    LOG_LIMIT,
    FileRefused,
    Folder,
    Upload,
    checkpoint_name,
    is_safe,
    plain_name,
)
from hpo_pilot.server.data.tables import cache_files, tasks
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.pilots_jobs import has_job
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, USERS, Access, endpoint
from hpo_pilot.server.web.multipart import receive_form_file

log = logging.getLogger(__name__)

NO_DATA_MANAGEMENT = (
    "the embedded PanDA server has no data management: retry the task, or reactivate it to run all its jobs again"
)
NO_EVENT_PICKING = "the embedded PanDA server has no event index"
_BLOCK = 1024 * 1024


async def receive_file(
    call: Call, folder: Folder, limit: int, keep: Callable[[str, Upload], Awaitable[None]]
) -> Envelope | None:
    """Takes the form's file into a folder.

    Args:
        call: the call under way.
        folder: where the file goes.
        limit: bytes that it may have.
        keep: told the file's name, keeps what was received under whatever name, or not; may raise `FileRefused`.

    Returns:
        The refusal; None: it is done.
    """
    if content_length(call) > limit + _BLOCK:
        return failure(f"{ERROR_SIZE_LIMIT} {content_length(call)}>{limit}")

    def allowed(name: str) -> int:
        if not is_safe(plain_name(name)):
            raise FileRefused(f"ERROR: cannot write file: {name!r} is no name that a file here can have")
        return limit

    try:
        with folder.writing() as upload:
            name = await receive_form_file(call.header("content-type"), call.request.stream(), upload, allowed)
            await keep(plain_name(name), upload)
    except FileRefused as error:
        return failure(str(error).replace("Exceeded size limit", ERROR_SIZE_LIMIT))
    except OSError as error:
        log.error("upload: %s", error)
        return failure(f"ERROR: cannot write file: {error.strerror}")
    return None


def _url(call: Call, path: str) -> str:
    return f"{str(call.request.base_url).rstrip('/')}/cache/{path}"


# --- logs ---


@endpoint("file_server/upload_jedi_log", "POST", USERS, Access.WAIT, production=True, raw_body=True)
async def upload_jedi_log(call: Call) -> Envelope:
    """Keeps a log, in the place of an older one of its name; data is its URL."""
    kept: list[str] = []

    async def keep(name: str, upload: Upload) -> None:
        upload.keep(name)
        kept.append(name)

    return await receive_file(call, call.server.logs, LOG_LIMIT, keep) or success(_url(call, f"jedilog/{kept[0]}"))


@endpoint("file_server/update_jedi_log", "POST", USERS, Access.WAIT, production=True, raw_body=True)
async def update_jedi_log(call: Call) -> Envelope:
    """Adds to a log what comes packed by zlib."""
    folder = call.server.logs

    async def add(name: str, upload: Upload) -> None:
        upload.stream.flush()
        try:
            await asyncio.to_thread(_append, folder, name, upload)
        except (zlib.error, FileRefused) as error:
            raise FileRefused(f"ERROR: cannot update file with {error}") from error

    return await receive_file(call, folder, LOG_LIMIT, add) or success()


def _append(folder: Folder, name: str, packed: Upload) -> None:
    """A log with more at its end, written anew so that nobody ever reads half of it."""
    unpacker = zlib.decompressobj()
    with folder.writing() as whole:
        if (old := folder.find(name)) is not None:
            with old.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    whole.write(block, LOG_LIMIT)
        with packed.reading() as stream:
            while block := stream.read(_BLOCK):
                while block:
                    whole.write(unpacker.decompress(block, _BLOCK), LOG_LIMIT)
                    block = unpacker.unconsumed_tail
        if not unpacker.eof:
            raise zlib.error("incomplete or truncated stream")
        whole.keep(name)


@endpoint("file_server/download_jedi_log", "GET", ANYBODY_KNOWN, Access.WAIT)
async def download_jedi_log(call: Call, *, log_name: str, offset: int = 0) -> str:
    """The log from `offset` on, as plain text behind one blank; the blank alone where there is no such log."""
    path = call.server.logs.find(log_name.rsplit("/", 1)[-1])
    if path is None or offset < 0:
        return " "

    def read() -> str:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(LOG_LIMIT).decode(errors="replace")

    return " " + await asyncio.to_thread(read)


# --- checkpoints ---


def _may_change(tx: Transaction, call: Call, task_id: str, sub_id: str) -> Envelope | None:
    """The refusal for callers who may not change a checkpoint: its job's pilot may, and the task's owner."""
    if call.caller.role is Role.PILOT:
        if has_job(tx, call.pilot, int(task_id), sub_id):
            return None
        return failure(f"this pilot has no job of jediTaskID={task_id} whose checkpoint {sub_id} could be")
    return check_owner(tx, call.caller, int(task_id))


@endpoint("file_server/upload_hpo_checkpoint", "POST", ANYBODY_KNOWN, Access.WAIT, raw_body=True)
async def upload_hpo_checkpoint(call: Call) -> Envelope:
    """Keeps a point's checkpoint, a file called ``<task>_<point>``, for its next attempt."""
    if not content_length(call):
        return failure("Cannot get content-length")
    kept: list[str] = []

    async def keep(name: str, upload: Upload) -> None:
        task_id, _, sub_id = name.partition("_")
        final = checkpoint_name(task_id, sub_id)
        if final is None:
            raise FileRefused("Failed to extract task and sub IDs")
        if refused := await call.server.database.read(lambda tx: _may_change(tx, call, task_id, sub_id)):
            raise FileRefused(refused["message"])
        upload.keep(final)
        owner = select(tasks.c.user_name).where(tasks.c.task_id == int(task_id))
        await call.server.database.write(
            lambda tx: register_file(tx, str(tx.connection.scalar(owner)), final, upload.size, upload.checksum)
        )
        kept.append(final)

    if refused := await receive_file(call, call.server.cache, CHECKPOINT_LIMIT, keep):
        return refused
    return success(_url(call, kept[0]), f"Successfully placed at {_url(call, kept[0])}")


@endpoint("file_server/delete_hpo_checkpoint", "POST", ANYBODY_KNOWN, Access.WRITE)
def delete_hpo_checkpoint(tx: Transaction, call: Call, *, task_id: str, sub_id: str) -> Envelope:
    """Removes a point's checkpoint."""
    name = checkpoint_name(task_id, sub_id)
    if name is None or call.server.cache.find(name) is None:
        return failure(f"Failed to delete file due to no such checkpoint: {task_id}_{sub_id}")
    if refused := _may_change(tx, call, task_id, sub_id):
        return refused
    tx.connection.execute(cache_files.delete().where(cache_files.c.name == name))
    call.server.cache.remove(name)
    return success()


# --- requests ---


@endpoint("file_server/upload_file_recovery_request", "POST", USERS, Access.WRITE)
def upload_file_recovery_request(
    tx: Transaction,
    call: Call,
    *,
    task_id: int | None = None,
    dry_run: bool | None = None,
    dataset: str | None = None,
    files: list[str] | None = None,
    no_child_retry: bool = True,
    resurrect_datasets: bool = False,
    force: bool = False,
    reproduce_parent: bool = False,
    reproduce_upto_nth_gen: int = 0,
) -> Envelope:
    """Refused: no data management would notice lost files."""
    if not task_id and not dataset:
        return failure("Either task_id or dataset must be provided")
    if task_id and (refused := check_owner(tx, call.caller, task_id)):
        return refused
    return failure(f"cannot put request due to {NO_DATA_MANAGEMENT}")


@endpoint("file_server/upload_workflow_request", "POST", USERS, Access.NOTHING)
def upload_workflow_request(call: Call, *, data: str, dry_run: bool = False, sync: bool = False) -> Envelope:
    """Refused: there is no workflow engine."""
    try:
        json.loads(data)
    except (ValueError, RecursionError) as error:
        return failure(f"Cannot upload the workflow request: {error} ")
    return failure(f"Cannot upload the workflow request: {NO_WORKFLOWS}")


@endpoint("file_server/upload_event_picking_request", "POST", USERS, Access.NOTHING)
def upload_event_picking_request(
    call: Call,
    *,
    run_event_list: str = "",
    data_type: str = "",
    stream_name: str = "",
    dataset_name: str = "",
    ami_tag: str = "",
    user_dataset_name: str = "",
    locked_by: str = "",
    parameters: str = "",
    input_file_list: str = "",
    n_sites: str = "",
    user_task_name: str = "",
    ei_api: str = "",
    include_guids: bool = False,
) -> Envelope:
    """Refused: events are looked up nowhere here."""
    if content_length(call) > CACHE_LIMIT:
        limit = f"Exceeded size limit {content_length(call)}>{CACHE_LIMIT}."
        return failure(f"ERROR: Run/event list is too large. {limit}")
    return failure(f"ERROR: Cannot upload the Event Picking request: {NO_EVENT_PICKING}")
