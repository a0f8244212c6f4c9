from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hpo_pilot.pilot.settings import PilotSettings
from tests.programs import program

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "hpo_pilot" / "runner" / "hpo_pilot_runner.py"
TOKEN = "pilots-own-token"
GOOD = """echo '{"status": 0, "loss": 0.5}' > output.json"""


def sandbox(command: str, files: Mapping[str, str] | None = None, **payload: Any) -> tuple[str, bytes]:
    """Name and content of an archive as the service packs it."""
    document = {"command": command, "metric": "loss", "minutes": 5.0} | payload
    contents = {
        **{program.name: program.read_bytes() for program in RUNNER.parent.glob("hpo_pilot_*.py")},
        "hpo_pilot_payload.json": json.dumps(document).encode(),
        **{name: text.encode() for name, text in (files or {}).items()},
    }
    packed = archive_of(*[(tarfile.TarInfo(name), content) for name, content in contents.items()])
    return f"sources.{hashlib.sha256(packed).hexdigest()}.tar.gz", packed


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,  # the same members are the same archive
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def in_background(function: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
    """Calls a function in a thread that no test waits for if it never returns."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(function(*arguments, **named))
        except BaseException as error:  # noqa: BLE001  whoever asks for the answer gets it
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def verdict(report: dict[str, Any]) -> dict[str, Any]:
    """The runner's verdict in a final report."""
    return dict(json.loads(report["meta_data"])["user_job_metadata"]["hpo_pilot"])


@pytest.fixture
def make_settings(tmp_path):
    """Makes a pilot's settings, with a token and a work folder of the test's own."""
    (tmp_path / "token").write_text(TOKEN)
    usual = {"queue": "LOCAL", "slots": 1, "token_file": tmp_path / "token", "workdir": tmp_path / "work"}
    return lambda server="http://127.0.0.1:9", **more: PilotSettings(server, **{**usual, **more})


class FakePanda:
    """A PanDA server as a pilot sees it, that does what a test tells it to."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.acquired: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.reports: list[dict[str, Any]] = []
        self.workers: list[dict[str, Any]] = []
        self.stored: dict[str, bytes] = {}
        self.uploads = 0  # that have come
        self.takes_uploads = threading.Event()
        self.takes_uploads.set()
        self.cache: dict[str, bytes] = {}
        self.fetched: list[tuple[str, str | None]] = []
        self.commands: dict[int, str] = {}
        self.answers: dict[int, dict[str, Any]] = {}  # to reports on jobs that it does not take
        self.broken: set[int] = set()  # jobs with which a list of reports fails
        self.takes_back = False  # as servers of ours do
        self.lists: list[int] | None = []  # lengths of lists of reports; None: it has no call for them
        self.given_back: list[list[int]] = []
        self.refuse_with: int | None = None
        self.is_frozen = False  # it takes no final report
        self.untaken = 0  # final reports that came meanwhile
        self.tokens = {TOKEN}
        self.changed = threading.Condition()
        self._last_id = 100
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        handler = type("Handler", (_Handler,), {"panda": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def down(self) -> None:
        """As after kill -9: nobody listens, and open connections break."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def add_job(
        self,
        command: str,
        files: Mapping[str, str] | None = None,
        job: Mapping[str, Any] | None = None,
        level: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> int:
        """Queues a job that runs a payload; returns its PandaID, which is its trial's number too."""
        name, packed = sandbox(command, files, **payload)
        self.cache[name] = packed
        self._last_id += 1
        table = {"search": "s", "uid": "1a2b3c4d", "generation": 1, "folds": 1, "jobs": [[self._last_id, 0, 1]]}
        table["points"] = {str(self._last_id): {"x": 1}}
        table["levels"] = {str(self._last_id): level} if level else {}
        task = base64.urlsafe_b64encode(zlib.compress(json.dumps(table).encode())).decode()
        line = quote(f"python3 -I -S hpo_pilot_runner.py --task {task} --number ") + "1"
        outputs = "-o \"{'outputs.tar.gz': 'user.me.outputs.tar.gz'}\""
        described = {
            "PandaID": self._last_id,
            "attemptNr": 1,
            "taskID": 5,
            "jobName": "user.me.s",
            "hpoPilotStorage": True,
            "jobPars": f'-j "" --sourceURL {self.url} -r . -a {name} {outputs} -p "{line}"',
            "logFile": f"user.me.{self._last_id}.log.tgz",
            "minRamCount": 0,
            "maxWalltime": 600,
            "coreCount": 1,
            "container_name": "NULL",
        }
        with self.changed:
            self.waiting.append(described | dict(job or {}))
            self.changed.notify_all()
        return self._last_id

    def of(self, panda_id: int, status: str | None = None) -> list[dict[str, Any]]:
        with self.changed:
            return [r for r in self.reports if r["job_id"] == panda_id and status in (None, r["job_status"])]

    def final(self, panda_id: int, seconds: float = 600.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                for report in self.reports:
                    if report["job_id"] == panda_id and report["job_status"] in ("finished", "failed"):
                        return report
                assert self.changed.wait(end - time.monotonic()), f"no final report on job {panda_id}"


class _Handler(BaseHTTPRequestHandler):
    panda: FakePanda
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(600)

    def _answer(self, body: Any, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if not self.panda.is_up:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _is_refused(self) -> bool:
        if not self.panda.is_up:
            self.close_connection = True
            return True
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        status = self.panda.refuse_with or (401 if token not in self.panda.tokens else None)
        if status:
            self._answer({"success": False, "message": "refused", "data": None}, status)
        return bool(status)

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.panda.fetched.append((name, self.headers.get("Authorization")))
        if name in self.panda.cache:
            self._answer(self.panda.cache[name])
        elif not self._is_refused():
            self._answer({"message": f"there is no file {name}"}, 404)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.panda.uploads += 1
        self.panda.takes_uploads.wait(600)
        if not self._is_refused():
            self.panda.stored[self.path.rpartition("/")[2]] = data
            self._answer({"success": True, "message": "", "data": None})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_refused():
            return
        if self.headers["Content-Type"] != "application/json":  # a checkpoint
            self._answer({"message": "this server takes none"}, 404)
            return
        body = json.loads(data)
        panda, function = self.panda, self.path.rpartition("/")[2]
        if function == "acquire_jobs":
            self._acquire(body)
        elif function == "update_job":
            if panda.is_frozen and body["job_status"] in ("finished", "failed"):
                panda.untaken += 1
                while panda.is_frozen and panda.is_up:
                    time.sleep(0.05)
                self.close_connection = True
                return
            self._answer(self._report(body))
        elif function == "update_jobs_bulk" and panda.lists is not None:
            panda.lists.append(len(body["job_list"]))
            self._answer(self._report_all(body["job_list"]))
        elif function == "update_jobs_bulk":
            self._answer(b"ERROR : method update_jobs_bulk is forbidden", 403)  # as panda-server
        elif function == "give_back":
            with panda.changed:
                panda.given_back += body["jobs"] if panda.takes_back else []
                panda.changed.notify_all()
            found = [job for job, _ in body["jobs"]] if panda.takes_back else []
            self._answer({"success": True, "message": "", "data": {"given_back": found}})
        else:
            panda.workers.append(body)
            self._answer({"success": True, "message": "", "data": None})

    def _report(self, report: dict[str, Any]) -> dict[str, Any]:
        panda, answer = self.panda, self.panda.answers.get(report["job_id"])
        with panda.changed:
            if answer is None:
                panda.reports.append(report)
            panda.changed.notify_all()
        command = panda.commands.get(report["job_id"])
        return answer or {"success": True, "message": "", "data": {"StatusCode": 0, "command": command}}

    def _report_all(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        if broken := self.panda.broken.intersection(report["job_id"] for report in reports):
            return {"success": False, "message": f"failed with ValueError {broken}", "data": []}
        return {"success": True, "message": "", "data": list(map(self._report, reports))}

    def _acquire(self, body: dict[str, Any]) -> None:
        panda = self.panda
        end = time.monotonic() + float(self.headers.get("X-HPO-Pilot-Wait") or 0)
        panda.acquired.append(body)
        panda.headers.append(self.headers)
        with panda.changed:
            while not panda.waiting and panda.is_up and (left := end - time.monotonic()) > 0:
                panda.changed.wait(min(left, 0.1))
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                return  # who asked is gone
            jobs = panda.waiting[: body["n_jobs"]]
            del panda.waiting[: body["n_jobs"]]
        if jobs:
            self._answer({"success": True, "message": "", "data": {"StatusCode": 0, "jobs": jobs}})
        else:
            self._answer({"success": False, "message": "No jobs in PanDA", "data": None})


@pytest.fixture
def panda():
    fake = FakePanda()
    yield fake
    fake.down()


def slurm_stubs(folder: Path, **others: str) -> Path:
    """Writes stubs of Slurm's commands and of others, for an allocation of two nodes that ends in an hour."""
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 3600))
    squeue = f"""case "$*" in *--steps*) ;; *%T*) echo RUNNING {end} 2 'n[1-2]' ;; *) echo {end} ;; esac"""
    for name, text in {"scontrol": "echo n1; echo n2", "squeue": squeue, **others}.items():
        program(folder / name, text)
    return folder


class PilotProcess:
    """`python -m hpo_pilot.pilot` as the service starts it."""

    def __init__(self, folder: Path, url: str, token: str = TOKEN) -> None:
        self.folder, self.url = folder, url
        self.token_file = folder / "pilot.token"
        self.token_file.write_text(token + "\n")
        self.workdir = folder / "work"
        self.log = folder / "pilot.log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        *options: str,
        slots: int = 2,
        variables: Mapping[str, str] | None = None,
        isolated: bool = False,
        **popen: Any,
    ) -> subprocess.Popen[bytes]:
        argv = [
            *(sys.executable, "-m", "hpo_pilot.pilot", "--server", self.url, "--queue", "LOCAL", "--slots", str(slots)),
            *("--token-file", str(self.token_file), "--workdir", str(self.workdir), "--heartbeat", "0.3", *options),
            *(() if isolated else ("--no-isolation",)),  # their payloads write beside the work folder
        ]
        env = dict(os.environ) | {"GREETING_TOKEN": "geheim", "PYTHONPATH": str(ROOT)} | dict(variables or {})
        with self.log.open("ab") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, env=env, **popen)
        self.processes.append(process)
        return process

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> int:
        self.processes[-1].terminate()
        return self.processes[-1].wait(600)


@pytest.fixture
def pilot(tmp_path, panda):
    process = PilotProcess(tmp_path, panda.url)
    yield process
    for started in process.processes:
        if started.poll() is None:
            started.send_signal(signal.SIGKILL)
            started.wait()


@pytest.fixture
def until():
    def wait(condition: Callable[[], object], seconds: float = 600.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    return wait


@pytest.fixture
def alive():
    def of(folder: Path) -> list[int]:
        """Processes that work in this folder or below."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").resolve().is_relative_to(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    return of
