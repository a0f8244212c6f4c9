"""Signs in at the issuer of a service by a device code (RFC 8628), for a token file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.http import open_session
from hpo_pilot.trust import require_tls

_ANSWER = 30.0  # seconds
_INTERVAL = 5.0  # seconds between two questions, and what RFC 8628 adds after `slow_down`
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_REMEDY = "paste a token of your operator into the file (hpo-pilot token create), or ask for the issuer's device flow"


def device_token(
    service: str, ca: Path | None, say: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Returns a token for a service after its user has signed in at the service's issuer, on any device.

    Args:
        service: URL of the service.
        ca: authorities of its certificate; None: those of the environment.
        say: tells the user where to sign in.
        sleep: waits, in seconds.

    Raises:
        InputError: the service has no issuer, or the issuer refuses.
        TryAgainError: one of them does not answer.
    """
    client = _asked("GET", f"{service}/login/issuer.json", ca)
    places = _asked("GET", client["oidc_config_url"])
    if "device_authorization_endpoint" not in places:
        raise InputError(f"{client['oidc_config_url']} has no device_authorization_endpoint: {_REMEDY}")
    who = {"client_id": client["client_id"]}
    scope = " ".join(["openid profile email", *(["wlcg wlcg.groups"] if client.get("jwt_profile") == "wlcg" else [])])
    asked = _asked("POST", places["device_authorization_endpoint"], audience=client["audience"], scope=scope, **who)
    whole = asked.get("verification_uri_complete") or asked["verification_uri"]
    say(f"sign in at {whole}" + (f", with the code {asked['user_code']}" if "user_code" in asked else ""))
    if client.get("client_secret"):
        who["client_secret"] = client["client_secret"]
    interval, left = float(asked.get("interval", _INTERVAL)), float(asked["expires_in"])
    while left > 0:
        sleep(interval)
        left -= max(interval, 1.0)
        answer = _asked("POST", places["token_endpoint"], grant_type=_GRANT, device_code=asked["device_code"], **who)
        if "id_token" in answer:
            return str(answer["id_token"])
        if answer.get("error") == "slow_down":
            interval += _INTERVAL
        elif answer.get("error") != "authorization_pending":
            raise InputError(f"the issuer refused: {answer.get('error_description') or answer.get('error')}")
    raise InputError("nobody has signed in in time: repeat the command")


def _asked(method: str, url: str, ca: Path | None = None, **form: str) -> dict[str, Any]:
    """Returns the JSON object at a URL; for a form also that of an error (RFC 6749, 5.2)."""
    parts = urlsplit(url)
    require_tls(url, parts.hostname or "", has_tls=parts.scheme == "https", remedy="give an https address")
    try:
        answer = open_session(url, ca).request(method, url, data=form or None, timeout=_ANSWER, allow_redirects=False)
        found = answer.json()
        if answer.ok or (form and "error" in found):
            return dict(found)
    except (requests.RequestException, ValueError, TypeError) as error:
        raise TryAgainError(f"{url} does not answer as it should: {error}") from error
    raise InputError(f"{url}: {found.get('error') or answer.reason}; {_REMEDY}")
