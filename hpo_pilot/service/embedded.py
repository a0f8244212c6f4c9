"""The embedded PanDA: a server and a pilot as child processes, for searches that run on this machine alone."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import requests

from hpo_pilot.config.queue_file import load_queues, write_queues
from hpo_pilot.config.site_file import find_site, site_files
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.panda.board_address import remove_address, write_address
from hpo_pilot.panda.panda_server import PandaServer
from hpo_pilot.pilot.session import open_session
from hpo_pilot.server.access.auth import Role
from hpo_pilot.server.bigpanda.reading_key import KEY_FILE
from hpo_pilot.service.answering import wait_until_answering
from hpo_pilot.service.children import Child
from hpo_pilot.service.local_queue import DEFAULT_QUEUE
from hpo_pilot.service.nickname import nickname
from hpo_pilot.service.own_tokens import OwnTokens
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.whole_file import write_whole

log = logging.getLogger(__name__)

#: The profile of the machine that the local pilot runs on.
LOCAL_SITE = "local"

#: The harvester id under which local pilots report.
HARVESTER = "hpo-pilot-local"

#: A worker's id is a number to PanDA; there is one local pilot, so it is always this.
WORKER = 1

#: What the pilot gets to end its jobs and to report them; a payload may take 15 s to die.
_PILOT_STOP_SECONDS = 30.0

#: How long the port of the server before is waited for: that one may be just ending.
_PORT_SECONDS = 3.0

#: The file in the token folder that says where the server is.
_ADDRESS = "address"


class EmbeddedPanda:
    """Server and pilot of one work folder."""

    def __init__(
        self,
        workdir: WorkDir,
        *,
        slots: int,
        queue: str = DEFAULT_QUEUE,
        reach: Reach | None = None,
        queues: Path | None = None,
    ) -> None:
        """Prepares; `start` runs them.

        Args:
            workdir: where their state and logs are.
            slots: how many jobs the local pilot runs side by side; 0: no local pilot.
            queue: the queue that the local pilot serves.
            reach: where the server listens; None: this machine alone.
            queues: the queue file (YAML); None: any name is a queue.

        Raises:
            InputError: `reach` or `queues` name files that cannot be used, or this machine's site profile is wrong.
        """
        self._workdir = workdir
        reach = reach or Reach()
        self._port = reach.port or _port_of_before(workdir) or free_port()
        self.url = reach.url(self._port)
        self.authority_file = reach.authority
        self._own = OwnTokens(workdir.tokens, nickname())
        self._tokens = self._own.files
        self.server = PandaServer(self.url, self._tokens[Role.USER], nickname(), authorities=reach.authorities(workdir))
        python = sys.executable
        self._server = Child(
            "embedded PanDA server",
            [
                *(python, "-m", "hpo_pilot.server", "--database", f"sqlite:///{workdir.panda_database}"),
                *("--files", str(workdir.panda_files), "--port", str(self._port)),
                *("--tokens", str(workdir.tokens), "--lifeline-fd", "{lifeline}"),
                *reach.server_options(),
                *(("--queues", str(_described_queues(workdir, queues, queue if slots else ""))) if queues else ()),
            ],
            workdir.log("server"),
        )
        self._pilot = Child(
            "local pilot",
            [
                *(python, "-m", "hpo_pilot.pilot", "--server", self.url, "--queue", queue, "--slots", str(slots)),
                *("--token-file", str(self._tokens[Role.PILOT]), "--workdir", str(workdir.pilots)),
                *("--checkpoints", str(workdir.checkpoints), "--heartbeat", "2"),
                *("--environments", str(workdir.environments)),
                *("--worker-id", str(WORKER), "--harvester-id", HARVESTER, "--lifeline-fd", "{lifeline}"),
                *(("--ca", str(self.authority_file)) if self.authority_file else ()),
                *(("--site", str(site)) if slots and (site := _described_site(workdir)) else ()),
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
            InputError: the same, and the reason is an option or a file that it names; or the pilot's folders cannot be
                made.
        """
        if self._slots:
            self._make_pilot_folders()
        self._server.start()
        self._wait_for_server()
        (self._workdir.tokens / _ADDRESS).write_text(f"{self.url}\n{self.server.authorities or ''}")
        write_address(self._workdir.root, self.server)
        self._note_monitor()
        if self._slots:
            self._pilot.start()

    def check(self) -> None:
        """Starts again what has ended.

        Raises:
            GiveUpError: one of them ends again and again.
        """
        self._own.renew()
        if self._server.check():
            self._wait_for_server()
        if self._slots:
            self._pilot.check()
        else:
            self._pilot.bound_log()

    def stop(self) -> None:
        """Ends both, the pilot first: it gives its jobs back to the server."""
        self._pilot.stop(_PILOT_STOP_SECONDS)
        remove_address(self._workdir.root)
        self._server.stop()

    def _make_pilot_folders(self) -> None:
        try:
            self._workdir.make_private(self._workdir.pilots, self._workdir.checkpoints)
        except OSError as error:
            raise InputError(
                f"cannot make {error.filename} for the local pilot: {error.strerror}; choose another --workdir"
            ) from error

    def _note_monitor(self) -> None:
        """Writes where scripts for a BigPanDA find the server, for PANDAMON_URL: an address that is a secret."""
        file = self._workdir.monitor_address
        try:
            key = (self._workdir.panda_files / KEY_FILE).read_text().strip()
            write_whole(file, f"{self.url}/bigmon/{key}\n", mode=0o600)
        except (OSError, ValueError) as error:
            raise TryAgainError(f"{file} cannot be written: {error}") from error

    def _wait_for_server(self) -> None:
        def ours() -> dict[str, str]:
            # Our token is good at our server alone: another may have the port, and ours be about to say so.
            return {"Authorization": f"Bearer {self._tokens[Role.USER].read_text().strip()}"}

        call = "system/get_user_attributes"
        try:
            wait_until_answering(self._server, self.url, call, self.server.authorities, ours)
        except (InputError, TryAgainError):
            self._server.stop()
            raise


def _described_queues(workdir: WorkDir, file: Path, served: str) -> Path:
    """The queue file as the server reads it.

    Args:
        workdir: where it is kept.
        file: as users write it.
        served: the queue of the local pilot; empty: there is none.
    """
    found = load_queues(file)
    if served and served not in found.queues:
        raise InputError(f"{file} has no queue {served}, which the local pilot serves: add it, or give --slots 0")
    described = workdir.root / "queues.json"
    write_queues(found, described)
    return described


def _described_site(workdir: WorkDir) -> Path | None:
    """This machine's profile as the local pilot reads it: what starts ranks here. None: there is none."""
    if LOCAL_SITE not in site_files():
        return None
    described = workdir.root / "site.json"
    write_whole(described, json.dumps(find_site(LOCAL_SITE).model_dump(mode="json")))
    return described


def running_server(workdir: WorkDir) -> PandaServer | None:
    """The embedded server of the work folder, if one runs and takes our token."""
    token = workdir.tokens / "user.token"
    try:
        url, _, folder = (workdir.tokens / _ADDRESS).read_text().partition("\n")
        server = PandaServer(url, token, nickname(), authorities=Path(folder) if folder else None)
        headers = {"Authorization": f"Bearer {token.read_text()}", "Origin": server.vo}
        with open_session(url, server.authorities) as session:
            answer = session.get(f"{url}/api/v1/hpo_pilot/changes?cursor=-1&timeout=0", headers=headers, timeout=5)
    except (OSError, requests.RequestException):
        return None
    return server if answer.ok else None


def default_slots(cores: int) -> int:
    """How many jobs of `cores` cores this process's share of the machine holds, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // cores)


def _port_of_before(workdir: WorkDir) -> int:
    """Where pilots in allocations look for the server of this work folder, if nobody else listens there; else 0."""
    try:
        port = urlsplit((workdir.tokens / _ADDRESS).read_text().partition("\n")[0]).port or 0
    except (OSError, ValueError):
        return 0
    end = time.monotonic() + _PORT_SECONDS
    while port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if time.monotonic() > end:
                    log.warning("port %d, where pilots of before look for this server, is taken: %s", port, error)
                    return 0
                time.sleep(0.1)
            else:
                break
    return port


def free_port() -> int:
    """A port of this machine that nobody listens on now.

    Raises:
        TryAgainError: there is none.
    """
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            raise TryAgainError(f"no free port for the embedded PanDA server: {error.strerror}") from error
        return int(probe.getsockname()[1])
