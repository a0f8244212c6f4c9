"""What pilots elsewhere need of a PanDA server: its address, a queue, a token, whom to trust."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hpo_pilot.errors import InputError
from hpo_pilot.panda.panda_server import address, environment_vo
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.server.access.auth import Role
from hpo_pilot.service.embedded import running_server
from hpo_pilot.service.local_queue import DEFAULT_QUEUE
from hpo_pilot.service.reach import AUTHORITIES
from hpo_pilot.service.workdir import WorkDir


@dataclass(frozen=True)
class PilotAccess:
    """A PanDA server as pilots elsewhere are to know it.

    Attributes:
        server: its URL.
        queue: the queue that they serve.
        token_file: with a pilot's token.
        ca: PEM file of its authorities; None: the usual ones.
        vo: the virtual organisation.
    """

    server: str
    queue: str
    token_file: Path
    ca: Path | None
    vo: str


def pilot_access(
    workdir: WorkDir,
    *,
    server: str | None,
    queue: str | None,
    token_file: Path | None,
    ca: Path | None,
    warn: Callable[[str], None],
) -> PilotAccess:
    """What the options mean; without a server, the embedded one of the work folder.

    Args:
        workdir: whose service runs.
        server: a PanDA server's URL; None: the embedded one.
        queue: None: the embedded server's own.
        token_file: None: that of the work folder's own pilots.
        ca: None: what `serve --ca` was given.
        warn: is told what may not work.

    Raises:
        InputError: something is missing.
    """
    if server is not None:
        url = address(server, "--server")
        if token_file is None or queue is None:
            missing = "--token-file, a file with a pilot's token" if token_file is None else "--panda-queue"
            raise InputError(f"--server {url} also needs {missing}")
        return PilotAccess(url, queue, token_file, ca, _vo())
    found = running_server(workdir)
    if found is None:
        raise InputError(
            f"no service runs in {workdir.root}: start `hpo-pilot serve --host 0.0.0.0 --tls-cert FILE --tls-key FILE` "
            "there, or name --server, --token-file and --panda-queue"
        )
    if _is_loopback(found.url):
        warn(
            f"the embedded server is at {found.url}, which compute nodes cannot reach unless they are this machine: "
            "start it with `hpo-pilot serve --host 0.0.0.0 --tls-cert FILE --tls-key FILE`"
        )
    if ca is None and found.authorities is not None:
        ca = found.authorities / AUTHORITIES
    token = token_file or workdir.tokens / f"{Role.PILOT.value}.token"
    return PilotAccess(found.url, queue or DEFAULT_QUEUE, token, ca, found.vo)


def _vo() -> str:
    """The virtual organisation of the user's own PanDA tokens, where there are such; else that of ours."""
    return environment_vo() if os.environ.get("PANDA_AUTH") == "oidc" else PilotSettings.vo


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
