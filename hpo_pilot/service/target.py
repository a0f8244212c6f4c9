"""The PanDA server that a command means: the embedded one, or another with the user's own credentials."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.panda_server import PandaServer, address, environment_server
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.service.steered import called
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, SearchRecord, Store

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


def bind(store: Store, records: Sequence[SearchRecord], server: str) -> None:
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
                f"search {name!r} goes to {called(str(own))}, and the service that has this store "
                f"steers at {called(str(server))} alone: stop it, or take the search to another --workdir"
            )


def _check_bound(record: SearchRecord, server: str) -> None:
    if record.server is not None and record.server != server:
        raise InputError(
            f"search {record.name!r} has its tasks at {called(record.server)}, and cannot go on at {called(server)}: "
            f"give --server {record.server}, or give the search another name in its file"
        )


@contextlib.contextmanager
def connected(url: str, workdir: WorkDir) -> Iterator[WorkflowManager]:
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
