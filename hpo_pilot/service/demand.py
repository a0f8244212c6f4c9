"""How many jobs wait at a queue of a PanDA server, embedded or real."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

from hpo_pilot.batch.keeper import Demand, Waiting
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import JobNeeds, JobState
from hpo_pilot.pilot.session import open_session

#: What servers of ours tell, by what jobs need; and what all do.
_DEMAND, _STATISTICS = "hpo_pilot/demand", "statistics/active_job_stats_by_site"
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
                return self._ask(session, headers)
        except (requests.RequestException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise TryAgainError(f"the server {self._server} does not tell of its jobs: {error}") from error

    def _ask(self, session: requests.Session, headers: Mapping[str, str]) -> Demand:
        url, parameters = f"{self._server}/api/v1", {"queue": self._queue}
        answer = session.get(f"{url}/{_DEMAND}", params=parameters, headers=headers, timeout=_SECONDS)
        if answer.status_code == 404:  # a server that is none of ours
            answer = session.get(f"{url}/{_STATISTICS}", headers=headers, timeout=_SECONDS)
            return _counted(self._data(answer).get(self._queue, {}))
        data = self._data(answer)
        return Demand(tuple(map(_waiting, data["waiting"])), int(data["going"]))

    def _data(self, answer: requests.Response) -> dict[str, Any]:
        if answer.status_code in (401, 403):
            raise InputError(f"the server {self._server} refuses the token of {self._token_file}")
        answer.raise_for_status()
        data: dict[str, Any] = answer.json()["data"]
        return data


def _waiting(shape: Mapping[str, Any]) -> Waiting:
    needs = JobNeeds(
        nodes=int(shape["nodes"]),
        gpus_per_node=int(shape["gpus"]),
        cores=max(1, int(shape["cores"])),
        memory_mb=int(shape["memory_mb"]),
        minutes=float(shape["minutes"]),
    )
    return Waiting(int(shape["jobs"]), needs)


def _counted(states: Mapping[str, int]) -> Demand:
    waiting = int(states.get(JobState.ACTIVATED, 0))
    going = sum(int(count) for state, count in states.items() if _is_going(state))
    return Demand((Waiting(waiting),) if waiting else (), going)


def _is_going(state: str) -> bool:
    """Whether jobs in such a state are at a pilot, or on their way to one; those of a paused task are not."""
    if state in (JobState.DEFINED, JobState.ACTIVATED):
        return False
    return state not in set(JobState) or not JobState(state).is_over  # real servers have states that we do not
