"""REST API and web pages beside the service: a process of its own, so that no slow call ever holds up the steering."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from hpo_pilot.errors import GiveUpError
from hpo_pilot.server.access.auth import Role
from hpo_pilot.server.access.tls import is_wildcard
from hpo_pilot.service.answering import wait_until_answering
from hpo_pilot.service.children import Child
from hpo_pilot.service.embedded import free_port
from hpo_pilot.service.nickname import nickname
from hpo_pilot.service.one_time_link import one_time_link
from hpo_pilot.service.own_tokens import OwnTokens
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.workdir import STORE_VARIABLE, WorkDir

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
        reach: Reach,
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
        self._child = Child(
            "REST API",
            [
                *(sys.executable, "-m", "hpo_pilot.rest", "--workdir", str(workdir.root), "--port", str(number)),
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


def _url(reach: Reach, port: int) -> str:
    """How clients call the API: at the PanDA server's host; behind a proxy how that does, for its ports are its own."""
    if reach.public_url is None:
        return reach.url(port)
    host = "127.0.0.1" if is_wildcard(reach.host) else reach.host
    if not reach.behind_proxy:
        host = urlsplit(reach.public_url).hostname or host
    return f"{'https' if reach.has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
