"""A task as it is submitted, and the states of tasks and jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hpo_pilot.jobs.resources import JobNeeds

# The names of states are from panda-server 1.0.4, `pandaserver/taskbuffer/JobSpec.py` and `JediTaskSpec.py`.


#: The beginning of the queues of searches without payload. No user can name such a queue, and no pilot serves one: the
#: jobs there go to clients that ask for trials; see `hpo_pilot.server.asking`.
ASKED_QUEUE = "ask:"
#: Longest lease of such a trial, in seconds.
MOST_LEASE = 366 * 86_400.0


class JobState(StrEnum):
    """The life of one attempt of a job."""

    DEFINED = "defined"  #: made from its task, not yet released to pilots
    ACTIVATED = "activated"  #: waits for a pilot
    SENT = "sent"  #: a pilot has it and has not reported yet
    STARTING = "starting"  #: the pilot stages in
    RUNNING = "running"  #: the payload runs
    TRANSFERRING = "transferring"  #: outputs are being transferred
    HOLDING = "holding"  #: the pilot is done, the server checks; on real servers all finished jobs pass through it
    FINISHED = "finished"  #: done, with metadata
    FAILED = "failed"  #: this attempt failed; the task may start another one
    CANCELLED = "cancelled"  #: killed on request
    CLOSED = "closed"  #: given up before a pilot had it, sent elsewhere, or returned by its pilot
    NOT_RUN = "not run"  #: our own state of one point of a job with several: the job's time ended before it did

    @property
    def is_over(self) -> bool:
        """True if this attempt will not change any more."""
        return self in OVER_JOBS


OVER_JOBS = (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.CLOSED, JobState.NOT_RUN)


class TaskState(StrEnum):
    """The life of a task."""

    REGISTERED = "registered"  #: accepted, not processed
    DEFINED = "defined"  #: parameters parsed
    READY = "ready"  #: may make jobs
    PENDING = "pending"  #: waits for a condition, often for its sandbox
    SCOUTING = "scouting"  #: a few jobs run first (real servers only)
    RUNNING = "running"  #: jobs exist
    PAUSED = "paused"  #: on request; no new jobs start
    ABORTING = "aborting"  #: killed, its jobs are ending
    FINISHING = "finishing"  #: finish was asked for
    PASSED = "passed"  #: between states, on real servers
    THROTTLED = "throttled"  #: held back for its user's quota
    DONE = "done"  #: every job finished
    FINISHED = "finished"  #: some jobs finished, some failed
    FAILED = "failed"  #: no job finished
    ABORTED = "aborted"  #: killed
    BROKEN = "broken"  #: its parameters are invalid
    EXHAUSTED = (
        "exhausted"  #: the server stopped it for its failures and waits for its owner: collected, never waited on
    )

    @property
    def is_over(self) -> bool:
        """True if no job of the task will start or go on without an action of the user."""
        return self in OVER_TASKS

    @property
    def is_waiting(self) -> bool:
        """True if the server makes no jobs of the task for now."""
        return self in _TASK_WAITING


OVER_TASKS = (
    *(TaskState.DONE, TaskState.FINISHED, TaskState.FAILED, TaskState.ABORTED, TaskState.BROKEN, TaskState.EXHAUSTED),
)
_TASK_WAITING = frozenset(
    {TaskState.REGISTERED, TaskState.DEFINED, TaskState.READY, TaskState.PENDING, TaskState.PAUSED, TaskState.THROTTLED}
)


@dataclass(frozen=True)
class TaskOptions:
    """Further options of a task for its PanDA server; see the search file's `panda` and `site`.

    Attributes:
        label: prodSourceLabel.
        vo: virtual organisation; None: the user's at that server.
        working_group: the group that is charged for the jobs; None: the user.
        priority: priority of the task; None: the server's default for users.
        attempts: most attempts of a job that the infrastructure loses, the first one included.
        architecture: CPU and GPU, in prun's form; None: any.
        exclude: queues that must not run the jobs.
        official: whether the outputs belong to the working group, whose production role the user has.
        profile: the site profile of the pilots that may take the jobs, on a server of ours; None: any.
    """

    label: str = "user"
    vo: str | None = None
    working_group: str | None = None
    priority: int | None = None
    attempts: int = 3
    architecture: str | None = None
    exclude: tuple[str, ...] = ()
    official: bool = False
    profile: str | None = None


class Member(NamedTuple):
    """One fold of one trial in a job; a job runs one or more, one after another."""

    trial: int
    fold: int
    seed: int


class TrialLevel(NamedTuple):
    """The level that a job trains its trial to; see `fidelity` of the search file.

    Attributes:
        level: the level, as 9 epochs.
        chain: number of the first trial of this point, from whose checkpoint the training goes on; None: it is the
            first itself.
        keep_checkpoint: whether a later trial may go on from the checkpoint, so that it is kept after a result.
    """

    level: float
    chain: int | None
    keep_checkpoint: bool


#: The members that one job runs, in this order.
Members = tuple[Member, ...]


@dataclass(frozen=True)
class TaskSpec:
    """A task for PanDA: a generation, or lost folds of one.

    Attributes:
        name: the unique name; see `task_name`.
        search: name of the search.
        uid: the search's random identity, which is in the metadata of each job too.
        generation: number of the generation.
        folds: number of folds of a trial.
        points: hyper-parameter points by trial number.
        jobs: the members that job number 1, 2, … runs.
        sandbox: the archive with payload and runner.
        needs: the resources of each job.
        container: the image; None: no container.
        has_outputs: whether jobs keep output files.
        queue: the PanDA queue (site); None: the server's default.
        options: further options.
        datasets: Rucio datasets, ``scope:name``, that the server's pilots bring to each job.
        wants_values: whether steering reads the values of running jobs.
        levels: the levels by trial number; empty: the search has none.
        walltime: time limit of each job in seconds, with the time for staging, if it is shorter than that of `needs`.
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
    levels: Mapping[int, TrialLevel] = field(default_factory=dict)
    walltime: int | None = None


@dataclass(frozen=True)
class TaskRef:
    """A submitted task, by its name and its id at the server."""

    name: str
    jedi_task_id: int


#: PanDA's limit on the names of datasets, which it makes from the task's name.
_LONGEST_DATASET = 132
_LONGEST_ENDING = len("_outputs.tar.gz/")


def task_name(nickname: str, search: str, uid: str, generation: int, revision: int, *, group: str | None = None) -> str:
    """Returns the name of a task: unique, and easy to recognise in a monitor.

    Args:
        nickname: the user's name at the server.
        search: the search's name, shortened if needed: `uid` is unique.
        uid: 8 random hexadecimal digits.
        generation: number of the generation.
        revision: 0 for the first submission, n for the n-th submission of lost jobs.
        group: the working group that owns the outputs; None: the user.
    """
    start = f"group.{group}" if group else f"user.{nickname}"
    end = f".{uid}.g{generation}" + (f".r{revision}" if revision else "")
    room = _LONGEST_DATASET - _LONGEST_ENDING - len(start) - len(end) - 1
    return f"{start}.{search[: max(room, 1)]}{end}/"
