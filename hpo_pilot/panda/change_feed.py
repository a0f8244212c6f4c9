"""What a server of ours tells of its changes: a long poll that real PanDA servers do not have."""

from __future__ import annotations

import threading

import requests

from hpo_pilot.errors import TryAgainError
from hpo_pilot.panda.client_process import RefusedError
from hpo_pilot.panda.panda_server import PandaServer

#: The longest that one call waits at the server, in seconds.
_LONGEST = 30.0

#: A pause after a call that failed, in seconds.
_PAUSE = 0.5

_OK = 200
#: With these a server answers that has no such call. A real one answers 403; to a token of ours that means something
#: else: it was just replaced.
_NO_SUCH_CALL = frozenset({404, 405, 410, 501})
_DENIED = frozenset({401, 403})


class ChangeFeed:
    """The changes of one server, where it has them; used by one thread, except for `is_there` and `interrupt`."""

    def __init__(self, server: PandaServer) -> None:
        """Prepares; nothing is sent yet."""
        self._server = server
        self._session = server.session()
        self._cursor = -1
        self._there: bool | None = None
        self._woken = threading.Event()

    @property
    def known(self) -> bool | None:
        """Whether the server has the call; None: not known yet."""
        return self._there

    def is_there(self) -> bool:
        """Whether the server has the call, which one of ours does and a real PanDA server does not.

        Raises:
            RefusedError: it does not answer.
        """
        if self._there is None:
            with self._server.session() as session:
                answer = self._ask(session, -1, 0.0)
            foreign = self._server.token_file is None and answer is not None and answer.status_code in _DENIED
            if answer is None or foreign or answer.status_code in _NO_SUCH_CALL:
                self._there = False
            elif answer.status_code == _OK:
                self._there = _is_ours(answer)
            else:
                raise RefusedError(f"the PanDA server {self._server.url} answers {answer.status_code}")
        return self._there

    def wait(self, seconds: float) -> set[int] | None:
        """Waits until tasks changed, at most `seconds`; only where `is_there`.

        Returns:
            The ids of the tasks that changed since the last call; None where that is not known: after the first call,
            and while the server is away.
        """
        try:
            answer = self._ask(self._session, self._cursor, min(seconds, _LONGEST))
        except TryAgainError:
            self._woken.wait(min(seconds, _PAUSE))  # it is away; the calls that follow say so
            return None
        if answer is None or answer.status_code != _OK:
            self._woken.wait(min(seconds, _PAUSE))
            return None
        data = answer.json()["data"]
        first, self._cursor = self._cursor == -1, int(data["cursor"])
        return None if first else {int(task_id) for task_id in data["task_ids"]}

    def _ask(self, session: requests.Session, cursor: int, seconds: float) -> requests.Response | None:
        """The server's answer; None where we have no token to show."""
        headers = self._server.headers()
        if not headers:
            return None
        try:
            return session.get(
                f"{self._server.url}/api/v1/hpo_pilot/changes",
                params={"cursor": str(cursor), "timeout": f"{seconds:.3f}", "outcomes": "true"},
                headers=headers,
                timeout=seconds + _LONGEST,
            )
        except requests.RequestException as error:
            raise RefusedError(f"the PanDA server {self._server.url} cannot be reached: {error}") from error

    def close(self) -> None:
        """Ends a wait that is under way soon."""
        self._woken.set()
        self._session.close()


def _is_ours(answer: requests.Response) -> bool:
    """Whether the answer is one of ours, and not some page that is shown for everything."""
    try:
        return "cursor" in answer.json()["data"]
    except (ValueError, KeyError, TypeError):
        return False
