"""The embedded PanDA: a server and a pilot as child processes, for searches that run on this machine alone."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import sys
import time
from pathlib import Path

import requests

from hpo_pilot.errors import TryAgainError
from hpo_pilot.panda.manager import PandaServer
from hpo_pilot.server.auth import Role
from hpo_pilot.server.process import write_tokens
from hpo_pilot.service.children import Child
from hpo_pilot.service.workdir import WorkDir

#: The queue of the embedded server's local pilot, and of tasks that name none.
DEFAULT_QUEUE = "LOCAL"

#: The harvester id under which local pilots report.
HARVESTER = "hpo-pilot-local"

#: A worker's id is a number to PanDA; there is one local pilot, so it is always this.
WORKER = 1

_START_SECONDS = 60.0

#: What the pilot gets to end its jobs and to report them; a payload may take 15 s to die.
_PILOT_STOP_SECONDS = 30.0

#: The file in the token folder that says where the server is.
_ADDRESS = "address"


class EmbeddedPanda:
    """Server and pilot of one work folder."""

    def __init__(self, workdir: WorkDir, *, slots: int, queue: str = DEFAULT_QUEUE, port: int | None = None) -> None:
        """Prepares; `start` runs them.

        Args:
            workdir: where their state and logs are.
            slots: how many jobs the local pilot runs side by side; 0: no local pilot.
            queue: the queue that the local pilot serves.
            port: the server's port; None: a free one.
        """
        self._workdir = workdir
        self._port = port or _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._tokens = _make_tokens(workdir)
        self.server = PandaServer(self.url, self._tokens["user"], nickname())
        python = sys.executable
        self._server = Child(
            "embedded PanDA server",
            [
                *(python, "-m", "hpo_pilot.server", "--database", f"sqlite:///{workdir.panda_database}"),
                *("--files", str(workdir.panda_files), "--port", str(self._port)),
                *("--tokens", str(workdir.tokens / "server.json"), "--lifeline-fd", "{lifeline}"),
            ],
            workdir.log("server"),
        )
        self._pilot = Child(
            "local pilot",
            [
                *(python, "-m", "hpo_pilot.pilot", "--server", self.url, "--queue", queue, "--slots", str(slots)),
                *("--token-file", str(self._tokens["pilot"]), "--workdir", str(workdir.pilots)),
                *("--checkpoints", str(workdir.checkpoints), "--heartbeat", "2"),
                *("--worker-id", str(WORKER), "--harvester-id", HARVESTER, "--lifeline-fd", "{lifeline}"),
            ],
            workdir.log("pilot"),
        )
        self._slots = slots

    @property
    def token_folder(self) -> Path:
        """Where the tokens are, one file per role."""
        return self._workdir.tokens

    def start(self) -> None:
        """Starts both; returns when the server answers.

        Raises:
            TryAgainError: the server does not start; the message has its reason.
        """
        self._server.start()
        self._wait_for_server()
        (self._workdir.tokens / _ADDRESS).write_text(self.url)
        if self._slots:
            self._start_pilot()

    def check(self) -> None:
        """Starts again what has ended.

        Raises:
            GiveUpError: one of them ends again and again.
        """
        if self._server.check():
            self._wait_for_server()
        if self._slots and self._pilot.exit_code is not None:
            self._forget_pilot()
            self._pilot.check()

    def stop(self) -> None:
        """Ends both, the pilot first: it gives its jobs back to the server."""
        self._pilot.stop(_PILOT_STOP_SECONDS)
        self._server.stop()

    def _start_pilot(self) -> None:
        self._forget_pilot()
        self._pilot.start()

    def _forget_pilot(self) -> None:
        """Tells the server that no local pilot lives: jobs that an earlier one had are lost now, not after minutes."""
        self._post("pilot/update_worker_status", {"worker_id": WORKER, "harvester_id": HARVESTER, "status": "finished"})

    def _post(self, path: str, body: dict[str, object]) -> None:
        headers = {"Authorization": f"Bearer {self._tokens['pilot'].read_text().strip()}", "Origin": self.server.vo}
        try:
            requests.post(f"{self.url}/api/v1/{path}", json=body, headers=headers, timeout=30).raise_for_status()
        except requests.RequestException as error:
            raise TryAgainError(f"the embedded PanDA server does not answer: {error}") from error

    def _wait_for_server(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._server.exit_code is not None:
                raise TryAgainError(f"the embedded PanDA server did not start: {self._server.last_line()}")
            try:
                if requests.get(f"{self.url}/api/v1/system/is_alive", timeout=5).ok:
                    return
            except requests.RequestException:
                time.sleep(0.05)  # not listening yet
        self._server.stop()
        raise TryAgainError(
            f"the embedded PanDA server did not answer within {_START_SECONDS:.0f} s; see {self._workdir.log('server')}"
        )


def running_server(workdir: WorkDir) -> PandaServer | None:
    """The embedded server of the work folder, if one runs and takes our token."""
    token = workdir.tokens / "user.token"
    try:
        url = (workdir.tokens / _ADDRESS).read_text()
        headers = {"Authorization": f"Bearer {token.read_text()}", "Origin": "hpo_pilot"}
        answer = requests.get(f"{url}/api/v1/hpo_pilot/changes?cursor=-1&timeout=0", headers=headers, timeout=5)
    except (OSError, requests.RequestException):
        return None
    return PandaServer(url, token, nickname()) if answer.ok else None


def default_slots(cores: int) -> int:
    """How many jobs of `cores` cores this process's share of the machine holds, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // cores)


def nickname() -> str:
    """The user's name as PanDA wants it in task names."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user in the password database, as in some containers
        name = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:30]


def _free_port() -> int:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            raise TryAgainError(f"no free port for the embedded PanDA server: {error.strerror}") from error
        return int(probe.getsockname()[1])


def _make_tokens(workdir: WorkDir) -> dict[str, Path]:
    """The tokens of the work folder's server, in files of mode 0600; made once, for pilots elsewhere hold copies."""
    workdir.tokens.mkdir(mode=0o700, exist_ok=True)
    files = {}
    callers = {}
    for role in (Role.USER, Role.PILOT):
        path = files[role.value] = workdir.tokens / f"{role.value}.token"
        token = path.read_text().strip() if path.exists() else ""
        if not token:
            token = secrets.token_urlsafe(32)
            temporary = path.with_suffix(".tmp")
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(token)
            temporary.replace(path)
        callers[token] = (nickname(), role)
    write_tokens(workdir.tokens / "server.json", callers)
    return files
