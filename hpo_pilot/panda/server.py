"""Addresses of PanDA servers, the credentials for them, and the address file of the embedded server."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.http import open_session

#: What panda-client reads of its environment to know server and user.
_VARIABLES = ("PANDA_", "OIDC_", "X509_")

#: The server that panda-client takes where nobody names one.
_ATLAS = "pandaserver.cern.ch"

#: prun's VO where none is said.
_DEFAULT_VO = "atlas"


@dataclass(frozen=True)
class PandaServer:
    """A PanDA server and the user's credentials there.

    Attributes:
        url: scheme://host:port, without a path.
        token_file: a file with the user's bearer token, mode 0600, read again at every call; None: whatever
            panda-client finds in its environment (PANDA_AUTH and its like): a token, its own token cache, a proxy.
        owner: the user's name in names of tasks.
        vo: the virtual organisation.
        authorities: a folder of certificate authorities by the hash of their names; None: the usual ones.
    """

    url: str
    token_file: Path | None
    owner: str
    vo: str = "hpo_pilot"
    authorities: Path | None = None

    def environment(self) -> dict[str, str]:
        """The environment in which panda-client talks to this server.

        A token of ours goes by file, so that no process list shows it.
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
        """A session for calls that panda-client does not have; it checks certificates as panda-client would."""
        folder = os.environ.get("X509_CERT_DIR") if self.token_file is None else None
        session = open_session(self.url, self.authorities or (Path(folder) if folder else None))
        if self.token_file is None and os.environ.get("PANDA_VERIFY_HOST") == "off":
            session.verify = False
        return session

    def headers(self) -> dict[str, str]:
        """Authorization for calls that panda-client does not have; empty where there is no bearer token to show.

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
        """Whether sandboxes go to the file cache that PANDACACHE_URL names, as prun has it for ATLAS."""
        return self.token_file is None and self.vo == _DEFAULT_VO


def address(url: str, where: str) -> str:
    """scheme://host:port of a PanDA server's URL, whatever path it has.

    Args:
        url: as the user gave it.
        where: the option or variable, for the message.

    Raises:
        InputError: it is no such URL.
    """
    parts = urlsplit(url)
    try:
        proper = parts.scheme in ("http", "https") and parts.hostname is not None and (parts.port or 1) > 0
    except ValueError:
        proper = False
    if not proper or parts.username is not None:
        raise InputError(f"{where}: {url!r} is no address of a PanDA server: https://host:port is one")
    return f"{parts.scheme}://{parts.netloc}"


def environment_server(environment: Mapping[str, str] = os.environ) -> str | None:
    """The server that the user's environment names for panda-client; None: none."""
    url = environment.get("PANDA_URL_SSL")
    return address(url, "PANDA_URL_SSL") if url else None


def environment_vo(environment: Mapping[str, str] = os.environ) -> str:
    """The user's virtual organisation, as panda-client's environment has it."""
    if environment.get("PANDA_AUTH") != "oidc":
        return _DEFAULT_VO
    return environment.get("PANDA_AUTH_VO") or environment.get("OIDC_AUTH_VO") or _DEFAULT_VO


def _addresses(url: str, base: str) -> dict[str, str]:
    """The variables that lead panda-client to `url`; the user's own where they do so already."""
    host = urlsplit(url).hostname or ""
    found = dict.fromkeys(("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"), base)
    if environment_server() == url:
        found = {name: value for name, value in found.items() if not os.environ.get(name)}
    if host == _ATLAS:
        found.pop("PANDACACHE_URL", None)  # panda-client knows where its file cache is
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return found
    return found | {"PANDA_BEHIND_REAL_LB": "1"}  # an address has no other hosts behind its name


def _bearer(read: Callable[[], str], where: str, origin: str) -> dict[str, str]:
    try:
        return {"Authorization": f"Bearer {read().strip()}", "Origin": origin}
    except OSError as error:
        raise TryAgainError(f"cannot read the token file {where}: {error.strerror}") from error


# Where the embedded PanDA server of a work folder is: the file ``panda.url``, there while it runs.
#
# Its first line is the URL; then come the folder of the authorities behind its certificate (or nothing), and host,
# process and start of whoever runs it. By those a file is known that a killed server left: the token of this work
# folder
# must not go to whoever listens at its port now.

ADDRESS_FILE = "panda.url"
_TOKEN = Path("tokens", "user.token")
_SAME = 2.0  # seconds by which a process's start may seem to differ


def write_address(workdir: Path, server: PandaServer) -> None:
    """Notes that this process runs the server.

    Raises:
        TryAgainError: the file cannot be written.
    """
    lines = [
        server.url,
        str(server.authorities or ""),
        socket.gethostname(),
        str(os.getpid()),
        str(_start(os.getpid())),
    ]
    try:
        write_whole(workdir / ADDRESS_FILE, "\n".join(lines) + "\n", mode=0o600)
    except OSError as error:
        raise TryAgainError(f"{workdir / ADDRESS_FILE} cannot be written: {error.strerror}") from error


def remove_address(workdir: Path) -> None:
    """Notes that the server has ended; the file of another process stays."""
    with contextlib.suppress(OSError, ValueError):
        if int(_lines(workdir)[3]) == os.getpid():
            (workdir / ADDRESS_FILE).unlink(missing_ok=True)


def read_address(workdir: Path) -> PandaServer | None:
    """The server that runs on the work folder, with the folder's own token; None: none does."""
    try:
        url, authorities, host, process, start = _lines(workdir)
        if not _runs(url, host, int(process), float(start)):
            return None
    except (OSError, ValueError):
        return None
    return PandaServer(url, workdir / _TOKEN, "", authorities=Path(authorities) if authorities else None)


def _lines(workdir: Path) -> list[str]:
    """The file's five lines.

    Raises:
        OSError: there is no file.
        ValueError: it has other lines.
    """
    lines = (workdir / ADDRESS_FILE).read_text().splitlines()
    if len(lines) != 5:
        raise ValueError(f"{workdir / ADDRESS_FILE} has {len(lines)} lines")
    return lines


def _runs(url: str, host: str, process: int, start: float) -> bool:
    if host != socket.gethostname():
        return not _is_loopback(url)  # of another machine's processes nothing is known here
    return abs(_start(process) - start) <= _SAME


def _start(process: int) -> float:
    """When a process began, seconds since the epoch; 0: there is no such process."""
    try:
        return float(psutil.Process(process).create_time())
    except psutil.Error:
        return 0.0


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
