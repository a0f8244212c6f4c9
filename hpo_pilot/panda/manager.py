"""The workflow manager `panda`: our tasks through panda-client, on the embedded server and on a real one alike."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from urllib.parse import quote

import requests
from typing_extensions import override

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.jobs import JobReport, TaskRef, TaskSpec, TaskState
from hpo_pilot.panda.client_process import ClientProcess, NoAnswerError
from hpo_pilot.panda.job_report import finished_report, read_description, read_verdict
from hpo_pilot.panda.task_parameters import task_parameters
from hpo_pilot.panda.workflow_manager import UnknownOutcomeError, UnknownTaskError, WorkflowManager

#: A sandbox is uploaded again after this long, in seconds: servers clear their file caches.
_SANDBOX_AGE = 3 * 24 * 3600.0

#: How far back a task of unknown outcome is looked for, beyond its server's and our clocks' difference.
_LOOK_BACK = timedelta(days=30)

_TASK_ID = re.compile(r"jediTaskID=(\d+)")

#: insertTaskParams codes (panda-client 2.2.0): a task of that name exists.
_DUPLICATE_CODES = (1, 2)

#: Too many active tasks of this user: later.
_THROTTLED_CODE = 10


@dataclass(frozen=True)
class PandaServer:
    """Where a PanDA server is and who we are there.

    Attributes:
        url: scheme://host:port, without a path.
        token_file: a file with the user's bearer token, mode 0600; read again at every call.
        owner: the user's name.
        vo: the virtual organisation.
    """

    url: str
    token_file: Path
    owner: str
    vo: str = "hpo_pilot"

    def environment(self) -> dict[str, str]:
        """What panda-client reads at import. The token goes by file, so that no process list shows it."""
        base = f"{self.url}/server/panda"
        return {
            "PANDA_URL": base,
            "PANDA_URL_SSL": base,
            "PANDACACHE_URL": base,
            "PANDA_BEHIND_REAL_LB": "1",
            "PANDA_AUTH": "oidc",
            "PANDA_AUTH_VO": self.vo,
            "OIDC_AUTH_TOKEN_FILE": str(self.token_file),
            "OMP_NUM_THREADS": "1",
        }


class PandaManager(WorkflowManager):
    """Tasks of one PanDA server."""

    def __init__(self, server: PandaServer, log: Path, *, poll_seconds: float = 30.0) -> None:
        """Prepares; nothing is sent yet.

        Args:
            server: the server and the user.
            log: where panda-client's own output goes.
            poll_seconds: how often a server that cannot tell of changes is asked.
        """
        self._server = server
        self._client = ClientProcess(server.environment(), log)
        self._http = requests.Session()
        self._waiting = requests.Session()  # of its own: `wait` runs in another thread than the other calls
        self._poll_seconds = poll_seconds
        self._uploaded: dict[str, float] = {}
        self._cursor: int | None = -1  # None: the server has no such call

    @classmethod
    @override
    def connect(cls, url: str, token_file: Path, owner: str, log: Path) -> Self:
        return cls(PandaServer(url, token_file, owner), log)

    # --- submit ---

    @override
    def submit(self, task: TaskSpec, *, maybe_submitted: bool = False) -> TaskRef:
        if maybe_submitted and (found := self.find(task.name)):
            return found
        self._upload(task.sandbox, again=maybe_submitted)
        parameters = task_parameters(
            task, owner=self._server.owner, vo=self._server.vo, server=self._server.url, sandbox=task.sandbox.name
        )
        try:
            status, answer = self._client.call("insertTaskParams", parameters, False, True)
        except NoAnswerError as error:
            raise UnknownOutcomeError(f"task {task.name}: {error}") from error
        if status != 0 or not isinstance(answer, list):
            # The request may have reached the server; only a look-up by name can tell.
            raise UnknownOutcomeError(f"task {task.name}: no proper answer to the submission: {answer}")
        code, message = answer
        match = _TASK_ID.search(str(message))
        if code == 0 and match and "reactivation" not in str(message):
            return TaskRef(task.name, int(match[1]))
        if code in _DUPLICATE_CODES:
            found = self.find(task.name)
            if found:
                return found
        if code == _THROTTLED_CODE:
            raise TryAgainError(f"task {task.name}: the server has too many active tasks of yours: {message}")
        raise GiveUpError(f"task {task.name}: the server refused it (code {code}): {message}")

    @override
    def find(self, name: str) -> TaskRef | None:
        since = (datetime.now(UTC) - _LOOK_BACK).strftime("%Y-%m-%d %H:%M:%S")
        status, tasks = self._client.call("getJobIDsJediTasksInTimeRange", since)
        if status != 0 or tasks is None:
            raise UnknownOutcomeError(f"task {name}: the server does not answer the look-up by name")
        entries = tasks.items() if isinstance(tasks, Mapping) else ((t["jediTaskID"], t) for t in tasks)
        for task_id, entry in entries:
            if str(entry.get("taskName", "")).rstrip("/") == name.rstrip("/"):
                return TaskRef(name, int(task_id))
        return None

    def _upload(self, sandbox: Path, *, again: bool) -> None:
        done = self._uploaded.get(sandbox.name)
        if done is not None and not again and time.monotonic() - done < _SANDBOX_AGE:
            return
        if not sandbox.is_file():
            raise GiveUpError(
                f"the packed payload {sandbox} is gone; `hpo-pilot resume NAME --new-payload` packs it anew"
            )
        status, message = self._client.call("putFile", str(sandbox), False, False, False, 1, deadline=600.0)
        # The name is the content: a file that is there already is this one.
        if status != 0 or not (str(message) == "True" or "cannot overwrite" in str(message)):
            raise TryAgainError(f"cannot upload the sandbox {sandbox.name}: {message}")
        self._uploaded[sandbox.name] = time.monotonic()

    # --- watch ---

    @override
    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        states: dict[int, TaskState] = {}
        for ref in refs:
            status, name = self._client.call("getTaskStatus", ref.jedi_task_id)
            if status == 0 and name:
                states[ref.jedi_task_id] = _task_state(str(name))
            elif self._knows(ref):
                raise TryAgainError(f"the server does not tell the status of task {ref.jedi_task_id}")
        return states

    def _knows(self, ref: TaskRef) -> bool:
        """Whether the server has the task; panda-client answers alike for an unknown task and for a lost connection."""
        filters = {"jediTaskID": str(ref.jedi_task_id)}
        status, tasks = self._client.call("get_tasks_detailed_info_since", None, filters, 1)
        if status != 0 or tasks is None:
            raise TryAgainError("the PanDA server does not answer")
        return any(str(task.get("taskName", ref.name)).rstrip("/") == ref.name.rstrip("/") for task in tasks)

    @override
    def results(self, ref: TaskRef, missing: Collection[int]) -> list[JobReport]:
        metadata = self._metadata(ref)
        verdicts = {int(panda_id): read_verdict(document) for panda_id, document in metadata.items()}
        finished = [finished_report(panda_id, verdict) for panda_id, verdict in verdicts.items() if verdict]
        if len(finished) == len(verdicts) and set(missing) <= {report.number for report in finished}:
            return finished  # nothing else to learn: saves the larger call for every short task
        status, jobs = self._client.call("get_job_descriptions", ref.jedi_task_id)
        if status != 0 or jobs is None:
            raise TryAgainError(f"the server does not describe the jobs of task {ref.jedi_task_id}")
        if any(job["jobStatus"] == "finished" and str(job["PandaID"]) not in metadata for job in jobs):
            metadata = self._metadata(ref)  # it finished between the two calls
        return [read_description(job, metadata.get(str(job["PandaID"]))) for job in jobs]

    def _metadata(self, ref: TaskRef) -> dict[str, object]:
        """The metadata of the task's finished jobs, by PandaID."""
        status, metadata = self._client.call("getUserJobMetadata", ref.jedi_task_id)
        if status == 0 and metadata is not None:
            return dict(metadata)
        if not self._knows(ref):
            raise UnknownTaskError(f"the server does not know task {ref.jedi_task_id} ({ref.name})")
        raise TryAgainError(f"the server does not give the results of task {ref.jedi_task_id}")

    @override
    def kill(self, ref: TaskRef) -> None:
        status, answer = self._client.call("killTask", ref.jedi_task_id)
        if status != 0:
            raise TryAgainError(f"cannot kill task {ref.jedi_task_id}: {answer}")

    @override
    def wait(self, seconds: float) -> set[int] | None:
        if self._cursor is None:
            time.sleep(min(seconds, self._poll_seconds))
            return None
        try:
            answer = self._waiting.get(
                f"{self._server.url}/api/v1/hpo_pilot/changes",
                params={"cursor": str(self._cursor), "timeout": f"{min(seconds, 30.0):.3f}", "outcomes": "true"},
                headers=self._authorization(),
                timeout=seconds + 30.0,
            )
        except (requests.RequestException, TryAgainError):
            time.sleep(min(seconds, 0.5))  # it is away; the calls that follow say so
            return None
        # A real server answers 403 to a call that it does not have; the embedded one to a token that was just replaced.
        if answer.status_code == 404 or (answer.status_code == 403 and self._cursor == -1):
            self._cursor = None
            return None
        if answer.status_code != 200:
            time.sleep(min(seconds, 0.5))
            return None
        data = answer.json()["data"]
        first, self._cursor = self._cursor == -1, int(data["cursor"])
        return None if first else {int(task_id) for task_id in data["task_ids"]}

    # --- files ---

    @override
    def fetch(self, output: str, destination: Path) -> None:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
        try:
            with self._http.get(
                self._storage(output), headers=self._authorization(), stream=True, timeout=60
            ) as answer:
                if answer.status_code == 404:
                    raise GiveUpError(f"the server no longer has {output}")
                answer.raise_for_status()
                with temporary.open("wb") as file:
                    for block in answer.iter_content(1 << 20):
                        file.write(block)
            temporary.replace(destination)
        except requests.RequestException as error:
            raise TryAgainError(f"cannot fetch {output}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    @override
    def discard(self, output: str) -> None:
        try:
            answer = self._http.delete(self._storage(output), headers=self._authorization(), timeout=30)
        except requests.RequestException as error:
            raise TryAgainError(f"cannot delete {output}: {error}") from error
        if answer.status_code not in (200, 204, 404):
            raise TryAgainError(f"cannot delete {output}: the server answers {answer.status_code}")

    def _storage(self, output: str) -> str:
        return f"{self._server.url}/storage/{quote(output, safe='')}"

    def _authorization(self) -> dict[str, str]:
        try:
            token = self._server.token_file.read_text().strip()
        except OSError as error:
            raise TryAgainError(f"cannot read the token file {self._server.token_file}: {error.strerror}") from error
        return {"Authorization": f"Bearer {token}", "Origin": self._server.vo}

    @override
    def interrupt(self) -> None:
        self._client.interrupt()

    @override
    def close(self) -> None:
        self._client.close()
        self._http.close()
        self._waiting.close()


def _task_state(name: str) -> TaskState:
    """PanDA's word for a task's state; the ones that we need not tell apart count as running."""
    try:
        return TaskState(name)
    except ValueError:
        return TaskState.RUNNING
