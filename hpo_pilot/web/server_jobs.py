"""Jobs, pilots and queues of the embedded PanDA server, read over HTTP for the pages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.jobs.results import error_text, reported_progress
from hpo_pilot.panda.server import PandaServer, read_address

# What the embedded PanDA server tells of its jobs, pilots and queues, as values for pages to show.
#
# Texts come from payloads, users and pilots: whoever shows them escapes them. Times are in UTC.


@dataclass(frozen=True)
class ServerJob:
    """One attempt of a job.

    Attributes:
        panda_id: the attempt's; every attempt has its own.
        task_id: the task's (jeditaskid).
        task: the task's name.
        user: whose task it is.
        search: the search's name; None: a task that no search of ours submitted.
        uid: the search's identity in its store; None likewise.
        generation: within the search; None likewise.
        members: (trial, fold) of each point that the job runs, in order; empty likewise.
        number: which of the task's jobs it is, from 1.
        attempt: from 1.
        attempts: how many the job may have.
        sub_state: the pilot's or server's further word on the state, often empty.
        queue: where it is, or waits; empty: any queue may take it.
        node: the machine; empty: no pilot has said.
        pilot: `BoardPilot.key` of who has or had it; empty: nobody, or nobody who has a name.
        created: when it began to wait.
        changed: when its state changed last.
        heard: when its pilot, or whoever ended it, reported last; None: nobody has it.
        nodes: how many it runs on at once.
        gpus: on each node.
        cores: on each node.
        memory_mb: on each node.
        minutes: the longest that it may run; 0: not said.
        step: of the last value that its payload reported; None: none.
        value: that value.
        error: PanDA's errors in one line, most telling first; empty: none.
        has_log: whether `JobBoard.log` will find something.
        payload_error: why payloads of a finished job gave no figure of merit, in one line; empty: all did.
    """

    panda_id: int
    task_id: int
    task: str
    user: str
    search: str | None
    uid: str | None
    generation: int | None
    members: tuple[tuple[int, int], ...]
    number: int
    attempt: int
    attempts: int
    state: JobState
    sub_state: str
    queue: str
    node: str
    pilot: str
    created: datetime
    changed: datetime
    started: datetime | None
    ended: datetime | None
    heard: datetime | None
    nodes: int
    gpus: int
    cores: int
    memory_mb: int
    minutes: float
    step: int | None
    value: float | None
    error: str
    has_log: bool
    payload_error: str = ""


@dataclass(frozen=True)
class ServerJobsPage:
    """Jobs, newest first, and what there is beside them.

    Attributes:
        jobs: at most as many as were asked for.
        before: what to ask for next to see older ones; None: these were the last.
        counts: how many attempts are in which state, of all that the filters but `states` let through. Without any
            such filter those that are over count once for each job, not for each attempt.
    """

    jobs: tuple[ServerJob, ...]
    before: int | None
    counts: Mapping[JobState, int]


@dataclass(frozen=True)
class ServerJobFile:
    """A file that a job writes.

    Attributes:
        kind: output or log.
        size: bytes; None: it is not at the server (not written yet, or kept elsewhere).
    """

    name: str
    dataset: str
    kind: str
    size: int | None


@dataclass(frozen=True)
class ServerJobDetails:
    """All about one job.

    Attributes:
        job: the attempt that was asked for.
        attempts: all attempts of the same job, the first one first; `job` is among them.
        files: its outputs and its log.
        progress: (step, value) that the payload reported, as far as the server keeps them; NaN is infinity.
        measures: what the pilot measured, by PanDA's names: maxRSS (kB), cpuConsumptionTime (s), …
        metrics: the pilot's `jobMetrics`, as it came: words ``name=value``.
    """

    job: ServerJob
    attempts: tuple[ServerJob, ...]
    files: tuple[ServerJobFile, ...]
    progress: tuple[tuple[int, float], ...]
    measures: Mapping[str, int | float | str]
    metrics: str


@dataclass(frozen=True)
class ServerJobLog:
    """The end of a job's log.

    Attributes:
        text: a heading for each of its files (``==> payload.log <==``), and the file's end. Control characters but
            newline and tab are replaced.
        is_whole: False where something is left out before it.
    """

    text: str
    is_whole: bool


class PilotState(StrEnum):
    """What a pilot is doing, by its last words."""

    BUSY = "busy"  #: it has jobs
    WAITING = "waiting"  #: it asks for some
    SILENT = "silent"  #: it has not been heard of for longer than it should
    ENDED = "ended"  #: it said that it ends, or its batch system did


@dataclass(frozen=True)
class ServerPilot:
    """A pilot that has called lately.

    Attributes:
        key: names it: ``harvester/worker``, or, of a pilot that does not say them, ``host at queue``.
        host: the machine that it runs on.
        kind: ``hpo-pilot``, ``Pilot 3``, or what else it calls itself.
        version: of its program; empty: it does not say.
        since: when this server first heard of it; a restart of the server begins anew.
        heard: when last, by asking for jobs or reporting on one.
        slots: how many jobs it would run side by side, those that it has included; None: it does not say.
        nodes: free nodes of its batch allocation; None: it has no allocation.
        jobs: PandaIDs of the jobs that it has now.
    """

    key: str
    state: PilotState
    host: str
    queue: str
    kind: str
    version: str
    since: datetime | None
    heard: datetime | None
    slots: int | None
    nodes: int | None
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class ServerQueue:
    """A queue.

    Attributes:
        name: empty: jobs that any queue may take, as far as they wait.
        status: online, test, brokeroff, offline; empty: no queue file describes it, every pilot may serve it.
        description: the queue file's, for people.
        waiting: jobs that wait for a pilot.
        running: jobs that pilots have.
        pilots: pilots there that are alive.
        slots: jobs that those could run side by side; None: some do not say.
        limits: what one job may have there, in the queue file's words: cores, memory_mb, gpus, minutes, …
    """

    name: str
    status: str
    description: str
    waiting: int
    running: int
    pilots: int
    slots: int | None
    limits: Mapping[str, int | float | str] = field(default_factory=dict)


# From the embedded server's answers about jobs, pilots and queues to values; the one place that knows their keys.
#
# The other end is `hpo_pilot/server/api/board.py`.


def read_page(data: Mapping[str, Any]) -> ServerJobsPage:
    """A page of jobs.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        counts = {JobState(state): int(count) for state, count in data["counts"].items()}
        return ServerJobsPage(tuple(_job(one) for one in data["jobs"]), data["before"], counts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _nonsense("job_list", error) from error


def read_view(data: Mapping[str, Any]) -> ServerJobDetails:
    """All about one job.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        files = tuple(ServerJobFile(one["name"], one["dataset"], one["kind"], one["size"]) for one in data["files"])
        metrics = str(data["job"]["job_metrics"] or "")
        return ServerJobDetails(
            job=_job(data["job"]),
            attempts=tuple(_job(one) for one in data["attempts"]),
            files=files,
            progress=reported_progress(metrics),
            measures=dict(data["measures"]),
            metrics=metrics,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _nonsense("job_view", error) from error


def read_pilot(one: Mapping[str, Any]) -> ServerPilot:
    """One pilot.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        return ServerPilot(
            key=str(one["key"]),
            state=PilotState(one["state"]),
            host=str(one["host"]),
            queue=str(one["queue"]),
            kind=str(one["kind"]),
            version=str(one["version"]),
            since=_moment(one["since"]),
            heard=_moment(one["heard"]),
            slots=one["slots"],
            nodes=one["nodes"],
            jobs=tuple(one["jobs"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _nonsense("pilot_list", error) from error


def read_queue(one: Mapping[str, Any]) -> ServerQueue:
    """One queue.

    Raises:
        TryAgainError: the answer makes no sense.
    """
    try:
        return ServerQueue(**one)
    except TypeError as error:
        raise _nonsense("queue_list", error) from error


def _job(one: Mapping[str, Any]) -> ServerJob:
    progress = reported_progress(str(one["job_metrics"] or ""))
    step, value = progress[-1] if progress else (None, None)
    return ServerJob(
        panda_id=one["panda_id"],
        task_id=one["task_id"],
        task=one["task"],
        user=one["user"],
        search=one["search"],
        uid=one["uid"],
        generation=one["generation"],
        members=tuple((trial, fold) for trial, fold in one["members"]),
        number=one["number"],
        attempt=one["attempt"],
        attempts=one["attempts"],
        state=JobState(one["state"]),
        sub_state=one["sub_state"] or "",
        queue=one["queue"] or "",
        node=one["node"] or "",
        pilot=one["pilot"] or "",
        created=_known(one["created"]),
        changed=_known(one["changed"]),
        started=_moment(one["started"]),
        ended=_moment(one["ended"]),
        heard=_moment(one["heard"]),
        nodes=one["nodes"],
        gpus=one["gpus"],
        cores=one["cores"],
        memory_mb=one["memory_mb"],
        minutes=one["seconds"] / 60,
        step=step,
        value=value,
        error=error_text(one["errors"]) or "",
        has_log=bool(one["has_log"]),
        payload_error=str(one["payload_error"]),
    )


def _known(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else _known(seconds)


def _nonsense(call: str, error: Exception) -> TryAgainError:
    return TryAgainError(
        f"the embedded PanDA server's answer to {call} makes no sense ({type(error).__name__}: {error}): "
        "is it of this version?"
    )


# What pages show of the embedded PanDA server, read over HTTP with the work folder's token: jobs, pilots and queues.
#
# The server is found through ``panda.url`` in the work folder, which whoever runs it writes and removes
# (`panda.board_address`); it may come, go and move meanwhile.

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


class ServerJobs:
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
    ) -> ServerJobsPage:
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

    def job(self, panda_id: int) -> ServerJobDetails:
        """All about one job.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class.
        """
        return read_view(self._ask("job_view", {"panda_id": panda_id}))

    def log(self, panda_id: int, size: int = LOG_END) -> ServerJobLog:
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
        return ServerJobLog(str(answer.get("text", "")), bool(answer.get("is_whole")))

    def log_stream(self, panda_id: int) -> Iterator[bytes]:
        """The whole log of a job, in blocks of UTF-8 text, for a download: at most `LOG_MOST` bytes, the last ones.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class; all of them at once, before the first block.
        """
        text = self.log(panda_id, LOG_MOST).text.encode()
        return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))

    def pilots(self) -> list[ServerPilot]:
        """The pilots that have called lately, by queue and name; those that ended or fell silent are kept for an hour.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        return [read_pilot(one) for one in self._ask("pilot_list", {}).get("pilots", ())]

    def queues(self) -> list[ServerQueue]:
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
