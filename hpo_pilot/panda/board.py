"""What pages show of the embedded PanDA server, read over HTTP with the work folder's token: jobs, pilots and queues.

The server is found through ``panda.url`` in the work folder, which whoever runs it writes and removes
(`panda.board_address`); it may come, go and move meanwhile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.panda.board_address import read_address
from hpo_pilot.panda.board_reading import read_page, read_pilot, read_queue, read_view
from hpo_pilot.panda.board_values import BoardJobView, BoardLog, BoardPage, BoardPilot, BoardQueue
from hpo_pilot.panda.panda_server import PandaServer

#: The most jobs in one answer.
MOST_JOBS = 1000
#: What `JobBoard.log` gives where nothing else is said, and the most that there is of a log; in bytes.
LOG_END, LOG_MOST = 64 * 1024, 8 * 1024 * 1024

_SECONDS = 20.0
_CONNECT_SECONDS = 3.0
_BLOCK = 1 << 16


class NoServerError(TryAgainError):
    """No embedded server runs on this work folder: nothing is shown of jobs and pilots until one does."""


class NoJobError(InputError):
    """The server has no such job: it never had, or has forgotten it since."""


class JobBoard:
    """Looks at the embedded server of a work folder. May be used from any thread; every call asks the server anew.

    Every call raises NoServerError where no server runs (its file is missing, or is one that a killed server left),
    and TryAgainError where the server does not answer in time or not sensibly. Everybody who may see the pages of a
    work folder may see all of its server's jobs, as every user of a PanDA server does.
    """

    def __init__(self, workdir: Path) -> None:
        """Looks at nothing yet.

        Args:
            workdir: the work folder; it need not have a server yet.
        """
        self._workdir = workdir
        self._lock = threading.Lock()
        self._server: PandaServer | None = None
        self._session: requests.Session | None = None

    @property
    def url(self) -> str | None:
        """Where the server is, scheme://host:port, as its file says; None: no file, no server."""
        found = read_address(self._workdir)
        return None if found is None else found.url

    def jobs(
        self,
        *,
        tasks: Sequence[int] = (),
        search: str | None = None,
        states: Iterable[JobState] = (),
        queue: str | None = None,
        pilot: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> BoardPage:
        """Jobs, newest first.

        Args:
            tasks: ids of the tasks whose jobs are meant; empty: all tasks.
            search: the `uid` or the name of the search whose jobs are meant; None: all.
            states: those in one of these states; empty: in any.
            queue: those that wait or run at this queue; None: at any.
            pilot: those of the pilot with this `BoardPilot.key`; None: of any.
            limit: at most so many, 1 to `MOST_JOBS`.
            before: older ones than this PandaID: `BoardPage.before` of the page before.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        given: dict[str, Any] = {
            "task_ids": list(tasks) or None,
            "search": search,
            "states": [state.value for state in states] or None,
            "queue": queue,
            "pilot": pilot,
            "limit": max(1, min(limit, MOST_JOBS)),
            "before": before,
        }
        return read_page(self._ask("job_list", given))

    def job(self, panda_id: int) -> BoardJobView:
        """All about one job.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class.
        """
        return read_view(self._ask("job_view", {"panda_id": panda_id}))

    def log(self, panda_id: int, size: int = LOG_END) -> BoardLog:
        """The end of a job's log; an empty text where there is none (`BoardJob.has_log`).

        While a job runs there is one only if its pilot streams it; else it comes when the job ends.

        Args:
            panda_id: the job.
            size: bytes at most, up to `LOG_MOST`.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class.
        """
        answer = self._ask("job_log", {"panda_id": panda_id, "size": max(1, min(size, LOG_MOST))})
        return BoardLog(str(answer.get("text", "")), bool(answer.get("is_whole")))

    def log_stream(self, panda_id: int) -> Iterator[bytes]:
        """The whole log of a job, in blocks of UTF-8 text, for a download: at most `LOG_MOST` bytes, the last ones.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class; all of them at once, before the first block.
        """
        text = self.log(panda_id, LOG_MOST).text.encode()
        return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))

    def pilots(self) -> list[BoardPilot]:
        """The pilots that have called lately, by queue and name; those that ended or fell silent are kept for an hour.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        return [read_pilot(one) for one in self._ask("pilot_list", {}).get("pilots", ())]

    def queues(self) -> list[BoardQueue]:
        """The queues: those of the queue file, and those where jobs or pilots are; by name.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        return [read_queue(one) for one in self._ask("queue_list", {}).get("queues", ())]

    # Over HTTP.

    def _ask(self, call: str, given: Mapping[str, Any]) -> dict[str, Any]:
        said = {name: value for name, value in given.items() if value is not None}
        with self._get(f"/api/v1/hpo_pilot/{call}", said) as answer:
            try:
                envelope = json.loads(answer.content)
            except ValueError as error:
                raise TryAgainError(f"{answer.url} answered no JSON: is it the embedded PanDA server?") from error
        if not isinstance(envelope, dict) or not envelope.get("success"):
            message = envelope.get("message") if isinstance(envelope, dict) else None
            if isinstance(envelope, dict) and envelope.get("data") == "no job":
                raise NoJobError(str(message))
            raise TryAgainError(f"the embedded PanDA server refused {call}: {message or 'without a reason'}")
        data = envelope.get("data")
        if not isinstance(data, dict):
            raise TryAgainError(f"the embedded PanDA server's answer to {call} makes no sense: is it of this version?")
        return data

    def _get(self, path: str, given: Mapping[str, Any]) -> requests.Response:
        server, session = self._connection()
        try:
            answer = session.get(
                server.url + path,
                params=dict(given),
                headers=server.headers(),
                timeout=(_CONNECT_SECONDS, _SECONDS),
                allow_redirects=False,
            )
        except requests.exceptions.ConnectionError as error:
            # An address that nobody answers at was left by a server that was killed.
            raise NoServerError(
                f"the embedded PanDA server of {self._workdir} does not answer at {server.url}: it has ended, or starts"
            ) from error
        except requests.RequestException as error:
            raise TryAgainError(f"the embedded PanDA server at {server.url} does not answer: {error}") from error
        if answer.status_code in (401, 403):
            answer.close()
            raise NoServerError(
                f"whoever answers at {server.url} does not take the token of {self._workdir}: its own server has ended"
            )
        if not answer.ok:
            answer.close()
            raise TryAgainError(f"the embedded PanDA server answered {answer.status_code} to {path}")
        return answer

    def _connection(self) -> tuple[PandaServer, requests.Session]:
        found = read_address(self._workdir)
        if found is None:
            raise NoServerError(f"no embedded PanDA server runs on {self._workdir}: start one with `hpo-pilot serve`")
        with self._lock:
            if self._session is None or found != self._server:
                self._server, self._session = found, found.session()
            return found, self._session
