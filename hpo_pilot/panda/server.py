"""Addresses of PanDA servers and their web pages, credentials, and the address file of the embedded server."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, urlsplit

import psutil

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.trust import is_loopback

if TYPE_CHECKING:
    import requests

#: Prefixes of the variables by which panda-client knows server and user.
_VARIABLES = ("PANDA_", "OIDC_", "X509_")

#: The default server of panda-client.
_ATLAS = "pandaserver.cern.ch"

#: The default virtual organisation of prun.
_DEFAULT_VO = "atlas"


@dataclass(frozen=True)
class PandaServer:
    """A PanDA server and the user's credentials there.

    Attributes:
        url: scheme://host:port, without a path.
        token_file: a file with the user's bearer token, mode 0600, read again at every call; None: the credentials that
            panda-client finds by its environment (PANDA_AUTH, …): a token, its own token cache, or a proxy.
        owner: the user's name in names of tasks.
        vo: the virtual organisation.
        authorities: a folder of certificate authorities by the hash of their names; None: the usual authorities.
    """

    url: str
    token_file: Path | None
    owner: str
    vo: str = "hpo_pilot"
    authorities: Path | None = None

    def environment(self) -> dict[str, str]:
        """Returns the environment in which panda-client calls this server.

        Our own token is passed as a file, so that no list of processes shows it.
        """
        base = f"{self.url}/server/panda"
        common = {"OMP_NUM_THREADS": "1"}
        if self.authorities is not None:
            common["X509_CERT_DIR"] = str(self.authorities)
        if self.token_file is None:
            return {**os.environ, **_addresses(self.url, base), **common}
        # The user's own PanDA settings are for another server.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)}
        return {
            **inherited,
            "PANDA_URL": base,
            "PANDA_URL_SSL": base,
            "PANDACACHE_URL": base,
            "PANDA_BEHIND_REAL_LB": "1",
            "PANDA_AUTH": "oidc",
            "PANDA_AUTH_VO": self.vo,
            "OIDC_AUTH_TOKEN_FILE": str(self.token_file),
            **common,
        }

    def session(self) -> requests.Session:
        """Opens a session for calls that panda-client does not have; it checks certificates as panda-client does."""
        from hpo_pilot.http import open_session  # noqa: PLC0415  requests is slow to import, and `status` needs only links

        folder = os.environ.get("X509_CERT_DIR") if self.token_file is None else None
        session = open_session(self.url, self.authorities or (Path(folder) if folder else None))
        if self.token_file is None and os.environ.get("PANDA_VERIFY_HOST") == "off":
            session.verify = False
        return session

    def headers(self) -> dict[str, str]:
        """Returns the authorization for calls that panda-client does not have; empty: there is no bearer token.

        Raises:
            TryAgainError: the token's file cannot be read.
        """
        if self.token_file is not None:
            return _bearer(self.token_file.read_text, str(self.token_file), self.vo)
        if os.environ.get("PANDA_AUTH") != "oidc":
            return {}
        origin = os.environ.get("PANDA_AUTH_VO") or os.environ.get("OIDC_AUTH_VO") or self.vo
        path = os.environ.get("OIDC_AUTH_TOKEN_FILE")
        if path and not os.environ.get("PANDA_AUTH_ID_TOKEN"):
            return _bearer(Path(path).read_text, path, origin)
        token = os.environ.get("PANDA_AUTH_ID_TOKEN") or os.environ.get("OIDC_AUTH_ID_TOKEN")
        return _bearer(lambda: str(token), "", origin) if token else {}

    @property
    def uses_cache_server(self) -> bool:
        """True if sandboxes go to the file cache of PANDACACHE_URL, as with prun for ATLAS."""
        return self.token_file is None and self.vo == _DEFAULT_VO


def address(url: str, where: str) -> str:
    """Returns scheme://host:port of a PanDA server's URL, without its path.

    Args:
        url: the URL from the user.
        where: the option or variable, for the message.

    Raises:
        InputError: it is not such a URL.
    """
    if (parts := _web_address(url)) is None:
        raise InputError(f"{where}: {url!r} is not the address of a PanDA server: give one as https://host:port")
    return f"{parts.scheme}://{parts.netloc}"


def environment_server() -> str | None:
    """Returns the server that the user's environment names for panda-client; None: none."""
    url = os.environ.get("PANDA_URL_SSL")
    return address(url, "PANDA_URL_SSL") if url else None


def environment_vo() -> str:
    """Returns the user's virtual organisation from panda-client's environment."""
    if os.environ.get("PANDA_AUTH") != "oidc":
        return _DEFAULT_VO
    return os.environ.get("PANDA_AUTH_VO") or os.environ.get("OIDC_AUTH_VO") or _DEFAULT_VO


# BigPanDA has web pages with the tasks and jobs of a PanDA server. The server does not know their address.

#: Addresses of BigPanDA by the servers' hosts: ATLAS's from panda-client 2.2.0, DOMA's from PanDA's documentation.
_BIGPANDA = {_ATLAS: "https://bigpanda.cern.ch", "pandaserver-doma.cern.ch": "https://panda-doma.cern.ch"}


def bigpanda_link(
    server: str | None, uid: str, *, monitor: str | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Returns the address of BigPanDA's page with all tasks of a search; None: no such page is known.

    Args:
        server: URL of the search's PanDA server, from the store; None, or not a URL: it has none, or an embedded one.
        uid: the search's uid, which is part of the names of its tasks.
        monitor: the search file's ``panda.monitor``. Default: PANDAMON_URL of the environment (as in panda-client's
            notebooks), else the known address for that server.
        environment: variables, for PANDAMON_URL.
    """
    if server is None or not server.startswith(("http://", "https://")):
        return None
    base = monitor or environment.get("PANDAMON_URL") or _BIGPANDA.get(urlsplit(server).hostname or "")
    # It may become a link.
    if not base or not _web_address(base) or not base.isprintable() or set(base) & set(" \"'<>\\"):
        return None
    return f"{base.rstrip('/')}/tasks/?taskname={quote(f'*.{uid}.g*', safe='*')}"


def _web_address(url: str) -> SplitResult | None:
    """Returns the parts of a web address without a login in it; None: it is something else."""
    try:
        parts = urlsplit(url)
        proper = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return None
    return parts if proper and parts.username is None else None


def _addresses(url: str, base: str) -> dict[str, str]:
    """Returns the variables that direct panda-client to `url`, without the variables that the user has set for it."""
    host = urlsplit(url).hostname or ""
    found = dict.fromkeys(("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"), base)
    if environment_server() == url:
        found = {name: value for name, value in found.items() if not os.environ.get(name)}
    if host == _ATLAS:
        found.pop("PANDACACHE_URL", None)  # panda-client knows the file cache
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return found
    return found | {"PANDA_BEHIND_REAL_LB": "1"}  # an IP address means one host


def _bearer(read: Callable[[], str], where: str, origin: str) -> dict[str, str]:
    try:
        return {"Authorization": f"Bearer {read().strip()}", "Origin": origin}
    except OSError as error:
        raise TryAgainError(f"cannot read the token file {where}: {error.strerror}") from error


# The file ``panda.url`` has the address of a work folder's embedded PanDA server, while the server runs. Its lines are
# the URL, the folder of its certificate authorities (or nothing), and host, number and start time of its process. These
# tell a file that a killed server has left: the token of the work folder must not go to another program at its port.

ADDRESS_FILE = "panda.url"
_TOKEN = Path("tokens", "user.token")
_SAME = 2.0  # tolerance for start times of a process, in seconds


def write_address(workdir: Path, server: PandaServer) -> None:
    """Writes the address file for a server that this process runs.

    Raises:
        TryAgainError: the file cannot be written.
    """
    lines = (server.url, server.authorities or "", socket.gethostname(), os.getpid(), _start(os.getpid()))
    try:
        write_whole(workdir / ADDRESS_FILE, "".join(f"{line}\n" for line in lines), mode=0o600)
    except OSError as error:
        raise TryAgainError(f"{workdir / ADDRESS_FILE} cannot be written: {error.strerror}") from error


def remove_address(workdir: Path) -> None:
    """Removes the address file at the end of the server; the file of another process stays."""
    with contextlib.suppress(OSError, ValueError):
        if int(_lines(workdir)[3]) == os.getpid():
            (workdir / ADDRESS_FILE).unlink(missing_ok=True)


def read_address(workdir: Path) -> PandaServer | None:
    """Returns the running server of a work folder, with the folder's token; None: no server runs."""
    try:
        url, authorities, host, process, start = _lines(workdir)
        if not _runs(url, host, int(process), float(start)):
            return None
    except (OSError, ValueError):
        return None
    return PandaServer(url, workdir / _TOKEN, "", authorities=Path(authorities) if authorities else None)


def _lines(workdir: Path) -> list[str]:
    """Reads the five lines of the address file.

    Raises:
        OSError: there is no file.
        ValueError: it has another number of lines.
    """
    lines = (workdir / ADDRESS_FILE).read_text().splitlines()
    if len(lines) != 5:
        raise ValueError(f"{workdir / ADDRESS_FILE} has {len(lines)} lines")
    return lines


def _runs(url: str, host: str, process: int, start: float) -> bool:
    if host != socket.gethostname():
        return not is_loopback(urlsplit(url).hostname or "")  # processes of another host cannot be checked here
    return abs(_start(process) - start) <= _SAME


def _start(process: int) -> float:
    """Returns the start time of a process in seconds since the epoch; 0: there is no such process."""
    try:
        return float(psutil.Process(process).create_time())
    except psutil.Error:
        return 0.0
