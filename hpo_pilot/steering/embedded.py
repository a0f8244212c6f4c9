"""The embedded PanDA: server and local pilot as child processes, its queues, and access for other pilots."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from pydantic import ValidationError

from hpo_pilot.errors import InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.hpc.keeper import Demand, WaitingJobs
from hpo_pilot.hpc.site_files import find_site, site_files
from hpo_pilot.http import open_session
from hpo_pilot.jobs import JobNeeds, JobState
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.server import (
    PandaServer,
    address,
    environment_server,
    environment_vo,
    remove_address,
    write_address,
)
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.search.mistakes import FieldPath as Place
from hpo_pilot.search.mistakes import Mistake, mistakes_of
from hpo_pilot.search.yaml_document import Document, read_document
from hpo_pilot.server.bigpanda import KEY_FILE
from hpo_pilot.server.queues import Queue, QueueFile
from hpo_pilot.server.tokens import Role
from hpo_pilot.steering.server_processes import (
    AUTHORITIES,
    ChildProcess,
    NetworkOptions,
    OwnTokens,
    free_port,
    wait_until_answering,
)
from hpo_pilot.steering.status import server_phrase
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir, nickname
from hpo_pilot.store import EMBEDDED, SearchRecord, Store

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
        reach: NetworkOptions | None = None,
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
                *(python, "-m", "hpo_pilot.server", "--database", f"sqlite:///{workdir.panda_database}"),
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


class QueueFileError(SearchFileError):
    """A queue file is wrong; says everything that is, one problem per line, in the order of the file."""


def load_queues(path: Path) -> QueueFile:
    """The queues of the file at `path`.

    Raises:
        QueueFileError: it cannot be read or is wrong; its `problems` are all mistakes with their places.
    """
    document = read_document(path)
    problems = list(document.problems)
    if not problems:
        problems = _problems(document)
    if problems:
        raise QueueFileError(problems)
    return QueueFile.model_validate(document.value)


def write_queues(queues: QueueFile, path: Path) -> None:
    """Writes what `python -m hpo_pilot.server --queues` reads: JSON, for its owner alone, whole or not at all."""
    write_whole(path, json.dumps(queues.model_dump(mode="json", exclude_defaults=True), indent=1), 0o600)


def _problems(document: Document) -> list[Problem]:
    data = document.value
    if not isinstance(data, Mapping):
        return [document.problem((), "must be a mapping with the key queues", "see deploy/queues.yaml")]
    found = _mistakes(dict(data), (), QueueFile)
    queues = data.get("queues")
    if isinstance(queues, Mapping):
        # Each queue by itself: a wrong one hides nothing in the others.
        found = [misfit for misfit in found if len(misfit.path) < 2]
        for name, queue in queues.items():
            found += _mistakes(queue, ("queues", name), Queue)
            found += _mistakes({"queues": {name: {}}}, (), QueueFile)  # its name
    return [document.problem(misfit.path, misfit.message, misfit.hint, at_key=misfit.at_key) for misfit in found]


def _mistakes(data: Any, under: Place, model: type[Queue | QueueFile]) -> list[Mistake]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        return [
            Mistake(under + misfit.path, misfit.message, misfit.hint, at_key=misfit.at_key)
            for misfit in mistakes_of(error, data, model)
        ]
    return []


@dataclass(frozen=True)
class PilotAccess:
    """A PanDA server as pilots elsewhere are to know it.

    Attributes:
        server: its URL.
        queue: the queue that they serve.
        token_file: with a pilot's token.
        ca: PEM file of its authorities; None: the usual ones.
        vo: the virtual organisation.
    """

    server: str
    queue: str
    token_file: Path
    ca: Path | None
    vo: str


def pilot_access(
    workdir: WorkDir,
    *,
    server: str | None,
    queue: str | None,
    token_file: Path | None,
    ca: Path | None,
    warn: Callable[[str], None],
) -> PilotAccess:
    """What the options mean; without a server, the embedded one of the work folder.

    Args:
        workdir: whose service runs.
        server: a PanDA server's URL; None: the embedded one.
        queue: None: the embedded server's own.
        token_file: None: that of the work folder's own pilots.
        ca: None: what `serve --ca` was given.
        warn: is told what may not work.

    Raises:
        InputError: something is missing.
    """
    if server is not None:
        url = address(server, "--server")
        if token_file is None or queue is None:
            missing = "--token-file, a file with a pilot's token" if token_file is None else "--panda-queue"
            raise InputError(f"--server {url} also needs {missing}")
        return PilotAccess(url, queue, token_file, ca, _vo())
    found = running_server(workdir)
    if found is None:
        raise InputError(
            f"no service runs in {workdir.root}: start `hpo-pilot serve --host 0.0.0.0 --tls-cert FILE --tls-key FILE` "
            "there, or name --server, --token-file and --panda-queue"
        )
    if _is_loopback(found.url):
        warn(
            f"the embedded server is at {found.url}, which compute nodes cannot reach unless they are this machine: "
            "start it with `hpo-pilot serve --host 0.0.0.0 --tls-cert FILE --tls-key FILE`"
        )
    if ca is None and found.authorities is not None:
        ca = found.authorities / AUTHORITIES
    token = token_file or workdir.tokens / f"{Role.PILOT.value}.token"
    return PilotAccess(found.url, queue or DEFAULT_QUEUE, token, ca, found.vo)


def _vo() -> str:
    """The virtual organisation of the user's own PanDA tokens, where there are such; else that of ours."""
    return environment_vo() if os.environ.get("PANDA_AUTH") == "oidc" else PilotSettings.vo


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


#: What servers of ours tell, by what jobs need; and what all do.
_DEMAND, _STATISTICS = "hpo_pilot/demand", "statistics/active_job_stats_by_site"
_SECONDS = 60.0


class DemandReader:
    """Asks one server for the jobs of one queue."""

    def __init__(self, server: str, queue: str, token_file: Path, *, vo: str, ca: Path | None = None) -> None:
        """Calls nobody yet.

        Args:
            server: its URL.
            queue: the PanDA queue.
            token_file: a token that may ask; read again at every call.
            vo: the virtual organisation, which goes with the token.
            ca: PEM file of its authorities; None: the usual ones.
        """
        self._server = server
        self._queue = queue
        self._token_file = token_file
        self._vo = vo
        self._ca = ca

    def __call__(self) -> Demand:
        """Asks.

        Raises:
            InputError: the token cannot be read, or is refused.
            TryAgainError: the server does not answer properly.
        """
        try:
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise InputError(f"--token-file {self._token_file}: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Origin": self._vo}
        try:
            with open_session(self._server, self._ca) as session:
                return self._ask(session, headers)
        except (requests.RequestException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise TryAgainError(f"the server {self._server} does not tell of its jobs: {error}") from error

    def _ask(self, session: requests.Session, headers: Mapping[str, str]) -> Demand:
        url, parameters = f"{self._server}/api/v1", {"queue": self._queue}
        answer = session.get(f"{url}/{_DEMAND}", params=parameters, headers=headers, timeout=_SECONDS)
        if answer.status_code == 404:  # a server that is none of ours
            answer = session.get(f"{url}/{_STATISTICS}", headers=headers, timeout=_SECONDS)
            return _counted(self._data(answer).get(self._queue, {}))
        data = self._data(answer)
        return Demand(tuple(map(_waiting, data["waiting"])), int(data["going"]))

    def _data(self, answer: requests.Response) -> dict[str, Any]:
        if answer.status_code in (401, 403):
            raise InputError(f"the server {self._server} refuses the token of {self._token_file}")
        answer.raise_for_status()
        data: dict[str, Any] = answer.json()["data"]
        return data


def _waiting(shape: Mapping[str, Any]) -> WaitingJobs:
    needs = JobNeeds(
        nodes=int(shape["nodes"]),
        gpus_per_node=int(shape["gpus"]),
        cores=max(1, int(shape["cores"])),
        memory_mb=int(shape["memory_mb"]),
        minutes=float(shape["minutes"]),
    )
    return WaitingJobs(int(shape["jobs"]), needs)


def _counted(states: Mapping[str, int]) -> Demand:
    waiting = int(states.get(JobState.ACTIVATED, 0))
    going = sum(int(count) for state, count in states.items() if _is_going(state))
    return Demand((WaitingJobs(waiting),) if waiting else (), going)


def _is_going(state: str) -> bool:
    """Whether jobs in such a state are at a pilot, or on their way to one; those of a paused task are not."""
    if state in (JobState.DEFINED, JobState.ACTIVATED):
        return False
    return state not in set(JobState) or not JobState(state).is_over  # real servers have states that we do not


#: How long panda-client may take to find out who we are, in seconds: it may ask voms-proxy-info, or renew a token.
_NAME_SECONDS = 120.0

_NICKNAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def chosen_server(option: str | None, records: Sequence[SearchRecord] = ()) -> str:
    """The server that is meant: the option's, else the one that a search is tied to, else the environment's.

    Args:
        option: `EMBEDDED`, or a server's URL; None: not given.
        records: the searches that it is about.

    Returns:
        `EMBEDDED`, or scheme://host:port.

    Raises:
        InputError: the option or PANDA_URL_SSL is no such URL, or a search is tied to another server.
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
    """Ties searches to a server; none of them where one is tied to another.

    Raises:
        InputError: one is.
    """
    for record in records:
        _check_bound(store.search(record.id), server)
    for record in records:
        store.bind_server(record.id, server)


def check_steered(wanted: Mapping[str, str | None], server: str | None) -> None:
    """Makes sure that a service which takes tasks to `server` (None: it does not say) will steer these searches.

    Args:
        wanted: names of searches, with the server that each is tied to; None: to none yet.
        server: the service's.

    Raises:
        InputError: it leaves one alone.
    """
    for name, own in wanted.items():
        if None not in (server, own) and own != server:
            raise InputError(
                f"search {name!r} goes to {server_phrase(str(own))}, and the service that has this store "
                f"steers at {server_phrase(str(server))} alone: stop it, or take the search to another --workdir"
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
    """A manager of the user's tasks at a PanDA server, for the length of a block.

    Raises:
        InputError: the user's settings for panda-client do not do.
        TryAgainError: the server does not answer, or takes no credentials of ours.
    """
    log = workdir.log("panda-client")
    owner = nickname_at(url, log)
    with contextlib.closing(workflow_manager("panda").connect(url, None, owner, log)) as manager:
        yield manager


def nickname_at(url: str, log: Path) -> str:
    """The user's name at a PanDA server, as panda-client finds it; the server is seen to know the user.

    Raises:
        InputError: it finds none, or one that no task's name can have.
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
                f"panda-client finds no nickname of yours for {url}: there is none in a token (PANDA_AUTH=oidc) nor in "
                f"a proxy. PANDA_NICKNAME sets one; what panda-client says is in {log}"
            )
        if not _NICKNAME.fullmatch(name):
            raise InputError(
                f"your nickname at {url} is {name!r}, which no task's name can have; PANDA_NICKNAME_REPLACE mends it "
                "(/from/to/ for panda-client)"
            )
        client.call("hello")
        # That it answers to anybody; this it answers to us.
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        status, tasks = client.call("getJobIDsJediTasksInTimeRange", now)
        if status != 0 or tasks is None:
            raise TryAgainError(f"the PanDA server {url} answers, but does not tell {name} of their tasks; see {log}")
    return name
