"""A server that behaves as real PanDA servers do where ours does not: a proxy in front of an embedded one.

It has no calls of ours and no storage; a new task shows only after a while, waits for its brokerage, and its jobs pass
through `holding`; files have serial numbers of their own; submissions are throttled, answers lost, gateways bad. What
it says in these cases is what panda-server 1.0.4 says.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests


@dataclass
class Quirks:
    """How bad it is; may be changed while it runs.

    Attributes:
        hidden: seconds for which a new task is known to the submission's database alone.
        brokerage: further seconds for which it is pending and has no jobs.
        why: what the server says of it then.
        kept_back: jobs stay pending, as where the server stopped while JEDI made them: no pilot would get them.
        holding: seconds that a finished job is holding, without metadata.
        throttled: so many of the next submissions are refused.
        lost: so many of the next submissions are acted on and not answered.
        unregistered: so many of the next uploads are written to the cache and not registered.
        bad_gateway_every: every so many calls the gateway has a bad moment; 0: never.
        denied: why no credentials are taken; empty: they are.
        exhausted: names of tasks that the server has stopped, with what it says of it.
    """

    hidden: float = 0.0
    brokerage: float = 0.0
    why: str = ""
    kept_back: bool = False
    holding: float = 0.0
    throttled: int = 0
    lost: int = 0
    unregistered: int = 0
    bad_gateway_every: int = 0
    denied: str = ""
    exhausted: dict[str, str] = field(default_factory=dict)


class ForeignPanda:
    """The proxy, in a thread of this process."""

    def __init__(self, behind: str, quirks: Quirks | None = None) -> None:
        self.behind = behind
        self.quirks = quirks or Quirks()
        self.calls: Counter[str] = Counter()
        self.submitted: dict[int, float] = {}
        self._finished: dict[int, float] = {}
        self._lock = threading.Lock()
        foreign = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                foreign.handle(self, b"")

            def do_POST(self) -> None:
                foreign.handle(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # --- one call ---

    def handle(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path = urlsplit(handler.path).path.removeprefix("/api/v1/")
        with self._lock:
            self.calls[path] += 1
            every = self.quirks.bad_gateway_every
            bad_moment = every and sum(self.calls.values()) % every == 0
        if path.startswith("hpo_pilot/") or self.quirks.denied:
            return _answer(handler, 403, (self.quirks.denied or f"{path} is forbidden").encode())
        if bad_moment or not handler.path.startswith("/api/v1/"):
            return _answer(handler, 502 if bad_moment else 404, b"<html><h1>Proxy Error</h1></html>")
        if path == "task/submit" and self._is_due("throttled"):
            refusal = {"success": False, "message": "Too many active tasks for me 11>10", "data": 10}
            return _answer(handler, 200, json.dumps(refusal).encode())
        hidden = self._hidden(handler.path, path, body)
        if hidden is not None:
            return _answer(handler, 200, json.dumps(hidden).encode())
        unregistered = path == "file_server/upload_cache_file" and self._is_due("unregistered")
        if unregistered:
            # In the cache it has its name all the same, and the database does not know that.
            body = body.replace(b'filename="', b'filename="nowhere/', 1)
        dropped = ("host", "connection", "content-length")
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in dropped}
        if path == "task/submit":
            body = self._refined(json.loads(body))
        try:
            found = requests.request(
                handler.command, self.behind + handler.path, data=body or None, headers=headers, timeout=60
            )
        except requests.RequestException:
            return _answer(handler, 502, b"<html><h1>Bad Gateway</h1></html>")
        content = found.content
        if unregistered:
            message = "ERROR : failed to register sandbox to DB with ERROR: DB failure"
            content = json.dumps({"success": False, "message": message, "data": None}).encode()
        if found.status_code == 200 and path.startswith(("task/", "job/")):
            content = json.dumps(self._changed(path, found.json())).encode()
        if path == "task/submit" and self._is_due("lost"):
            handler.close_connection = True
            handler.connection.shutdown(2)
            return None
        return _answer(handler, found.status_code, content)

    def _refined(self, request: dict[str, Any]) -> bytes:
        """The submission with what JEDI fills in: the transformation of its sites.

        The pilots of the sites show their tokens to their own server alone, so that has the sandbox too.
        """
        parameters = request["task_parameters"]
        parameters["sourceURL"] = self.behind
        parameters.setdefault("transPath", f"{self.behind}/trf/user/runGen-00-00-02")
        return json.dumps(request).encode()

    def _is_due(self, mishap: str) -> bool:
        """Whether one more of so many mishaps happens."""
        with self._lock:
            left = getattr(self.quirks, mishap)
            setattr(self.quirks, mishap, max(0, left - 1))
        return bool(left)

    # --- what does not show yet ---

    def _age(self, task_id: int) -> float:
        return time.monotonic() - self.submitted.get(task_id, -1e9)

    def _hidden(self, target: str, path: str, body: bytes) -> dict[str, Any] | None:
        """The answer about a task that JEDI has not looked at; None where there is none such."""
        query = parse_qs(urlsplit(target).query)
        if path not in ("task/get_status", "task/get_detailed_info", "task/get_job_descriptions", "task/get_details"):
            return None
        task_id = int(query["task_id"][0])
        age = self._age(task_id)
        if path == "task/get_job_descriptions" and age < self.quirks.hidden + self.quirks.brokerage:
            return {"success": True, "message": "", "data": []}
        if age >= self.quirks.hidden:
            return None
        return {"success": False, "message": "Task not found or error retrieving task info", "data": None}

    def _changed(self, path: str, answer: dict[str, Any]) -> dict[str, Any]:
        data = answer.get("data")
        if path == "task/submit":
            if match := re.search(r"jediTaskID=(\d+)", str(answer.get("message"))):
                task_id = int(match[1])
                if answer["success"]:
                    self.submitted.setdefault(task_id, time.monotonic())
                elif self._age(task_id) < self.quirks.hidden:
                    return {"success": False, "message": f"jediTaskID={task_id} is already queued for outDS", "data": 1}
        elif path == "task/get_tasks_detailed_info_since":
            kept = [task for task in data or [] if self._age(task["jediTaskID"]) >= self.quirks.hidden]
            answer["data"] = [self._task(task) for task in kept]
        elif path == "task/get_detailed_info" and answer["success"]:
            answer["data"] = self._task(data)
        elif path == "task/get_job_descriptions":
            answer["data"] = [self._job(job) for job in data]
        elif path == "job/get_metadata_for_analysis_jobs":
            answer["data"] = {key: document for key, document in data.items() if not self._is_holding(int(key))}
        return answer

    def _task(self, task: dict[str, Any]) -> dict[str, Any]:
        if self._age(task["jediTaskID"]) < self.quirks.hidden + self.quirks.brokerage:
            waits = {"status": "pending", "nFilesFinished": 0, "nFilesFailed": 0, "errorDialog": self.quirks.why}
            return task | waits
        if dialog := self.quirks.exhausted.get(task["taskName"]):
            return task | {"status": "exhausted", "errorDialog": dialog}
        return task

    def _is_holding(self, panda_id: int) -> bool:
        """Whether a job, which has finished, is still held back."""
        with self._lock:
            since = self._finished.setdefault(panda_id, time.monotonic())
        return time.monotonic() - since < self.quirks.holding

    def _job(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["jobStatus"] == "finished" and self._is_holding(job["PandaID"]):
            job["jobStatus"] = "holding"
        if job["jobStatus"] == "activated" and self.quirks.kept_back:
            job["jobStatus"] = "pending"
        for file in job["Files"]:
            if file["type"] in ("output", "log"):
                # JEDI gives every attempt the next free number.
                file["lfn"] = re.sub(r"([._])(\d{6})\.", rf"\g<1>{job['PandaID'] + 500:06d}.", file["lfn"])
        return job


def _answer(handler: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json" if status == 200 else "text/html")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
