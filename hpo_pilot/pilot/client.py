"""Calls the PanDA server for a pilot, and keeps final reports until the server accepts them."""

from __future__ import annotations

import json
import logging
import os
import secrets
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter

from hpo_pilot import __version__
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError, TryAgainError
from hpo_pilot.http import open_session
from hpo_pilot.pilot import report as metrics
from hpo_pilot.pilot.machine import FreeResources
from hpo_pilot.pilot.settings import PilotSettings, PilotWorkDir
from hpo_pilot.protocol import PROTOCOL, PROTOCOL_HEADER

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Status codes after which the call is repeated: timeout, too many requests, errors of the server or a proxy.
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_BLOCK = 1 << 20
TIMED_OUT, FAILED, INVALID, NO_PERMISSION = 10, 30, 50, 70  #: values of panda-server's StatusCode
_MOST_REPORTS = 100  # in one call: its answer, perhaps with a command, comes when the last one is stored
_MOST_AVOIDED, _LONGEST_WHY = 100, 500  # tasks and characters in a header


class ServerAway(TryAgainError):
    """The server does not answer, or cannot now. It is logged once; the caller repeats the call."""


class PilotTokenRefused(InputError):
    """The server refuses the token."""


class CallRefused(GiveUpError):
    """The server refuses the call; repeating it does not help."""


class JobOfAnotherPilot(CallRefused):
    """Another pilot has the job."""


class MissingAtServer(CallRefused):
    """The server does not have the file or the call."""


class JobServer:
    """Calls `/api/v1` of a PanDA server (panda-server 1.0.4) over persistent connections.

    Any thread may call any method. The methods raise only ServerAway, CallRefused or InputError (of which
    PilotTokenRefused is one), and OSError of the files that they read or write.
    """

    _fewest_reports = 2  #: for the call that takes several

    def __init__(self, settings: PilotSettings, key: str = "", site: str = "") -> None:
        """Opens no connection yet.

        Args:
            settings: settings of the pilot.
            key: identifies this pilot among pilots with the same token; empty: none.
            site: name of its site profile; empty: it has none.

        Raises:
            InputError: the token file, the proxy or the authorities cannot be used.
        """
        self._settings = settings
        self._key = {"X-HPO-Pilot-Key": key} if key else {}
        self._site = {"X-HPO-Pilot-Site": site} if site else {}
        self._token = ""
        self._token_seen = (0, 0)
        self._read_token()
        self._session = open_session(settings.server, settings.ca)
        if settings.proxy is not None:
            _check_proxy(settings.proxy)
            self._session.cert = str(settings.proxy)  # read again for each connection
        stated = {"User-Agent": f"hpo-pilot/{__version__}", PROTOCOL_HEADER: str(PROTOCOL)}
        self._session.headers.update({"Origin": settings.vo, **stated})
        adapter = HTTPAdapter(pool_connections=4, pool_maxsize=min(64, settings.slots + 8))
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._api = f"{settings.server}/api/v1/"
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self.most_reports = _MOST_REPORTS  #: in one call; 1: the server has no call for several

    def acquire(
        self, free: FreeResources, wait: float, disk_mb: int, remaining: int, avoided: Sequence[int] = (), why: str = ""
    ) -> list[dict[str, Any]]:
        """Asks for jobs; returned jobs belong to this pilot.

        Args:
            free: resources for all jobs together. A server that does not know of cores may send more jobs.
            wait: seconds to wait at the server for a job, if the server supports that.
            disk_mb: free disk.
            remaining: remaining seconds of this pilot; 0: not given.
            avoided: tasks of searches whose jobs cannot be started here now.
            why: the reason.
        """
        settings = self._settings
        body: dict[str, Any] = {
            "site_name": settings.queue,
            "prod_source_label": "user",
            "node": settings.node,
            "n_jobs": free.slots,
            "target_architecture": {"gpus": [gpu.described() for gpu in free.gpus]},
            "disk_space": disk_mb,
            "harvester_id": settings.harvester_id,
            "worker_id": settings.worker_id,
        }
        if settings.memory_mb:
            body["memory"] = settings.memory_mb
        if remaining:
            body["remaining_time"] = remaining
        # Not among PanDA's own arguments.
        headers = {"X-HPO-Pilot-Wait": f"{wait:g}", "X-HPO-Pilot-Cores": str(free.cores), **self._site}
        if free.request is not None:
            headers["X-HPO-Pilot-Openings"] = free.request.to_text()
        if avoided:
            headers["X-HPO-Pilot-Avoids"] = json.dumps({"tasks": avoided[-_MOST_AVOIDED:], "why": why[:_LONGEST_WHY]})
        envelope = self._call("pilot/acquire_jobs", body, headers, wait + _ANSWER_SECONDS)
        data = envelope.get("data")
        jobs = data.get("jobs") if isinstance(data, dict) else None
        if envelope.get("success") and isinstance(jobs, list):
            return [job for job in jobs if isinstance(job, dict)]
        message = str(envelope.get("message") or "")
        if "No jobs" in message or envelope.get("success"):
            return []
        if "role" in message:
            raise PilotTokenRefused(
                f"{settings.server} gives this {'token' if self._token else 'proxy'} no jobs: {message}"
            )
        raise ServerAway(f"{settings.server} gave no job: {message or envelope}")

    def give_back(self, attempts: Sequence[tuple[int, int]]) -> Collection[int]:
        """Puts jobs of this pilot back into the queue without counting their attempts.

        Args:
            attempts: PandaID and attempt of each job, at most 1000.

        Returns:
            PandaIDs of the jobs in the queue. The other jobs still belong to this pilot, which must report them.
        """
        settings = self._settings
        body: dict[str, Any] = {"jobs": [list(attempt) for attempt in attempts]}
        body |= {"harvester_id": settings.harvester_id, "worker_id": settings.worker_id}
        try:
            data = self._call("hpo_pilot/give_back", body).get("data")
        except CallRefused as error:
            log.debug("%d jobs are not given back: %s", len(attempts), error)
            return ()
        given = data.get("given_back") if isinstance(data, dict) else None
        return given if isinstance(given, list) else ()

    def update(self, report: Mapping[str, Any]) -> str:
        """Sends a report on a job; returns the server's command, often empty. It may be repeated."""
        return self._command(self._call("pilot/update_job", report))

    def update_all(self, reports: Sequence[Mapping[str, Any]]) -> list[str | HpoPilotError]:
        """Sends heartbeats in few calls; returns for each the server's command, or the error that `update` raises."""
        most = self.most_reports
        slices = [reports[start : start + most] for start in range(0, len(reports), most)]
        return [answer for some in slices for answer in self._update_some(some)]

    def _update_some(self, reports: Sequence[Mapping[str, Any]]) -> list[str | HpoPilotError]:
        if len(reports) < self._fewest_reports:
            return [self._tried(self.update, report) for report in reports]
        try:
            body = {"job_list": list(reports), "harvester_id": self._settings.harvester_id}
            envelope = self._call("pilot/update_jobs_bulk", body)
            data = envelope.get("data")
            if not envelope.get("success") or not isinstance(data, list) or len(data) != len(reports):
                raise CallRefused(f"{self._settings.server} refused reports: {envelope.get('message')}")
        except (MissingAtServer, PilotTokenRefused):  # 403: as panda-server answers to a call that it does not have
            answers = [self._tried(self.update, report) for report in reports]
            if not all(isinstance(answer, PilotTokenRefused) for answer in answers):
                self.most_reports = 1
            return answers
        except CallRefused as error:  # one of them may be the reason
            half = len(reports) // 2
            return self._update_some(reports[:half]) + self._update_some(reports[half:]) if half else [error]
        except HpoPilotError as error:
            self.most_reports = max(self._fewest_reports, len(reports) // 2)  # it may be too slow for this number
            return [error] * len(reports)
        self.most_reports = min(_MOST_REPORTS, 2 * self.most_reports)
        return [self._tried(self._command, one) for one in data]

    @staticmethod
    def _tried(call: Callable[[Mapping[str, Any]], str], argument: Mapping[str, Any]) -> str | HpoPilotError:
        try:
            return call(argument)
        except HpoPilotError as error:
            return error

    def _command(self, envelope: Mapping[str, Any]) -> str:
        """Returns the command in the answer to a report."""
        data = envelope.get("data")
        status = data.get("StatusCode", 0) if isinstance(data, dict) else 0
        if status in (TIMED_OUT, FAILED):
            raise ServerAway(f"{self._settings.server} could not store a report: {envelope.get('message')}")
        if not envelope.get("success"):
            refused = JobOfAnotherPilot if status == NO_PERMISSION else CallRefused
            raise refused(f"{self._settings.server} refused a report: {envelope.get('message')}")
        return str(data.get("command") or "") if isinstance(data, dict) else ""

    def worker_finished(self) -> None:
        """Tells the server that this worker has no jobs any more; jobs that the server assigned to it are lost."""
        settings = self._settings
        body = {"worker_id": settings.worker_id, "harvester_id": settings.harvester_id, "status": "finished"}
        self._call("pilot/update_worker_status", body, timeout=_CONNECT_SECONDS)

    def download(self, source_url: str, name: str, target: IO[bytes], limit: int) -> None:
        """Downloads a file of at most `limit` bytes from the server's cache."""
        source = source_url or self._settings.server
        # The URL comes from a user's task: the token is sent only to the pilot's own server.
        headers = self._authorization() if _origin(source) == _origin(self._settings.server) else {}
        answer = self._send("GET", f"{source}/cache/{quote(name)}", headers=headers, stream=True)
        with answer:
            self._check(answer)
            size = 0
            try:
                for block in answer.iter_content(_BLOCK):
                    size += len(block)
                    if size > limit:
                        raise CallRefused(f"{name} is larger than {limit >> 20} MB")
                    target.write(block)
            except requests.RequestException as error:
                raise ServerAway(f"{name} broke off after {size} bytes: {error}") from error
            announced = answer.headers.get("Content-Length")
            if announced is not None and "Content-Encoding" not in answer.headers and int(announced) != size:
                raise ServerAway(f"{name} broke off after {size} of {announced} bytes")

    def upload(self, name: str, content: Path | bytes | IO[bytes]) -> None:
        """Uploads a file into the server's storage; a repeat replaces it."""
        if isinstance(content, Path):
            with content.open("rb") as file:
                self.upload(name, file)
            return
        url = f"{self._settings.server}/storage/{quote(name)}"
        self._check(self._send("PUT", url, headers=self._authorization(), data=content))

    def upload_checkpoint(self, task_id: int, sub_id: str, content: IO[bytes]) -> None:
        """Uploads a job's packed checkpoint into the server's cache; a repeat replaces it."""
        form = FormFile(f"{task_id}_{sub_id}", content)
        headers = self._authorization() | {"Content-Type": form.content_type}
        answer = self._send("POST", f"{self._api}file_server/upload_hpo_checkpoint", headers=headers, data=form)
        self._check(answer)
        if not (envelope := _envelope(answer)).get("success"):
            raise CallRefused(f"{self._settings.server} takes no checkpoint: {envelope.get('message')}")

    def download_checkpoint(self, task_id: int, sub_id: str, target: IO[bytes], limit: int) -> bool:
        """Downloads a checkpoint of at most `limit` bytes; False: there is none."""
        try:
            self.download("", f"hpo_cp_{task_id}_{sub_id}", target, limit)
        except MissingAtServer:
            return False
        return True

    def delete_checkpoint(self, task_id: int, sub_id: str) -> None:
        """Deletes a checkpoint; CallRefused if there is none."""
        envelope = self._call("file_server/delete_hpo_checkpoint", {"task_id": str(task_id), "sub_id": sub_id})
        if not envelope.get("success"):
            raise CallRefused(f"{self._settings.server} deletes no checkpoint: {envelope.get('message')}")

    def passed_on(self, method: str, path: str, content_type: str, content: bytes) -> tuple[int, bytes]:
        """Sends a payload's call to the server without the pilot's token; returns the answer's status and content."""
        answer = self._send(
            method, f"{self._settings.server}{path}", headers={"Content-Type": content_type}, data=content
        )
        return answer.status_code, answer.content

    def _call(
        self,
        function: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        timeout: float = _ANSWER_SECONDS,
    ) -> dict[str, Any]:
        every = self._authorization() | {"Content-Type": "application/json"} | dict(headers or {})
        answer = self._send(
            "POST", self._api + function, headers=every, data=json.dumps(body).encode(), timeout=timeout
        )
        self._check(answer)
        return _envelope(answer)

    def _send(self, method: str, url: str, *, timeout: float = _ANSWER_SECONDS, **options: Any) -> requests.Response:
        try:
            limits = (_CONNECT_SECONDS, timeout)
            answer = self._session.request(method, url, timeout=limits, allow_redirects=False, **options)
        except requests.exceptions.SSLError as error:
            text = f"the certificate of {_origin(url)[1]} is not trusted: {error}; --ca names the authorities behind it"
            if self._settings.proxy is not None and "CERTIFICATE_VERIFY_FAILED" not in str(
                error
            ):  # an alert, or an end
                text = f"{_origin(url)[1]} does not accept the proxy {self._settings.proxy}: {error}"
            self._note(text)
            raise ServerAway(text) from error
        except requests.RequestException as error:
            self._note(error)
            raise ServerAway(f"{_origin(url)[1]} does not answer: {error}") from error
        except OSError as error:  # a file is being replaced
            if self._settings.proxy is None:
                raise ServerAway(f"--ca {self._settings.ca}: {error}") from error
            raise PilotTokenRefused(f"--proxy {self._settings.proxy}: {error}") from error
        if answer.status_code not in _LATER:
            self._note(None)
        return answer

    def _check(self, answer: requests.Response) -> None:
        status = answer.status_code
        if 200 <= status < 300:
            return
        text = f"{answer.url} answered {status} {answer.reason}: {_message(answer)}"
        if status in (401, 403):
            if self._settings.proxy is not None:
                raise PilotTokenRefused(f"{text}; {self._settings.proxy} must be a proxy with a pilot's role")
            raise PilotTokenRefused(f"{text}; {self._settings.token_file} must hold a pilot's token")
        if status in _LATER:
            self._note(text)
            raise ServerAway(text)
        raise (MissingAtServer if status == 404 else CallRefused)(text)

    def _note(self, trouble: object) -> None:
        """Logs once that the server does not answer, and once that it answers again."""
        metrics.note_answer(is_good=trouble is None)
        with self._lock:
            if trouble is not None and self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("the server is away, payloads go on: %s", trouble)
            elif trouble is None and self._away_since is not None:
                log.warning("the server is back after %.1f s", time.monotonic() - self._away_since)
                self._away_since = None

    def _authorization(self) -> dict[str, str]:
        self._read_token()
        return {"Authorization": f"Bearer {self._token}", **self._key} if self._token else dict(self._key)

    def _read_token(self) -> None:
        path = self._settings.token_file
        if path is None:
            return
        try:
            about = path.stat()
            if (seen := (about.st_mtime_ns, about.st_ino)) != self._token_seen:
                token = path.read_text().strip()
                if not token or not token.isascii() or any(c.isspace() for c in token):
                    raise ValueError("it must have one line with the token")
                self._token, self._token_seen = token, seen
        except (OSError, ValueError) as error:
            if not self._token:  # else the file is being replaced: use the old token
                raise InputError(f"--token-file {path}: {error}") from error


def _check_proxy(proxy: Path) -> None:
    try:
        ssl.create_default_context().load_cert_chain(proxy, password="")  # asks for none
    except (OSError, ValueError) as error:
        raise InputError(f"--proxy {proxy} has not certificate and key in PEM form: {error}") from error


class FormFile:
    """The body of a multipart form with one file, read in blocks; `requests` sends it with its length."""

    def __init__(self, name: str, content: IO[bytes]) -> None:
        """Makes the head and the end of the form.

        Args:
            name: name of the file, without quotes or line ends.
            content: the whole file.
        """
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        self._head = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._content = content

    def __len__(self) -> int:
        return len(self._head) + self._content.seek(0, os.SEEK_END) + len(self._tail)

    def __iter__(self) -> Iterator[bytes]:
        self._content.seek(0)
        yield self._head
        yield from iter(lambda: self._content.read(_BLOCK), b"")
        yield self._tail


class Backoff:
    """Increasing pauses between retries."""

    def __init__(self, first: float = 0.25, most: float = 15.0) -> None:
        self._first, self._most = first, most
        self._next = first

    def pause(self, unless: threading.Event) -> None:
        """Waits, longer each time; returns when `unless` is set."""
        unless.wait(self.seconds())

    def seconds(self) -> float:
        """Returns the next pause in seconds."""
        now, self._next = self._next, min(self._most, 2 * self._next)
        return now

    def reset(self) -> None:
        """Starts again with the shortest pause, after a success."""
        self._next = self._first


def retried(call: Callable[[], T], seconds: float, unless: threading.Event | None = None) -> T:
    """Returns the result of a call, which is repeated while the server does not answer, or refuses the token for now.

    Args:
        call: the call.
        seconds: after this time the error is raised.
        unless: is set when the error must be raised at once.
    """
    backoff, give_up, stop = Backoff(), time.monotonic() + seconds, unless or threading.Event()
    while True:
        try:
            return call()
        except (TryAgainError, InputError):
            if time.monotonic() >= give_up or stop.is_set():
                raise
            backoff.pause(stop)


def _envelope(answer: requests.Response) -> dict[str, Any]:
    try:
        envelope = json.loads(answer.content)
    except ValueError as error:
        raise ServerAway(f"{answer.url} gave an answer that is not JSON: is it a PanDA server?") from error
    if not isinstance(envelope, dict):
        raise ServerAway(f"{answer.url} gave an answer that is not a PanDA envelope: is it a PanDA server?")
    return envelope


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _message(answer: requests.Response) -> str:
    try:
        return str(json.loads(answer.content).get("message"))[:300]
    except (ValueError, AttributeError, requests.RequestException):
        return answer.reason or ""


class Delivery(threading.Thread):
    """Sends final reports. Unsent reports are kept on disk and sent later, by this pilot or the next one."""

    def __init__(self, server: JobServer, workdir: PilotWorkDir) -> None:
        super().__init__(name="delivery", daemon=True)
        self._server, self._workdir = server, workdir
        self._waiting: deque[dict[str, Any]] = deque(workdir.kept_reports())
        self._sent: list[dict[str, Any]] = []  # without an answer yet
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._never = threading.Event()

    def send(self, report: dict[str, Any]) -> None:
        """Sends a report; if the server does not answer, keeps it for later."""
        with self._changed:
            queued = bool(self._waiting)
            self._sent.append(report)
        is_done = not queued and self._try(report)
        if not is_done:
            self._workdir.keep_report(report)
        with self._changed:
            self._sent = [other for other in self._sent if other is not report]
            if is_done:
                self._workdir.drop_report(report)  # `keep_all` may have kept it
            else:
                self._waiting.append(report)
                self._changed.notify()

    def keep_all(self) -> int:
        """Keeps also the reports without an answer yet, when the pilot ends; returns the number of kept ones."""
        with self._changed:
            for report in self._sent:
                self._workdir.keep_report(report)
            return len(self._sent) + len(self._waiting)

    def try_all(self) -> int:
        """Tries to send the kept reports; returns the number of unsent ones."""
        with self._sending:
            while self._waiting and self._try(self._waiting[0]):
                with self._changed:
                    self._workdir.drop_report(self._waiting.popleft())
            return len(self._waiting)

    def run(self) -> None:
        """Sends kept reports whenever the server answers."""
        backoff = Backoff()
        while True:
            with self._changed:
                while not self._waiting:
                    backoff.reset()
                    self._changed.wait()
            if self.try_all():
                backoff.pause(self._never)

    def _try(self, report: dict[str, Any]) -> bool:
        """Sends a report; returns True if the server accepted or refused it, so that it needs no repetition."""
        try:
            command = self._server.update(report)
        except (TryAgainError, InputError):  # no answer, or the token is refused for now
            return False
        except HpoPilotError as error:
            log.error("the report on job %s (%s) is lost: %s", report["job_id"], report["job_status"], error)
            return True
        if command:
            log.info("job %s was reported %s: %s", report["job_id"], report["job_status"], command)
        return True


_MOST = 1000  # jobs in one call


class GivingBack:
    """Gives jobs back in few calls: jobs that come during a call are sent together in the next one.

    Any thread may call it.
    """

    def __init__(self, server: JobServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._calling = threading.Lock()
        self._waiting: list[tuple[tuple[int, int], Future[bool]]] = []

    def give(self, panda_id: int, attempt: int) -> bool:
        """Puts a job of this pilot back into the queue without counting the attempt.

        Returns:
            Whether it is in the queue; False: it still belongs to this pilot, which must report it.

        Raises:
            ServerAway, PilotTokenRefused: the server does not answer.
        """
        is_given: Future[bool] = Future()
        with self._lock:
            self._waiting.append(((panda_id, attempt), is_given))
        with self._calling:
            if not is_given.done():
                self._call()
        return is_given.result()

    def _call(self) -> None:
        """Sends the waiting jobs; the caller holds `_calling`, so its own job is among them or has its answer."""
        while True:
            with self._lock:
                jobs, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            if not jobs:
                return
            try:
                given = self._server.give_back([key for key, _ in jobs])
                for (panda_id, _), is_given in jobs:
                    is_given.set_result(panda_id in given)
            except Exception as error:  # noqa: BLE001  each caller raises it
                for _, is_given in jobs:
                    is_given.set_exception(error)
