"""The workflow manager `panda`: tasks and sandboxes through panda-client, on our server or a real one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import requests
from typing_extensions import override

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.files import rename_whole
from hpo_pilot.jobs import ASKED_QUEUE, JobReport, TaskRef, TaskSpec, TaskState
from hpo_pilot.panda import rucio
from hpo_pilot.panda.client_process import ClientProcess, MissingCallError, NoAnswerError, RefusedError
from hpo_pilot.panda.server import PandaServer
from hpo_pilot.panda.task_parameters import points_document, submitted_points, task_parameters
from hpo_pilot.panda.tasks import (
    ChangeFeed,
    ForeignServerReader,
    OwnServerReader,
    Watches,
    error_dialog,
    submitted_parameters,
    task_details,
    task_state,
)
from hpo_pilot.panda.workflow_manager import (
    EAGER,
    ServerPolicy,
    TaskNameTakenError,
    UnknownOutcomeError,
    WorkflowManager,
)
from hpo_pilot.pilot.checkpoints import remove_empty, search_folders

#: How far back to look for a task of unknown outcome, if the server has no look-up by name.
_LOOK_BACK = timedelta(days=30)

_TASK_ID = re.compile(r"jediTaskID=(\d+)")

#: Codes of insertTaskParams (panda-client 2.2.0, panda-server 1.0.4): a task of that name exists, waits, or goes on.
_DUPLICATE_CODES = (1, 2, 3, 5)

#: The database of the server failed: the server may have the task or not.
_SERVER_ERROR_CODE = 4

#: Too many active tasks of this user: try later.
_THROTTLED_CODE = 10

#: PandaIDs in one call of killJobs.
_KILLED_AT_ONCE = 200

#: PanDA keeps the metadata of payloads only for jobs with this label.
_LABEL = "user"

#: For a real server: a task costs its brokerage work, and every call costs its database work.
POLITE = ServerPolicy(
    refill=0.25,
    look_seconds=1800.0,
    retry_seconds=(10.0, 300.0),
    keeps_outputs=True,
    status_comes_along=True,
    revives=True,  # JEDI makes the input of any killed job ready for the next attempt
)

#: JEDI sends this many jobs of a task ahead as scouts. ATLAS's servers do not let users skip them, others do.
SCOUTS = 10
_SCOUTING_VO = "atlas"


log = logging.getLogger(__name__)


class PandaManager(WorkflowManager):
    """The workflow manager for one PanDA server."""

    def __init__(self, server: PandaServer, log: Path, checkpoints: Path | None = None) -> None:
        """Sends nothing yet; with our own token, panda-client loads at once.

        Args:
            server: the server and the user.
            log: the file for panda-client's own output.
            checkpoints: the folder of the local pilot's checkpoints; None: there is no local pilot.
        """
        self._server = server
        self._checkpoints = checkpoints
        self._client = ClientProcess(server.environment(), log)
        if server.token_file is not None:
            self._client.start()
        self._http = server.session()
        self._feed = ChangeFeed(server)
        self._watches = Watches()
        self._own = OwnServerReader(self._client)
        self._foreign = ForeignServerReader(self._client, self._watches)
        self._sandboxes = SandboxUploads(self._client, use_cache_server=server.uses_cache_server)

    @property
    @override
    def owner(self) -> str:
        return self._server.owner

    @property
    @override
    def policy(self) -> ServerPolicy:
        # As long as it is not known: a server whose token we made is ours.
        if self._feed.known if self._feed.known is not None else self._server.token_file is not None:
            return EAGER
        return replace(POLITE, jobs_per_task=scouts(self._server.vo))

    @property
    def _reader(self) -> OwnServerReader | ForeignServerReader:
        return self._own if self._feed.is_there() else self._foreign

    # --- submit ---

    @override
    def submit(self, task: TaskSpec, *, maybe_submitted: bool = False) -> TaskRef:
        if task.options.label != _LABEL:
            raise GiveUpError(
                f"task {task.name}: panda.label is {task.options.label!r}, and PanDA keeps only the results of jobs "
                f"with the label {_LABEL!r}: leave the option out"
            )
        ours = self._feed.is_there()
        if not ours and (task.queue or "").startswith(ASKED_QUEUE):
            raise GiveUpError(
                f"{self._server.url} cannot give trials to clients, and the search has payload: none: run it with the "
                "embedded server (--server embedded)"
            )
        if maybe_submitted and (found := self.find(task.name)):
            return self._adopted(found, task)
        sandbox = self._sandboxes.keep(task.sandbox, again=maybe_submitted)
        parameters = task_parameters(
            task, owner=self.owner, vo=self._server.vo, server=sandbox.source, sandbox=sandbox.name, ours=ours
        )
        try:
            status, answer = self._client.call("insertTaskParams", parameters, False, True)
        except NoAnswerError as error:
            raise UnknownOutcomeError(f"task {task.name}: {error}") from error
        if status != 0 or not isinstance(answer, list):
            # The request may have reached the server: only a look-up by name can tell.
            raise UnknownOutcomeError(f"task {task.name}: no proper answer to the submission: {answer}")
        code, message = answer
        match = _TASK_ID.search(str(message))
        ref = TaskRef(task.name, int(match[1])) if match else None
        reactivated = "reactivation" in str(message)
        if ref is not None and code == 0 and not reactivated:
            return self._watched(ref)
        if code in _DUPLICATE_CODES or reactivated:
            # Either our own earlier submission without an answer, or another task of that name, most likely of a copied
            # store.
            ref = ref or self.find(task.name)
            if ref is not None:
                return self._adopted(ref, task, reactivated=reactivated)
        if code == _THROTTLED_CODE:
            raise RefusedError(f"task {task.name}: the server has too many active tasks of yours: {message}")
        if code == _SERVER_ERROR_CODE or code in _DUPLICATE_CODES:
            raise UnknownOutcomeError(f"task {task.name}: the server's answer is code {code}: {message}")
        raise GiveUpError(f"task {task.name}: the server refused it (code {code}): {message}")

    def _adopted(self, ref: TaskRef, task: TaskSpec, *, reactivated: bool = False) -> TaskRef:
        """Returns the existing task of that name, if it is the task to submit.

        Raises:
            TaskNameTakenError: it is another task.
            UnknownOutcomeError: the server does not give its parameters.
        """
        found = submitted_parameters(self._client, ref.jedi_task_id)
        if found is None:
            raise UnknownOutcomeError(f"task {ref.name}: the server does not say what task {ref.jedi_task_id} is")
        if submitted_points(found) == points_document(task):
            return self._watched(ref)
        if reactivated:
            # The other task was over; reactivated, it would run its old points again.
            with contextlib.suppress(TryAgainError):
                self.kill(ref)
        raise TaskNameTakenError(f"task {ref.name}: the server has another task of that name, {ref.jedi_task_id}")

    def _watched(self, ref: TaskRef) -> TaskRef:
        """Returns a task that we have submitted; our own server tells of its changes, others are looked at."""
        if not self._feed.known:
            self._watches.begin(ref.jedi_task_id)
        return ref

    @override
    def find(self, name: str) -> TaskRef | None:
        try:
            filters = {"taskName": name}
            status, tasks = self._client.call("get_tasks_detailed_info_since", None, filters, 10)
        except MissingCallError:
            since = (datetime.now(UTC) - _LOOK_BACK).strftime("%Y-%m-%d %H:%M:%S")
            status, tasks = self._client.call("getJobIDsJediTasksInTimeRange", since)
        if status != 0 or tasks is None:
            raise UnknownOutcomeError(f"task {name}: the server does not answer the look-up by name")
        for task in tasks.values() if isinstance(tasks, Mapping) else tasks:
            if str(task.get("taskName", "")).rstrip("/") == name.rstrip("/"):
                return TaskRef(name, int(task["jediTaskID"]))
        return None

    @override
    def keep(self, sandbox: Path) -> None:
        self._sandboxes.keep(sandbox)

    # --- watch ---

    @override
    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        return self._reader.status(refs)

    @override
    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        return self._reader.results(ref, missing, values=values)

    @override
    def why_ended(self, ref: TaskRef) -> str:
        return error_dialog(task_details(self._client, ref.jedi_task_id) or {})

    @override
    def why_waits(self, ref: TaskRef) -> str:
        return self._reader.why_waits(ref)

    @override
    def kill(self, ref: TaskRef) -> None:
        status, answer = self._client.call("killTask", ref.jedi_task_id)
        if status != 0 or not isinstance(answer, list):
            raise TryAgainError(f"cannot kill task {ref.jedi_task_id}: {answer}")
        success, message = answer
        if success:
            return
        details = task_details(self._client, ref.jedi_task_id)
        state = task_state(str(details.get("status"))) if details else None
        if state is not None and not state.is_over and state is not TaskState.ABORTING:
            raise TryAgainError(f"cannot kill task {ref.jedi_task_id}, which is {state.value}: {message}")

    @override
    def kill_jobs(self, panda_ids: Collection[int]) -> None:
        ids = sorted(panda_ids)
        for at in range(0, len(ids), _KILLED_AT_ONCE):
            status, answer = self._client.call("killJobs", ids[at : at + _KILLED_AT_ONCE])
            if status != 0 or answer is None:
                raise TryAgainError(f"cannot kill jobs {ids[0]} to {ids[-1]}: {answer}")

    @override
    def wait(self, seconds: float) -> set[int] | None:
        try:
            ours = self._feed.is_there()
        except TryAgainError:
            due = self._watches.wait(min(seconds, self.policy.retry_seconds[0]))
            return None if self.policy is EAGER else due
        return self._feed.wait(seconds) if ours else self._watches.wait(seconds)

    # --- files ---

    @override
    def fetch(self, output: str, destination: Path) -> None:
        if rucio.is_did(output):
            rucio.download(output, destination)
            return
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
        try:
            with self._http.get(
                self._storage(output), headers=self._server.headers(), stream=True, timeout=60
            ) as answer:
                if answer.status_code == 404:
                    raise GiveUpError(f"the server no longer has {output}")
                answer.raise_for_status()
                with temporary.open("wb") as file:
                    for block in answer.iter_content(1 << 20):
                        file.write(block)
            rename_whole(temporary, destination)
        except requests.RequestException as error:
            raise TryAgainError(f"cannot fetch {output}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    @override
    def discard(self, output: str) -> None:
        if rucio.is_did(output):
            return  # Rucio deletes it at the end of its lifetime
        try:
            answer = self._http.delete(self._storage(output), headers=self._server.headers(), timeout=30)
        except requests.RequestException as error:
            raise TryAgainError(f"cannot delete {output}: {error}") from error
        if answer.status_code not in (200, 204, 404):
            raise TryAgainError(f"cannot delete {output}: the server answers {answer.status_code}")

    @override
    def forget(self, uid: str, keep: Collection[int] = ()) -> None:
        if self._checkpoints is not None:
            kept = {f"t{chain}" for chain in keep}
            for search in search_folders(self._checkpoints, uid):
                for folder in search.glob("*"):
                    if folder.name.partition("f")[0] not in kept:
                        shutil.rmtree(folder, ignore_errors=True)
                remove_empty(search)
        try:
            if self._feed.is_there():
                url, headers = f"{self._server.url}/api/v1/hpo_pilot/forget", self._server.headers()
                # Servers of older versions do not know `keep`.
                wanted: dict[str, object] = {"uid": uid} | ({"keep": sorted(keep)} if keep else {})
                self._http.post(url, json=wanted, headers=headers, timeout=30).raise_for_status()
        except (TryAgainError, requests.RequestException) as error:  # the server deletes them later
            log.info("the checkpoints of search %s stay at the server: %s", uid, error)

    def _storage(self, output: str) -> str:
        return f"{self._server.url}/storage/{quote(output, safe='')}"

    @override
    def interrupt(self) -> None:
        self._watches.wake()
        self._client.interrupt()

    @override
    def close(self) -> None:
        self._watches.wake()
        self._feed.close()
        self._client.close()
        self._http.close()


def scouts(vo: str) -> int | None:
    """Returns the number of scout jobs on real servers of a virtual organisation; None: the task skips them."""
    return SCOUTS if vo == _SCOUTING_VO else None


#: Seconds after which a file in the cache is touched again; caches keep files for days at least.
_TOUCH_SECONDS = 12 * 3600.0

#: Time limit of an upload of up to 768 MB, in seconds.
_UPLOAD_SECONDS = 600.0

#: Most names under which one file is uploaded.
_NAMES = 10


@dataclass(frozen=True)
class CachedSandbox:
    """A sandbox in the file cache of a server.

    Attributes:
        source: scheme://host:port of the host with the file.
        name: the registered name of the file.
    """

    source: str
    name: str


class SandboxUploads:
    """Uploads sandboxes to a server's file cache, and keeps them there: it deletes files that are not touched.

    JEDI runs a task only if its sandbox is registered under exactly the name in the task's parameters. A file in the
    cache may be unregistered: panda-server 1.0.4 writes a file before it registers it, and never overwrites it. Such a
    file is uploaded again under another name.
    """

    def __init__(
        self, client: ClientProcess, *, use_cache_server: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Sends nothing yet.

        Args:
            client: panda-client.
            use_cache_server: whether files go to the host of PANDACACHE_URL instead of the server.
            clock: seconds.
        """
        self._client = client
        self._use_cache_server = use_cache_server
        self._clock = clock
        self._known: dict[str, tuple[CachedSandbox, float]] = {}
        self._sending: dict[str, threading.Lock] = {}

    def keep(self, sandbox: Path, *, again: bool = False) -> CachedSandbox:
        """Makes sure that the server has the file, has registered it, and will not delete it soon.

        Args:
            sandbox: the file; its name has the digest of its content.
            again: upload it even if the server is known to have it; a server that has it does nothing.

        Raises:
            TryAgainError: the server accepts no file now.
            GiveUpError: the server no longer has the file, and it is gone here too.
        """
        known = self._known.get(sandbox.name)
        if known is not None and not again and self._clock() - known[1] < _TOUCH_SECONDS:
            return known[0]
        sending = self._sending.setdefault(sandbox.name, threading.Lock())
        if not sending.acquire(blocking=False):
            # Not waited for: a family of searches would hold up all others for as long as its sandbox is sent.
            raise TryAgainError(f"the sandbox {sandbox.name} is being sent for another search")
        try:
            with self._client.one_process():
                return self._sent(sandbox, again=again)
        finally:
            sending.release()

    def _sent(self, sandbox: Path, *, again: bool) -> CachedSandbox:
        known = self._known.pop(sandbox.name, None)
        name = "" if again else self._registered(sandbox, known[0].name if known else sandbox.name)
        if not name or not self._touch(name):
            name = self._upload(sandbox)
        found = CachedSandbox(str(self._client.call("sourceURL", self._use_cache_server)), name)
        self._known[sandbox.name] = (found, self._clock())
        return found

    def _registered(self, sandbox: Path, name: str) -> str:
        """Returns the name under which the server has registered the file; empty: none.

        Args:
            sandbox: the file.
            name: the name to return if the server cannot tell, or the file is gone here.
        """
        if not sandbox.is_file():
            return name
        try:
            found = str(self._client.call("registeredFile", str(sandbox)))
        except MissingCallError:
            return name
        return found if any(found == _name(sandbox, number) for number in range(_NAMES)) else ""

    def _touch(self, name: str) -> bool:
        """Extends the life of the file; False: the server does not have it, or is too old for this call."""
        try:
            return bool(self._client.call("touchFile", name, self._use_cache_server))
        except MissingCallError:
            return False

    def _upload(self, sandbox: Path) -> str:
        """Uploads the file; returns its registered name."""
        if not sandbox.is_file():
            raise GiveUpError(f"the packed payload {sandbox} is missing; resume the search with --new-payload")
        for number in range(_NAMES):
            name = _name(sandbox, number)
            arguments = (str(sandbox), name, self._use_cache_server)
            status, answer = self._client.call("putFile", *arguments, deadline=_UPLOAD_SECONDS)
            message = str(answer)
            # "file exist": it was registered before, and the cache had deleted it; now it is there again.
            if status == 0 and (message == "True" or "file exist" in message):
                return name
            if status != 0 or "cannot overwrite" not in message:
                raise TryAgainError(f"cannot upload the sandbox {sandbox.name}: {message}")
            found = self._registered(sandbox, name)
            if found == name or (found and self._touch(found)):
                return found
        raise TryAgainError(
            f"cannot upload the sandbox {sandbox.name}: the server registers none of its {_NAMES} names"
        )


def _name(sandbox: Path, number: int) -> str:
    """Returns the name of an upload: `sources.<digest>.tar.gz`, then `sources.<digest>.1.tar.gz`, …."""
    return f"{sandbox.name.removesuffix('.tar.gz')}.{number}.tar.gz" if number else sandbox.name
