"""Files by URL: sandboxes for pilots (``/cache``), outputs and logs between pilots and users (``/storage``)."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from hpo_pilot.server.access.auth import Caller, Role, TokenRefused
from hpo_pilot.server.access.ownership import PilotIdentity
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.file_store import STORAGE_LIMIT, FileRefused, is_safe, receive
from hpo_pilot.server.data.tables import cache_files, cached_as, tasks
from hpo_pilot.server.envelope import failure, success, to_json
from hpo_pilot.server.taskbuffer.pilots_jobs import makes_file
from hpo_pilot.server.taskbuffer.queuedata import find_output
from hpo_pilot.server.web.call import KEY_HEADER

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server

log = logging.getLogger(__name__)

_FileHandler = Callable[["Server", Request, Caller, str], Awaitable[Response]]


def handler(server: Server, handle: _FileHandler) -> Callable[[Request], Awaitable[Response]]:
    """A route's handler: `handle` behind the token and the name's check."""

    async def checked(request: Request) -> Response:
        try:
            caller = server.gate.caller(request)
        except TokenRefused as error:
            return _refuse(f"Token authentication failed. {error}", 401)
        name = request.path_params["name"]
        if not is_safe(name):
            return _refuse(f"{name!r} is no name that a file here can have", 400)
        try:
            return await handle(server, request, caller, name)
        except ClientDisconnect:
            return Response(status_code=499)
        except DBAPIError as error:
            log.error("%s: %s", name, error.orig)
            return _refuse("database error in the PanDA server", 503)
        except OSError as error:
            log.error("%s: %s", name, error)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            return _refuse(f"the server cannot store or read the file: {error.strerror}", 507 if full else 500)

    return checked


async def cache_file(server: Server, request: Request, caller: Caller, name: str) -> Response:
    """A sandbox, for pilots and for whoever uploaded it."""
    if caller.role is Role.USER:
        owner = select(cache_files.c.user_name).where(cached_as(name))

        def is_owner(tx: Transaction) -> bool:
            return tx.connection.scalar(owner) == caller.name

        if not await server.database.read(is_owner):
            return _refuse("not the owner of the file, and no pilot role", 403)
    return _send(server.cache.find(name), name)


async def storage_file(server: Server, request: Request, caller: Caller, name: str) -> Response:
    """An output or log: written by the pilot whose job makes it, read by users, removed by its owner."""
    if request.method == "PUT":
        if caller.role is Role.USER:
            return _refuse("production or pilot role required", 403)
        return await _store(server, request, caller, name)
    if caller.role is Role.PILOT:
        return _refuse("user role required", 403)
    if request.method != "DELETE":
        return _send(server.storage.find(name) or find_output(server.queues, name), name)
    if not (caller.is_operator or await server.database.read(lambda tx: _owner(tx, name, caller)) == caller.name):
        return _refuse("not the owner of the file", 403)
    moved = find_output(server.queues, name)
    if moved is not None:
        moved.unlink(missing_ok=True)
    if not server.storage.remove(name) and moved is None:
        return _refuse(f"there is no file {name}", 404)
    return Response(to_json(success()), media_type="application/json")


def _owner(tx: Transaction, name: str, caller: Caller) -> str | None:
    """Whose an output is, by its name: of users called a and a.b, the latter owns user.a.b.1.x."""
    parts = name.split(".")
    if parts[0] != "user":
        return None
    users = [".".join(parts[1:end]) for end in range(2, len(parts))]
    known = set(tx.connection.scalars(select(tasks.c.user_name).where(tasks.c.user_name.in_(users)).distinct()))
    return max((user for user in users if user in known or user == caller.name), key=len, default=None)


async def _store(server: Server, request: Request, caller: Caller, name: str) -> Response:
    pilot = PilotIdentity.of(caller, request.headers.get(KEY_HEADER, ""))

    async def may() -> bool:
        return caller.is_operator or await server.database.read(lambda tx: makes_file(tx, pilot, name))

    refused = _refuse(f"no job that this pilot has makes a file {name}", 409)  # not 403: its token is good
    if not await may():
        return refused
    try:
        with server.storage.writing() as upload:
            await receive(request.stream(), upload, STORAGE_LIMIT)
            if not await may():  # it took so long that the job was lost, and another pilot has it
                return refused
            upload.keep(name)
    except FileRefused as error:
        return _refuse(str(error), 413)
    return Response(to_json(success()), media_type="application/json")


def _send(path: object, name: str) -> Response:
    if path is None:
        return _refuse(f"there is no file {name}", 404)
    return FileResponse(str(path), media_type="application/octet-stream")


def _refuse(message: str, status: int) -> Response:
    return Response(to_json(failure(message)), status, media_type="application/json")
