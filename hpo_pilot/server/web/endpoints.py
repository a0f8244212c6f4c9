"""The table of API calls: one declaration each, arguments checked in one place.

A call is a function whose keyword-only arguments are the API's arguments, with their types and defaults; `endpoint`
puts it into the table. What a caller gets for a wrong method, a missing, unknown or wrong-typed argument is said here
alone, in the words of panda-server 1.0.4 (`pandaserver/api/v1/common.py`), which clients show to their users.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpo_pilot.server.access.auth import Role
from hpo_pilot.server.json_text import load

_MAX_INTEGER = 2**63 - 1  # what a database column holds


class Access(Enum):
    """What a call touches, hence where it runs."""

    NOTHING = "nothing"  #: neither database nor files: ``handler(call, …)``
    READ = "read"  #: reads the database: ``handler(tx, call, …)`` in the reading thread
    WRITE = "write"  #: changes the database: ``handler(tx, call, …)`` in the writing thread, in one transaction
    WAIT = "wait"  #: waits for others or for the disk: ``async handler(call, …)`` in the event loop


class ArgumentError(Exception):
    """The caller's arguments do not fit; the message goes into the envelope."""


@dataclass(frozen=True)
class Parameter:
    """One declared argument; `element` is the type of a list's items, None where it is no list or they may be any."""

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
        method: the HTTP methods it answers to; empty: any.
        roles: whose tokens may call it; empty: anybody, without a token.
        access: where `handler` runs.
        owner_of: the argument that names a task which must be the caller's own; empty: no such rule.
        raw_body: True where the handler reads the request's body itself.
    """

    path: str
    method: str
    roles: frozenset[Role]
    access: Access
    handler: Callable[..., Any]
    parameters: Mapping[str, Parameter]
    owner_of: str
    raw_body: bool
    any_argument: bool

    @property
    def required(self) -> list[str]:
        """The arguments that must be given."""
        return [parameter.name for parameter in self.parameters.values() if parameter.required]

    def check(self, given: Mapping[str, Any], *, from_query: bool) -> dict[str, Any]:
        """The arguments for `handler`.

        Args:
            given: as they arrived.
            from_query: True where they came as text in a URL and want casting.

        Raises:
            ArgumentError: one is missing, unknown or of the wrong type.
        """
        if self.any_argument:
            return {"arguments": dict(given)}
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


#: Every call by its path. The modules of `api` fill it when they are imported.
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
    any_argument: bool = False,
) -> Callable[[_Handler], _Handler]:
    """Puts the decorated function into the table; see `Endpoint` for the arguments.

    Args:
        any_argument: takes whatever comes, as one dictionary ``arguments``.
    """

    def register(handler: _Handler) -> _Handler:
        parameters = {} if any_argument else _declared(handler)
        TABLE[path] = Endpoint(path, method, roles, access, handler, parameters, owner_of, raw_body, any_argument)
        return handler

    return register


def _declared(handler: Callable[..., Any]) -> dict[str, Parameter]:
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
    """A query string's text as the declared type; a courtesy that PanDA does for GET alone."""
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
        return (int in kinds or float in kinds) and abs(value) <= _MAX_INTEGER
    return isinstance(value, kinds)
