"""A task as it is submitted, its jobs as a server reports them, and their states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

# The states of PanDA's jobs and tasks, and what they mean to us.
#
# Source of the names: panda-server 1.0.4, `pandaserver/taskbuffer/JobSpec.py` and `JediTaskSpec.py`.


class JobState(StrEnum):
    """The life of one attempt of a job."""

    DEFINED = "defined"  #: made from its task, not yet for any pilot
    ACTIVATED = "activated"  #: waits for a pilot
    SENT = "sent"  #: handed to a pilot that has not reported yet
    STARTING = "starting"  #: the pilot stages in
    RUNNING = "running"  #: the payload runs
    TRANSFERRING = "transferring"  #: outputs are on their way
    HOLDING = "holding"  #: the pilot is done, the server still checks; real servers pass every finished job through it
    FINISHED = "finished"  #: done, with metadata
    FAILED = "failed"  #: this attempt ended by error; the task may start another
    CANCELLED = "cancelled"  #: killed on request
    CLOSED = "closed"  #: taken away: given up before any pilot had it, sent elsewhere, or given back by its pilot
    NOT_RUN = "not run"  #: ours, of one point of a job that runs several: the job's time was over before its end

    @property
    def is_over(self) -> bool:
        """True where this attempt will change no more."""
        return self in _JOB_OVER


_JOB_OVER = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.CLOSED, JobState.NOT_RUN})


class TaskState(StrEnum):
    """The life of a task."""

    REGISTERED = "registered"  #: accepted, not looked at
    DEFINED = "defined"  #: parameters parsed
    READY = "ready"  #: may make jobs
    PENDING = "pending"  #: waits for something it needs, often its sandbox
    SCOUTING = "scouting"  #: a few jobs go ahead (real servers only)
    RUNNING = "running"  #: jobs exist
    PAUSED = "paused"  #: on request; no new jobs go out
    ABORTING = "aborting"  #: killed, its jobs are ending
    FINISHING = "finishing"  #: finish was asked for
    PASSED = "passed"  #: between states, on real servers
    THROTTLED = "throttled"  #: held back for its user's quota
    DONE = "done"  #: every job finished
    FINISHED = "finished"  #: some jobs finished, some failed
    FAILED = "failed"  #: no job finished
    ABORTED = "aborted"  #: killed
    BROKEN = "broken"  #: its parameters make no sense
    EXHAUSTED = (
        "exhausted"  #: the server stopped it for its failures and waits for its owner: collected, never waited on
    )

    @property
    def is_over(self) -> bool:
        """True where no job of the task will start or go on without a user's action."""
        return self in _TASK_OVER

    @property
    def is_waiting(self) -> bool:
        """True where the server makes no jobs of the task for now."""
        return self in _TASK_WAITING


_TASK_OVER = frozenset(
    {TaskState.DONE, TaskState.FINISHED, TaskState.FAILED, TaskState.ABORTED, TaskState.BROKEN, TaskState.EXHAUSTED}
)
_TASK_WAITING = frozenset(
    {
        TaskState.REGISTERED,
        TaskState.DEFINED,
        TaskState.READY,
        TaskState.PENDING,
        TaskState.PAUSED,
        TaskState.THROTTLED,
    }
)


@dataclass(frozen=True)
class JobNeeds:
    """What each job of a task needs.

    Attributes:
        cores: CPU cores per node.
        memory_mb: memory per node, in MB.
        minutes: walltime limit of the job's payload, in minutes; of all its points together where it runs several.
        ranks_per_node: processes that a launcher starts on each node; 0: no launcher, the command is started once.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    cores: int = 1
    memory_mb: int = 2000
    minutes: float = 60.0
    ranks_per_node: int = 0


@dataclass(frozen=True)
class TaskOptions:
    """What a task says to its PanDA server beside what its jobs need; see the search file's `panda` and `site`.

    Attributes:
        label: prodSourceLabel.
        vo: virtual organisation; None: the user's at that server.
        working_group: on whose account the jobs run; None: the user's own.
        priority: None: the server's for users.
        attempts: how often PanDA starts a job that the infrastructure lost, first attempt included.
        architecture: CPU and GPU wanted, as prun takes it; None: any.
        exclude: queues that the jobs must not go to.
        official: the outputs are the working group's, whose production role the user has.
    """

    label: str = "user"
    vo: str | None = None
    working_group: str | None = None
    priority: int | None = None
    attempts: int = 3
    architecture: str | None = None
    exclude: tuple[str, ...] = ()
    official: bool = False


class Member(NamedTuple):
    """One fold of one trial: what a job runs, alone or after others."""

    trial: int
    fold: int
    seed: int


#: The members that one job runs, in this order.
Members = tuple[Member, ...]


@dataclass(frozen=True)
class TaskSpec:
    """A generation, or lost folds of one, on its way to PanDA.

    Attributes:
        name: unique for ever; see `task_name`.
        uid: the search's random identity, repeated in every job's metadata.
        points: hyper-parameter points by trial number.
        jobs: what job number 1, 2, … runs.
        folds: how many folds a trial has in all.
        sandbox: the archive with payload and runner.
        container: image, or None.
        queue: the PanDA queue (site); None: the server's default.
        datasets: Rucio datasets, ``scope:name``, that every job needs where the server's own pilots bring them.
        wants_values: whether the values that jobs report while they run are waited for.
    """

    name: str
    search: str
    uid: str
    generation: int
    folds: int
    points: Mapping[int, Mapping[str, Any]]
    jobs: tuple[Members, ...]
    sandbox: Path
    needs: JobNeeds
    container: str | None
    has_outputs: bool
    queue: str | None
    options: TaskOptions = TaskOptions()
    datasets: tuple[str, ...] = ()
    wants_values: bool = False


@dataclass(frozen=True)
class TaskRef:
    """A submitted task: what its server calls it."""

    name: str
    jedi_task_id: int


@dataclass(frozen=True)
class Verdict:
    """What the runner says of one member in a finished job's metadata, identity included.

    Attributes:
        number: which of the task's jobs it was, from 1.
        attempt: the job's.
        value: the figure of merit, of several the first; None where the payload failed, and `message` says why.
        values: all figures of merit that the runner was asked for, as far as it tells them.
        was_run: False where the job's time was over before the member came to its end: then there is no verdict on it.
        ran_in: the attempt of the job that ran it: an attempt goes on after the points that the one before finished.
        metadata: what the payload itself put into its metadata.
        seconds: the payload's run time.
        folder: where in the job's packed outputs its own are; empty: they are all its own.
    """

    uid: str
    generation: int
    trial: int
    fold: int
    number: int
    attempt: int
    value: float | None
    message: str
    was_run: bool = True
    ran_in: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    log_tail: str | None = None
    seconds: float | None = None
    started: float | None = None
    ended: float | None = None
    node: str | None = None
    progress: tuple[tuple[int, float], ...] = ()
    has_outputs: bool = False
    folder: str = ""
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class JobReport:
    """One attempt of one job, as the server knows it.

    Attributes:
        number: which of the task's jobs it is, from 1; None where the server does not tell.
        verdicts: for finished jobs, the runner's word on each member; a finished job that brought none has failed.
        error: the server's and pilot's error codes and texts, for jobs that ended without a verdict.
        running: (trial, fold) of the member that runs now, where the job has several and tells.
        progress: the (step, value) pairs that its last heartbeat carried, of that member, by step; infinity stands for
            whatever is no finite number.
        output: what the server calls its packed outputs, where it tells; None: what they were asked to be called.
    """

    panda_id: int
    state: JobState
    attempt: int
    number: int | None = None
    verdicts: tuple[Verdict, ...] = ()
    error: str | None = None
    node: str | None = None
    started: float | None = None
    ended: float | None = None
    running: tuple[int, int] | None = None
    progress: tuple[tuple[int, float], ...] = ()
    output: str | None = None


#: PanDA's limit on the names of the datasets that it makes of a task's name.
_LONGEST_DATASET = 132
_LONGEST_ENDING = len("_outputs.tar.gz/")


def task_name(nickname: str, search: str, uid: str, generation: int, revision: int, *, group: str | None = None) -> str:
    """The name of a task: unique, and recognisable in a monitor.

    Args:
        nickname: the user's name at the server.
        search: the search's name; its end is left out where the whole would be too long: `uid` tells searches apart.
        uid: 8 random hexadecimal digits.
        generation: which generation of the search it is.
        revision: 0, or the how manieth time lost jobs of the generation are sent again.
        group: the working group whose the outputs are; None: they are the user's.
    """
    start = f"group.{group}" if group else f"user.{nickname}"
    end = f".{uid}.g{generation}" + (f".r{revision}" if revision else "")
    room = _LONGEST_DATASET - _LONGEST_ENDING - len(start) - len(end) - 1
    return f"{start}.{search[: max(room, 1)]}{end}/"
