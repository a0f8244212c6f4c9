"""The PanDA server that the scenarios run against, and our pilots there.

The environment names it as for panda-client: PANDA_URL_SSL and its like, with the user's own token or proxy. For our
own pilots there HPO_PILOT_TEST_PILOT_TOKEN (a file with a pilot's token), HPO_PILOT_TEST_PILOT_VO and
HPO_PILOT_TEST_QUEUE are wanted; without them the site's pilots must run the jobs. Where PANDA_URL_SSL is not set it is
an embedded server over TLS, started by the tests, and reached in the same way as a foreign one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.certificates import self_signed
from tests.panda_environment import panda_environment
from tests.server_process import ServerProcess

#: Seconds of silence after which the embedded server gives a job up.
HEARTBEAT_TIMEOUT = 6.0


@dataclass(frozen=True)
class Target:
    """A PanDA server.

    Attributes:
        environment: what panda-client reads to find it, and whoever we are there.
        pilot_token: a file with a pilot's token; None: there are pilots of the site's.
        embedded: whether it is ours, so that what takes a foreign server hours can be tried.
        patience: seconds that a few jobs may take there.
    """

    url: str
    environment: dict[str, str]
    queue: str
    pilot_token: Path | None
    pilot_vo: str
    embedded: bool
    patience: float
    pilot_options: list[str] = field(default_factory=list)

    @contextmanager
    def pilot(self, workdir: Path) -> Iterator[subprocess.Popen[bytes] | None]:
        """A pilot of ours with two slots for the length of a block; None where the site has its own."""
        if self.pilot_token is None:
            yield None
            return
        process = self.start_pilot(workdir)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(600)

    def start_pilot(self, workdir: Path) -> subprocess.Popen[bytes]:
        """A pilot process of ours; the caller ends it."""
        workdir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "hpo_pilot.pilot", "--server", self.url, "--queue", self.queue]
        command += ["--slots", "2", "--token-file", str(self.pilot_token), "--vo", self.pilot_vo, "--heartbeat", "2"]
        command += ["--workdir", str(workdir / "work"), *self.pilot_options]
        with (workdir / "pilot.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


class Door:
    """A way to a server on this machine that can be closed: then connections end, and new ones are refused."""

    def __init__(self, url: str) -> None:
        """Opens it; `url` is the door's own address then."""
        parts = urlsplit(url)
        self._to = (parts.hostname or "", parts.port or 443)
        self._threads = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._port = 0
        self.open()
        self.url = f"{parts.scheme}://{parts.hostname}:{self._port}"

    def open(self) -> None:
        """Takes connections, at the same port as before."""
        self._listener = listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        """Ends all connections and takes no more."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._threads:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                here = listener.accept()[0]
            except OSError:
                return
            try:
                there = socket.create_connection(self._to, 10)
            except OSError:
                here.close()
                continue
            there.settimeout(None)
            with self._threads:
                self._open |= {here, there}
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := one.recv(65536):
                other.sendall(part)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)
        with self._threads:
            if one in self._open:
                self._open.discard(one)
                if other not in self._open:
                    one.close()
                    other.close()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def named_target() -> Iterator[Target]:
    """The server of the environment."""
    parts = urlsplit(os.environ["PANDA_URL_SSL"])
    pilot_token = os.environ.get("HPO_PILOT_TEST_PILOT_TOKEN")
    yield Target(
        url=f"{parts.scheme}://{parts.netloc}",
        environment={},
        queue=os.environ.get("HPO_PILOT_TEST_QUEUE", ""),
        pilot_token=Path(pilot_token) if pilot_token else None,
        pilot_vo=os.environ.get("HPO_PILOT_TEST_PILOT_VO", os.environ.get("PANDA_AUTH_VO", "")),
        embedded=False,
        patience=1200.0,
    )


@contextmanager
def embedded_target(folder: Path) -> Iterator[Target]:
    """An embedded server over TLS, with users who come from elsewhere."""
    for name, role in (("user", Role.USER), ("pilot", Role.PILOT)):
        path = folder / f"{name}.token"
        path.touch(mode=0o600)
        path.write_text(token("ada", role))
    certificate = self_signed(folder / "tls")
    with ServerProcess(
        database=folder / "panda.db",
        files=folder / "files",
        tokens=make_token_folder(folder / "tokens"),
        options=certificate.options,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        stderr=folder / "server.log",
    ) as server:
        environment = panda_environment(server.url, folder / "user.token", certificate.folder)
        authority = ["--ca", str(certificate.chain)]
        yield Target(server.url, environment, "LOCAL", folder / "pilot.token", "hpo_pilot", True, 120.0, authority)
    assert "Traceback" not in (folder / "server.log").read_text()
