"""Sandboxes in a server's file cache, which forgets files that nobody touches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.panda.client_process import ClientProcess, MissingCallError

#: A file that was touched this long ago is touched again, in seconds; caches keep files for days at least.
_TOUCH_SECONDS = 12 * 3600.0

#: How long an upload may take, in seconds: 768 MB at most.
_UPLOAD_SECONDS = 600.0


@dataclass(frozen=True)
class _Upload:
    source: str
    at: float


class SandboxCache:
    """The sandboxes of this process at one server."""

    def __init__(
        self, client: ClientProcess, *, use_cache_server: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Knows nothing yet of what the server has.

        Args:
            client: panda-client.
            use_cache_server: whether files go to PANDACACHE_URL's host and not to the server's own.
            clock: in seconds.
        """
        self._client = client
        self._use_cache_server = use_cache_server
        self._clock = clock
        self._known: dict[str, _Upload] = {}

    def keep(self, sandbox: Path, *, again: bool = False) -> str:
        """Makes sure that the server has the file and will not forget it soon.

        Args:
            sandbox: the file; its name is its content, so one of that name that is there is this one.
            again: send it whatever is known of it; a server that has it lets that be.

        Returns:
            scheme://host:port of the host that has it.

        Raises:
            TryAgainError: the server takes no file now.
            GiveUpError: the server no longer has it, and neither have we.
        """
        known = self._known.get(sandbox.name)
        if known is not None and not again and self._clock() - known.at < _TOUCH_SECONDS:
            return known.source
        if again or not self._touch(sandbox):
            self._upload(sandbox)
        source = str(self._client.call("sourceURL", self._use_cache_server))
        self._known[sandbox.name] = _Upload(source, self._clock())
        return source

    def _touch(self, sandbox: Path) -> bool:
        """Lets the file live on; False where the server does not have it, or is of before such calls."""
        try:
            return bool(self._client.call("touchFile", sandbox.name, self._use_cache_server))
        except MissingCallError:
            return False

    def _upload(self, sandbox: Path) -> None:
        if not sandbox.is_file():
            raise GiveUpError(
                f"the packed payload {sandbox} is gone; `hpo-pilot resume NAME --new-payload` packs it anew"
            )
        arguments = (str(sandbox), False, self._use_cache_server, False, 1)
        status, message = self._client.call("putFile", *arguments, deadline=_UPLOAD_SECONDS)
        # A server that has the file keeps it for as long again, and says that it does not overwrite it.
        if status != 0 or not (str(message) == "True" or "cannot overwrite" in str(message)):
            raise TryAgainError(f"cannot upload the sandbox {sandbox.name}: {message}")
