"""The table of legacy calls: which there are, who may make them, and where they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from hpo_pilot.server.legacy.replies import MESSAGE_ROLE, Reply, StatusCode, coded
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import PILOTS, Access


@dataclass(frozen=True)
class Ask:
    """A legacy call under way.

    Attributes:
        call: who calls, and with which request.
        given: the arguments as they came; whatever a function does not know is ignored.
        as_json: whether the caller accepts JSON.
    """

    call: Call
    given: Mapping[str, Any]
    as_json: bool


class Refusal(Enum):
    """How a call tells somebody without a pilot's role so."""

    CODE = "code"  #: by StatusCode
    TEXT = "text"  #: by a sentence
    NEVER = "never"  #: anybody may make it, without a token


@dataclass(frozen=True)
class LegacyCall:
    """One function of the legacy API.

    Attributes:
        access: where `handler` runs; as for the new API, with an `Ask` in the place of call and arguments.
        refusal: what a caller without a pilot's role gets.
    """

    access: Access
    handler: Callable[..., Any]
    refusal: Refusal

    def refuse(self, ask: Ask) -> Reply | None:
        """The answer to a caller who may not make this call; None: they may."""
        if self.refusal is Refusal.NEVER or ask.call.caller.role in PILOTS:
            return None
        if self.refusal is Refusal.TEXT:
            return Reply("production or pilot role is required")
        return coded(StatusCode.ROLE, MESSAGE_ROLE if ask.as_json else None, as_json=ask.as_json)


#: Every function by its name. The module `pilot` fills it when it is imported.
LEGACY: dict[str, LegacyCall] = {}

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


def legacy(name: str, access: Access, refusal: Refusal = Refusal.CODE) -> Callable[[_Handler], _Handler]:
    """Puts the decorated function into the table."""

    def register(handler: _Handler) -> _Handler:
        LEGACY[name] = LegacyCall(access, handler, refusal)
        return handler

    return register


def with_truth_as_text(given: Mapping[str, Any]) -> dict[str, Any]:
    """JSON arguments as the form would have had them: old functions compare with ``"True"``."""
    return {name: str(value) if isinstance(value, bool) else value for name, value in given.items()}
