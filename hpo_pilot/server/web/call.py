"""What a handler is given about the call it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from hpo_pilot.server.access.auth import Caller, Role
from hpo_pilot.server.access.ownership import PilotIdentity

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server

#: How long an answer may wait for what is asked for, in seconds.
MAX_WAIT = 30.0

#: The key that a pilot of ours has beside its token; see `PilotIdentity`.
KEY_HEADER = "X-HPO-Pilot-Key"

#: Whoever calls what needs no token.
NOBODY = Caller("", Role.USER)


@dataclass(frozen=True)
class Call:
    """A call under way: who, on which server, with which request."""

    caller: Caller
    server: Server
    request: Request

    @property
    def pilot(self) -> PilotIdentity:
        """By what the caller, if it is a pilot, is known again."""
        return PilotIdentity.of(self.caller, self.header(KEY_HEADER))

    def header(self, name: str) -> str:
        """A header of the request; empty where it has none."""
        return self.request.headers.get(name, "")

    def seconds(self, name: str, most: float) -> float:
        """A header that holds seconds, at most `most`; 0 where it is missing or no number."""
        try:
            return max(0.0, min(float(self.header(name)), most))
        except ValueError:
            return 0.0
