"""A real server in a process of its own, and the clients to talk to it: requests, and the real panda-client."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests

import hpo_pilot.server.app  # noqa: F401  # fills the tables of calls, each of which tests go through
from hpo_pilot.http import open_session
from hpo_pilot.server.__main__ import main
from hpo_pilot.server.database import Database
from hpo_pilot.server.tokens import Caller, Role, TokenRefused, Tokens
from tests.bearer import make_token_folder, token
from tests.certificates import self_signed
from tests.clock import Clock
from tests.panda_environment import panda_environment
from tests.postgresql import BASE, new_database
from tests.server.queue_driver import Queue
from tests.server_process import ServerProcess

TOKENS = {
    "token-of-me": ("me", Role.USER),
    "token-of-you": ("you", Role.USER),
    "token-of-pilot": ("pilot", Role.PILOT),
    "token-of-operator": ("operator", Role.OPERATOR),
}


def bearer(alias: str) -> str:
    """Returns the token of an alias in TOKENS; other texts are returned unchanged."""
    return token(*TOKENS[alias]) if alias in TOKENS else alias


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(tmp_path: Path, postgresql: str | None) -> Path | str:
    """Where the database of a test is."""
    return postgresql or tmp_path / "panda.db"


@pytest.fixture
def database(place: Path | str, clock: Clock) -> Iterator[Database]:
    opened = Database(place, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def queue(database: Database, clock: Clock) -> Queue:
    return Queue(database, clock)


@pytest.fixture
def me() -> Caller:
    return Caller("me", Role.USER)


class Api:
    """Calls of one token's owner."""

    def __init__(self, url: str, token: str | None, authorities: Path | None = None) -> None:
        self.url = url
        self.session = open_session(url, authorities)
        if token:
            self.session.headers["Authorization"] = f"Bearer {bearer(token)}"

    def post(self, path: str, headers: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
        return self._reply(self.session.post(f"{self.url}/api/v1/{path}", json=arguments, headers=headers, timeout=600))

    def get(self, path: str, **arguments: Any) -> dict[str, Any]:
        return self._reply(self.session.get(f"{self.url}/api/v1/{path}", params=arguments, timeout=600))

    def legacy(self, function: str, **arguments: Any) -> Any:
        """A call of the API of released pilots, which accept JSON."""
        headers = {"Accept": "application/json", "Origin": "hpo_pilot"}
        answer = self.session.post(f"{self.url}/server/panda/{function}", data=arguments, headers=headers, timeout=600)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def upload(self, name: str, content: bytes, call: str = "upload_cache_file") -> dict[str, Any]:
        url, files = f"{self.url}/api/v1/file_server/{call}", {"file": (name, content)}
        return self._reply(self.session.post(url, files=files, timeout=600))

    @staticmethod
    def _reply(response: requests.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def submit(self, params: dict[str, Any]) -> int:
        reply = self.post("task/submit", task_parameters=params)
        assert reply["success"], reply
        return int(reply["data"])

    def acquire(self, n_jobs: int = 1, **more: Any) -> list[dict[str, Any]]:
        arguments = {"site_name": "LOCAL", "prod_source_label": "user", "n_jobs": n_jobs, **more}
        reply = self.post("pilot/acquire_jobs", **arguments)
        return list(reply["data"]["jobs"]) if reply["success"] else []

    def update(self, panda_id: int, status: str, **more: Any) -> dict[str, Any]:
        reply = self.post("pilot/update_job", job_id=panda_id, job_status=status, **more)
        assert reply["success"], reply
        data: dict[str, Any] = reply["data"]
        return data


class RunningServer:
    """A server process with its files; can be killed and started again on the same port."""

    def __init__(
        self,
        folder: Path,
        heartbeat_timeout: float = 60.0,
        *,
        place: Path | str | None = None,
        tls: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.place = place or folder / "panda.db"
        self.heartbeat_timeout = heartbeat_timeout
        self.tls = self_signed(folder / "tls") if tls else None
        self.options = [*options, *(self.tls.options if self.tls else ())]
        self.tokens = make_token_folder(folder / "tokens")
        self.log = folder / "server.log"
        self._port = 0
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(
            database=self.place,
            files=self.folder / "files",
            tokens=self.tokens,
            port=self._port,
            heartbeat_timeout=self.heartbeat_timeout,
            options=self.options,
            stderr=self.log,
        )
        self.url = self.process.url
        self._port = int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """Kill -9."""
        self.process.process.kill()
        self.process.stop()

    def stop(self) -> int:
        return self.process.stop()

    def api(self, name: str | None) -> Api:
        return Api(self.url, f"token-of-{name}" if name else None, self.tls and self.tls.folder)


@contextlib.contextmanager
def serving(folder: Path, **options: Any) -> Iterator[RunningServer]:
    """Runs a server, which must end without errors."""
    running = RunningServer(folder, **options)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests; each uses task names and queues of its own."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(new_database()) if BASE else None
        yield stack.enter_context(serving(tmp_path_factory.mktemp("server"), heartbeat_timeout=3600.0, place=place))


@pytest.fixture
def own_server(tmp_path: Path, place: Path | str) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers that a test may kill."""
    started: list[RunningServer] = []

    def start(**options: Any) -> RunningServer:
        started.append(RunningServer(tmp_path, place=place, **options))
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def refused(
    place: Path | str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs the command line of a server that must refuse to start; returns exit code and the line of the error."""
    mask = os.umask(0)
    os.umask(mask)

    def start(folder: Path, *options: str) -> tuple[int, str]:
        end, other = os.pipe()
        os.close(other)  # should it come to run after all, it ends at once
        where = ["--database", str(place), "--files", str(folder / "files")]
        try:
            code = main([*where, "--tokens", str(folder / "tokens"), "--lifeline-fd", str(end), *options])
        finally:
            os.close(end)
            os.umask(mask)
        out, err = capsys.readouterr()
        assert (out, caplog.text, len(err.splitlines())) == ("", "", 1), (out, caplog.text, err)
        return code, err

    yield start


_CLIENT = """
import json, sys
from pandaclient import Client
for line in sys.stdin:
    name, args, kwargs = json.loads(line)
    answer = getattr(Client, name)(*args, **kwargs)
    print("\\x01" + json.dumps(answer, default=lambda o: o.to_dict() if hasattr(o, "to_dict") else str(o)))
    sys.stdout.flush()
"""


def refusal(tokens: Tokens, token: str, origin: str | None = None) -> str:
    with pytest.raises(TokenRefused) as refused:
        tokens.verify(f"Bearer {token}", origin)
    return str(refused.value)


_SESSION = requests.Session()


def send(server: Any, method: str, path: str, who: str | None = None, **more: Any) -> requests.Response:
    """One request, with the token that tests call `who`; None: without a token."""
    headers = {"Authorization": f"Bearer {bearer(who)}"} if who is not None else {}
    headers |= more.pop("headers", {})
    return _SESSION.request(method, f"{server.url}{path}", headers=headers, timeout=600, **more)


class PandaClient:
    """The real panda-client, in a process of its own because it reads its environment once.

    Attributes:
        folder: where it runs: files that it sends have the names that it is given.
    """

    def __init__(self, url: str, token: str, folder: Path, authorities: Path | None = None) -> None:
        self.folder = folder
        token_file = folder / f"{token}.token"
        token_file.write_text(bearer(token))
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        environment |= panda_environment(url, token_file, authorities)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([name, args, kwargs]) + "\n")
            self._process.stdin.flush()
            printed = []
            for line in self._process.stdout:
                if line.startswith("\x01"):
                    return json.loads(line[1:])
                printed.append(line)
            raise AssertionError(f"panda-client ended: {''.join(printed)}")

        return call

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(600)


@contextlib.contextmanager
def connected(server: RunningServer, folder: Path, authorities: Path | None = None) -> Iterator[PandaClient]:
    """panda-client with a user's token; it trusts the server's own certificate, or these `authorities`."""
    client = PandaClient(server.url, "token-of-me", folder, authorities or (server.tls and server.tls.folder))
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def user(server: RunningServer) -> Api:
    return server.api("me")


@pytest.fixture
def pilot(server: RunningServer) -> Api:
    return server.api("pilot")
