"""Jobs that go back to the server's queue, many in one call: at an allocation's end hundreds do so at once."""

from __future__ import annotations

import threading

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.pilot.client import JobServer

_MOST = 1000  # jobs in one call


class _Wish:
    """One job's."""

    def __init__(self, panda_id: int, attempt: int) -> None:
        self.key = (panda_id, attempt)
        self.is_done = False
        self.is_given = False
        self.error: HpoPilotError | None = None


class GivingBack:
    """Gathers those that come while a call is under way into the next one. Any thread may call."""

    def __init__(self, server: JobServer) -> None:
        """`server`: that takes them."""
        self._server = server
        self._lock = threading.Lock()
        self._calling = threading.Lock()
        self._wishes: list[_Wish] = []

    def give(self, panda_id: int, attempt: int) -> bool:
        """Puts a job of this pilot's back into the queue, without counting the attempt.

        Returns:
            Whether it is there; False: it is this pilot's still, and is to be reported.

        Raises:
            ServerAway, TokenRefused: the server does not say.
        """
        wish = _Wish(panda_id, attempt)
        with self._lock:
            self._wishes.append(wish)
        with self._calling:
            if not wish.is_done:
                self._call()
        if wish.error is not None:
            raise wish.error
        return wish.is_given

    def _call(self) -> None:
        """For the first of those who wait; whoever has the lock is among the first, or has been answered."""
        while True:
            with self._lock:
                wishes, self._wishes = self._wishes[:_MOST], self._wishes[_MOST:]
            if not wishes:
                return
            try:
                given = self._server.give_back([wish.key for wish in wishes])
                for wish in wishes:
                    wish.is_given = wish.key[0] in given
            except HpoPilotError as error:
                for wish in wishes:
                    wish.error = error
            finally:
                for wish in wishes:
                    wish.is_done = True
