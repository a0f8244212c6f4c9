"""The REST API and the web pages as a process beside the service, or alone."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import requests

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.http import open_session
from hpo_pilot.server.tls import is_wildcard
from hpo_pilot.server.tokens import Role
from hpo_pilot.steering.embedded import free_port
from hpo_pilot.steering.server_processes import ChildProcess, NetworkOptions, OwnTokens, wait_until_answering
from hpo_pilot.steering.workdir import STORE_VARIABLE, WorkDir, nickname

#: Where an API that keeps ending is tried again, after so many seconds.
_REST_SECONDS = 300.0

log = logging.getLogger(__name__)


class ApiProcess:
    """The API of one work folder, under the same conditions as the embedded PanDA server, but for the port."""

    def __init__(
        self,
        workdir: WorkDir,
        *,
        store: str | None,
        reach: NetworkOptions,
        port: int | None,
        address: Path | None = None,
    ) -> None:
        """Prepares; `start` runs it.

        Args:
            workdir: the service's.
            store: another store's SQLAlchemy URL.
            reach: where the PanDA server listens: address, certificate and issuers hold here too.
            port: None: a free one.
            address: the file that says where it is, while it runs; None: the work folder's `api_address`.

        Raises:
            InputError: `reach` names files that cannot be used.
        """
        self._address = address or workdir.api_address
        number = port or free_port()
        own = replace(reach, port=number)
        self.url = _url(own, number)
        self.authority_file = own.authority
        self._authorities = own.authorities(workdir)
        self._own = OwnTokens(workdir.tokens, nickname())
        self._child = ChildProcess(
            "REST API",
            [
                *(sys.executable, "-m", "hpo_pilot.web", "--workdir", str(workdir.root), "--port", str(number)),
                *("--tokens", str(workdir.tokens), "--lifeline-fd", "{lifeline}", *own.server_options()),
                # Whoever is signed in stays so when it is started again, but not when the service is.
                *("--run", secrets.token_hex(16)),
            ],
            workdir.log("api"),
            # Not among the arguments, which everybody sees: the URL may have a password.
            environment={STORE_VARIABLE: workdir.store_url(store)},
        )
        self._rest_until = 0.0

    @property
    def token_file(self) -> Path:
        """The token of this machine's user."""
        return self._own.files[Role.USER]

    def start(self) -> None:
        """Starts it; `wait` returns when it answers."""
        self._child.start()

    def wait(self) -> None:
        """Waits until it answers, and notes its address in the work folder.

        Raises:
            TryAgainError: it does not start; the message has its reason.
            InputError: its certificate does not fit.
        """

        def ours() -> dict[str, str]:
            # Our token is good at our API alone: another may have the port, and ours be about to say so.
            return {"Authorization": f"Bearer {self.token_file.read_text()}"}

        wait_until_answering(self._child, self.url, "service", self._authorities, ours)
        self._address.write_text(f"{self.url}\n")

    def link(self) -> str:
        """A one-time link that signs this machine's user in to the pages.

        Raises:
            TryAgainError: it does not answer.
        """
        return one_time_link(self.url, self.token_file, self._authorities)

    def check(self) -> None:
        """Starts it again if it has ended. One that keeps ending rests for a while: searches go on without it."""
        self._own.renew()
        if time.monotonic() < self._rest_until:
            return
        try:
            self._child.check()
        except GiveUpError as error:
            log.error("%s; it is tried again in %.0f s", error, _REST_SECONDS)
            self._rest_until = time.monotonic() + _REST_SECONDS

    def stop(self) -> None:
        """Ends it."""
        try:
            # Another of the same work folder may have come after it: its address stays.
            if self._address.read_text() == f"{self.url}\n":
                self._address.unlink()
        except FileNotFoundError:
            pass  # it has not answered yet, or the work folder was removed
        self._child.stop()


def _url(reach: NetworkOptions, port: int) -> str:
    """How clients call the API: at the PanDA server's host; behind a proxy how that does, for its ports are its own."""
    if reach.public_url is None:
        return reach.url(port)
    host = "127.0.0.1" if is_wildcard(reach.host) else reach.host
    if not reach.behind_proxy:
        host = urlsplit(reach.public_url).hostname or host
    return f"{'https' if reach.has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


_SECONDS = 20.0


def one_time_link(url: str, token_file: Path, authorities: Path | None) -> str:
    """A link to the pages that signs in whose token it is; good for ten minutes, and once.

    The token goes to the pages' server alone, in a header; what the link carries is a code of that server's making.

    Args:
        url: of the pages: scheme://host:port.
        token_file: of a user or an operator.
        authorities: those behind the certificate; None: those that everybody knows.

    Raises:
        InputError: the token cannot be read, or is not taken.
        TryAgainError: nobody answers there.
    """
    address = url.rstrip("/")
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname or "")):
        raise InputError(f"{address}: a token goes to https:// addresses alone, or to this machine")
    try:
        token = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {token_file} cannot be read: {error}") from error
    try:
        with open_session(address, authorities) as session:
            answer = session.post(
                f"{address}/login/link",
                headers={"Authorization": f"Bearer {token}"},
                timeout=_SECONDS,
                allow_redirects=False,
            )
            said = answer.json()
    except requests.exceptions.SSLError as error:
        raise InputError(f"the certificate of {address} is not trusted: {error}; name its authority: --ca") from error
    except requests.exceptions.JSONDecodeError as error:
        raise InputError(f"{address} answers, but has no pages of this version: is it an hpo-pilot service?") from error
    except requests.RequestException as error:
        raise TryAgainError(f"the pages at {address} do not answer: {error}") from error
    if answer.status_code in (401, 403):
        raise InputError(f"{address} does not take the token of {token_file}: {said.get('error', 'without a reason')}")
    if not answer.ok or not isinstance(said.get("path"), str):
        raise TryAgainError(f"{address} made no link: {said.get('error', f'status {answer.status_code}')}")
    return f"{address}{said['path']}"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_LOOK_SECONDS = 0.5


def serve_pages(
    workdir: str | Path | None,
    *,
    store: str | None,
    reach: NetworkOptions,
    on_ready: Callable[[ApiProcess], None],
) -> None:
    """Serves the pages, and the REST API, until SIGINT or SIGTERM; steers nothing.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: another store than its own.
        reach: where the pages listen.
        on_ready: called when they answer.

    Raises:
        InputError: there is no store yet, or it is removed or replaced meanwhile, or `reach` names files that cannot
            be used.
        TryAgainError: they do not start.
    """
    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        # Looking makes none: a name mistyped would look like an empty store.
        raise InputError(
            f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
        )
    store_file = _StoreFile(path) if url.startswith("sqlite:///") else None
    folder = WorkDir.make(workdir)
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    pages = ApiProcess(folder, store=store, reach=reach, port=reach.port, address=folder.pages_address)
    try:
        pages.start()
        pages.wait()
        on_ready(pages)
        while not ended.wait(_LOOK_SECONDS):
            pages.check()
            if store_file is not None and not store_file.is_there():
                # The pages have the old one open: they would show what it held, for ever.
                raise InputError(f"the store at {path} was removed or replaced: start the monitor again")
    finally:
        pages.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class _StoreFile:
    """A store's file, which somebody may remove while it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = path.stat()

    def is_there(self) -> bool:
        """Whether it is still the same file."""
        try:
            return os.path.samestat(self._path.stat(), self._known)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # its file system does not answer: nothing is known


def address_of_pages(workdir: str | Path | None) -> str:
    """Where the pages of a work folder are, of a service or alone.

    Raises:
        InputError: none run, as far as the work folder knows.
    """
    folder = WorkDir.at(workdir)
    for file in (folder.api_address, folder.pages_address):
        try:
            return file.read_text().strip()
        except OSError:
            continue
    raise InputError(
        f"no pages run on the work folder {folder.root}: `hpo-pilot monitor` or `hpo-pilot serve` starts them; "
        "name another with --workdir, or a service with --service"
    )
