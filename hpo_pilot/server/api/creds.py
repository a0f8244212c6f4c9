"""``creds/*``: secrets that users keep here. Proxies, key pairs and access tokens there are none to hand out."""

from __future__ import annotations

import json

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.user_secrets import keep_secrets, secrets_of
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, USERS, Access, endpoint

_LIMIT = 1024 * 1024  # bytes of one user's secrets, which pbook takes files for as well
_FILE = "___file___:"  # how pbook marks a secret that is a file
_RIGHTS = "ATLAS_PANDAMETA.USERS.GRIDPREF"


@endpoint("creds/set_user_secrets", "POST", USERS, Access.WRITE)
def set_user_secrets(tx: Transaction, call: Call, *, key: str | None = None, value: str | None = None) -> Envelope:
    """Keeps a secret; without a value it is forgotten, without a key all are."""
    data = secrets_of(tx, call.caller.name)
    if key is None:
        data = {}
    elif value is not None:
        data[key] = value
    elif data.pop(key, None) is None:
        data.pop(f"{_FILE}{key}", None)
    if len(json.dumps(data)) > _LIMIT:
        return failure(f"your secrets are above {_LIMIT} bytes: delete some with an empty value")
    keep_secrets(tx, call.caller.name, data)
    return success(message="OK")


@endpoint("creds/get_user_secrets", "GET", USERS, Access.READ)
def get_user_secrets(tx: Transaction, call: Call, *, keys: list[str] | None = None) -> Envelope:
    """The caller's own secrets, as a JSON text."""
    data = secrets_of(tx, call.caller.name)
    if keys is not None:
        wanted = {name for key in keys for name in key.split(",")}
        data = {key: value for key, value in data.items() if key in wanted}
    return success(json.dumps(data))


@endpoint("creds/get_key_pair", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_key_pair(call: Call, *, public_key_name: str, private_key_name: str) -> Envelope:
    """Refused: nobody has the right to any."""
    return failure(f"Failed since '{call.caller.name}' not authorized with 'k' in {_RIGHTS}")


@endpoint("creds/get_proxy", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_proxy(call: Call, *, role: str | None = None, dn: str | None = None) -> Envelope:
    """Refused: nobody has the right to any."""
    return failure(f"failed: '{call.caller.name}' not in authorized users with 'p' in {_RIGHTS} to get proxy")


@endpoint("creds/get_access_token", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_access_token(call: Call, *, client_name: str, token_key: str | None = None) -> Envelope:
    """Refused: nobody has the right to any."""
    return failure(f"failed: '{call.caller.name}' not in authorized users with 'p' in {_RIGHTS} to get access token")


@endpoint("creds/get_token_key", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_token_key(call: Call, *, client_name: str) -> Envelope:
    """Refused: nobody has the right to any."""
    return failure(f"Denied since '{call.caller.name}' not authorized with 't' in {_RIGHTS}")
