"""The workflow manager: what takes our tasks to a workload system and brings back what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Self

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import JobReport, TaskRef, TaskSpec, TaskState


class UnknownOutcomeError(TryAgainError):
    """A submission was sent and no answer came: the task may exist. Look it up by name before submitting again."""


class UnknownTaskError(TryAgainError):
    """The server does not know a task that it once accepted: its database was lost. Submit the open jobs again."""


class NameTakenError(TryAgainError):
    """Another task, not this one, has that name at the server: submit under a new name. Nothing was submitted."""


@dataclass(frozen=True)
class ServerPolicy:
    """How a server wants to be treated.

    Attributes:
        refill: the share of a search's slots that must be free before new points are submitted.
        look_seconds: a task is looked at this often even if `wait` tells nothing of it.
        retry_seconds: the pause after a call that failed for now: the first, and the longest.
        jobs_per_task: of a task with more jobs the server sends so many ahead and holds the others back until these
            have ended; None: it does not.
        keeps_outputs: whether outputs stay for as long as the server's own rules say, whatever we want.
        status_comes_along: whether `results` looks at the task's status before its jobs, so that `status` after it
            costs nothing.
        revives: whether the server itself starts a job again that was killed, as long as it has attempts left.
    """

    refill: float
    look_seconds: float
    retry_seconds: tuple[float, float]
    jobs_per_task: int | None = None
    keeps_outputs: bool = False
    status_comes_along: bool = False
    revives: bool = False


#: For a server of one's own: every answer is used at once.
EAGER = ServerPolicy(refill=0.0, look_seconds=5.0, retry_seconds=(0.25, 60.0))


def workflow_manager(name: str) -> type[WorkflowManager]:
    """The workflow manager registered under that name.

    Raises:
        InputError: there is none; the message lists those that are.
    """
    found = {entry.name: entry for entry in entry_points(group="hpo_pilot.workflow_managers")}
    if name not in found:
        raise InputError(f"no workflow manager {name!r} is installed; there are {', '.join(sorted(found)) or 'none'}")
    manager: type[WorkflowManager] = found[name].load()
    return manager


class WorkflowManager(ABC):
    """Submits tasks, watches them, collects their jobs' verdicts, kills them.

    Found through the entry-point group ``hpo_pilot.workflow_managers``. Every call ends within a deadline of its own.
    Several threads use a manager at once, each for another search: a call that takes long delays no other call.
    """

    @classmethod
    @abstractmethod
    def connect(cls, url: str, token_file: Path | None, owner: str, log: Path, authorities: Path | None = None) -> Self:
        """A manager of the tasks at one server; nothing is sent yet.

        Args:
            url: scheme://host:port of the server.
            token_file: a file with the owner's bearer token, mode 0600; read again at every call. None: the
                credentials that the client software finds by itself.
            owner: the user's name there, for names of tasks.
            log: where the output of client software goes.
            authorities: a folder of certificate authorities, as OpenSSL looks them up, that the server's certificate
                is of; None: those that the environment names.
        """

    @property
    @abstractmethod
    def owner(self) -> str:
        """The user's name in names of tasks."""

    @property
    @abstractmethod
    def manners(self) -> ServerPolicy:
        """How the server wants to be treated; may change once the server has answered. Sends nothing."""

    @abstractmethod
    def submit(self, task: TaskSpec, *, maybe_submitted: bool = False) -> TaskRef:
        """Submits `task`, or finds it where a task of that name exists: at most one task per name, ever.

        Args:
            task: what to submit.
            maybe_submitted: True after an unknown outcome or a crash: the name is looked up first.

        Raises:
            UnknownOutcomeError: no answer; call again with ``maybe_submitted=True``.
            NameTakenError: another task has that name; nothing was submitted.
            TryAgainError: the server refused for now (down, too many tasks); nothing was submitted.
            GiveUpError: the server refuses the task for good.
        """

    @abstractmethod
    def find(self, name: str) -> TaskRef | None:
        """The task of that name, if the server has it.

        Raises:
            UnknownOutcomeError: the server does not answer.
        """

    @abstractmethod
    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        """The states of the tasks that the server knows, by its id; a task that is missing there is missing here."""

    @abstractmethod
    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        """What is known of the jobs whose numbers are in `missing` (at least those), every attempt on its own.

        Nothing where nothing has changed since these jobs were last asked for, and the task is not over.

        Args:
            ref: the task.
            missing: the numbers of the jobs of which there is no result yet.
            values: whether the values of running jobs are wanted too, as soon as the server lets itself be asked.

        Raises:
            TryAgainError: the server does not answer.
            UnknownTaskError: the server says that it does not know the task. (One that says nothing of it has no
                jobs to tell of: `status` is what decides.)
        """

    @abstractmethod
    def why_ended(self, ref: TaskRef) -> str:
        """What the server says of a task that ended badly, on one line; empty: nothing.

        Raises:
            TryAgainError: the server does not answer.
        """

    @abstractmethod
    def why_waits(self, ref: TaskRef) -> str:
        """Why the task, or jobs that no pilot could get, waited at the last `results`, on one line; sends nothing.

        Empty: nothing waited at the server, or it is not known why.
        """

    @abstractmethod
    def keep(self, sandbox: Path) -> None:
        """Sees to it that the server does not forget the sandbox of tasks that are out; cheap where that is done.

        Raises:
            TryAgainError: the server does not answer.
            GiveUpError: it has forgotten it, and the file is gone here too.
        """

    @abstractmethod
    def kill(self, ref: TaskRef) -> None:
        """Asks the server to kill the task; succeeds also where it is over already."""

    @abstractmethod
    def kill_jobs(self, panda_ids: Collection[int]) -> None:
        """Asks the server to kill single jobs; succeeds also where they are over already, or not known.

        What `results` says of a job tells whether it was. The server may start it again: see `Manners.revives`.

        Raises:
            TryAgainError: the server does not answer; some may be killed.
        """

    @abstractmethod
    def wait(self, seconds: float) -> set[int] | None:
        """Waits until tasks may have changed, at most `seconds`.

        Returns:
            The ids of the tasks that changed since the last call; None where the server cannot tell: look at all.
        """

    @abstractmethod
    def fetch(self, output: str, destination: Path) -> None:
        """Downloads a job's packed outputs to the file `destination`, completely or not at all."""

    @abstractmethod
    def discard(self, output: str) -> None:
        """Deletes a job's packed outputs at the server; succeeds also where they are gone.

        Nobody calls it where the server keeps outputs by its own rules (`Manners.keeps_outputs`).
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Makes a call that is under way in another thread fail soon; from a signal handler too."""

    @abstractmethod
    def close(self) -> None:
        """Ends what the manager started; may be called from another thread, and twice."""
