"""The PanDA server as a pilot calls it; final reports wait here until the server takes them."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter

from hpo_pilot import __version__
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError, TryAgainError
from hpo_pilot.http import open_session
from hpo_pilot.pilot import report as metrics
from hpo_pilot.pilot.machine import FreeResources
from hpo_pilot.pilot.settings import PilotSettings, WorkDir


class FormFile:
    """The body of a multipart form; what `requests` needs to send it: a length, and reading."""

    def __init__(self, name: str, content: BinaryIO) -> None:
        """Prepares.

        Args:
            name: the file's, without quotes or line ends.
            content: from its beginning to its end.
        """
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        self._head = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._content = content
        content.seek(0)
        self._length = len(self._head) + content.seek(0, os.SEEK_END) + len(self._tail)
        content.seek(0)
        self._before, self._after = self._head, self._tail

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        """The next bytes; none at the end."""
        wanted = self._length if size < 0 else size
        found, self._before = self._before[:wanted], self._before[wanted:]
        if len(found) < wanted:
            found += self._content.read(wanted - len(found))
        if len(found) < wanted:
            more = wanted - len(found)
            found, self._after = found + self._after[:more], self._after[more:]
        return found


# The PanDA server as a pilot sees it.
#
# `JobServer` is the interface; `HttpJobServer` speaks `/api/v1` of panda-server 1.0.4.

log = logging.getLogger(__name__)

#: Answers that mean "later": timeout, too many requests, and whatever a server or proxy calls its own trouble.
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_BLOCK = 1 << 20
_NO_PERMISSION = 70  # StatusCode


class ServerAway(TryAgainError):
    """No answer, or one that says later. Said once in the log; the caller repeats the call."""


class TokenRefused(InputError):
    """The server does not take the token."""


class CallRefused(GiveUpError):
    """The server understood and said no: repeating will not help."""


class NotOurs(CallRefused):
    """Another pilot has the job."""


class NotThere(CallRefused):
    """The server has no such file, or no such call."""


class JobServer(ABC):
    """What a pilot wants of a server. Every method may be called from any thread.

    Each raises ServerAway, TokenRefused or CallRefused, and nothing else.
    """

    @abstractmethod
    def acquire(self, free: FreeResources, wait: float, disk_mb: int, remaining: int) -> list[dict[str, Any]]:
        """Asks for jobs; they are this pilot's when it returns.

        Args:
            free: what all of them together may take. A server that does not know of cores may hand out more.
            wait: seconds to wait at the server for one, where it can.
            disk_mb: free disk.
            remaining: seconds that this pilot still lives; 0: not said.
        """

    @abstractmethod
    def give_back(self, attempts: Sequence[tuple[int, int]]) -> Collection[int]:
        """Puts jobs of this pilot's back into the queue, without counting their attempts.

        Args:
            attempts: PandaID and attempt of each, at most 1000.

        Returns:
            The PandaIDs of those that are there; the others are this pilot's still, and are to be reported.
        """

    @abstractmethod
    def update(self, report: Mapping[str, Any]) -> str:
        """Sends a report on a job; returns the server's command, often empty. May be repeated without harm."""

    @abstractmethod
    def worker_finished(self) -> None:
        """Says that this worker holds no job any more: what the server thinks it holds is lost."""

    @abstractmethod
    def download(self, source_url: str, name: str, target: BinaryIO, limit: int) -> None:
        """Fetches a file of at most `limit` bytes from the server's cache."""

    @abstractmethod
    def upload(self, name: str, content: Path | bytes) -> None:
        """Puts a file into the storage; a repeat replaces it."""

    @abstractmethod
    def upload_checkpoint(self, task_id: int, sub_id: str, content: BinaryIO) -> None:
        """Puts a job's packed checkpoint into the server's cache; a repeat replaces it."""

    @abstractmethod
    def download_checkpoint(self, task_id: int, sub_id: str, target: BinaryIO, limit: int) -> bool:
        """Fetches what `upload_checkpoint` put there, at most `limit` bytes; False: there is none."""

    @abstractmethod
    def delete_checkpoint(self, task_id: int, sub_id: str) -> None:
        """Removes it; CallRefused where there is none."""


class HttpJobServer(JobServer):
    """Over HTTP, on kept connections."""

    def __init__(self, settings: PilotSettings, key: str = "") -> None:
        """Opens no connection yet.

        Args:
            settings: of the pilot.
            key: by which the server knows this pilot again among those that share its token; empty: it has none.

        Raises:
            InputError: the token file or the authorities cannot be used.
        """
        self._settings = settings
        self._key = {"X-HPO-Pilot-Key": key} if key else {}
        self._token = ""
        self._token_seen = (0, 0)
        self._read_token()
        self._session = open_session(settings.server, settings.ca)
        self._session.headers.update({"Origin": settings.vo, "User-Agent": f"hpo-pilot/{__version__}"})
        adapter = HTTPAdapter(pool_connections=4, pool_maxsize=min(64, settings.slots + 8))
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._api = f"{settings.server}/api/v1/"
        self._lock = threading.Lock()
        self._away_since: float | None = None

    def acquire(self, free: FreeResources, wait: float, disk_mb: int, remaining: int) -> list[dict[str, Any]]:
        """See JobServer."""
        settings = self._settings
        body: dict[str, Any] = {
            "site_name": settings.queue,
            "prod_source_label": settings.label,
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
        # What PanDA's own arguments cannot say.
        headers = {"X-HPO-Pilot-Wait": f"{wait:g}", "X-HPO-Pilot-Cores": str(free.cores)}
        if free.wish is not None:
            headers["X-HPO-Pilot-Openings"] = free.wish.to_text()
        envelope = self._call("pilot/acquire_jobs", body, headers, wait + _ANSWER_SECONDS)
        data = envelope.get("data")
        jobs = data.get("jobs") if isinstance(data, dict) else None
        if envelope.get("success") and isinstance(jobs, list):
            return [job for job in jobs if isinstance(job, dict)]
        message = str(envelope.get("message") or "")
        if "No jobs" in message or envelope.get("success"):
            return []
        if "role" in message:
            raise TokenRefused(f"{settings.server} gives this token no jobs: {message}")
        raise ServerAway(f"{settings.server} gave no job: {message or envelope}")

    def give_back(self, attempts: Sequence[tuple[int, int]]) -> Collection[int]:
        """See JobServer. A server that is not one of ours has no such call."""
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
        """See JobServer."""
        envelope = self._call("pilot/update_job", report)
        data = envelope.get("data")
        status = data.get("StatusCode", 0) if isinstance(data, dict) else 0
        if status in (10, 30):  # the server's timeout and failure
            raise ServerAway(f"{self._settings.server} could not store a report: {envelope.get('message')}")
        if not envelope.get("success"):
            refused = NotOurs if status == _NO_PERMISSION else CallRefused
            raise refused(f"{self._settings.server} refused a report: {envelope.get('message')}")
        return str(data.get("command") or "") if isinstance(data, dict) else ""

    def worker_finished(self) -> None:
        """See JobServer."""
        settings = self._settings
        body = {"worker_id": settings.worker_id, "harvester_id": settings.harvester_id, "status": "finished"}
        self._call("pilot/update_worker_status", body, timeout=_CONNECT_SECONDS)

    def download(self, source_url: str, name: str, target: BinaryIO, limit: int) -> None:
        """See JobServer."""
        source = source_url or self._settings.server
        # The URL comes from a user's task: the token goes to our own server alone.
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

    def upload(self, name: str, content: Path | bytes) -> None:
        """See JobServer."""
        url = f"{self._settings.server}/storage/{quote(name)}"
        if isinstance(content, bytes):
            self._check(self._send("PUT", url, headers=self._authorization(), data=content))
            return
        with content.open("rb") as file:
            self._check(self._send("PUT", url, headers=self._authorization(), data=file))

    def upload_checkpoint(self, task_id: int, sub_id: str, content: BinaryIO) -> None:
        """See JobServer."""
        form = FormFile(f"{task_id}_{sub_id}", content)
        headers = self._authorization() | {"Content-Type": form.content_type}
        answer = self._send("POST", f"{self._api}file_server/upload_hpo_checkpoint", headers=headers, data=form)
        self._check(answer)
        if not (envelope := _envelope(answer)).get("success"):
            raise CallRefused(f"{self._settings.server} takes no checkpoint: {envelope.get('message')}")

    def download_checkpoint(self, task_id: int, sub_id: str, target: BinaryIO, limit: int) -> bool:
        """See JobServer."""
        try:
            self.download("", f"hpo_cp_{task_id}_{sub_id}", target, limit)
        except NotThere:
            return False
        return True

    def delete_checkpoint(self, task_id: int, sub_id: str) -> None:
        """See JobServer."""
        envelope = self._call("file_server/delete_hpo_checkpoint", {"task_id": str(task_id), "sub_id": sub_id})
        if not envelope.get("success"):
            raise CallRefused(f"{self._settings.server} deletes no checkpoint: {envelope.get('message')}")

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
            self._note(text)
            raise ServerAway(text) from error
        except requests.RequestException as error:
            self._note(error)
            raise ServerAway(f"{_origin(url)[1]} does not answer: {error}") from error
        if answer.status_code not in _LATER:
            self._note(None)
        return answer

    def _check(self, answer: requests.Response) -> None:
        status = answer.status_code
        if status == 200 or 200 < status < 300:
            return
        text = f"{answer.url} answered {status} {answer.reason}: {_message(answer)}"
        if status in (401, 403):
            raise TokenRefused(f"{text}; {self._settings.token_file} must hold a pilot's token")
        if status in _LATER:
            self._note(text)
            raise ServerAway(text)
        raise (NotThere if status == 404 else CallRefused)(text)

    def _note(self, trouble: object) -> None:
        """Says once that the server is away, and once that it is back."""
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
        return {"Authorization": f"Bearer {self._token}", **self._key}

    def _read_token(self) -> None:
        path = self._settings.token_file
        try:
            about = path.stat()
            if (seen := (about.st_mtime_ns, about.st_ino)) != self._token_seen:
                self._token, self._token_seen = path.read_text().strip(), seen
        except (OSError, ValueError) as error:
            if not self._token:
                raise InputError(f"--token-file {path}: {error}") from error
            return  # it is being replaced: the old token does for now
        if not self._token or not self._token.isascii() or any(c.isspace() for c in self._token):
            raise InputError(f"--token-file {path}: holds no token; one line with the token is wanted")


class Backoff:
    """Growing pauses between tries."""

    def __init__(self, first: float = 0.25, most: float = 15.0) -> None:
        self._first, self._most = first, most
        self._next = first

    def pause(self, unless: threading.Event) -> None:
        """Waits, longer each time; not at all once `unless` is set."""
        unless.wait(self.seconds())

    def seconds(self) -> float:
        """The next pause, in seconds."""
        now, self._next = self._next, min(self._most, 2 * self._next)
        return now

    def reset(self) -> None:
        """After a success."""
        self._next = self._first


def _envelope(answer: requests.Response) -> dict[str, Any]:
    try:
        envelope = json.loads(answer.content)
    except ValueError as error:
        raise ServerAway(f"{answer.url} answered no JSON: is it a PanDA server?") from error
    if not isinstance(envelope, dict):
        raise ServerAway(f"{answer.url} answered no envelope: is it a PanDA server?")
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
    """Sends final reports. What cannot be sent now is kept on disk and sent later, by this pilot or the next."""

    def __init__(self, server: JobServer, workdir: WorkDir) -> None:
        super().__init__(name="delivery", daemon=True)
        self._server, self._workdir = server, workdir
        self._waiting: deque[dict[str, Any]] = deque(workdir.kept_reports())
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._never = threading.Event()

    def send(self, report: dict[str, Any]) -> None:
        """Sends a report now; if the server is away, it is kept and this returns all the same."""
        with self._changed:
            queued = bool(self._waiting)
        if not queued and self._try(report):
            return
        self._workdir.keep_report(report)
        with self._changed:
            self._waiting.append(report)
            self._changed.notify()

    def try_all(self) -> int:
        """Tries once what is kept; returns how many reports are left."""
        with self._sending:
            while self._waiting and self._try(self._waiting[0]):
                with self._changed:
                    self._workdir.drop_report(self._waiting.popleft())
            return len(self._waiting)

    def run(self) -> None:
        """Sends what is kept, whenever the server lets it."""
        backoff = Backoff()
        while True:
            with self._changed:
                while not self._waiting:
                    backoff.reset()
                    self._changed.wait()
            if self.try_all():
                backoff.pause(self._never)

    def _try(self, report: dict[str, Any]) -> bool:
        """True where nothing is left to be done with the report."""
        try:
            command = self._server.update(report)
        except (TryAgainError, InputError):  # away, or the token is refused for now
            return False
        except HpoPilotError as error:
            log.error("the report on job %s (%s) is lost: %s", report["job_id"], report["job_status"], error)
            return True
        if command:
            log.info("job %s was reported %s: %s", report["job_id"], report["job_status"], command)
        return True


_MOST = 1000  # jobs in one call


class _Return:
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
        self._wishes: list[_Return] = []

    def give(self, panda_id: int, attempt: int) -> bool:
        """Puts a job of this pilot's back into the queue, without counting the attempt.

        Returns:
            Whether it is there; False: it is this pilot's still, and is to be reported.

        Raises:
            ServerAway, TokenRefused: the server does not say.
        """
        wish = _Return(panda_id, attempt)
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
