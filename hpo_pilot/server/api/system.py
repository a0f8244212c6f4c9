"""``system/*``: is anybody there, and what does the server see of me."""

from __future__ import annotations

from typing import Any

from hpo_pilot.server.envelope import Envelope, success
from hpo_pilot.server.web.call import KEY_HEADER, Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, EVERYBODY, PILOTS, Access, endpoint

_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-idds-auth-token", KEY_HEADER.lower()})


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


@endpoint("system/get_voms_attributes", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_voms_attributes(call: Call) -> Envelope:
    """The VOMS attributes of the caller's proxy: tokens have none."""
    return success({})


@endpoint("system/get_user_attributes", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_user_attributes(call: Call) -> Envelope:
    """The caller, as the server sees them."""
    name, production = call.caller.name, call.caller.role in PILOTS
    text = (
        f"User DN (raw): {name}\nUser DN (bare): {name}\nUser DN (clean): {name}\nEmail address: None\n"
        f"FQANs: []\nProduction user: {production}\n"
        "Production working groups: []\nPrimary production working group: None\n"
    )
    attributes = {
        "user_dn_raw": name,
        "user_dn_clean": name,
        "fqans": [],
        "is_production_user": production,
        "production_working_groups": [],
        "primary_working_group": None,
    }
    return success(attributes, text)
