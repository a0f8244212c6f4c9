"""Jobs, pilots and queues of the embedded PanDA server, read over HTTP with the work folder's token.

Texts come from payloads, users and pilots: the caller must escape them before showing them. Times are in UTC.
The server's side of these calls is `hpo_pilot/server/monitoring.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import requests
from pydantic import BaseModel, BeforeValidator, ValidationError

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.jobs.results import error_text, reported_progress
from hpo_pilot.operations.asked_trials import session_at
from hpo_pilot.panda.server import read_address

# --- Values: pydantic reads them from the answers, in which times are seconds since the epoch ---


class _Value(BaseModel, frozen=True):
    """A part of an answer; keys that it has besides are ignored."""


#: A text that is null in an answer where there is none.
_Text = Annotated[str, BeforeValidator(lambda text: text or "")]


class ServerJob(_Value):
    """One attempt of a job.

    Attributes:
        panda_id: PandaID of the attempt; every attempt has its own.
        task_id: id of the task (jeditaskid).
        task: the task's name.
        search: the search's name; None: no search of hpo-pilot submitted the task.
        members: (trial, fold) of each point that the job runs, in order; empty where `search` is None.
        number: number of the job within the task, from 1.
        attempt: attempt number, from 1.
        attempts: maximum number of attempts of the job.
        sub_state: more detail on the state, from the pilot or the server; often empty.
        queue: queue where it runs or waits; empty: any queue may take it.
        node: machine that runs it; empty: no pilot has reported it.
        pilot: `ServerPilot.key` of the pilot that has or had it; empty: no pilot, or a pilot without a name.
        created: time when it began to wait.
        heard: time of the last report, from its pilot or from the user or server that ended it; None: no pilot has it.
        nodes: number of nodes that it runs on at once.
        gpus: GPUs on each node.
        cores: CPU cores on each node.
        memory_mb: memory on each node, in MB.
        seconds: maximum run time in seconds; 0: not given.
        job_metrics: the pilot's `jobMetrics`: words ``name=value``.
        errors: PanDA's errors, with their names in job descriptions.
        has_log: whether `ServerJobs.log` returns a text.
        payload_error: why payloads of a finished job returned no figure of merit, in one line; empty: all returned one.
    """

    panda_id: int
    task_id: int
    task: str
    search: str | None
    members: tuple[tuple[int, int], ...]
    number: int
    attempt: int
    attempts: int
    state: JobState
    sub_state: _Text
    queue: _Text
    node: _Text
    pilot: _Text
    created: datetime
    started: datetime | None
    ended: datetime | None
    heard: datetime | None
    nodes: int
    gpus: int
    cores: int
    memory_mb: int
    seconds: float
    job_metrics: _Text
    errors: Mapping[str, Any]
    has_log: bool
    payload_error: str = ""

    @property
    def error(self) -> str:
        """PanDA's errors in one line, the most informative first; empty: none."""
        return error_text(self.errors) or ""

    @cached_property
    def progress(self) -> tuple[tuple[int, float], ...]:
        """The (step, value) pairs that the payload reported, as far as the server keeps them; infinity: no number."""
        return reported_progress(self.job_metrics)


class ServerJobsPage(_Value):
    """One page of a list of jobs, newest first, with counts by state.

    Attributes:
        jobs: at most the number that the call asked for.
        before: value of `before` for the next call, which returns older jobs; None: there are no older ones.
        counts: number of attempts in each state, after all filters except `state`. Without any such filter, jobs
            that are over count once per job, not once per attempt.
        is_live: False if no server runs: the jobs are as the last server left them.
    """

    jobs: tuple[ServerJob, ...]
    before: int | None
    counts: Mapping[JobState, int]
    is_live: bool = True


class ServerJobFile(_Value):
    """A file that a job writes.

    Attributes:
        kind: output or log.
        size: size in bytes; None: it is not at the server (not written yet, or stored elsewhere).
    """

    name: str
    dataset: str
    kind: str
    size: int | None


class ServerJobDetails(_Value):
    """One job in detail.

    Attributes:
        job: the requested attempt.
        attempts: all attempts of the same job, the first one first; `job` is among them.
        files: output files and the log of the job.
        measures: values that the pilot measured, by PanDA's names: maxRSS (kB), cpuConsumptionTime (s), …
    """

    job: ServerJob
    attempts: tuple[ServerJob, ...]
    files: tuple[ServerJobFile, ...]
    measures: Mapping[str, int | float | str]


class ServerJobLog(_Value):
    """The end of a job's log.

    Attributes:
        text: for each file a heading (``==> payload.log <==``) and the end of the file. Control characters other than
            newline and tab are replaced.
        is_whole: False if the beginning of the log is left out.
    """

    text: str
    is_whole: bool


class PilotState(StrEnum):
    """State of a pilot, judging by its last call."""

    BUSY = "busy"  #: it has jobs
    WAITING = "waiting"  #: it asks for jobs
    SILENT = "silent"  #: it has not called for longer than expected
    ENDED = "ended"  #: the pilot or its batch system reported its end


class ServerPilot(_Value):
    """A pilot that has called recently.

    Attributes:
        key: name of the pilot: ``harvester/worker``; ``host at queue`` if the pilot does not send these.
        host: machine that it runs on.
        kind: ``hpo-pilot``, ``Pilot 3``, or another name that the pilot sends.
        version: version of its program; empty: unknown.
        since: time of its first call to this server; reset when the server restarts.
        heard: time of its last call, which asked for jobs or reported on one.
        slots: number of jobs that it can run at once, including its present jobs; None: unknown.
        nodes: number of free nodes in its batch allocation; None: it has no allocation.
        jobs: PandaIDs of its present jobs.
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


class ServerQueue(_Value):
    """One queue of the server.

    Attributes:
        name: the queue's name; empty: this row counts waiting jobs that any queue may take.
        status: online, test, brokeroff or offline; empty: no queue file describes it, and every pilot may serve it.
        description: text from the queue file, for people.
        waiting: number of jobs that wait for a pilot.
        running: number of jobs that pilots have.
        pilots: number of pilots that are alive at the queue.
        slots: number of jobs that these pilots can run at once; None: unknown for some of them.
        limits: limits for one job, by the names in the queue file: cores, memory_mb, gpus, minutes, …
    """

    name: str
    status: str
    description: str
    waiting: int
    running: int
    pilots: int
    slots: int | None
    limits: Mapping[str, int | float | str] = {}


_Read = TypeVar("_Read", bound=_Value)


def _read(kind: type[_Read], data: object, call: str) -> _Read:
    """Returns an answer to `call`, or a part of it, as a value.

    Raises:
        TryAgainError: it lacks what it should have.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise TryAgainError(
            f"the embedded PanDA server's answer to {call} is not valid ({wrong}): is it of this version?"
        ) from error


# --- Calls to the server ---

#: Default and maximum size of the text from `ServerJobs.log`, in bytes.
LOG_END, LOG_MOST = 64 * 1024, 8 * 1024 * 1024

_SECONDS = 20.0
_CONNECT_SECONDS = 3.0


class NoServerError(TryAgainError):
    """No embedded server runs on this work folder: jobs and pilots cannot be shown until one runs."""


class NoJobError(InputError):
    """The server has no such job: it never existed, or the server has deleted it."""


class ServerJobs:
    """Reads jobs, pilots and queues from the embedded server of a work folder.

    It may be used from any thread. Every call sends a new request. The server's address is in the file ``panda.url``
    of the work folder, which the server's process writes and removes (`hpo_pilot.panda.server.read_address`). The
    server may start, end and change its address between calls.

    If no server runs (the file is missing, or a killed server left it), jobs and logs come from the database that the
    last one left; where there is none, and for pilots and queues, a call raises NoServerError. Every call raises
    TryAgainError if the server does not answer in time or the answer is invalid. Every user who may see the pages of
    a work folder may see all jobs of its server, as on any PanDA server.
    """

    def __init__(self, workdir: Path) -> None:
        """Keeps the folder; nothing is read or sent yet.

        Args:
            workdir: the work folder; it need not have a server yet.
        """
        self._workdir = workdir

    @property
    def url(self) -> str | None:
        """URL of the server from its file, as scheme://host:port; None if there is no file, and so no server."""
        found = read_address(self._workdir)
        return None if found is None else found.url

    def jobs(
        self,
        *,
        search: str | None = None,
        state: JobState | None = None,
        queue: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> ServerJobsPage:
        """Returns a page of jobs, newest first.

        Args:
            search: `uid` or name of a search; only its jobs are returned; None: jobs of all searches.
            state: only jobs in this state; None: jobs in any state.
            queue: only jobs that wait or run at this queue; None: jobs at any queue.
            limit: maximum number of jobs, 1 to 1000.
            before: only jobs with a PandaID below this one: `ServerJobsPage.before` of the previous page.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        given: dict[str, Any] = {
            "search": search,
            "states": None if state is None else [state.value],
            "queue": queue,
            "limit": limit,
            "before": before,
        }
        return _read(ServerJobsPage, self._ask("job_list", given), "job_list")

    def job(self, panda_id: int) -> ServerJobDetails:
        """Returns the details of one job.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class.
        """
        return _read(ServerJobDetails, self._ask("job_view", {"panda_id": panda_id}), "job_view")

    def log(self, panda_id: int, size: int = LOG_END) -> ServerJobLog:
        """Returns the end of a job's log; the text is empty if there is no log (`ServerJob.has_log`).

        While a job runs, it has a log only if its pilot streams it; otherwise the log arrives when the job ends.

        Args:
            panda_id: PandaID of the job.
            size: maximum size in bytes, up to `LOG_MOST`.

        Raises:
            NoJobError: the server has no such job.
            NoServerError, TryAgainError: see the class.
        """
        answer = self._ask("job_log", {"panda_id": panda_id, "size": size})
        return ServerJobLog(text=str(answer.get("text", "")), is_whole=bool(answer.get("is_whole")))

    def pilots(self) -> list[ServerPilot]:
        """Returns the pilots that called recently, by queue and name; ended and silent pilots are listed for an hour.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        found = self._ask("pilot_list", {}).get("pilots", ())
        return [_read(ServerPilot, one, "pilot_list") for one in found]

    def queues(self) -> list[ServerQueue]:
        """Returns the queues, by name: all queues of the queue file, and any other queue with jobs or pilots.

        Raises:
            NoServerError, TryAgainError: see the class.
        """
        found = self._ask("queue_list", {}).get("queues", ())
        return [_read(ServerQueue, one, "queue_list") for one in found]

    # --- HTTP ---

    def _ask(self, call: str, given: Mapping[str, Any]) -> dict[str, Any]:
        parameters = {name: value for name, value in given.items() if value is not None}
        try:
            answer = self._get(f"/api/v1/hpo_pilot/{call}", parameters)
        except NoServerError as no_server:
            if not call.startswith("job_"):
                raise
            return self._ask_files(call, parameters, no_server)
        try:
            envelope = json.loads(answer.content)
        except ValueError as error:
            raise TryAgainError(
                f"{answer.url} gave an answer that is not JSON: is it the embedded PanDA server?"
            ) from error
        return self._data_of(envelope, call)

    def _ask_files(self, call: str, given: dict[str, Any], no_server: NoServerError) -> dict[str, Any]:
        from hpo_pilot.server.monitoring import answer_after_end  # noqa: PLC0415 - SQLAlchemy; seldom needed

        try:
            envelope = answer_after_end(self._workdir / "panda.db", self._workdir / "panda-files", call, given)
        except InputError:
            raise no_server from None
        return {**self._data_of(envelope, call), "is_live": False}

    def _data_of(self, envelope: object, call: str) -> dict[str, Any]:
        if not isinstance(envelope, dict):
            envelope = {}
        if not envelope.get("success"):
            message = envelope.get("message")
            if envelope.get("data") == "no job":
                raise NoJobError(str(message))
            raise TryAgainError(f"the embedded PanDA server refused {call}: {message or 'without a reason'}")
        data = envelope.get("data")
        if not isinstance(data, dict):
            raise TryAgainError(f"the embedded PanDA server's answer to {call} is not valid: is it of this version?")
        return data

    def _get(self, path: str, given: Mapping[str, Any]) -> requests.Response:
        server = read_address(self._workdir)
        if server is None:
            raise NoServerError(f"no embedded PanDA server runs on {self._workdir}: start one with `hpo-pilot serve`")
        try:
            answer = session_at(server).get(
                server.url + path,
                params=dict(given),
                headers=server.headers(),
                timeout=(_CONNECT_SECONDS, _SECONDS),
                allow_redirects=False,
            )
        except requests.exceptions.ConnectionError as error:
            # No process listens at this address: a killed server left the file.
            raise NoServerError(
                f"the embedded PanDA server of {self._workdir} does not answer at {server.url}: it ended or is starting"
            ) from error
        except requests.RequestException as error:
            raise TryAgainError(f"the embedded PanDA server at {server.url} does not answer: {error}") from error
        if answer.status_code in (401, 403):
            raise NoServerError(
                f"the server at {server.url} refuses the token of {self._workdir}: it belongs to another work folder"
            )
        if not answer.ok:
            raise TryAgainError(f"the embedded PanDA server answered {answer.status_code} to {path}")
        return answer
