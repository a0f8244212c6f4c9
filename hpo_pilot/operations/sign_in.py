"""Signs in at the issuer of a service: by a device code (RFC 8628) for a token file, or in a browser for the pages."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import requests

from hpo_pilot.advice import printable
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.http import open_session
from hpo_pilot.trust import require_tls

_ANSWER = 30.0  # seconds
_LONGEST = 1800.0  # seconds in which the user must sign in
_INTERVAL = 5.0  # seconds between two questions, and what RFC 8628 adds after `slow_down`
_FRESH = 600.0  # seconds for which an issuer's configuration is kept
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_REMEDY = "use a token of your operator instead (hpo-pilot token create)"


def device_token(
    service: str, ca: Path | None, say: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Returns a token for a service after its user has signed in at the service's issuer, on any device.

    Args:
        service: URL of the service.
        ca: authorities of its certificate; None: from the environment.
        say: tells the user where to sign in.
        sleep: waits, in seconds.

    Raises:
        InputError: the service has no issuer, or the issuer refuses.
        TryAgainError: one of them does not answer.
    """
    try:
        return _device_token(service, ca, say, sleep)
    except KeyError as error:
        raise InputError(f"the answer of the service or its issuer has no {error}; {_REMEDY}") from error


def _device_token(service: str, ca: Path | None, say: Callable[[str], None], sleep: Callable[[float], None]) -> str:
    client = _asked("GET", f"{service}/login/issuer.json", ca)
    device, tokens = _places(client, "device_authorization_endpoint", "token_endpoint")
    who = _credentials(client)
    asked = _asked("POST", device, audience=client["audience"], scope=_scope(client), **who)
    if "error" in asked:
        raise _refused(asked)
    whole = asked.get("verification_uri_complete") or asked["verification_uri"]
    say(printable(f"sign in at {whole}" + (f", with the code {asked['user_code']}" if "user_code" in asked else "")))
    try:
        interval = max(1.0, float(asked.get("interval", _INTERVAL)))
        left = min(float(asked["expires_in"]), _LONGEST)
    except (TypeError, ValueError):
        raise InputError("the issuer gives no valid times for the sign-in: tell its operator") from None
    ends = time.monotonic() + left  # slow answers take time too
    while left > 0 and time.monotonic() < ends:
        sleep(min(interval, left))
        left -= interval
        try:
            answer = _asked("POST", tokens, grant_type=_GRANT, device_code=asked["device_code"], **who)
        except TryAgainError:  # RFC 8628, 3.5: ask again, less often
            interval *= 2
            continue
        if "id_token" in answer:
            return str(answer["id_token"])
        if answer.get("error") == "slow_down":
            interval += _INTERVAL
        elif answer.get("error") != "authorization_pending":
            raise _refused(answer)
    raise InputError("nobody has signed in in time, or the issuer did not answer: repeat the command")


def browser_sign_in(client: Mapping[str, Any], redirect_uri: str) -> tuple[str, dict[str, str]]:
    """Begins a sign-in in a browser, by an authorization code (RFC 6749, 4.1) with PKCE (RFC 7636).

    Args:
        client: audience and settings of the service's client at the issuer.
        redirect_uri: address of the service to which the issuer sends the browser back.

    Returns:
        The issuer's address for the browser, and `state`, `nonce` and `verifier`, which the end of the sign-in needs.

    Raises:
        InputError: the issuer has no such flow.
        TryAgainError: it does not answer.
    """
    (place,) = _places(client, "authorization_endpoint")
    require_tls(place, urlsplit(place).hostname or "", has_tls=place.startswith("https:"), remedy=_REMEDY)
    kept = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(kept["verifier"].encode()).digest()).rstrip(b"=").decode()
    query = {
        **{"response_type": "code", "client_id": client["client_id"], "redirect_uri": redirect_uri},
        **{"scope": _scope(client), "audience": client["audience"], "state": kept["state"], "nonce": kept["nonce"]},
        **{"code_challenge": challenge, "code_challenge_method": "S256"},
    }
    return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}", kept


def token_for_code(client: Mapping[str, Any], redirect_uri: str, code: str, verifier: str) -> str:
    """Returns the ID token for an authorization code; its signature and claims are not checked yet.

    Raises:
        InputError: the issuer refuses.
        TryAgainError: it does not answer.
    """
    (place,) = _places(client, "token_endpoint")
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    answer = _asked("POST", place, None, **form, **_credentials(client))
    if "id_token" not in answer:
        raise _refused(answer)
    return str(answer["id_token"])


def _places(client: Mapping[str, Any], *names: str) -> list[str]:
    """Returns addresses of an issuer by their names in its configuration (OpenID Connect Discovery 1.0, 3)."""
    found = _configuration(client["oidc_config_url"], time.time() // _FRESH)
    if missing := next((name for name in names if name not in found), ""):
        raise InputError(f"{client['oidc_config_url']} has no {missing}: {_REMEDY}")
    return [str(found[name]) for name in names]


@lru_cache(maxsize=8)
def _configuration(url: str, _period: float) -> dict[str, Any]:
    return _asked("GET", url)


def _credentials(client: Mapping[str, Any]) -> dict[str, Any]:
    return {name: client[name] for name in ("client_id", "client_secret") if client.get(name) or name == "client_id"}


def _scope(client: Mapping[str, Any]) -> str:
    return " ".join(["openid profile email", *(["wlcg wlcg.groups"] if client.get("jwt_profile") == "wlcg" else [])])


def _refused(answer: dict[str, Any]) -> InputError:
    if "error" not in answer:
        return InputError(f"the issuer has sent no id_token; {_REMEDY}")
    return InputError(printable(f"the issuer refused: {answer.get('error_description') or answer['error']}"))


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
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise TryAgainError(f"{url}: {answer.status_code} {printable(answer.reason)}")
    said = found.get("error") if isinstance(found, dict) else None
    raise InputError(printable(f"{url}: {said or answer.reason}; {_REMEDY}"))
