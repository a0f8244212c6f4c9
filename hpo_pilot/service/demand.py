"""How many jobs wait at a queue of a PanDA server, embedded or real."""

from __future__ import annotations

from pathlib import Path

import requests

from hpo_pilot.batch.keeper import Demand
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.pilot.session import open_session

_PATH = "api/v1/statistics/active_job_stats_by_site"
_SECONDS = 60.0


class DemandReader:
    """Asks one server for the jobs of one queue."""

    def __init__(self, server: str, queue: str, token_file: Path, *, vo: str, ca: Path | None = None) -> None:
        """Calls nobody yet.

        Args:
            server: its URL.
            queue: the PanDA queue.
            token_file: a token that may ask; read again at every call.
            vo: the virtual organisation, which goes with the token.
            ca: PEM file of its authorities; None: the usual ones.
        """
        self._url = f"{server}/{_PATH}"
        self._server = server
        self._queue = queue
        self._token_file = token_file
        self._vo = vo
        self._ca = ca

    def __call__(self) -> Demand:
        """Asks.

        Raises:
            InputError: the token cannot be read, or is refused.
            TryAgainError: the server does not answer properly.
        """
        try:
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise InputError(f"--token-file {self._token_file}: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Origin": self._vo}
        try:
            with open_session(self._server, self._ca) as session:
                answer = session.get(self._url, headers=headers, timeout=_SECONDS)
            if answer.status_code in (401, 403):
                raise InputError(f"the server {self._server} refuses the token of {self._token_file}")
            answer.raise_for_status()
            states: dict[str, int] = answer.json()["data"].get(self._queue, {})
            waiting = int(states.get(JobState.ACTIVATED, 0))
            going = sum(int(count) for state, count in states.items() if _is_going(state))
        except (requests.RequestException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise TryAgainError(f"the server {self._server} does not tell of its jobs: {error}") from error
        return Demand(waiting, going)


def _is_going(state: str) -> bool:
    """Whether jobs in such a state are at a pilot, or on their way to one; those of a paused task are not."""
    if state in (JobState.DEFINED, JobState.ACTIVATED):
        return False
    return state not in set(JobState) or not JobState(state).is_over  # real servers have states that we do not
