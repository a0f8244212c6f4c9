"""A task as we submit it, and its jobs as a server reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo_pilot.jobs.job_state import JobState


@dataclass(frozen=True)
class JobNeeds:
    """What each job of a task needs.

    Attributes:
        cores: CPU cores per node.
        memory_mb: memory per node, in MB.
        minutes: walltime limit of the payload, in minutes.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    cores: int = 1
    memory_mb: int = 2000
    minutes: float = 60.0


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
    """

    label: str = "user"
    vo: str | None = None
    working_group: str | None = None
    priority: int | None = None
    attempts: int = 3
    architecture: str | None = None
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskSpec:
    """A generation, or lost folds of one, on its way to PanDA.

    Attributes:
        name: unique for ever; see `task_name`.
        uid: the search's random identity, repeated in every job's metadata.
        points: hyper-parameter points by trial number.
        jobs: (trial, fold, seed) of job number 1, 2, …
        folds: how many folds a trial has in all.
        sandbox: the archive with payload and runner.
        container: image, or None.
        queue: the PanDA queue (site); None: the server's default.
    """

    name: str
    search: str
    uid: str
    generation: int
    folds: int
    points: Mapping[int, Mapping[str, Any]]
    jobs: tuple[tuple[int, int, int], ...]
    sandbox: Path
    needs: JobNeeds
    container: str | None
    has_outputs: bool
    queue: str | None
    options: TaskOptions = TaskOptions()


@dataclass(frozen=True)
class TaskRef:
    """A submitted task: what its server calls it."""

    name: str
    jedi_task_id: int


@dataclass(frozen=True)
class Verdict:
    """What the runner says in a finished job's metadata, identity included.

    Attributes:
        number: which of the task's jobs it was, from 1.
        value: the figure of merit; None where the payload failed, and `message` says why.
        seconds: the payload's run time.
    """

    uid: str
    generation: int
    trial: int
    fold: int
    number: int
    attempt: int
    value: float | None
    message: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    log_tail: str | None = None
    seconds: float | None = None
    started: float | None = None
    ended: float | None = None
    node: str | None = None
    progress: tuple[tuple[int, float], ...] = ()
    has_outputs: bool = False


@dataclass(frozen=True)
class JobReport:
    """One attempt of one job, as the server knows it.

    Attributes:
        number: which of the task's jobs it is, from 1; None where the server does not tell.
        verdict: for finished jobs, the runner's word; None where a finished job brought none, which is a failure.
        error: the server's and pilot's error codes and texts, for jobs that ended without a verdict.
        progress: (step, value) that its last heartbeat carried.
        output: logical file name of its packed outputs, where it has any.
    """

    panda_id: int
    state: JobState
    attempt: int
    number: int | None = None
    verdict: Verdict | None = None
    error: str | None = None
    node: str | None = None
    started: float | None = None
    ended: float | None = None
    progress: tuple[int, float] | None = None
    output: str | None = None


def task_name(nickname: str, search: str, uid: str, generation: int, revision: int) -> str:
    """The name of a task: unique, and recognisable in a monitor (at most 132 characters, slash included)."""
    retry = f".r{revision}" if revision else ""
    return f"user.{nickname}.{search}.{uid}.g{generation}{retry}/"
