"""The PanDA server that a command uses, embedded or real, and the reasons why jobs wait there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.server import PandaServer, address, environment_server, read_address
from hpo_pilot.panda.workflow_manager import WorkflowManager, workflow_manager
from hpo_pilot.steering.status import server_phrase
from hpo_pilot.steering.workdir import WorkDir
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


log = logging.getLogger(__name__)

_LATELY = 600.0  # seconds for which a pilot that asked for jobs counts as one that is there
_PATIENCE = 30.0  # seconds that a job may wait before anything is said of it
_TASKS = 200  # in one question
_SECONDS = 3.0  # that the server may take: who asks wants to know of the search

#: What of a job an offer must reach, and how that is said.
_SIZES: Sequence[tuple[str, Callable[[Any], str]]] = (
    ("nodes", lambda value: f"{value} nodes at once"),
    ("gpus", lambda value: f"{value} GPU{'' if value == 1 else 's'} on a node"),
    ("cores", lambda value: f"{value} core{'' if value == 1 else 's'} on a node"),
    ("memory_mb", lambda value: f"{value} MB of memory on a node"),
    ("minutes", lambda value: f"{value:g} minutes for a job"),
)


def waiting_job_notes(workdir: Path, task_ids: Sequence[int]) -> list[str]:
    """What to know of a search's jobs that wait.

    Args:
        workdir: the work folder whose embedded server has them.
        task_ids: of its tasks that are not over.

    Returns:
        Nothing where no server runs there, or none of its jobs waits in vain.
    """
    if not task_ids:
        return []
    try:
        said = _asked(workdir, task_ids)
        return [] if said is None else why_they_wait(said)
    except (HpoPilotError, OSError, ValueError, LookupError, TypeError) as error:
        log.debug("it is not known why jobs wait: %s", error)  # the search itself can be shown all the same
        return []


def _asked(workdir: Path, task_ids: Sequence[int]) -> Mapping[str, Any] | None:
    server = read_address(workdir)
    if server is None:
        return None
    with server.session() as session:
        answer = session.get(
            f"{server.url}/api/v1/hpo_pilot/demand",
            params={"task_ids": list(task_ids[:_TASKS])},
            headers=server.headers(),
            timeout=_SECONDS,
            allow_redirects=False,
        )
    answer.raise_for_status()
    data: Mapping[str, Any] = answer.json()["data"]
    return data


def why_they_wait(said: Mapping[str, Any]) -> list[str]:
    """The remarks that follow from an answer of the server's to hpo_pilot/demand."""
    waiting = [shape for shape in said["waiting"] if shape["since"] >= _PATIENCE]
    if not waiting:
        return []
    jobs = sum(shape["jobs"] for shape in waiting)
    known = min(_LATELY, said["known_for"])
    offers = [offer for offer in said["offers"] if offer["is_busy"] or offer["asked"] < _LATELY]
    if not said["going"] and not offers:
        if known < _PATIENCE:
            return []  # the server has just started: pilots may not have found it yet
        return [
            f"{_jobs(jobs)}, and no pilot has asked for jobs for {_time(known)}: `hpo-pilot pilots list` shows "
            "allocations; `hpo-pilot serve --slots N`, `hpo-pilot pilot` or `hpo-pilot pilots submit` starts pilots"
        ]
    if not offers:
        return []  # whoever has jobs now asked before the server started
    return [remark for shape in waiting if (remark := _lacking(shape, offers))]


def _lacking(shape: Mapping[str, Any], offers: Sequence[Mapping[str, Any]]) -> str:
    """What no pilot has of what jobs of a shape need; empty: one has it all."""
    if any(all(_reaches(offer, shape, name) for name, _ in _SIZES) for offer in offers):
        return ""
    lacking = [text(shape[name]) for name, text in _SIZES if not any(_reaches(one, shape, name) for one in offers)]
    if lacking:
        return f"{_jobs(shape['jobs'])}, and no pilot that asked lately has {' or '.join(lacking)}"
    wanted = [text(shape[name]) for name, text in _SIZES if shape[name] > (name == "nodes")]
    return f"{_jobs(shape['jobs'])}, and no pilot that asked lately has all of this: {', '.join(wanted)}"


def _reaches(offer: Mapping[str, Any], shape: Mapping[str, Any], name: str) -> bool:
    """Whether a pilot has enough of one thing; of cores, memory and time it need not have said how much it has."""
    if name in ("nodes", "gpus"):
        return bool(offer[name] >= shape[name])
    return not offer[name] or bool(offer[name] >= shape[name])


def _jobs(count: int) -> str:
    return "1 job waits" if count == 1 else f"{count} jobs wait"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
