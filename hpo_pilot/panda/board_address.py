"""Where the embedded PanDA server of a work folder is: the file ``panda.url``, there while it runs.

Its first line is the URL; then come the folder of the authorities behind its certificate (or nothing), and host,
process and start of whoever runs it. By those a file is known that a killed server left: the token of this work folder
must not go to whoever listens at its port now.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from hpo_pilot.errors import TryAgainError
from hpo_pilot.panda.panda_server import PandaServer
from hpo_pilot.whole_file import write_whole

FILE = "panda.url"
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
        write_whole(workdir / FILE, "\n".join(lines) + "\n", mode=0o600)
    except OSError as error:
        raise TryAgainError(f"{workdir / FILE} cannot be written: {error.strerror}") from error


def remove_address(workdir: Path) -> None:
    """Notes that the server has ended; the file of another process stays."""
    with contextlib.suppress(OSError, ValueError):
        if int(_lines(workdir)[3]) == os.getpid():
            (workdir / FILE).unlink(missing_ok=True)


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
    lines = (workdir / FILE).read_text().splitlines()
    if len(lines) != 5:
        raise ValueError(f"{workdir / FILE} has {len(lines)} lines")
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
