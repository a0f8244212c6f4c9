"""Tokens: makes, revokes and verifies them, and identifies callers."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import logging
import math
import os
import re
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from jwt.types import Options

from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole

if TYPE_CHECKING:
    from starlette.requests import Request

    from hpo_pilot.server.issuers import Issuers

log = logging.getLogger(__name__)

_Content = TypeVar("_Content")


class WatchedFile(Generic[_Content]):
    """A JSON file, read again when it changes. While it cannot be read, the last content is used."""

    def __init__(
        self, path: Path, understand: Callable[[Any], _Content], *, what: str, missing: _Content | None = None
    ) -> None:
        """Reads the file.

        Args:
            path: path of the file.
            understand: makes the content from the JSON value; ValueError, TypeError, KeyError: it is not valid.
            what: a name of the file for messages.
            missing: the content while there is no file yet; None: the file must exist.

        Raises:
            InputError: the file is missing or not valid.
        """
        self._path = path
        self._understand = understand
        self._what = what
        self._stamp: tuple[int, int] | None = None
        #: Whether the file was removed or is not valid; then the content read before is still used.
        self.is_lost = False
        if missing is not None:
            self._content = missing
        try:
            self._read()
        except FileNotFoundError as error:
            if missing is None:
                raise InputError(f"{what} {path}: {error.strerror}") from error
        except OSError as error:
            raise InputError(f"{what} {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{what} {path} is not valid: {error}") from error

    @property
    def content(self) -> _Content:
        """Returns the current content of the file."""
        self.refresh()
        return self._content

    def refresh(self) -> bool:
        """Reads the file if it changed.

        Returns:
            True if its content has changed.
        """
        try:
            return self._read()
        except FileNotFoundError:
            self._stamp, self.is_lost = None, True
            return False  # there was no file yet, or it is being replaced
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, OSError):
                self._stamp = None  # it is read again at the next look
            else:
                self.is_lost = True
            log.error("%s %s: %s; the content read before stays in use", self._what, self._path, error)
            return False

    def _read(self) -> bool:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return False
        # Noted before the file is read, so that a broken file is reported once.
        self._stamp = stamp
        self._content = self._understand(json.loads(self._path.read_text()))
        self.is_lost = False
        return True


# Verifying bearer tokens: JWTs that `Authority` signs and, if a server trusts other issuers,
# theirs (`issuers`). `Tokens` is all that a server needs; it holds no secret.

#: The only algorithm of our own tokens; a token cannot choose another.
ALGORITHM = "ES256"

#: The largest difference between clocks, in seconds.
LEEWAY = 60

#: Files of the token folder; see `authority`.
JWKS, ISSUED, REVOKED = "jwks.json", "issued.json", "revoked.json"

_NO_TOKEN = "A valid bearer token is required"  # noqa: S105  # a message, no token
_CLAIMS = ("iss", "sub", "role", "iat", "exp", "jti")
_LONGEST = 16_384  # characters of a token
_REMEMBERED = 4096  # tokens
_SECRET_BYTES = 32


class Role(StrEnum):
    """Rights of a token."""

    USER = "user"  #: submits, watches and changes own tasks
    PILOT = "pilot"  #: takes jobs and reports on them
    OPERATOR = "operator"  #: everything, for everybody: PanDA's production role


@dataclass(frozen=True)
class Caller:
    """The owner of a valid token.

    Attributes:
        name: the name under which the server keeps the owner's tasks and files.
        nickname: the name that panda-client puts into the names of tasks and files, if an issuer calls its users
            otherwise; empty: `name`.
    """

    name: str
    role: Role
    nickname: str = field(default="", compare=False)

    @property
    def is_operator(self) -> bool:
        """Whether the caller has the role that PanDA calls production."""
        return self.role is Role.OPERATOR


@dataclass(frozen=True)
class PilotIdentity:
    """Identifies a pilot.

    The pilots of a site often share a token. Each of our pilots also has its own key. Then only the key identifies it,
    so no pilot can act for another. A Pilot 3 has no key: its token and the node that took the job identify it.

    Attributes:
        name: name of the token's owner.
        key: SHA-256 of its own key, in hexadecimal digits; empty: it shows none.
        is_operator: True if it may act for every pilot.
    """

    name: str
    key: str = ""
    is_operator: bool = False

    @classmethod
    def of(cls, caller: Caller, key: str) -> PilotIdentity:
        """Returns the identity of a caller that shows `key`, which may be empty."""
        return cls(caller.name[:400], hashlib.sha256(key.encode()).hexdigest() if key else "", caller.is_operator)

    def has(self, job: Any, node: str = "") -> bool:
        """Returns whether this pilot took the job.

        Args:
            job: a row with the columns holder, holder_node and holder_key.
            node: the node that the pilot names; empty: it names none.
        """
        if self.is_operator or job.holder is None:
            return True
        if job.holder_key is not None:
            return hmac.compare_digest(job.holder_key, self.key)
        return job.holder == self.name and (not node or job.holder_node in (None, node[:128]))


class TokenRefused(Exception):
    """The token is refused; the message tells its sender why."""


class Tokens:
    """Verifies tokens of one folder's authority, and of other issuers that the server trusts.

    A token that was verified is remembered until it expires or anything is revoked. Safe to use from any thread.
    """

    def __init__(self, folder: Path, others: Issuers | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Reads the folder's public keys.

        Args:
            folder: the folder of an `Authority`; its ``jwks.json`` and ``revoked.json`` are enough.
            others: further issuers.
            clock: returns seconds since the epoch.

        Raises:
            InputError: there are no keys, or they are not valid.
        """
        self.others = others
        self._clock = clock
        self.public_keys = _read_keys(folder)
        self._keys = {key["kid"]: jwt.PyJWK(key, ALGORITHM) for key in self.public_keys["keys"]}
        self._issuers = {kid: issuer_of(key) for kid, key in zip(self._keys, self.public_keys["keys"], strict=True)}
        self._revoked = WatchedFile(
            folder / REVOKED, frozenset[str], what="the list of revoked tokens", missing=frozenset[str]()
        )
        self._known: OrderedDict[tuple[bytes, str], tuple[Caller, float]] = OrderedDict()

    def caller(self, request: Request) -> Caller:
        """Returns the sender of a request.

        Raises:
            TokenRefused: the token is not valid; the message has the reason.
        """
        return self.verify(request.headers.get("authorization"), request.headers.get("origin"))

    def verify(self, authorization: str | None, origin: str | None = None) -> Caller:
        """Returns the sender of these headers.

        Args:
            authorization: the header ``Authorization``.
            origin: the header ``Origin``, where panda-client names the virtual organisation.

        Raises:
            TokenRefused: the token is not valid; the message has the reason.
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
            raise TokenRefused(f"{_NO_TOKEN}: it is not a JSON web token") from None
        issuer = str(unverified.get("iss"))
        if self.others is not None and self.others.knows(issuer):
            return self.others.verify(token, issuer, origin)
        kid = header.get("kid")
        if kid not in self._keys or issuer != self._issuers[kid]:
            ours = " or ".join(sorted(set(self._issuers.values())))
            raise TokenRefused(
                f"the token is of another issuer, {issuer[:200]!r}; this server accepts tokens of {ours}"
            )
        claims = verified(
            token, self._keys[kid].key, [ALGORITHM], now=self._clock(), issuer=issuer, required=_CLAIMS, audience=None
        )
        if str(claims["jti"]) in self._revoked.content:
            raise TokenRefused(f"the token {claims['jti']} was revoked: ask for another (hpo-pilot token create)")
        try:
            role = Role(claims["role"])
        except ValueError:
            raise TokenRefused(f"the token has the role {claims['role']!r}, which this server does not have") from None
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
    """Returns the claims of a token after checking its signature, issuer, audience and times.

    Raises:
        TokenRefused: one of them is wrong; the message says which.
    """
    options: Options = {
        "require": list(required),
        "verify_aud": audience is not None,
        # Checked below, by our own clock.
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
            raise ValueError("its times are not numbers")
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
        raise TokenRefused("the token is not valid yet: check the clocks of this machine and of the issuer")
    return claims


def check_origin(origin: str, vo: object, groups: object) -> None:
    """Checks the virtual organisation that a call names as panda-server 1.0.4 does (`srvcore/panda_request.py`).

    The header is ``vo``, ``vo:role`` or ``vo.role``; a web browser's ``https://…`` names none.

    Args:
        origin: the header; empty: there is none.
        vo: the virtual organisation of the token; None: any.
        groups: the token's memberships: ``vo``, ``vo/role``.

    Raises:
        TokenRefused: the token is for another virtual organisation, or its owner does not have the role there.
    """
    if not origin or "://" in origin or vo is None:
        return
    named, role = split_origin(origin, str(vo))
    if named != vo:
        raise TokenRefused(f"Unknown vo : {named}; the token is for {vo}")
    members = {str(group).lstrip("/") for group in groups} if isinstance(groups, list | tuple) else set()
    if role and f"{named}/{role}" not in members:
        raise TokenRefused(f"Not a member of the {named}/{role} group")


def split_origin(origin: str, vo: str) -> tuple[str, str]:
    """Returns virtual organisation and role of an ``Origin`` header; only the name `vo` may contain points."""
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
    """Returns the ``iss`` of tokens signed with this key."""
    return f"hpo-pilot:{public['kid']}"


def thumbprint(public: Mapping[str, str]) -> str:
    """Returns the thumbprint of a key (RFC 7638)."""
    members = json.dumps({name: public[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"))
    return base64.urlsafe_b64encode(hashlib.sha256(members.encode()).digest()).rstrip(b"=").decode()


def _read_keys(folder: Path) -> dict[str, list[dict[str, str]]]:
    path = folder / JWKS
    try:
        content = json.loads(path.read_text())
        keys = content["keys"]
        if not keys or any(key["kid"] != thumbprint(key) for key in keys):
            raise ValueError("no keys, or a key with a wrong name")
        for key in keys:
            jwt.PyJWK(key, ALGORITHM)
    except OSError as error:
        raise InputError(
            f"the token folder {folder} has no {JWKS}: {error.strerror}; make it with `hpo-pilot token create`"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise InputError(f"{path} has no public keys that this server can use: {error}") from error
    return {"keys": [{str(name): str(value) for name, value in key.items() if name != "d"} for key in keys]}


# Secrets of the server's folder.

#: The file with the key of paths below ``/bigmon/``; see `bigpanda`.
BIGMON_KEY = "bigmon.key"


def read_secret(file: Path, make: Callable[[], bytes]) -> bytes:
    """Returns the secret that a file holds; a missing or empty file gets the one that `make` returns.

    Raises:
        InputError: the file cannot be read or written, or is damaged.
    """
    try:
        if not file.exists() or not file.stat().st_size:
            write_whole(file, make(), 0o600)
        secret = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    if len(secret) < _SECRET_BYTES:
        raise InputError(f"{file} is damaged: remove it, and the next start makes another")
    return secret


class Capabilities:
    """Random path segments, each valid for the points of one job while a pilot has it.

    The payload's environment has no token: with this it can read its own points and report on them, and no more.
    """

    def __init__(self, file: Path) -> None:
        """Reads the secret that makes them, and writes one if there is none.

        Raises:
            InputError: it cannot be read or written.
        """
        self._secret = read_secret(file, lambda: secrets.token_bytes(32))

    def of(self, panda_id: int) -> str:
        """Returns the capability of a job."""
        digest = hmac.digest(self._secret, str(panda_id).encode(), hashlib.sha256)
        return f"{panda_id}-{base64.urlsafe_b64encode(digest[:24]).decode()}"

    def job(self, capability: str) -> int | None:
        """Returns the job of a capability; None: no job has it."""
        number = capability.partition("-")[0]
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            return None
        expected = self.of(int(number))
        return int(number) if hmac.compare_digest(expected.encode(), capability.encode("utf-8", "replace")) else None


# Signing tokens. A token is a JWT signed with ES256. Verifying needs only `jwks.json` and `revoked.json` of the
# folder, and no secret. The folder holds
#
# - ``signing-key.pem``: the private key, mode 0600; made once. Tokens of another key are not valid;
# - ``jwks.json``: its public half, as RFC 7517 writes it;
# - ``issued.json``: records of the issued tokens, without the tokens themselves;
# - ``revoked.json``: ``{"<token id>": <when it expires>}``.

#: The longest life of a token.
MOST_DAYS = 3650

_KEY = "signing-key.pem"
_LOCK = ".lock"
_NAME = re.compile(r"\w[\w .@'+-]{0,126}")
_DAY = 86400.0


@dataclass(frozen=True)
class IssuedToken:
    """The record of an issued token, without the token itself.

    Attributes:
        id: its ``jti``, which revokes it.
        name: name of its owner.
        issued: seconds since the epoch.
        expires: seconds since the epoch.
    """

    id: str
    name: str
    role: Role
    vo: str
    issued: float
    expires: float
    revoked: bool = False


class Authority:
    """Makes tokens and revokes them. Any number of processes may use one folder."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Opens the folder. Makes the folder and its key if they do not exist.

        Raises:
            InputError: the folder cannot be written or read, or its key is not valid or readable by others.
        """
        self.folder = folder
        self._clock = clock
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                self._key = self._load_key()
                if not (folder / JWKS).exists():
                    write_private(folder / JWKS, json.dumps({"keys": [self._public()]}))
        except OSError as error:
            raise InputError(f"the token folder {folder} cannot be used: {error.strerror}") from error

    def issue(self, name: str, role: Role, days: float, vo: str = "") -> tuple[str, IssuedToken]:
        """Makes a token.

        Args:
            name: its owner, to whom tasks and files belong.
            role: its rights.
            days: how long it is valid, in days.
            vo: the only virtual organisation for which it is valid; empty: any.

        Returns:
            The token, which is not stored, and the record of it.

        Raises:
            InputError: the name or the time is not valid.
        """
        if not _NAME.fullmatch(name) or name != name.strip():
            raise InputError(f"the name {name!r}: up to 127 letters, digits, blanks and . _ - @ ' +, a letter first")
        if not 0 < days <= MOST_DAYS:
            raise InputError(f"{days:g} days: a token is valid for more than 0 and at most {MOST_DAYS} days")
        now = self._clock()
        record = IssuedToken(secrets.token_hex(8), name, role, vo, now, now + days * _DAY)
        public = self._public()
        claims: dict[str, Any] = {
            "iss": issuer_of(public),
            "sub": name,
            "role": role.value,
            "iat": int(now),
            "exp": int(record.expires),
            "jti": record.id,
            # The claims that panda-client reads: the user's name, and the prefix of the user's task names.
            "name": name,
            "preferred_username": name,
            "groups": _groups(vo or "hpo_pilot", role),
        }
        if vo:
            claims["vo"] = vo
        token = jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"kid": public["kid"]})
        with self._locked():
            kept = {key: entry for key, entry in self._read(ISSUED).items() if entry["expires"] > now - _DAY}
            entry = asdict(record) | {"role": role.value}
            del entry["id"], entry["revoked"]
            kept[record.id] = entry
            write_private(self.folder / ISSUED, json.dumps(kept))
        return token, record

    def issued(self) -> list[IssuedToken]:
        """Returns the tokens that have not expired, oldest first."""
        with self._locked():
            kept, revoked = self._read(ISSUED), self._read(REVOKED)
        now = self._clock()
        found = [
            IssuedToken(**entry | {"id": token_id, "role": Role(entry["role"]), "revoked": token_id in revoked})
            for token_id, entry in kept.items()
            if entry["expires"] > now
        ]
        return sorted(found, key=lambda token: token.issued)

    def revoke(self, token_id: str) -> IssuedToken:
        """Revokes a token at once, at every server that reads this folder.

        Raises:
            InputError: there is no valid token with this id.
        """
        found = next((token for token in self.issued() if token.id == token_id), None)
        if found is None:
            raise InputError(f"no valid token has the id {token_id!r}; `hpo-pilot token list` shows the tokens")
        with self._locked():
            now = self._clock()
            revoked = {key: until for key, until in self._read(REVOKED).items() if until > now - _DAY}
            revoked[token_id] = found.expires
            write_private(self.folder / REVOKED, json.dumps(revoked))
        return found

    def _public(self) -> dict[str, str]:
        jwk: dict[str, str] = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return jwk | {"kid": thumbprint(jwk), "alg": ALGORITHM, "use": "sig"}

    def _load_key(self) -> ec.EllipticCurvePrivateKey:
        path = self.folder / _KEY
        if not path.exists() or not path.stat().st_size:
            made = ec.generate_private_key(ec.SECP256R1())
            pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_private(path, pem.decode())
            # With the public half of an earlier key, tokens that this key signs would be refused.
            (self.folder / JWKS).unlink(missing_ok=True)
            return made
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise InputError(f"the signing key {path} can be read by others: chmod 600 {path}")
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is not a private key ({error}); without this file a new one is made") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise InputError(f"{path} is not a key of the curve P-256; without this file a new one is made")
        return key

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        remedy = f"restore it from a backup, or delete {self.folder}: all tokens are then made anew"
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InputError(f"{path} is damaged: {error}; {remedy}") from error
        if not isinstance(content, dict):
            raise InputError(f"{path} is damaged: an object is expected; {remedy}")
        return content

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the folder against other processes. The lock ends with the process, also after a crash."""
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def write_private(path: Path, content: str) -> None:
    """Writes a file that only its owner can read, completely or not at all."""
    write_whole(path, content, 0o600)


def _groups(vo: str, role: Role) -> list[str]:
    """Returns memberships in the form of an IAM; our operator role is PanDA's production role."""
    name = {Role.USER: None, Role.PILOT: "pilot", Role.OPERATOR: "production"}[role]
    return [vo, f"{vo}/{name}"] if name else [vo]
