"""Tokens of other issuers: an experiment's identity provider, as panda-client's OIDC mode uses it.

The file of issuers is JSON::

    {"https://iam.example.org/": {
        "keys": "iam-keys.json",             the issuer's JWKS: a file (read again when it changes), or an https URL
        "audience": "panda",                 what the tokens' `aud` must be
        "vo": "atlas",                       its virtual organisation
        "roles": {"atlas/production": "operator", "atlas/pilot": "pilot", "atlas": "user"},
        "groups": "wlcg.groups",             the claim with the memberships (default: groups)
        "name": "preferred_username",        the claim with the name (this is the default)
        "algorithms": ["RS256"],             (default: RS256 and ES256)
        "client": {…},                       for panda-client, at /auth/<vo>_auth_config.json
        "redirect_uri": "https://hpo.example.org:8443/login/return"   for browsers: that of `client` at the issuer
    }}

A role is the first of `roles` whose group the caller is in; an `Origin` of ``vo:role`` asks for membership in that one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import jwt
import requests
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hpo_pilot.errors import InputError
from hpo_pilot.server.tokens import (
    LEEWAY,
    Caller,
    Role,
    TokenRefused,
    WatchedFile,
    check_origin,
    split_origin,
    verified,
)
from hpo_pilot.trust import require_tls

log = logging.getLogger(__name__)

#: Path of the pages to which an issuer sends a browser back.
RETURN_PATH = "/login/return"

_FRESH = 600.0  # seconds after which an issuer's keys are asked for again
_AGAIN = 30.0  # seconds between tries while it does not answer, or after an unknown key
_ANSWER = 10.0  # seconds that it may take to answer
_CLAIMS = ("iss", "sub", "exp", "iat")

_Keys = Mapping[str, jwt.PyJWK]


class _Issuer(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: str
    audience: str
    vo: str = Field(min_length=1)
    roles: dict[str, Role] = Field(min_length=1)
    groups: str = "groups"
    name: str = "preferred_username"
    algorithms: list[Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "EdDSA"]] = Field(
        default=["RS256", "ES256"], min_length=1
    )
    client: dict[str, Any] | None = None
    redirect_uri: str | None = None

    def client_settings(self) -> dict[str, Any]:
        """Returns `client`, with the virtual organisation and the audience."""
        return {"vo": self.vo, "audience": self.audience, **(self.client or {})}


class BrowserClient(NamedTuple):
    """The service's client at an issuer, for browsers.

    Attributes:
        issuer: the `iss` of its tokens.
        redirect_uri: address of the pages to which it sends browsers back.
        settings: settings of the client.
    """

    issuer: str
    redirect_uri: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class _Trusted:
    """An issuer with a way to its keys."""

    settings: _Issuer
    keys: Callable[[], _Keys]
    ask_again: Callable[[], None]


class Issuers:
    """The issuers that a server trusts beside its own authority. Safe to use from any thread."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Reads the file of issuers and their keys.

        Raises:
            InputError: the file, or a key file in it, is not valid.
        """
        self._clock = clock
        try:
            entries = TypeAdapter(dict[str, _Issuer]).validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(f"the file of issuers {path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise InputError(f"the file of issuers {path}: {where}: {first['msg']}") from error
        self._remote: list[_RemoteKeys] = []
        browsers = [settings.vo for settings in entries.values() if settings.redirect_uri is not None]
        if len(browsers) > len(set(browsers)):
            raise InputError(f"the file of issuers {path}: two issuers of one vo have a redirect_uri: leave one out")
        self._trusted = {issuer: self._trust(settings, path.parent) for issuer, settings in entries.items()}

    def _trust(self, settings: _Issuer, folder: Path) -> _Trusted:
        if settings.redirect_uri is not None:
            _check_redirect(settings.redirect_uri, settings.client or {})
        scheme = urlsplit(settings.keys).scheme
        if scheme in ("http", "https"):
            if scheme == "http":
                raise InputError(f"the keys of an issuer must come from a file or by https, not from {settings.keys}")
            remote = _RemoteKeys(settings.keys)
            self._remote.append(remote)
            return _Trusted(settings, lambda: remote.content, remote.ask_again)
        watched = WatchedFile(folder / settings.keys, _key_set, what="the file of an issuer's keys")
        return _Trusted(settings, lambda: watched.content, lambda: None)

    def start(self) -> None:
        """Starts to fetch keys that are not in files, and waits for the first answers."""
        for remote in self._remote:
            remote.start()

    def stop(self) -> None:
        """Stops fetching keys."""
        for remote in self._remote:
            remote.stop()

    def knows(self, issuer: str) -> bool:
        """Returns whether tokens of this issuer are taken."""
        return issuer in self._trusted

    def verify(self, token: str, issuer: str, origin: str) -> tuple[Caller, float]:
        """Returns the token's owner, and the time until which it is valid.

        Args:
            token: the JWT.
            issuer: an issuer for which `knows` is true.
            origin: the header ``Origin``; empty: none.

        Raises:
            TokenRefused: it is not valid, or gives no role here.
        """
        trusted = self._trusted[issuer]
        settings = trusted.settings
        kid = str(jwt.get_unverified_header(token).get("kid"))
        keys = trusted.keys()
        if kid not in keys:
            trusted.ask_again()
            raise TokenRefused(f"the token is signed with an unknown key of {issuer}: {kid[:100]!r}")
        claims = verified(
            token,
            keys[kid].key,
            list(settings.algorithms),
            now=self._clock(),
            issuer=issuer,
            required=_CLAIMS,
            audience=settings.audience,
        )
        groups = claims.get(settings.groups) or []
        members = {str(group).lstrip("/") for group in groups} if isinstance(groups, list) else set()
        check_origin(origin, settings.vo, sorted(members))
        named = "/".join(part for part in split_origin(origin, settings.vo) if part)
        roles = {group.lstrip("/"): role for group, role in settings.roles.items()}
        asked = roles.get(named) if "/" in named else None
        role = asked or next((role for group, role in roles.items() if group in members), None)
        if role is None:
            raise TokenRefused(f"Not a member of the {settings.vo} group")
        name = str(claims.get(settings.name) or claims["sub"])
        nickname = str(claims.get("preferred_username") or "")
        return Caller(name[:128], role, nickname[:128]), float(claims["exp"]) + LEEWAY

    def client_settings(self, vo: str = "") -> dict[str, Any] | None:
        """Returns a client's settings to get a token, for a virtual organisation or any; None: no issuer has some."""
        for trusted in self._trusted.values():
            if vo in ("", trusted.settings.vo) and trusted.settings.client is not None:
                return trusted.settings.client_settings()
        return None

    def browser_clients(self) -> dict[str, BrowserClient]:
        """Returns what browsers need to sign in, by virtual organisation, for issuers with a redirect URI."""
        known = ((issuer, trusted.settings) for issuer, trusted in self._trusted.items())
        return {
            each.vo: BrowserClient(issuer, each.redirect_uri, each.client_settings())
            for issuer, each in known
            if each.redirect_uri is not None
        }


class _RemoteKeys:
    """An issuer's keys from its web server, fetched by a thread so that no call waits for them.

    PyJWT's PyJWKClient would ask the issuer in the call itself, for each unknown key, and would follow redirects to
    plain HTTP.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.content: _Keys = {}
        self._wanted = threading.Event()
        self._first = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._keep, name="issuer-keys", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._first.wait(_ANSWER)

    def stop(self) -> None:
        self._over = True
        self._wanted.set()

    def ask_again(self) -> None:
        """Asks for the keys again, because a token has an unknown key."""
        self._wanted.set()

    def _keep(self) -> None:
        while not self._over:
            pause = _AGAIN
            try:
                answer = requests.get(self._url, timeout=_ANSWER, allow_redirects=False)
                answer.raise_for_status()
                self.content = _key_set(json.loads(answer.content))
                pause = _FRESH
            except (requests.RequestException, ValueError, TypeError, KeyError, AttributeError) as error:
                log.warning("the keys at %s: %s", self._url, error)
            self._first.set()
            self._wanted.clear()
            began = time.monotonic()
            self._wanted.wait(pause)
            # The issuer is asked twice a minute at most, for any number of unknown keys.
            while not self._over and time.monotonic() - began < _AGAIN:
                time.sleep(0.5)


def _check_redirect(uri: str, client: Mapping[str, Any]) -> None:
    parts = urlsplit(uri)
    has_tls = parts.scheme == "https"
    require_tls(uri, parts.hostname or "", has_tls=has_tls, remedy="give the https address of the pages")
    if parts.path != RETURN_PATH or parts.query or parts.fragment or parts.scheme not in ("http", "https"):
        raise InputError(f"the redirect_uri {uri} of an issuer is not the pages' address with {RETURN_PATH}")
    if missing := {"client_id", "oidc_config_url"} - client.keys():
        raise InputError(f"the redirect_uri {uri} of an issuer needs {' and '.join(sorted(missing))} in its client")


def _key_set(content: Any) -> _Keys:
    """Returns the keys of a JWKS by their names; keys for other uses or of unknown kinds are ignored."""
    try:
        keys = jwt.PyJWKSet.from_dict(content).keys
    except jwt.PyJWTError as error:
        raise ValueError(str(error)) from error
    found = {
        key.key_id: key
        for key in keys
        if key.key_id and key.public_key_use in (None, "sig") and key.key_type in ("RSA", "EC", "OKP")
    }
    if not found:
        raise ValueError("it has no key for signatures")
    return found
