"""Who calls, and what they may do: bearer tokens, verified.

Tokens are JWTs: those that `authority` signs, and, where a server trusts other issuers, theirs (`oidc`). `Tokens` is
all that whoever answers calls needs; it holds no secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import jwt
from jwt.types import Options

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.watched_file import WatchedFile

#: The one algorithm of our own tokens: a token cannot choose another.
ALGORITHM = "ES256"

#: Seconds by which clocks may differ.
LEEWAY = 60

#: Files of the token folder; see `authority`.
JWKS, ISSUED, REVOKED = "jwks.json", "issued.json", "revoked.json"

_NO_TOKEN = "A valid bearer token is required"  # noqa: S105  # a message, no token
_CLAIMS = ("iss", "sub", "role", "iat", "exp", "jti")
_LONGEST = 16_384  # characters of a token
_REMEMBERED = 4096  # tokens


class Role(StrEnum):
    """What a token may do."""

    USER = "user"  #: submits, watches and changes own tasks
    PILOT = "pilot"  #: takes jobs and reports on them
    OPERATOR = "operator"  #: everything, for everybody: PanDA's production role


@dataclass(frozen=True)
class Caller:
    """The owner of a valid token."""

    name: str
    role: Role

    @property
    def is_operator(self) -> bool:
        """True where PanDA would see a production role."""
        return self.role is Role.OPERATOR


class TokenRefused(Exception):
    """The token is not taken; the message says why, and is for whoever sent it."""


class OtherIssuers(Protocol):
    """Issuers beside our own; `oidc.Issuers`."""

    def knows(self, issuer: str) -> bool:
        """Whether tokens of this issuer are taken."""

    def verify(self, token: str, issuer: str, origin: str) -> tuple[Caller, float]:
        """Whose the token is, and until when it is valid; TokenRefused where it is not."""

    def client_settings(self, vo: str) -> dict[str, Any] | None:
        """What panda-client is to know to get a token for this virtual organisation; None: nobody issues any."""


class Tokens:
    """Verifies tokens of one folder's authority, and of other issuers that the server trusts.

    A token that was verified is remembered until it expires or anything is revoked. Safe to use from any thread.
    """

    def __init__(
        self, folder: Path, others: OtherIssuers | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Reads the folder's public keys.

        Args:
            folder: of `authority.Authority`; ``jwks.json`` and ``revoked.json`` of it are enough.
            others: further issuers.
            clock: seconds since the epoch.

        Raises:
            InputError: there are none, or they make no sense.
        """
        self._folder = folder
        self.others = others
        self._clock = clock
        self.public_keys = _read_keys(folder)
        self._keys = {key["kid"]: jwt.PyJWK(key, ALGORITHM) for key in self.public_keys["keys"]}
        self._issuers = {kid: issuer_of(key) for kid, key in zip(self._keys, self.public_keys["keys"], strict=True)}
        self._revoked = WatchedFile(
            folder / REVOKED, frozenset[str], what="the list of revoked tokens", missing=frozenset[str]()
        )
        self._known: OrderedDict[tuple[bytes, str], tuple[Caller, float]] = OrderedDict()

    def caller(self, authorization: str | None, origin: str | None = None) -> Caller | None:
        """Whoever sent these headers; None: nobody we know.

        Args:
            authorization: the header ``Authorization``.
            origin: the header ``Origin``, where panda-client names the virtual organisation.
        """
        try:
            return self.verify(authorization, origin)
        except TokenRefused:
            return None

    def verify(self, authorization: str | None, origin: str | None = None) -> Caller:
        """The same, saying what is wrong.

        Raises:
            TokenRefused: with the reason.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise TokenRefused(_NO_TOKEN)
        if self._revoked.refresh():
            self._known.clear()
        key = (hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), origin or "")
        known = self._known.get(key)
        if known is None or known[1] <= self._clock():
            known = self._check(token, origin or "")
            self._known[key] = known
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known[0]

    def _check(self, token: str, origin: str) -> tuple[Caller, float]:
        if len(token) > _LONGEST:
            raise TokenRefused(f"the token is longer than {_LONGEST} characters")
        try:
            header = jwt.get_unverified_header(token)
            unverified = jwt.decode(token, options={"verify_signature": False})
        except jwt.InvalidTokenError:
            raise TokenRefused(f"{_NO_TOKEN}: what was sent is no JSON web token") from None
        issuer = str(unverified.get("iss"))
        if self.others is not None and self.others.knows(issuer):
            return self.others.verify(token, issuer, origin)
        kid = header.get("kid")
        if kid not in self._keys or issuer != self._issuers[kid]:
            ours = " or ".join(sorted(set(self._issuers.values())))
            raise TokenRefused(f"the token is of another issuer, {issuer[:200]!r}; this server takes those of {ours}")
        claims = verified(
            token, self._keys[kid].key, [ALGORITHM], now=self._clock(), issuer=issuer, required=_CLAIMS, audience=None
        )
        if str(claims["jti"]) in self._revoked.content:
            raise TokenRefused(f"the token {claims['jti']} was revoked")
        try:
            role = Role(claims["role"])
        except ValueError:
            raise TokenRefused(f"the token has the role {claims['role']!r}, which this server does not know") from None
        check_origin(origin, claims.get("vo"), claims.get("groups") or ())
        return Caller(str(claims["sub"]), role), float(claims["exp"]) + LEEWAY


def verified(
    token: str,
    key: Any,
    algorithms: list[str],
    *,
    now: float,
    issuer: str,
    required: tuple[str, ...],
    audience: str | None,
) -> Mapping[str, Any]:
    """The claims of a token whose signature, issuer, audience and times are right.

    Raises:
        TokenRefused: with what is not.
    """
    options: Options = {
        "require": list(required),
        "verify_aud": audience is not None,
        # By our own clock, below.
        "verify_exp": False,
        "verify_iat": False,
        "verify_nbf": False,
    }
    try:
        claims: dict[str, Any] = jwt.decode(
            token, key, algorithms=algorithms, issuer=issuer, audience=audience, options=options
        )
        times = {name: float(claims[name]) for name in ("exp", "iat", "nbf") if name in claims}
        if not all(math.isfinite(when) for when in times.values()):
            raise ValueError("its times are no numbers")
    except jwt.InvalidSignatureError:
        raise TokenRefused("the token's signature is wrong") from None
    except jwt.InvalidAudienceError:
        raise TokenRefused(f"the token is not for this server: its audience is not {audience!r}") from None
    except (jwt.InvalidTokenError, ValueError, TypeError) as error:
        raise TokenRefused(f"the token is not valid: {error}") from None
    if times["exp"] + LEEWAY <= now:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(times["exp"]))
        raise TokenRefused(f"the token has expired on {when}: ask for another (hpo-pilot token create)")
    if max(times.get("iat", now), times.get("nbf", now)) - LEEWAY > now:
        raise TokenRefused("the token is not valid yet: is this machine's clock, or the issuer's, wrong?")
    return claims


def check_origin(origin: str, vo: object, groups: object) -> None:
    """Checks the virtual organisation that a call names as panda-server 1.0.4 does (`srvcore/panda_request.py`).

    The header is ``vo``, ``vo:role`` or ``vo.role``; a web browser's ``https://…`` names none.

    Args:
        origin: the header; empty: none.
        vo: the token's; None: it may be used for any.
        groups: the token's memberships: ``vo``, ``vo/role``.

    Raises:
        TokenRefused: the token is for another, or its owner has no such role there.
    """
    if not origin or "://" in origin or vo is None:
        return
    named, role = split_origin(origin, str(vo))
    if named != vo:
        raise TokenRefused(f"Unknown vo : {named}; the token is for {vo}")
    members = {str(group).lstrip("/") for group in groups} if isinstance(groups, list | tuple) else set()
    if role and f"{named}/{role}" not in members:
        raise TokenRefused(f"Not a member of the {named}/{role} group")


def split_origin(origin: str, vo: str = "") -> tuple[str, str]:
    """Virtual organisation and role of an ``Origin`` header; `vo` is one whose name may have points."""
    if origin == vo:
        return origin, ""
    if ":" in origin:
        named, _, role = origin.partition(":")
        return named, role
    if "." in origin and not (origin.startswith("vo.") and not origin.startswith(f"{vo}.")):
        named, _, role = origin.rpartition(".")
        return named, role
    return origin, ""


def issuer_of(public: Mapping[str, str]) -> str:
    """The ``iss`` of tokens signed with this key."""
    return f"hpo-pilot:{public['kid']}"


def thumbprint(public: Mapping[str, str]) -> str:
    """A key's own name, as RFC 7638 makes it."""
    members = json.dumps({name: public[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"))
    return base64.urlsafe_b64encode(hashlib.sha256(members.encode()).digest()).rstrip(b"=").decode()


def _read_keys(folder: Path) -> dict[str, list[dict[str, str]]]:
    path = folder / JWKS
    try:
        content = json.loads(path.read_text())
        keys = content["keys"]
        if not keys or any(key["kid"] != thumbprint(key) for key in keys):
            raise ValueError("no keys, or one under another's name")
        for key in keys:
            jwt.PyJWK(key, ALGORITHM)
    except OSError as error:
        raise InputError(
            f"the token folder {folder} has no {JWKS}: {error.strerror}; `hpo-pilot token create` makes it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise InputError(f"{path} holds no public keys that this server can use: {error}") from error
    return {"keys": [{str(name): str(value) for name, value in key.items() if name != "d"} for key in keys]}
