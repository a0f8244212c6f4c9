"""The interface to workflow managers, which submit tasks to a workload system and return their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobReport, TaskRef, TaskSpec, TaskState


class UnknownOutcomeError(TryAgainError):
    """A submission has no answer, so the task may exist. Look it up by name before submitting again."""


class UnknownTaskError(TryAgainError):
    """The server lost a task that it had accepted, e.g. with its database. Submit the open jobs again."""


class TaskNameTakenError(TryAgainError):
    """Another task has that name at the server, and nothing was submitted. Submit under a new name."""


@dataclass(frozen=True)
class ServerPolicy:
    """How often and in which amounts to call a server.

    Attributes:
        refill: the share of a search's slots that must be free before new points are submitted.
        look_seconds: the longest time between looks at a task, even if `wait` reports no change.
        retry_seconds: the first and the longest pause after a call that failed for now.
        jobs_per_task: the server first runs this many jobs of a task, and the others after these have ended; None: it
            runs all at once.
        keeps_outputs: whether the server's own rules decide how long outputs stay.
        status_comes_along: whether `results` reads the task's status before its jobs, so that a `status` after it sends
            nothing.
        revives: whether the server restarts a killed job that has attempts left.
    """

    refill: float
    look_seconds: float
    retry_seconds: tuple[float, float]
    jobs_per_task: int | None = None
    keeps_outputs: bool = False
    status_comes_along: bool = False
    revives: bool = False


#: For our own server: each result is used at once.
EAGER = ServerPolicy(refill=0.0, look_seconds=5.0, retry_seconds=(0.25, 60.0))


class WorkflowManager(ABC):
    """Submits tasks, watches them, collects the results of their jobs, and kills them.

    Each call ends within its own deadline. Several threads use a manager at once, each for another search: a slow call
    must not delay other calls.
    """

    @property
    @abstractmethod
    def owner(self) -> str:
        """The user's name in names of tasks."""

    @property
    @abstractmethod
    def policy(self) -> ServerPolicy:
        """How to call the server; may change after the first answer of the server. Sends nothing."""

    @abstractmethod
    def submit(self, task: TaskSpec, *, maybe_submitted: bool = False) -> TaskRef:
        """Submits `task`, or finds it if it exists: there is never more than one task per name.

        Args:
            task: the task.
            maybe_submitted: True after an unknown outcome or a crash: looks the name up first.

        Raises:
            UnknownOutcomeError: no answer; call again with ``maybe_submitted=True``.
            TaskNameTakenError: another task has that name; nothing was submitted.
            TryAgainError: the server refuses for now (down, too many tasks); nothing was submitted.
            GiveUpError: the server refuses the task for good.
        """

    @abstractmethod
    def find(self, name: str) -> TaskRef | None:
        """Returns the task of that name; None: the server does not have it.

        Raises:
            UnknownOutcomeError: the server does not answer.
        """

    @abstractmethod
    def status(self, refs: Collection[TaskRef]) -> dict[int, TaskState]:
        """Returns the states of tasks by their ids, without tasks that the server does not know."""

    @abstractmethod
    def results(self, ref: TaskRef, missing: Collection[int], *, values: bool = False) -> list[JobReport]:
        """Returns the reports on all attempts of at least the jobs in `missing`.

        Returns an empty list if nothing has changed since the last call for these jobs and the task is not over.

        Args:
            ref: the task.
            missing: the numbers of the jobs without a result.
            values: whether to read the values of running jobs too, as often as the server allows.

        Raises:
            TryAgainError: the server does not answer.
            UnknownTaskError: the server does not know the task.
        """

    @abstractmethod
    def why_ended(self, ref: TaskRef) -> str:
        """Returns the server's message about a task that failed, on one line; empty: there is none.

        Raises:
            TryAgainError: the server does not answer.
        """

    @abstractmethod
    def why_waits(self, ref: TaskRef) -> str:
        """Returns why the task, or its jobs, waited at the server at the last `results`, on one line; sends nothing.

        Empty: nothing waited, or the reason is unknown.
        """

    @abstractmethod
    def keep(self, sandbox: Path) -> None:
        """Makes sure that the server keeps the sandbox of open tasks; cheap if called often.

        Raises:
            TryAgainError: the server does not answer.
            GiveUpError: the server has deleted it, and the file is gone here too.
        """

    @abstractmethod
    def kill(self, ref: TaskRef) -> None:
        """Asks the server to kill the task; succeeds also if it is over."""

    @abstractmethod
    def kill_jobs(self, panda_ids: Collection[int]) -> None:
        """Asks the server to kill single jobs; succeeds also if they are over or unknown.

        `results` shows whether a job was killed. The server may restart it: see `ServerPolicy.revives`.

        Raises:
            TryAgainError: the server does not answer; some jobs may have been killed.
        """

    @abstractmethod
    def wait(self, seconds: float) -> set[int] | None:
        """Waits until tasks may have changed, at most `seconds`.

        Returns:
            The ids of the tasks that changed since the last call; None: not known, look at all tasks.
        """

    @abstractmethod
    def fetch(self, output: str, destination: Path) -> None:
        """Downloads a job's packed outputs to the file `destination`; a failure leaves no file."""

    @abstractmethod
    def discard(self, output: str) -> None:
        """Deletes a job's packed outputs at the server; succeeds also if they are gone.

        It is not called if the server keeps outputs by its own rules (`ServerPolicy.keeps_outputs`).
        """

    def forget(self, uid: str, keep: Collection[int] = ()) -> None:  # noqa: B027 - most systems keep no checkpoints
        """Deletes the checkpoints of a search that is done, as far as they can be reached; raises nothing.

        Args:
            uid: the search.
            keep: first trials of the points whose checkpoints stay.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Makes a running call in another thread fail soon; signal handlers may call it."""

    @abstractmethod
    def close(self) -> None:
        """Ends the processes of the manager; any thread may call it, also twice."""
