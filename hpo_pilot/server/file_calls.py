"""The file cache and the storage over HTTP: sandboxes, checkpoints, outputs."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from sqlalchemy import delete, insert, select, update
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from hpo_pilot.server import chains, file_store
from hpo_pilot.server.calls import ANYBODY_KNOWN, KEY_HEADER, USERS, Access, Call, check_owner, endpoint, guarded
from hpo_pilot.server.database import Transaction, cache_files, cached_as, in_slices, remove_cached, tasks
from hpo_pilot.server.pilots import has_job, makes_file, owner_of
from hpo_pilot.server.queues import find_output
from hpo_pilot.server.replies import Envelope, failure, refuse, reply, success
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.tasks import awaited_by_another, release_pending, sandbox_arrived
from hpo_pilot.server.tokens import Caller, PilotIdentity, Role, TokenRefused

# ``file_server/*``: the file cache. A sandbox is kept until its jobs are over. The checkpoint of a hyper-parameter
# point is the cache file ``hpo_cp_<task>_<point>``.

log = logging.getLogger(__name__)

ERROR_OVERWRITE = "ERROR: cannot overwrite file"
ERROR_WRITE = "ERROR: cannot write file"
ERROR_SIZE_LIMIT = "ERROR: upload failure. Exceeded size limit"
_OVERWRITE = ".__ow__"  # how a client says that the file may take the place of an older one
_SENT_LIMIT = 255  # characters of a name with its folders
_OVERHEAD = 64 * 1024  # bytes that a form may add to its file


def reconcile(tx: Transaction, cache: file_store.Folder) -> None:
    """Makes the database agree with the folder after changes that were interrupted between the two."""
    there = {path.name: path for path in cache}
    known = set(tx.connection.scalars(select(cache_files.c.name)))
    for gone in in_slices(sorted(name for name in known if file_store.plain_name(name) not in there)):
        tx.connection.execute(delete(cache_files).where(cache_files.c.name.in_(gone)))
    for name in sorted(there.keys() - {file_store.plain_name(name) for name in known}):
        path = there[name]
        register_file(tx, "", name, path.stat().st_size, file_store.checksum_of(path))
    release_pending(tx)


def register_file(tx: Transaction, user_name: str, name: str, size: int, checksum: str | None) -> None:
    """Records a file in the cache, and releases the tasks that waited for this name."""
    values = {"user_name": user_name, "size": size, "checksum": checksum, "created": tx.now, "touched": tx.now}
    if not tx.connection.execute(update(cache_files).where(cache_files.c.name == name).values(values)).rowcount:
        tx.connection.execute(insert(cache_files).values(name=name, **values))
    sandbox_arrived(tx, name)


def _touch(tx: Transaction, name: str) -> bool:
    """Marks a file with this plain name as used; returns whether there is one."""
    return bool(tx.connection.execute(update(cache_files).where(cached_as(name)).values(touched=tx.now)).rowcount)


@endpoint("file_server/upload_cache_file", "POST", USERS, Access.WAIT, raw_body=True)
async def upload_cache_file(call: Call) -> Envelope:
    """Stores a sandbox. If the name exists, the old file is marked as used and the new one is refused.

    As on a real server, the file is registered under the whole name that was sent, with its folders, and this name
    decides the limit; in the cache it has the plain name.
    """
    server = call.server
    # Refused before it is read if it is above every limit; the limit of this file depends on its name.
    most, length = file_store.SOURCES_LIMIT, content_length(call)
    if length > most + _OVERHEAD:
        return failure(f"{ERROR_SIZE_LIMIT} {length // 2**20} MB > {most // 2**20} MB.")

    def limit(sent: str) -> int:
        name = file_store.plain_name(sent)
        if not file_store.is_sandbox_name(name) or len(sent) > _SENT_LIMIT or not sent.isprintable():
            raise file_store.FileRefused(f"{ERROR_WRITE}: {sent[:_SENT_LIMIT]!r} is not a valid file name")
        if server.cache.find(name) is not None and not name.endswith(_OVERWRITE):
            raise FileExistsError(errno.EEXIST, "exists", name)
        return file_store.cache_limit(sent)

    try:
        with server.cache.writing() as upload:
            sent = await file_store.receive_form_file(call.header("content-type"), call.request.stream(), upload, limit)
            name = file_store.plain_name(sent)
            if not await asyncio.to_thread(upload.is_named_rightly, name):
                # Other users' tasks may name it, and they would run this content.
                return failure(f"{ERROR_WRITE}: {name} is the name of a file with other content")
            if not file_store.names_content(name) and await server.database.read(
                lambda tx: awaited_by_another(tx, name, call.caller)
            ):
                return failure(f"{ERROR_WRITE}: a task of another user waits for {name}")
            if server.cache.find(name) is not None and not await _is_owner(server, call.caller, name):
                return failure(ERROR_OVERWRITE)
            await asyncio.to_thread(upload.keep, name)
            size, checksum = upload.size, upload.checksum
    except FileExistsError as error:
        present = str(error.filename)
        await server.database.write(lambda tx: _touch(tx, present))
        return failure(ERROR_OVERWRITE)
    except file_store.FileRefused as error:
        return failure(_refusal(str(error)))
    except OSError as error:
        log.error("upload: %s", error)
        return failure(f"{ERROR_WRITE}: {error.strerror}")
    try:
        await server.database.write(lambda tx: register_file(tx, call.caller.name, sent, size, checksum))
    except Exception:
        server.cache.remove(name)  # else it cannot be sent again: the name would be taken
        raise
    return success()


async def _is_owner(server: ServerState, caller: Caller, name: str) -> bool:
    owner = select(cache_files.c.user_name).where(cached_as(name))
    return bool(await server.database.read(lambda tx: tx.connection.scalar(owner)) == caller.name)


def content_length(call: Call) -> int:
    """Returns the size of the request's body in bytes, by its header; 0: not stated."""
    length = call.header("content-length")
    return int(length) if length.isdecimal() else 0


def _refusal(message: str) -> str:
    if not message.startswith("Exceeded"):
        return message
    if f"> {file_store.CACHE_LIMIT // 2**20} MB" in message:
        advice = "Only files called sources.* may be larger"
    else:
        advice = "Remove files that the jobs do not need"
    return f"ERROR: upload failure. {message} {advice}"


@endpoint("file_server/validate_cache_file", "POST", USERS, Access.WAIT)
async def validate_cache_file(call: Call, *, file_size: int, checksum: int | str) -> Envelope:
    """Returns the name of the caller's file with this size and checksum."""
    newest = (
        select(cache_files.c.name)
        .where(
            cache_files.c.user_name == call.caller.name,
            cache_files.c.size == file_size,
            cache_files.c.checksum == str(checksum),
        )
        .order_by(cache_files.c.created.desc())
        .limit(1)
    )
    name = await call.server.database.read(lambda tx: tx.connection.scalar(newest))
    if name is None or await asyncio.to_thread(call.server.cache.find_whole, file_store.plain_name(name)) is None:
        return failure("NOTFOUND")
    # The client adds its own port to the host.
    return success(message=f"FOUND:{call.request.url.hostname}:{name}")


@endpoint("file_server/touch_cache_file", "POST", USERS, Access.WRITE)
def touch_cache_file(tx: Transaction, call: Call, *, file_name: str) -> Envelope:
    """Marks a sandbox as still in use."""
    if not _touch(tx, file_store.plain_name(file_name)):
        return failure(f"Failed to touch file with: no such file {file_name}")
    return success()


def _may_change(tx: Transaction, call: Call, task_id: str, sub_id: str, *, finished: bool = False) -> Envelope | None:
    """Returns the refusal for callers who may not change a checkpoint. The job's pilot and the task's owner may.

    `finished`: the pilot may delete it after the job's end too.
    """
    if call.caller.role is Role.PILOT:
        if has_job(tx, call.pilot, int(task_id), sub_id, finished=finished):
            return None
        return failure(f"this pilot has no job of jediTaskID={task_id} with the checkpoint {sub_id}")
    return check_owner(tx, call.caller, int(task_id))


@endpoint("file_server/upload_hpo_checkpoint", "POST", ANYBODY_KNOWN, Access.WAIT, raw_body=True)
async def upload_hpo_checkpoint(call: Call) -> Envelope:
    """Stores a point's checkpoint, a file called ``<task>_<point>``, for its next attempt.

    That of a trial from which later ones may go on, ``<task>_<job's number>.t<trial>f<fold>``, is stored for them.
    """
    database, length = call.server.database, content_length(call)
    if not length:
        return failure("Cannot get content-length")
    if length > file_store.CHECKPOINT_LIMIT + _OVERHEAD:
        return failure(f"{ERROR_SIZE_LIMIT} {length}>{file_store.CHECKPOINT_LIMIT}")

    def limit(sent: str) -> int:
        if file_store.checkpoint_name(*_ids(sent)) is None:
            raise file_store.FileRefused("Failed to extract task and sub IDs")
        return file_store.CHECKPOINT_LIMIT

    try:
        with call.server.cache.writing() as upload:
            sent = await file_store.receive_form_file(call.header("content-type"), call.request.stream(), upload, limit)
            task_id, sub_id = _ids(sent)
            if refused := await database.read(lambda tx: _may_change(tx, call, task_id, sub_id)):
                return refused
            place = await database.read(lambda tx: chains.place_of(tx, int(task_id), sub_id))
            name = str(file_store.checkpoint_name(task_id, sub_id)) if place is None else place.name
            if place is not None and (refusal := await database.write(lambda tx: chains.refusal(tx, place))):
                return failure(refusal)
            await asyncio.to_thread(upload.keep, name)
            size, checksum = upload.size, upload.checksum
    except file_store.FileRefused as error:
        return failure(str(error).replace("Exceeded size limit", ERROR_SIZE_LIMIT))
    except OSError as error:
        log.error("upload: %s", error)
        return failure(f"{ERROR_WRITE}: {error.strerror}")
    owner = select(tasks.c.user_name).where(tasks.c.task_id == int(task_id))
    await database.write(lambda tx: register_file(tx, str(tx.connection.scalar(owner)), name, size, checksum))
    if place is not None and not await database.write(lambda tx: chains.make_room(tx, call.server.cache, place)):
        return failure(f"{ERROR_WRITE}: checkpoints may use half of the free space of the server's disk")
    url = f"{str(call.request.base_url).rstrip('/')}/cache/{name}"
    return success(url, f"Successfully placed at {url}")


def _ids(sent: str) -> tuple[str, str]:
    """Returns task and point of a checkpoint's name as it was sent."""
    task_id, _, sub_id = file_store.plain_name(sent).partition("_")
    return task_id, sub_id


@endpoint("file_server/delete_hpo_checkpoint", "POST", ANYBODY_KNOWN, Access.WRITE)
def delete_hpo_checkpoint(tx: Transaction, call: Call, *, task_id: str, sub_id: str) -> Envelope:
    """Removes a point's checkpoint."""
    name = file_store.checkpoint_name(task_id, sub_id)
    place = None if name is None else chains.place_of(tx, int(task_id), sub_id)
    names = [name] if place is None else chains.stored(tx, place)
    if name is None or not any(map(call.server.cache.find, filter(None, names))):
        return failure(f"Failed to delete file due to no such checkpoint: {task_id}_{sub_id}")
    if refused := _may_change(tx, call, task_id, sub_id, finished=True):
        return refused
    remove_cached(tx, call.server.cache, [each for each in names if each])
    return success()


@endpoint("hpo_pilot/forget", "POST", USERS, Access.WRITE)
def forget(tx: Transaction, call: Call, *, uid: str, keep: list[int] | None = None) -> Envelope:
    """Removes the checkpoints of the caller's search with this identity from which later trials would go on.

    Args:
        tx: a transaction.
        call: the call.
        uid: identity of the search.
        keep: first trials of the chains whose checkpoints stay; services of older versions do not send it.
    """
    chains.forget(tx, call.server.cache, call.caller.name, uid, keep or ())
    return success()


_FileHandler = Callable[[ServerState, Request, Caller, str], Awaitable[Response]]


def handler(server: ServerState, handle: _FileHandler) -> Callable[[Request], Awaitable[Response]]:
    """Returns a route's handler: `handle` after a check of token and name."""

    async def stored(request: Request) -> Response:
        try:
            caller = server.tokens.caller(request)
        except TokenRefused as error:
            return refuse(f"Token authentication failed. {error}", 401)
        name = request.path_params["name"]
        if not file_store.is_safe(name):
            return refuse(f"{name!r} is not a valid file name", 400)
        try:
            return await handle(server, request, caller, name)
        except OSError as error:
            log.error("%s: %s", name, error)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            return refuse(f"the server cannot store or read the file: {error.strerror}", 507 if full else 500)

    async def checked(request: Request) -> Response:
        return await guarded(request.url.path, stored(request), refuse)

    return checked


async def cache_file(server: ServerState, request: Request, caller: Caller, name: str) -> Response:
    """Returns a sandbox or checkpoint to pilots and to its owner; one of a chain only to the pilot of a job of it."""
    if name.startswith(file_store.CHECKPOINT_START):
        task_id, sub_id = _ids(name.removeprefix(file_store.CHECKPOINT_START))
        pilot = PilotIdentity.of(caller, request.headers.get(KEY_HEADER, ""))

        def of_chain(tx: Transaction) -> str:
            place = chains.place_of(tx, int(task_id), sub_id) if file_store.checkpoint_name(task_id, sub_id) else None
            if place is None:
                return "" if name.startswith(file_store.CHAIN_START) else name
            may = caller.role is not Role.PILOT or has_job(tx, pilot, int(task_id), sub_id)
            return next(iter(chains.stored(tx, place, touch=True)), "") if may else ""

        name = await server.database.write(of_chain)
    if caller.role is Role.USER and not await _is_owner(server, caller, name):
        return refuse("not the owner of the file, and no pilot role", 403)
    return _send(server.cache.find(name), name)


async def storage_file(server: ServerState, request: Request, caller: Caller, name: str) -> Response:
    """Stores, returns or removes an output or log: its job's pilot writes, users read, its owner removes."""
    if request.method == "PUT":
        if caller.role is Role.USER:
            return refuse("production or pilot role required", 403)
        return await _store(server, request, caller, name)
    if caller.role is Role.PILOT:
        return refuse("user role required", 403)
    if request.method != "DELETE":
        return _send(server.find_file(name), name)
    if not (
        caller.is_operator or await server.database.read(lambda tx: owner_of(tx, name, caller.name)) == caller.name
    ):
        return refuse("not the owner of the file", 403)
    moved = find_output(server.queues, name)
    if moved is not None:
        moved.unlink(missing_ok=True)
    if not server.storage.remove(name) and moved is None:
        return refuse(f"there is no file {name}", 404)
    return reply(success())


async def _store(server: ServerState, request: Request, caller: Caller, name: str) -> Response:
    pilot = PilotIdentity.of(caller, request.headers.get(KEY_HEADER, ""))

    async def may() -> bool:
        return caller.is_operator or await server.database.read(lambda tx: makes_file(tx, pilot, name))

    refused = refuse(f"no job of this pilot makes a file {name}", 409)  # not 403: its token is good
    if not await may():
        return refused
    try:
        with server.storage.writing() as upload:
            async for chunk in request.stream():
                upload.write(chunk, file_store.STORAGE_LIMIT)
            if not await may():  # the job may have been lost meanwhile, and another pilot may have it
                return refused
            await asyncio.to_thread(upload.keep, name)
    except file_store.FileRefused as error:
        return refuse(str(error), 413)
    return reply(success())


def _send(path: Path | None, name: str) -> Response:
    try:
        if path is not None:
            return FileResponse(path, media_type="application/octet-stream", stat_result=path.stat())
    except FileNotFoundError:  # it was removed just now
        pass
    return refuse(f"there is no file {name}", 404)
