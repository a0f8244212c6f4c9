"""Who signs tokens: a key in a folder, the tokens made with it, and those that were revoked.

A token is a JWT signed with ES256. Whoever only verifies needs `jwks.json` and `revoked.json` of the folder and no
secret. The folder holds

- ``signing-key.pem``: the private key, mode 0600; made once. Another key makes every token of this one worthless;
- ``jwks.json``: its public half, as RFC 7517 writes it;
- ``issued.json``: what was made of it, without the tokens themselves;
- ``revoked.json``: ``{"<token id>": <when it expires>}``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import ALGORITHM, ISSUED, JWKS, REVOKED, Role, issuer_of, thumbprint
from hpo_pilot.whole_file import write_whole

#: Longer than this no token lives: whoever needs one for ever renews it.
MOST_DAYS = 3650

_KEY = "signing-key.pem"
_LOCK = ".lock"
_NAME = re.compile(r"\w[\w .@'+-]{0,126}")
_DAY = 86400.0


@dataclass(frozen=True)
class IssuedToken:
    """What is kept of a token: all but itself.

    Attributes:
        id: its ``jti``, which revokes it.
        name: whose it is.
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
        """Opens the folder, made with its key if need be.

        Raises:
            InputError: it cannot be written or read, or its key is no key, or open to others.
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
            name: whose it is: what tasks and files belong to.
            role: what it may do.
            days: how long it is valid.
            vo: the only virtual organisation that it may be used for; empty: any.

        Returns:
            The token, which is kept nowhere, and what is kept of it.

        Raises:
            InputError: no such name or time can be.
        """
        if not _NAME.fullmatch(name) or name != name.strip():
            raise InputError(f"the name {name!r}: up to 127 letters, digits, blanks and . _ - @ ' +, a letter first")
        if not 0 < days <= MOST_DAYS:
            raise InputError(f"{days:g} days: a token lives for more than 0 and at most {MOST_DAYS} days")
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
            # What panda-client reads of a token: who one is, and the start of one's task names.
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
        """The tokens that have not expired, oldest first."""
        with self._locked():
            kept, revoked = self._read(ISSUED), self._read(REVOKED)
        now = self._clock()
        found = [
            IssuedToken(
                token_id,
                str(entry["name"]),
                Role(entry["role"]),
                str(entry["vo"]),
                float(entry["issued"]),
                float(entry["expires"]),
                token_id in revoked,
            )
            for token_id, entry in kept.items()
            if entry["expires"] > now
        ]
        return sorted(found, key=lambda token: token.issued)

    def revoke(self, token_id: str) -> IssuedToken:
        """Makes a token worthless, at once, at every server that reads this folder.

        Raises:
            InputError: no token of that id is alive.
        """
        found = next((token for token in self.issued() if token.id == token_id), None)
        if found is None:
            raise InputError(f"no living token has the id {token_id!r}; `hpo-pilot token list` shows them")
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
        if not path.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_private(path, pem.decode())
            # A public half that has no private one any more would refuse what this key signs.
            (self.folder / JWKS).unlink(missing_ok=True)
            return made
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise InputError(f"the signing key {path} can be read by others: chmod 600 {path}")
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is no private key ({error}); without it a new one is made") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise InputError(f"{path} is no key of the curve P-256; without it a new one is made")
        return key

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InputError(f"{path} is damaged: {error}") from error
        if not isinstance(content, dict):
            raise InputError(f"{path} is damaged: an object is expected")
        return content

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone with the folder; the lock ends with the process, however that ends."""
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def write_private(path: Path, content: str) -> None:
    """Writes a file for its owner alone, whole or not at all."""
    write_whole(path, content, 0o600)


def _groups(vo: str, role: Role) -> list[str]:
    """Memberships as an IAM writes them; PanDA's production role is what we call operator."""
    name = {Role.USER: None, Role.PILOT: "pilot", Role.OPERATOR: "production"}[role]
    return [vo, f"{vo}/{name}"] if name else [vo]
