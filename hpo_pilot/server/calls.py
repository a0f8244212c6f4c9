"""API calls: their table, their arguments and their bodies."""

from __future__ import annotations

import inspect
import logging
import types
import typing
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hpo_pilot.server.database import LARGEST_ID, Database, Transaction, tasks
from hpo_pilot.server.replies import Envelope, failure, load
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.tokens import Caller, PilotIdentity, Role

log = logging.getLogger(__name__)

# Bodies.

BODY_LIMIT = 32 * 1024 * 1024  # bytes of a call's arguments, unpacked
_MOST_PAIRS = 100_000  # a list of job ids has one for each
_MESSAGE_JSON = "failed to load JSON"


class BodyRefused(Exception):
    """The request's body is refused."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request) -> bytes:
    """Returns the unpacked body of a request.

    Raises:
        BodyRefused: it is too large, or is not gzip as its header says.
    """
    too_large = BodyRefused(f"the request's body is above {BODY_LIMIT} bytes", 413)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise too_large
    if request.headers.get("content-encoding", "") != "gzip":
        return bytes(body)
    return unpacked(bytes(body))


def unpacked(body: bytes) -> bytes:
    """Unpacks a gzip body.

    Raises:
        BodyRefused: it is not gzip, or too large.
    """
    try:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        content = unpacker.decompress(body, BODY_LIMIT)
    except zlib.error as error:
        raise BodyRefused(f"the request's body is not gzip: {error}", 400) from error
    if unpacker.unconsumed_tail:
        raise BodyRefused(f"the request's body is above {BODY_LIMIT} bytes", 413)
    if not unpacker.eof:
        raise BodyRefused("the request's body is incomplete: the end of the gzip data is missing", 400)
    return content


def pairs(query: str) -> dict[str, Any]:
    """Returns the arguments of a query or form; a repeated name has a list.

    Raises:
        BodyRefused: there are too many.
    """
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PAIRS)
    except ValueError as error:
        raise BodyRefused(f"more than {_MOST_PAIRS} arguments", 413) from error
    values: dict[str, list[str]] = {}
    for name, value in given:
        values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


def json_object(body: bytes) -> dict[str, Any]:
    """Returns the arguments in a JSON object.

    Raises:
        BodyRefused: the body is not a JSON object, or has a value that cannot be stored.
    """
    try:
        given = load(body or b"{}")
    except ValueError as error:
        raise BodyRefused(f"{_MESSAGE_JSON}: {error}", 400) from error
    if not isinstance(given, dict):
        raise BodyRefused(f"{_MESSAGE_JSON}: an object is expected", 400)
    return given


MESSAGE_TASK_OWNER = "not the task owner or no production role"
_NOT_FOUND, _DENIED = 2, 3


def check_owner(tx: Transaction, caller: Caller, task_id: int) -> Envelope | None:
    """Returns the refusal for a caller who may not change the task; None: the caller may."""
    owner = tx.connection.scalar(select(tasks.c.user_name).where(tasks.c.task_id == task_id))
    if owner is None:
        return failure(f"jediTaskID={task_id} not found", _NOT_FOUND)
    if caller.is_operator or owner == caller.name:
        return None
    return failure(MESSAGE_TASK_OWNER, _DENIED)


#: The longest time that a call may wait for its answer, in seconds.
MAX_WAIT = 30.0

#: The header with the key that our pilots send in addition to their token; see `PilotIdentity`.
KEY_HEADER = "X-HPO-Pilot-Key"

#: The caller of a call that needs no token.
NOBODY = Caller("", Role.USER)


@dataclass(frozen=True)
class Call:
    """A call: its caller, server and request."""

    caller: Caller
    server: ServerState
    request: Request

    @property
    def pilot(self) -> PilotIdentity:
        """Returns the identity of the caller, if it is a pilot."""
        return PilotIdentity.of(self.caller, self.header(KEY_HEADER))

    def header(self, name: str) -> str:
        """Returns a header of the request; empty: it is missing."""
        return self.request.headers.get(name, "")

    def seconds(self, name: str, most: float) -> float:
        """Returns a header as a number of seconds, at most `most`; 0: it is missing or not a number."""
        try:
            return max(0.0, min(float(self.header(name)), most))
        except ValueError:
            return 0.0


async def guarded(name: str, work: Awaitable[Response], refuse: Callable[[str, int], Response]) -> Response:
    """Awaits the answer to a call. If making it fails, the caller gets a refusal.

    Args:
        name: name of the call for the log; it has no secrets.
        work: makes the answer.
        refuse: makes the refusal from a message and an HTTP status.
    """
    try:
        return await work
    except BodyRefused as error:
        return refuse(str(error), error.status)
    except ClientDisconnect:
        return Response(status_code=499)
    except DBAPIError as error:
        # The transaction was rolled back: the caller may repeat it, for instance once the disk has room again.
        log.error("%s: %s", name, error.orig)
        return refuse("database error in the PanDA server", 503)
    except Exception:
        log.exception("%s failed", name)
        return refuse(f"{name} failed in the server; its log says why", 500)


# The table of API calls. A call is a function; its keyword-only arguments are the API's arguments, with types and
# defaults. `endpoint` puts it into the table. The errors for a wrong method and for missing, unknown or wrong
# arguments are made here only. Their texts are those of panda-server 1.0.4 (`pandaserver/api/v1/common.py`),
# because clients show them to their users.


class Access(Enum):
    """The data that a call reads or changes; this decides in which thread it runs."""

    NOTHING = "nothing"  #: neither database nor files: ``handler(call, …)``
    READ = "read"  #: reads the database: ``handler(tx, call, …)`` in the reading thread
    WRITE = "write"  #: changes the database: ``handler(tx, call, …)`` in the writing thread, in one transaction
    WAIT = "wait"  #: waits for others or for the disk: ``async handler(call, …)`` in the event loop


async def carry_out(database: Database, access: Access, handler: Callable[..., Any], *call: Any, **more: Any) -> Any:
    """Runs a handler where its `access` says, and returns its answer."""
    match access:
        case Access.READ:
            return await database.read(lambda tx: handler(tx, *call, **more))
        case Access.WRITE:
            return await database.write(lambda tx: handler(tx, *call, **more))
        case Access.WAIT:
            return await handler(*call, **more)
        case Access.NOTHING:
            return handler(*call, **more)


class ArgumentError(Exception):
    """An argument is not valid; the message goes into the envelope."""


@dataclass(frozen=True)
class Parameter:
    """One declared argument; `element` is the type of a list's items; None: it is not a list, or items of any type."""

    name: str
    kinds: tuple[type, ...]
    element: type | None
    required: bool
    default: Any

    @property
    def kind(self) -> str:
        """The type's name, for messages."""
        return " | ".join(kind.__name__ for kind in self.kinds)


@dataclass(frozen=True)
class Endpoint:
    """One call of the API.

    Attributes:
        path: ``<group>/<function>``, below ``/api/v1``.
        method: the HTTP method; empty: any.
        roles: roles of the tokens that may call it; empty: no token is needed.
        access: where `handler` runs.
        owner_of: the argument with a task that the caller must own; empty: there is none.
        raw_body: whether the handler reads the request's body itself, or ignores it.
    """

    path: str
    method: str
    roles: frozenset[Role]
    access: Access
    handler: Callable[..., Any]
    parameters: Mapping[str, Parameter]
    owner_of: str
    raw_body: bool

    def check(self, given: Mapping[str, Any], *, from_query: bool) -> dict[str, Any]:
        """Returns the arguments for `handler`.

        Args:
            given: the arguments as received.
            from_query: whether they are texts of a URL, which must be converted.

        Raises:
            ArgumentError: one is missing, unknown or of the wrong type.
        """
        arguments = {}
        for parameter in self.parameters.values():
            if parameter.name not in given:
                if parameter.required:
                    raise ArgumentError(f"Argument error: missing a required argument: '{parameter.name}'")
                arguments[parameter.name] = parameter.default
        for name, value in given.items():
            if (declared := self.parameters.get(name)) is None:
                raise ArgumentError(f"Argument error: got an unexpected keyword argument '{name}'")
            checked = _cast(declared, value) if from_query else value
            if not declared.required and checked == declared.default:
                arguments[name] = declared.default
            else:
                arguments[name] = _typed(declared, checked)
        return arguments


#: Every call by its path. `app.API_MODULES` fill it when they are imported.
TABLE: dict[str, Endpoint] = {}

_Handler = typing.TypeVar("_Handler", bound=Callable[..., Any])

USERS = frozenset({Role.USER, Role.OPERATOR})
PILOTS = frozenset({Role.PILOT, Role.OPERATOR})
ANYBODY_KNOWN = frozenset(Role)
EVERYBODY: frozenset[Role] = frozenset()


def endpoint(
    path: str,
    method: str,
    roles: frozenset[Role],
    access: Access,
    *,
    owner_of: str = "",
    raw_body: bool = False,
    more: Iterable[Parameter] = (),
) -> Callable[[_Handler], _Handler]:
    """Puts the decorated function into the table; see `Endpoint` for the arguments.

    Args:
        more: arguments that the function takes as ``**``.
    """

    def register(handler: _Handler) -> _Handler:
        def of_owner(tx: Transaction, call: Call, **arguments: Any) -> Envelope:
            answer: Envelope = check_owner(tx, call.caller, arguments[owner_of]) or handler(tx, call, **arguments)
            return answer

        parameters = parameters_of(handler) | {one.name: one for one in more}
        run = of_owner if owner_of else handler
        TABLE[path] = Endpoint(path, method, roles, access, run, parameters, owner_of, raw_body)
        return handler

    return register


def parameters_of(handler: Callable[..., Any]) -> dict[str, Parameter]:
    """Returns the API's arguments of a function: its keyword-only arguments, by name."""
    hints = typing.get_type_hints(handler)
    declared = {}
    for name, parameter in inspect.signature(handler).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = hints[name]
        alternatives = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = tuple(typing.get_origin(kind) or kind for kind in alternatives if kind is not types.NoneType)
        elements = [typing.get_args(kind)[0] for kind in alternatives if typing.get_origin(kind) is list]
        element = (typing.get_origin(elements[0]) or elements[0]) if elements and elements[0] is not Any else None
        required = parameter.default is inspect.Parameter.empty
        declared[name] = Parameter(name, kinds, element, required, None if required else parameter.default)
    return declared


def _cast(parameter: Parameter, value: Any) -> Any:
    """Converts a query's text to the declared type; PanDA does this for GET only."""
    if value == "None" and not parameter.required and parameter.default is None:
        return None
    try:
        if parameter.element is not None:
            items = [value] if isinstance(value, str) else value
            return [_cast_one(parameter.element, item) for item in items]
        if isinstance(value, list):
            raise ValueError("given more than once")
        return _cast_one(parameter.kinds[0], value)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(
            f"Type error: '{parameter.name}' with value '{value}' could not be casted to type {parameter.kind} "
            f"from {type(value).__name__}."
        ) from error


def _cast_one(kind: type, text: str) -> Any:
    if kind is bool:
        return text.lower() in ("true", "1")
    if kind is int:
        return int(text) if text.lstrip("+-").isdecimal() else int(float(text))
    if kind is float:
        return float(text)
    if kind is dict:
        return load(text)
    return text


def _typed(parameter: Parameter, value: Any) -> Any:
    if not _is_one_of(value, parameter.kinds):
        raise ArgumentError(
            f"Type error: '{parameter.name}' must be of type {parameter.kind}, got {type(value).__name__}."
        )
    if parameter.element is not None and isinstance(value, list):
        for item in value:
            if not _is_one_of(item, (parameter.element,)):
                raise ArgumentError(
                    f"Type error: All elements in '{parameter.name}' must be {parameter.element.__name__}."
                )
    return value


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and abs(value) <= LARGEST_ID
    return isinstance(value, kinds)
