"""``system/*``: is anybody there, and what does the server see of me."""

from __future__ import annotations

from typing import Any

from hpo_pilot.server.call import Call
from hpo_pilot.server.endpoints import ANYBODY_KNOWN, EVERYBODY, Access, endpoint
from hpo_pilot.server.envelope import Envelope, success

_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


@endpoint("system/is_alive", "GET", EVERYBODY, Access.NOTHING)
def is_alive(call: Call) -> Envelope:
    """Answers."""
    return success()


@endpoint("system/get_attributes", "GET", ANYBODY_KNOWN, Access.NOTHING, any_argument=True)
def get_attributes(call: Call, *, arguments: dict[str, Any]) -> Envelope:
    """The arguments and the environment as they arrived, secrets left out."""
    parameters = {name: str(value) for name, value in sorted(arguments.items())}
    environment = {
        f"HTTP_{name.upper().replace('-', '_')}": value
        for name, value in call.request.headers.items()
        if name not in _SECRET_HEADERS
    } | {
        "REQUEST_METHOD": call.request.method,
        "REMOTE_HOST": call.request.client.host if call.request.client else "",
        "SSL_CLIENT_S_DN": call.caller.name,
        "ROLE": call.caller.role.value,
    }
    environment = dict(sorted(environment.items()))
    lines = ["===== param =====", *(f"{name} = {value}" for name, value in parameters.items())]
    lines += ["====== env ======", *(f"{name} : {value}" for name, value in environment.items())]
    return success({"parameters": parameters, "environment": environment}, "\n".join(lines) + "\n")
