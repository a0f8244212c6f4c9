"""Declared operations: questions and changes that a client performs in process, or through the REST API of a service.

Route, HTTP call and form are derived from the signature of a method of `hpo_pilot.operations.client.SearchClient`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, get_type_hints

from hpo_pilot.operations.here import Here

if TYPE_CHECKING:
    from hpo_pilot.operations.remote import RemoteService


class _Client(Protocol):
    at: Here | RemoteService


C = TypeVar("C", bound=_Client)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Operation:
    """A declared operation.

    Its parameters are the placeholders of the path, and the fields of the JSON body or, for GET, of the query. A
    parameter `key` is an idempotency key: a repeated call with the same key is done once.

    Attributes:
        function: the method; its body performs the operation on the store of this process.
        method: HTTP method.
        path: path below ``/api/v1``, such as ``searches/{identity}/pause``.
        reached: states of a search after the call. If its answer is lost, the client looks at the search, and repeats
            the call only in another state. Empty: a repeated call changes nothing more.
        button: label of the button in the monitor, and title of its form; empty: the monitor has no derived form.
        done: message of the monitor after the change.
    """

    function: Callable[..., Any]
    method: str
    path: str
    reached: tuple[str, ...] = ()
    button: str = ""
    done: str = ""

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.function.__name__

    @property
    def action(self) -> str:
        """Last part of the path, also of the address of the form."""
        return self.path.rpartition("/")[2]

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").partition("\n")[0]

    @property
    def answer(self) -> Any:
        """Type of the answer."""
        return get_type_hints(self.function)["return"]

    @property
    def is_keyed(self) -> bool:
        """Whether a call carries an idempotency key."""
        return "key" in inspect.signature(self.function).parameters

    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Returns type and default of each field; the default is `...` if there is none."""
        kinds = get_type_hints(self.function)
        return {
            name: (kinds[name], ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in inspect.signature(self.function).parameters.items()
            if name not in ("self", "identity", "key")
        }


def operation(
    method: str, path: str, *, reached: tuple[str, ...] = (), button: str = "", done: str = ""
) -> Callable[[Callable[Concatenate[C, P], R]], Callable[Concatenate[C, P], R]]:
    """Declares a method as an operation: through a service it is one HTTP call; see `Operation`."""

    def declare(function: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
        declared = Operation(function, method, path, reached, button, done)
        signature = inspect.signature(function)

        @functools.wraps(function)
        def perform(client: C, /, *given: P.args, **named: P.kwargs) -> R:
            if isinstance(client.at, Here):
                return function(client, *given, **named)
            bound = signature.bind(client, *given, **named)
            bound.apply_defaults()
            answer: R = client.at.perform(declared, dict(list(bound.arguments.items())[1:]))
            return answer

        perform.operation = declared  # type: ignore[attr-defined]
        return perform

    return declare


def operations_of(client: type) -> list[Operation]:
    """Returns the declared operations of a class, in its order."""
    return [member.operation for member in vars(client).values() if hasattr(member, "operation")]
