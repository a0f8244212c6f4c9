"""Reads tasks and jobs from a PanDA server: by long polls from our own server, by polling from a real one."""

from __future__ import annotations

import contextlib
import html
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import requests

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobReport, JobState, TaskRef, TaskState
from hpo_pilot.jobs.results import finished_report, job_state, output_did, parse_reports, read_description
from hpo_pilot.panda.client_process import ClientProcess, RefusedError
from hpo_pilot.panda.server import PandaServer
from hpo_pilot.panda.workflow_manager import UnknownTaskError

#: Characters of a server's message that are kept.
_SHOWN = 500

#: Task states of real servers (panda-server 1.0.4, `JediTaskSpec.py`) as ours; other unknown states count as running.
_STATES = {
    "staging": TaskState.PENDING,
    "assigning": TaskState.PENDING,
    "topreprocess": TaskState.READY,
    "preprocessing": TaskState.READY,
    "scouted": TaskState.SCOUTING,
    "toabort": TaskState.ABORTING,
    "finishing": TaskState.FINISHING,
    "prepared": TaskState.FINISHING,
}


def task_state(name: str) -> TaskState:
    """Returns our state for PanDA's name of a task state."""
    if name in _STATES:
        return _STATES[name]
    try:
        return TaskState(name)
    except ValueError:
        return TaskState.RUNNING


def task_details(client: ClientProcess, task_id: int) -> dict[str, Any] | None:
    """Reads the details of a task; None: the server does not find the task, or fails to look it up.

    Raises:
        TryAgainError: the server does not answer.
    """
    status, answer = client.call("get_task_details_json", task_id)
    if status != 0 or not isinstance(answer, list):
        raise TryAgainError(f"the PanDA server {client.url} does not answer about task {task_id}")
    success, details = answer
    return details if success and isinstance(details, dict) else None


def submitted_parameters(client: ClientProcess, task_id: int) -> dict[str, Any] | None:
    """Reads the parameters of a submitted task; None: the server has no such task.

    A real server has them from the submission on, long before it has the task itself.

    Raises:
        TryAgainError: the server does not answer.
    """
    status, parameters = client.call("getTaskParamsMap", task_id)
    return parameters if status == 0 and isinstance(parameters, dict) else None


def finished_metadata(client: ClientProcess, ref: TaskRef) -> dict[str, object] | None:
    """Reads the metadata of a task's finished jobs by PandaID; None: the server gives none.

    Raises:
        TryAgainError: the server does not answer.
    """
    status, metadata = client.call("getUserJobMetadata", ref.jedi_task_id)
    return dict(metadata) if status == 0 and metadata is not None else None


def described_jobs(client: ClientProcess, ref: TaskRef) -> list[dict[str, Any]]:
    """Reads the descriptions of all attempts of the task's jobs.

    Raises:
        TryAgainError: the server does not give them.
    """
    status, jobs = client.call("get_job_descriptions", ref.jedi_task_id)
    if status != 0 or jobs is None:
        raise TryAgainError(f"the server does not describe the jobs of task {ref.jedi_task_id}")
    return list(jobs)


def error_dialog(details: dict[str, Any]) -> str:
    """Returns the server's message about a task as plain text, without its links for a monitor."""
    text = re.sub(r"<[^>]*>", "", str(details.get("errorDialog") or ""))
    return " ".join(html.unescape(text).split())[:_SHOWN]


#: Seconds between two looks at a task: the first after a change, and the longest. A result is seen within a minute.
INTERVAL = (10.0, 45.0)
_GROWTH = 1.5
#: Each pause varies at random by up to this share, so that many clients do not call at once.
_JITTER = 0.2

#: Seconds after which a task is read completely even without a visible change: for the states of running jobs, and in
#: case a change was missed.
WHOLE_SECONDS = 120.0


#: Seconds between complete readings of a task whose running jobs' values are wanted; with the jitter at most 15.
VALUES_SECONDS = 12.0

#: Least seconds between looks at any tasks of the server. This bounds the calls for a user with many tasks.
SPACING = 0.5


@dataclass
class _Watch:
    """The schedule of looks at one task.

    Attributes:
        interval: the present pause between looks, in seconds.
        due: the time of the next look; None: the task was reported as due, and no look has followed yet.
        visible: its visible fields at the last complete reading.
        unready: a change was coming then that these fields do not show.
        read: the time of the last complete reading.
        delivered: the numbers of the jobs with results handed on.
    """

    interval: float
    due: float | None
    visible: Hashable = None
    unready: bool = False
    read: float = -1e9
    delivered: frozenset[int] = field(default_factory=frozenset)


class Watches:
    """Schedules looks at the tasks of one server; any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, numbers: random.Random | None = None) -> None:
        """Watches no task yet.

        Args:
            clock: seconds.
            numbers: random numbers for the jitter.
        """
        self._clock = clock
        self._random = numbers or random.Random()  # noqa: S311 - it spreads calls and protects nothing
        self._tasks: dict[int, _Watch] = {}
        self._lock = threading.Lock()
        self._woken = threading.Event()

    def begin(self, task_id: int) -> None:
        """Notes that we submitted or changed the task, so that it changes soon."""
        with self._lock:
            watch = self._watch(task_id)
            watch.interval = INTERVAL[0]
            watch.due = self._clock() + self._jitter(watch.interval)

    def looked(self, task_id: int, visible: Hashable, missing: Collection[int], *, values: bool = False) -> bool:
        """Notes a look at a task.

        Args:
            task_id: the task.
            visible: its visible fields.
            missing: the jobs without a result at the caller.
            values: whether the values of running jobs are wanted, which the task does not show.

        Returns:
            True if it must be read completely: it has changed, the caller misses a result, or it is time.
        """
        now = self._clock()
        longest, whole = (VALUES_SECONDS, 0.0) if values else (max(INTERVAL), WHOLE_SECONDS)
        with self._lock:
            watch = self._watch(task_id)
            news = watch.visible != visible
            watch.interval = INTERVAL[0] if news else min(watch.interval * _GROWTH, longest)
            active = sum(other.due is not None for other in self._tasks.values())  # the caller may have left others
            watch.due = now + self._jitter(max(watch.interval, SPACING * active))
            return news or watch.unready or bool(watch.delivered & set(missing)) or now - watch.read > whole

    def read(self, task_id: int, visible: Hashable, delivered: Iterable[int], *, unready: bool = False) -> None:
        """Notes a complete reading of a task.

        Args:
            task_id: the task.
            visible: its visible fields before the reading.
            delivered: the numbers of the jobs with results handed on.
            unready: a result was not ready yet, so that the task must be read again.
        """
        with self._lock:
            watch = self._watch(task_id)
            watch.visible, watch.unready = visible, unready
            watch.read, watch.delivered = self._clock(), frozenset(delivered)

    def wait(self, seconds: float) -> set[int]:
        """Waits until tasks are due, at most `seconds`; returns each due task once until the next look at it."""
        end = self._clock() + seconds
        while not (due := self._take_due()) and (left := end - self._clock()) > 0:
            with self._lock:
                next_due = min((watch.due for watch in self._tasks.values() if watch.due is not None), default=end)
            # At most a second: a new task may be due earlier.
            if self._woken.wait(min(left, max(next_due - self._clock(), 0.01), 1.0)):
                self._woken.clear()
                break
        return due

    def _watch(self, task_id: int) -> _Watch:
        return self._tasks.setdefault(task_id, _Watch(INTERVAL[0], None))

    def _take_due(self) -> set[int]:
        now = self._clock()
        with self._lock:
            due = {task_id for task_id, watch in self._tasks.items() if watch.due is not None and watch.due <= now}
            for task_id in due:
                self._tasks[task_id].due = None
        return due

    def forget(self, task_id: int) -> None:
        """Forgets a task that is over and read; a further look begins to watch it again."""
        with self._lock:
            self._tasks.pop(task_id, None)

    def _jitter(self, seconds: float) -> float:
        return seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def wake(self) -> None:
        """Ends a running `wait` at once; signal handlers may call it."""
        self._woken.set()


#: Longest wait of one call at the server, in seconds.
_LONGEST = 30.0

#: Pause after a failed call, in seconds.
_PAUSE = 0.5

_OK = 200
#: The answers of a server without this call. A real server answers 403, which with our own token means that the token
#: was just replaced.
_NO_SUCH_CALL = frozenset({404, 405, 410, 501})
_DENIED = frozenset({401, 403})


class ChangeFeed:
    """Long polls for changed tasks at our own server; one thread uses it, but any thread `is_there` and `close`."""

    def __init__(self, server: PandaServer) -> None:
        """Sends nothing yet."""
        self._server = server
        self._session = server.session()
        self._cursor = -1
        self.known: bool | None = None  #: True if the server has the call; None: not known yet
        self._woken = threading.Event()

    def is_there(self) -> bool:
        """Returns True if the server has the call: our own servers have it, real PanDA servers do not.

        Raises:
            RefusedError: the server does not answer.
        """
        if self.known is None:
            with self._server.session() as session:
                answer = self._ask(session, -1, 0.0)
            foreign = self._server.token_file is None and answer is not None and answer.status_code in _DENIED
            if answer is None or foreign or answer.status_code in _NO_SUCH_CALL:
                self.known = False
            elif answer.status_code == _OK:
                self.known = _is_ours(answer)
            else:
                raise RefusedError(f"the PanDA server {self._server.url} answers {answer.status_code}")
        return self.known

    def wait(self, seconds: float) -> set[int] | None:
        """Waits until tasks changed, at most `seconds`; only where `is_there`.

        Returns:
            The ids of the tasks that changed since the last call; None: not known, at the first call and while the
            server does not answer.
        """
        try:
            answer = self._ask(self._session, self._cursor, min(seconds, _LONGEST))
        except TryAgainError:
            self._woken.wait(min(seconds, _PAUSE))  # the server does not answer; later calls raise the error
            return None
        if answer is None or answer.status_code != _OK:
            self._woken.wait(min(seconds, _PAUSE))
            return None
        data = answer.json()["data"]
        first, self._cursor = self._cursor == -1, int(data["cursor"])
        return None if first else {int(task_id) for task_id in data["task_ids"]}

    def _ask(self, session: requests.Session, cursor: int, seconds: float) -> requests.Response | None:
        """Returns the server's answer; None: there is no token for the call."""
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
        """Ends a running wait soon."""
        self._woken.set()
        self._session.close()


def _is_ours(answer: requests.Response) -> bool:
    """Returns True if the answer is from our own server, and not a page that a proxy shows for every URL."""
    try:
        return "cursor" in answer.json()["data"]
    except (ValueError, KeyError, TypeError):
        return False


class OwnServerReader:
    """Reads tasks from our own server, with as few calls as possible."""

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self._waiting: dict[int, str] = {}

    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        """Returns the states of the tasks that the server knows."""
        states: dict[int, TaskState] = {}
        for ref in refs:
            status, name = self._client.call("getTaskStatus", ref.jedi_task_id)
            if status == 0 and name:
                states[ref.jedi_task_id] = task_state(str(name))
            elif self._knows(ref):
                raise TryAgainError(f"the server does not give the status of task {ref.jedi_task_id}")
        return states

    def _check_known(self, ref: TaskRef) -> None:
        if not self._knows(ref):
            raise UnknownTaskError(f"the server does not know task {ref.jedi_task_id} ({ref.name})")

    def _knows(self, ref: TaskRef) -> bool:
        """Returns True if the server has the task; panda-client's answer does not tell that from a lost connection."""
        filters = {"jediTaskID": str(ref.jedi_task_id)}
        status, tasks = self._client.call("get_tasks_detailed_info_since", None, filters, 1)
        if status != 0 or tasks is None:
            raise TryAgainError("the PanDA server does not answer")
        return any(str(task.get("taskName", ref.name)).rstrip("/") == ref.name.rstrip("/") for task in tasks)

    def why_waits(self, ref: TaskRef) -> str:
        """Returns the server's message about the task while it had no jobs."""
        return self._waiting.get(ref.jedi_task_id, "")

    def _described(self, ref: TaskRef) -> list[dict[str, Any]]:
        """Reads the descriptions of the task's jobs; if there are none, also the server's reason."""
        jobs = described_jobs(self._client, ref)
        self._waiting.pop(ref.jedi_task_id, None)
        details = {} if jobs else task_details(self._client, ref.jedi_task_id) or {}
        if details and task_state(str(details.get("status"))).is_waiting:
            self._waiting[ref.jedi_task_id] = error_dialog(details)
        return jobs

    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        """Returns the reports on at least the jobs in `missing`."""
        if values:
            return self._with_values(ref, missing)
        metadata = self._metadata(ref)
        reports = {int(panda_id): parse_reports(document) for panda_id, document in metadata.items()}
        finished = [finished_report(panda_id, found) for panda_id, found in reports.items() if found]
        complete = len(finished) == len(reports) and set(missing) <= {report.number for report in finished}
        if complete and all(report.attempt == 1 for report in finished):
            return finished  # this saves the larger call for every short task; earlier attempts have no metadata
        jobs = self._described(ref)
        if any(job["jobStatus"] == "finished" and str(job["PandaID"]) not in metadata for job in jobs):
            metadata = self._metadata(ref)  # a job finished between the two calls
        return [read_description(job, metadata.get(str(job["PandaID"]))) for job in jobs]

    def _with_values(self, ref: TaskRef, missing: Collection[int]) -> list[JobReport]:
        """Returns the reports with values of running jobs; it reads the larger metadata only for new results."""
        jobs = self._described(ref)
        if not jobs:
            self._check_known(ref)
        reports = [read_description(job, None) for job in jobs]
        ended = [report.state is JobState.FINISHED for report in reports]
        metadata: dict[str, object] = {}
        if any(over and report.number in missing for over, report in zip(ended, reports, strict=True)):
            metadata = self._metadata(ref)
        return [
            read_description(job, metadata.get(str(report.panda_id))) if over else report
            for over, report, job in zip(ended, reports, jobs, strict=True)
            if not over or report.number in missing
        ]

    def _metadata(self, ref: TaskRef) -> dict[str, object]:
        """Reads the metadata of the task's finished jobs, by PandaID."""
        metadata = finished_metadata(self._client, ref)
        if metadata is not None:
            return metadata
        self._check_known(ref)
        raise TryAgainError(f"the server does not give the results of task {ref.jedi_task_id}")


#: Seconds for which a finished job without metadata counts as holding.
METADATA_SECONDS = 900.0

#: Seconds after which a task is given up if the server finds neither it nor its parameters: the server's database may
#: have failed for a while.
UNKNOWN_SECONDS = 3600.0

#: Seconds after which the user is told of jobs that the server has made and not released to pilots. If the server
#: stopped while JEDI made them, they wait until a daemon ends them (panda-server 1.0.4, `copyArchive.py`: after an
#: hour); then JEDI makes new ones.
KEPT_BACK_SECONDS = 300.0

#: Most of these jobs in the message.
_NAMED = 5

#: Seconds for which later calls use the state from a look. A newer state would not match the jobs read before: a task
#: that is done would have jobs without a result.
_FRESH = 10.0

#: The fields of a task that change with its jobs.
_VISIBLE = ("status", "modificationTime", "nFiles", "nFilesFinished", "nFilesFailed", "errorDialog")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Look:
    at: float
    state: TaskState
    visible: Hashable
    dialog: str = ""


class ForeignServerReader:
    """Reads tasks from a real PanDA server: one call for each look at a task, and more calls only after a change.

    Unlike our own server, a real one has a task only after JEDI has processed it; an ended job passes through
    `holding`; a retried job has a new PandaID and other file names; and the server refuses calls that are too frequent.
    """

    def __init__(self, client: ClientProcess, watches: Watches) -> None:
        """Sends nothing yet.

        Args:
            client: panda-client.
            watches: the schedule, which gets a note of each look.
        """
        self._client = client
        self._watches = watches
        self._looks: dict[int, _Look] = {}
        self._unknown_since: dict[int, float] = {}
        self._bare_since: dict[int, float] = {}
        self._kept_back: dict[int, dict[int, tuple[float, str]]] = {}  # by task and job: time, state
        self._delivered: dict[int, dict[int, int | None]] = {}  # by task and job with a result handed on: its number

    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        """Returns the states of the tasks that the server knows."""
        found = {}
        for ref in refs:
            with contextlib.suppress(UnknownTaskError):
                found[ref.jedi_task_id] = self._recent(ref).state
        return found

    def why_waits(self, ref: TaskRef) -> str:
        """Returns the server's message about a waiting task at the last look, or a message about its waiting jobs."""
        look = self._looks.get(ref.jedi_task_id)
        if look is not None and look.state.is_waiting:
            return look.dialog
        kept = self._kept_back.get(ref.jedi_task_id, {})
        now = time.monotonic()
        long = {job: state for job, (since, state) in sorted(kept.items()) if now - since >= KEPT_BACK_SECONDS}
        if not long:
            return ""
        named = ", ".join(map(str, list(long)[:_NAMED])) + (", …" if len(long) > _NAMED else "")
        return (
            f"the server has made {len(long)} of the task's jobs ({named}) and does not release them to pilots (state "
            f"{', '.join(sorted(set(long.values())))}). A PanDA server ends such jobs after an hour and makes new "
            "ones; if they wait for longer, ask its operators"
        )

    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        """Returns the reports on the jobs after a change or at the end of the task; otherwise none."""
        look = self._look(ref)
        over = look.state.is_over
        if not self._watches.looked(ref.jedi_task_id, look.visible, missing, values=values) and not over:
            return []
        jobs, metadata = self._described(ref, missing)
        reports = [self._report(job, metadata.get(str(job["PandaID"]))) for job in jobs]
        self._note_kept_back(ref, reports, jobs)
        # A job leaves these states without a visible change of its task.
        unready = any(report.state in (JobState.HOLDING, JobState.TRANSFERRING) for report in reports)
        delivered = self._delivered.setdefault(ref.jedi_task_id, {})
        delivered.update({report.panda_id: report.number for report in reports if report.reports})
        self._watches.read(ref.jedi_task_id, look.visible, filter(None, delivered.values()), unready=unready)
        self._looks[ref.jedi_task_id] = replace(look, at=time.monotonic())
        # The task itself ends later than its last job, when the caller no longer looks at it.
        # What was not run is submitted again when the task has ended, so its caller looks again.
        all_told = bool(missing) and set(missing) <= {
            report.number
            for report in reports
            if report.reports and all(one.status != "not run" for one in report.reports)
        }
        if all_told or (over and all(report.state.is_over for report in reports)):
            self._watches.forget(ref.jedi_task_id)
            self._delivered.pop(ref.jedi_task_id)
            self._looks.pop(ref.jedi_task_id)
        return reports

    def _described(self, ref: TaskRef, missing: Collection[int]) -> tuple[list[dict[str, Any]], dict[str, object]]:
        """Reads the task's jobs, and the larger metadata only if a finished job is missing or new.

        Returns:
            The descriptions, without finished jobs if the metadata were not read; and the metadata.
        """
        delivered = self._delivered.get(ref.jedi_task_id, {})
        jobs = described_jobs(self._client, ref)
        ended = {int(job["PandaID"]) for job in jobs if job_state(str(job.get("jobStatus"))) is JobState.FINISHED}
        if all(panda_id in delivered and delivered[panda_id] not in missing for panda_id in ended):
            return [job for job in jobs if int(job["PandaID"]) not in ended], {}
        metadata = finished_metadata(self._client, ref)
        if metadata is None:
            raise TryAgainError(f"the server does not give the results of task {ref.jedi_task_id}")
        return jobs, metadata

    def _note_kept_back(self, ref: TaskRef, reports: list[JobReport], jobs: list[dict[str, Any]]) -> None:
        before, now = self._kept_back.pop(ref.jedi_task_id, {}), time.monotonic()
        kept = {
            report.panda_id: (before.get(report.panda_id, (now, ""))[0], str(job.get("jobStatus")))
            for report, job in zip(reports, jobs, strict=True)
            if report.state is JobState.DEFINED
        }
        if kept:
            self._kept_back[ref.jedi_task_id] = kept

    def _report(self, job: dict[str, Any], metadata: object) -> JobReport:
        report = replace(read_description(job, metadata), output=output_did(job))
        if report.state is not JobState.FINISHED or report.reports:
            self._bare_since.pop(report.panda_id, None)
            return report
        # The server may be moving its metadata from one table to another.
        now = time.monotonic()
        may_come = now - self._bare_since.setdefault(report.panda_id, now) < METADATA_SECONDS
        return replace(report, state=JobState.HOLDING) if may_come else report

    def _recent(self, ref: TaskRef) -> _Look:
        look = self._looks.get(ref.jedi_task_id)
        return look if look and time.monotonic() - look.at < _FRESH else self._look(ref)

    def _look(self, ref: TaskRef) -> _Look:
        """Looks at a task, usually with one call.

        Raises:
            UnknownTaskError: the server has not known the task for a long time.
            TryAgainError: the server does not answer.
        """
        task_id = ref.jedi_task_id
        details = task_details(self._client, task_id)
        if details is not None:
            visible = tuple(str(details.get(name)) for name in _VISIBLE)
            look = _Look(time.monotonic(), task_state(str(details.get("status"))), visible, error_dialog(details))
        elif submitted_parameters(self._client, task_id) is not None:
            look = _Look(time.monotonic(), TaskState.REGISTERED, "registered")
        else:
            return self._unknown(ref)
        self._unknown_since.pop(task_id, None)
        self._looks[task_id] = look
        return look

    def _unknown(self, ref: TaskRef) -> _Look:
        now = time.monotonic()
        since = self._unknown_since.setdefault(ref.jedi_task_id, now)
        if now - since >= UNKNOWN_SECONDS:
            raise UnknownTaskError(f"the server does not know task {ref.jedi_task_id} ({ref.name})")
        log.warning("the server does not find task %d (%s) now; it is asked again", ref.jedi_task_id, ref.name)
        return _Look(now, TaskState.REGISTERED, "unknown")
