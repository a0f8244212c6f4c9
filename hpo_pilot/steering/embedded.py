"""The PanDA server of searches: the embedded one, or another that the user names.

`EmbeddedPanda` runs the embedded server and the local pilot as child processes. `chosen_server` picks the server.
`connected_manager` and `started_manager` open a workflow manager at it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import requests

from hpo_pilot.errors import InputError, SearchFileError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.hpc.site_files import find_site, site_files, site_here
from hpo_pilot.http import open_session
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.server import (
    PandaServer,
    address,
    environment_server,
    environment_vo,
    remove_address,
    write_address,
)
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.pilot.settings import CHECKPOINT_MB
from hpo_pilot.search.yaml_document import read_model
from hpo_pilot.server import DATABASE_VARIABLE
from hpo_pilot.server.queues import QueueFile
from hpo_pilot.server.tokens import BIGMON_KEY, Role
from hpo_pilot.steering.server_processes import ChildProcess, NetworkOptions, OwnTokens, free_port, wait_until_answering
from hpo_pilot.steering.status import server_phrase
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir, nickname
from hpo_pilot.store import EMBEDDED, SearchRecord, Store

log = logging.getLogger(__name__)

#: Name of the site profile of this machine.
LOCAL_SITE = "local"

#: The harvester id under which local pilots report.
HARVESTER = "hpo-pilot-local"

#: PanDA's worker id is a number. There is one local pilot, so it is always this.
WORKER = 1

#: Seconds for the pilot to end its jobs and to report them. A payload may take 15 s to end.
_PILOT_STOP_SECONDS = 40.0

#: Seconds to wait for the port of the previous server, which may be about to end.
_PORT_SECONDS = 3.0

#: The file in the token folder with the server's address.
_ADDRESS = "address"


class EmbeddedPanda:
    """The embedded PanDA server and the local pilot of one work folder."""

    def __init__(
        self,
        workdir: WorkDir,
        *,
        slots: int,
        queue: str = DEFAULT_QUEUE,
        reach: NetworkOptions | None = None,
        queues: Path | None = None,
        processes: int = 1,
        site: str = LOCAL_SITE,
        isolated: bool = False,
    ) -> None:
        """Prepares both; `start` runs them.

        Args:
            workdir: keeps their state and logs.
            slots: number of jobs that the local pilot runs at once; 0: no local pilot.
            queue: the queue that the local pilot serves.
            reach: network options of the server; None: this machine only.
            queues: the queue file (YAML); None: any name is a queue.
            processes: number of processes of the server.
            site: the site profile of the local pilot; one with a batch system is not this machine's.
            isolated: jobs cannot read the work folder, because they may be of several users.

        Raises:
            InputError: a file of `reach` or `queues` cannot be used, this machine's site profile is wrong, or several
                processes would use SQLite.
        """
        in_workdir = workdir.server_database == str(workdir.panda_database)
        if processes > 1 and in_workdir:
            raise InputError(
                f"--server-processes {processes} needs PostgreSQL, because a SQLite file has one writer: set "
                f"{DATABASE_VARIABLE}=postgresql+psycopg://USER@HOST/DATABASE"
            )
        self._workdir = workdir
        reach = reach or NetworkOptions()
        self._port = reach.port or _port_of_before(workdir) or free_port()
        self.url = reach.url(self._port)
        self.authority_file = reach.authority
        self._own = OwnTokens(workdir.tokens, nickname())
        self._tokens = self._own.files
        self.server = PandaServer(self.url, self._tokens[Role.USER], nickname(), authorities=reach.authorities(workdir))
        python = sys.executable
        self._server = ChildProcess(
            "embedded PanDA server",
            [
                *(python, "-m", "hpo_pilot.server", "--processes", str(processes)),
                *(("--database", str(workdir.panda_database)) if in_workdir else ()),  # else it reads the variable
                *("--files", str(workdir.panda_files), "--port", str(self._port)),
                *("--tokens", str(workdir.tokens), "--lifeline-fd", "{lifeline}"),
                *reach.server_options(),
                *(("--queues", str(_described_queues(workdir, queues, queue if slots else ""))) if queues else ()),
            ],
            workdir.log("server"),
        )
        self._pilot = ChildProcess(
            "local pilot",
            [
                *(python, "-m", "hpo_pilot.pilot", "--server", self.url, "--queue", queue, "--slots", str(slots)),
                *("--token-file", str(self._tokens[Role.PILOT]), "--workdir", str(workdir.pilots)),
                *("--checkpoints", str(workdir.checkpoints), "--heartbeat", "2"),
                # Another pilot may get its jobs, or the next levels of its trials.
                *(("--checkpoint-mb", str(CHECKPOINT_MB)) if reach.is_open else ()),
                *("--environments", str(workdir.environments)),
                *(("--hide", str(workdir.root)) if isolated else ("--no-isolation",)),
                *("--worker-id", str(WORKER), "--harvester-id", HARVESTER, "--lifeline-fd", "{lifeline}", "--wait"),
                *(("--ca", str(self.authority_file)) if self.authority_file else ()),
                *(("--site", str(described)) if slots and (described := _described_site(workdir, site)) else ()),
            ],
            workdir.log("pilot"),
        )
        self._slots = slots

    @property
    def token_folder(self) -> Path:
        """The folder of the token files, one per role."""
        return self._workdir.tokens

    def start(self) -> None:
        """Starts both. Returns when the server answers; the pilot loads its modules meanwhile and sends nothing.

        Raises:
            TryAgainError: the server does not start; the message has the reason.
            InputError: the server does not start because of an option or a file of it, or the pilot's folders cannot
                be made.
        """
        if self._slots:
            self._make_pilot_folders()
        self._server.start()
        if self._slots:
            self._pilot.start()
        self._wait_for_server()
        write_whole(self._workdir.tokens / _ADDRESS, f"{self.url}\n{self.server.authorities or ''}")
        write_address(self._workdir.root, self.server)
        self._note_monitor()
        self._pilot.release()

    def check(self) -> None:
        """Restarts a process that has ended.

        Raises:
            GiveUpError: a process ends again and again.
        """
        self._own.renew()
        if self._server.check():
            self._wait_for_server()
        if not self._slots:
            self._pilot.log.bound()
        elif self._pilot.check():
            self._pilot.release()

    def stop(self) -> None:
        """Ends both, the pilot first, because it returns its jobs to the server."""
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
        """Writes the address for PANDAMON_URL, which BigPanDA scripts read. The address is a secret."""
        file = self._workdir.monitor_address
        try:
            key = (self._workdir.panda_files / BIGMON_KEY).read_text().strip()
            write_whole(file, f"{self.url}/bigmon/{key}\n", mode=0o600)
        except (OSError, ValueError) as error:
            raise TryAgainError(f"{file} cannot be written: {error}") from error

    def _wait_for_server(self) -> None:
        def ours() -> dict[str, str]:
            # Only our server takes our token: a proxy at the public URL may lead elsewhere.
            return {"Authorization": f"Bearer {self._tokens[Role.USER].read_text().strip()}"}

        call = "system/get_user_attributes"
        try:
            wait_until_answering(self._server, self.url, call, self.server.authorities, ours)
        except (InputError, TryAgainError):
            self._server.stop()
            raise


def _described_queues(workdir: WorkDir, file: Path, served: str) -> Path:
    """Writes the queues in the form that the server reads. Returns the path.

    Args:
        workdir: keeps the file.
        file: the user's queue file.
        served: the queue of the local pilot; empty: there is no local pilot.
    """
    found = load_queues(file)
    if served and served not in found.queues:
        raise InputError(f"{file} has no queue {served}, which the local pilot serves: add it, or give --slots 0")
    described = workdir.root / "queues.json"
    write_queues(found, described)
    return described


def _described_site(workdir: WorkDir, name: str) -> Path | None:
    """Writes a site profile, or this machine's, in the form that the local pilot reads. None: there is no profile."""
    profile = site_here(name) or (find_site(LOCAL_SITE) if LOCAL_SITE in site_files() else None)
    if profile is None:
        return None
    described = workdir.root / "site.json"
    write_whole(described, json.dumps(profile.model_dump(mode="json")))
    return described


def running_server(workdir: WorkDir) -> PandaServer | None:
    """Returns the embedded server of the work folder if it runs and takes our token."""
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
    """Returns the number of jobs of `cores` cores that fit on the cores of this process; at least one."""
    return max(1, len(os.sched_getaffinity(0)) // cores)


def _port_of_before(workdir: WorkDir) -> int:
    """Returns the port of this work folder's previous server if it is free, else 0; pilots elsewhere know that port."""
    try:
        port = urlsplit((workdir.tokens / _ADDRESS).read_text().partition("\n")[0]).port or 0
    except (OSError, ValueError):
        return 0
    end = time.monotonic() + _PORT_SECONDS
    while port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Closed connections do not count.
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if time.monotonic() > end:
                    log.warning("port %d, on which earlier pilots expect this server, is taken: %s", port, error)
                    return 0
                time.sleep(0.1)
            else:
                break
    return port


class QueueFileError(SearchFileError):
    """A queue file is wrong. The message has all problems, one per line, in the order of the file."""


def load_queues(path: Path) -> QueueFile:
    """Reads a queue file.

    Raises:
        QueueFileError: the file cannot be read or is wrong; `problems` has every mistake with its place.
    """
    return read_model(path, QueueFile, QueueFileError)


def write_queues(queues: QueueFile, path: Path) -> None:
    """Writes the JSON that `python -m hpo_pilot.server --queues` reads, with mode 0600, completely or not at all."""
    write_whole(path, json.dumps(queues.model_dump(mode="json", exclude_defaults=True), indent=1), 0o600)


# --- the choice of the server ---

#: Seconds for panda-client to find the user's name: it may call voms-proxy-info, or renew a token.
_NAME_SECONDS = 120.0

_NICKNAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def chosen_server(option: str | None, records: Sequence[SearchRecord] = ()) -> str:
    """Returns the server to use: that of the option, else that of a search, else that of the environment.

    Args:
        option: `EMBEDDED`, or the URL of a server; None: not given.
        records: the searches to submit there.

    Returns:
        `EMBEDDED`, or scheme://host:port.

    Raises:
        InputError: the option or PANDA_URL_SSL is not a URL, or a search is bound to another server.
    """
    if option is not None:
        server = EMBEDDED if option == EMBEDDED else address(option, "--server")
    else:
        bound = (record.server for record in records if record.server is not None)
        server = next(bound, None) or environment_server() or EMBEDDED
    for record in records:
        _check_bound(record, server)
    return server


def bind_to_server(store: Store, records: Sequence[SearchRecord], server: str) -> None:
    """Binds searches to a server. All are checked before any is bound.

    Raises:
        InputError: a search is bound to another server.
    """
    for record in records:
        _check_bound(store.search(record.id), server)
    for record in records:
        store.bind_server(record.id, server)


def check_steered(wanted: Mapping[str, str | None], server: str | None) -> None:
    """Checks that the running service will steer these searches.

    Args:
        wanted: names of searches, with the server that each is bound to; None: not bound yet.
        server: the server of the service; None: unknown.

    Raises:
        InputError: the service will not steer a search, because the search is bound to another server.
    """
    for name, own in wanted.items():
        if None not in (server, own) and own != server:
            raise InputError(
                f"search {name!r} goes to {server_phrase(str(own))}, and the service that has this store "
                f"steers only at {server_phrase(str(server))}: stop it, or take the search to another --workdir"
            )


def _check_bound(record: SearchRecord, server: str) -> None:
    if record.server is not None and record.server != server:
        raise InputError(
            f"search {record.name!r} has its tasks at {server_phrase(record.server)}, "
            f"and cannot go on at {server_phrase(server)}: "
            f"give --server {record.server}, or give the search another name in its file"
        )


@contextlib.contextmanager
def connected_manager(url: str, workdir: WorkDir) -> Iterator[WorkflowManager]:
    """Opens a workflow manager at a PanDA server for the duration of a block.

    Raises:
        InputError: the user's settings for panda-client are wrong.
        TryAgainError: the server does not answer, or does not accept the credentials.
    """
    log = workdir.log("panda-client")
    server = PandaServer(url, None, nickname_at(url, log), environment_vo())
    with contextlib.closing(PandaManager(server, log)) as manager:
        yield manager


@contextlib.contextmanager
def started_manager(panda: EmbeddedPanda, workdir: WorkDir) -> Iterator[WorkflowManager]:
    """Starts the embedded server and opens a workflow manager at it for the duration of a block."""
    try:
        with contextlib.closing(manager_at(panda.server, workdir)) as manager:  # panda-client loads meanwhile
            panda.start()
            yield manager
    finally:
        panda.stop()


def manager_at(server: PandaServer, workdir: WorkDir) -> WorkflowManager:
    """Returns a workflow manager at an embedded server, which may still be starting: nothing is sent yet."""
    return PandaManager(server, workdir.log("panda-client"), workdir.checkpoints)


def nickname_at(url: str, log: Path) -> str:
    """Returns the user's name at a PanDA server from panda-client, and checks that the server knows the user.

    Raises:
        InputError: there is no name, or the name cannot be part of a task name.
        TryAgainError: the server does not answer, or there are no credentials.
    """
    if os.environ.get("PANDA_AUTH") == "oidc" and not (
        os.environ.get("PANDA_AUTH_VO") or os.environ.get("OIDC_AUTH_VO")
    ):
        raise InputError("PANDA_AUTH is oidc, and PANDA_AUTH_VO does not say which virtual organisation is meant")
    with contextlib.closing(ClientProcess(PandaServer(url, None, "").environment(), log)) as client:
        name = str(client.call("nickname", deadline=_NAME_SECONDS))
        if not name:
            raise InputError(
                f"panda-client finds no nickname of yours for {url}: neither a token (PANDA_AUTH=oidc) nor a proxy has "
                f"one. Set PANDA_NICKNAME; {log} has panda-client's own messages"
            )
        if not _NICKNAME.fullmatch(name):
            raise InputError(
                f"your nickname at {url} is {name!r}, which is not allowed in names of tasks; PANDA_NICKNAME_REPLACE "
                "corrects it (/from/to/ for panda-client)"
            )
        client.call("hello")
        # `hello` needs no credentials. This call does.
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        status, tasks = client.call("getJobIDsJediTasksInTimeRange", now)
        if status != 0 or tasks is None:
            raise TryAgainError(f"the PanDA server {url} answers, but does not list the tasks of {name}; see {log}")
    return name
