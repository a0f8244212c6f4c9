"""Callers with a grid certificate, behind a proxy that verified it and hands on its distinguished name in a header.

Off unless asked for: whoever can reach the server past the proxy could claim any name. Hence the header counts only
from addresses that the operator names (or from this machine), and is an offence from everywhere else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from starlette.requests import Request

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Caller, Role, TokenRefused
from hpo_pilot.server.access.watched_file import WatchedFile

_HEADER = re.compile(r"[A-Za-z0-9-]+")

#: A component's beginning in the form /DC=ch/CN=name: a slash inside a value, as in host/name, begins none.
_SLASH = re.compile(r"/(?=[A-Za-z][A-Za-z0-9.]*=)")
_COMMA = re.compile(r"(?<!\\),\s*(?=[A-Za-z][A-Za-z0-9.]*=)")

#: Common names that say nothing of the person (`clean_user_id` of panda-server 1.0.4 takes them away).
_NOT_A_NAME = re.compile(r"\d+|(limited )?proxy|Robot:.*|nickname:.*", re.IGNORECASE)
_NUMBER = re.compile(r"[ _]\d+")
_ADDRESS = re.compile(r" [a-z][\w.-]+@[\w.-]+(?:\.\w+)+")
_LIMITED = re.compile(r"CN=limited proxy", re.IGNORECASE)


def person(name: str) -> str:
    """The person's name in a distinguished name, as PanDA cleans it up: without numbers, proxies, addresses, brackets.

    Args:
        name: as OpenSSL writes it (``/DC=ch/OU=users/CN=jane/CN=123/CN=Jane Doe``) or as RFC 4514 does.
    """
    commons = [value for key, value in _components(name) if key == "CN" and not _NOT_A_NAME.fullmatch(value)]
    found = _NUMBER.sub("", commons[-1]) if commons else ""
    found = found.translate(str.maketrans("", "", "()'")).strip()
    without = _ADDRESS.sub("", found).strip()
    return without if " " in without else found


class ProxyHeader:
    """Takes callers' names from a header of a proxy."""

    def __init__(self, header: str, roles: Path, proxies: Collection[str] = ()) -> None:
        """Reads the roles.

        Args:
            header: its name.
            roles: a JSON file ``{"<distinguished name or person>": "user" | "pilot" | "operator", …}``; ``"*"`` is for
                everybody who is not named. Read again when it changes.
            proxies: addresses or networks of proxies; none: this machine alone.

        Raises:
            InputError: one of them makes no sense.
        """
        if not _HEADER.fullmatch(header):
            raise InputError(f"--dn-header {header!r} is no name of a header, such as X-SSL-Client-S-DN")
        self.header = header
        self._roles = WatchedFile(roles, _read_roles, what="the file of roles")
        try:
            self._proxies = [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]
        except ValueError as error:
            raise InputError(f"--trusted-proxy: {error}; give an address or a network, such as 10.0.0.0/8") from error

    def caller(self, request: Request) -> Caller | None:
        """Whom the header names; None: the request has none.

        Raises:
            TokenRefused: it came from elsewhere, or names nobody who has a role here.
        """
        given = request.headers.getlist(self.header)
        if not given:
            return None
        if not self._trusts(request.client.host if request.client else None):
            raise TokenRefused(f"the header {self.header} is taken from a trusted proxy alone")
        if len(given) > 1:
            raise TokenRefused(f"the header {self.header} came {len(given)} times: the proxy must replace it")
        subject = given[0].strip()
        if _LIMITED.search(subject):
            raise TokenRefused("a limited proxy certificate is not taken")
        name = person(subject)
        roles = self._roles.content
        role = roles.get(subject) or roles.get(name) or roles.get("*")
        if not name or role is None:
            raise TokenRefused(f"{subject[:300]!r} has no role here")
        return Caller(name[:128], role)

    def _trusts(self, peer: str | None) -> bool:
        if peer is None:  # a unix socket
            return True
        try:
            address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(peer.split("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if self._proxies:
            return any(address in network for network in self._proxies)
        return address.is_loopback


def _components(name: str) -> list[tuple[str, str]]:
    """(key, value) from the root to the person."""
    if name.startswith("/"):
        parts = _SLASH.split(name)
    else:
        parts = [part.replace("\\,", ",") for part in reversed(_COMMA.split(name))]
    return [(key.strip().upper(), value.strip()) for key, _, value in (part.partition("=") for part in parts if part)]


def _read_roles(content: object) -> Mapping[str, Role]:
    if not isinstance(content, dict):
        raise ValueError('expected {"<distinguished name or person>": "user" | "pilot" | "operator"}')
    return {str(name): Role(role) for name, role in content.items()}
