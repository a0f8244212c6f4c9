"""Sandboxes in a server's file cache, which forgets files that nobody touches.

JEDI runs a task only where its sandbox is registered under the very name that the task's parameters have. A file that
is in the cache need not be registered: panda-server 1.0.4 writes a file before it registers it, and never overwrites
it. Such a file goes up once more under another name.
"""

from __future__ import annotations

import threading
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

#: Under how many names one file goes up at most.
_NAMES = 10


@dataclass(frozen=True)
class CachedSandbox:
    """A sandbox that a server has.

    Attributes:
        source: scheme://host:port of the host that has it.
        name: under which it is registered there.
    """

    source: str
    name: str


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
        self._known: dict[str, tuple[CachedSandbox, float]] = {}
        self._sending: dict[str, threading.Lock] = {}

    def keep(self, sandbox: Path, *, again: bool = False) -> CachedSandbox:
        """Makes sure that the server has the file, has registered it, and will not forget it soon.

        Args:
            sandbox: the file; its name is its content, so one of that name that is there is this one.
            again: send it whatever is known of it; a server that has it lets that be.

        Raises:
            TryAgainError: the server takes no file now.
            GiveUpError: the server no longer has it, and neither have we.
        """
        known = self._known.get(sandbox.name)
        if known is not None and not again and self._clock() - known[1] < _TOUCH_SECONDS:
            return known[0]
        sending = self._sending.setdefault(sandbox.name, threading.Lock())
        if not sending.acquire(blocking=False):
            # Not waited for: a family of searches would hold up all others for as long as its sandbox is sent.
            raise TryAgainError(f"the sandbox {sandbox.name} is being sent for another search")
        try:
            with self._client.one_process():
                return self._sent(sandbox, again=again)
        finally:
            sending.release()

    def _sent(self, sandbox: Path, *, again: bool) -> CachedSandbox:
        known = self._known.pop(sandbox.name, None)
        name = "" if again else self._registered(sandbox, known[0].name if known else sandbox.name)
        if not name or not self._touch(name):
            name = self._upload(sandbox)
        found = CachedSandbox(str(self._client.call("sourceURL", self._use_cache_server)), name)
        self._known[sandbox.name] = (found, self._clock())
        return found

    def _registered(self, sandbox: Path, name: str) -> str:
        """The name under which the server has registered the file; empty: none.

        Args:
            sandbox: the file.
            name: the answer where the server cannot tell, or the file is gone here.
        """
        if not sandbox.is_file():
            return name
        try:
            found = str(self._client.call("registeredFile", str(sandbox)))
        except MissingCallError:
            return name
        return found if any(found == _name(sandbox, number) for number in range(_NAMES)) else ""

    def _touch(self, name: str) -> bool:
        """Lets the file live on; False where the server does not have it, or is of before such calls."""
        try:
            return bool(self._client.call("touchFile", name, self._use_cache_server))
        except MissingCallError:
            return False

    def _upload(self, sandbox: Path) -> str:
        """Sends the file; returns the name under which the server has registered it."""
        if not sandbox.is_file():
            raise GiveUpError(f"the packed payload {sandbox} is gone; resume the search with --new-payload")
        for number in range(_NAMES):
            name = _name(sandbox, number)
            arguments = (str(sandbox), name, self._use_cache_server)
            status, answer = self._client.call("putFile", *arguments, deadline=_UPLOAD_SECONDS)
            message = str(answer)
            # Registered before, as one whose file the cache has forgotten: now the file is there again.
            if status == 0 and (message == "True" or "file exist" in message):
                return name
            if status != 0 or "cannot overwrite" not in message:
                raise TryAgainError(f"cannot upload the sandbox {sandbox.name}: {message}")
            found = self._registered(sandbox, name)
            if found == name or (found and self._touch(found)):
                return found
        raise TryAgainError(
            f"cannot upload the sandbox {sandbox.name}: the server registers none of its {_NAMES} names"
        )


def _name(sandbox: Path, number: int) -> str:
    """What the file is called at a server that has registered none of its names before: `sources.<digest>.1.tar.gz`."""
    return f"{sandbox.name.removesuffix('.tar.gz')}.{number}.tar.gz" if number else sandbox.name
