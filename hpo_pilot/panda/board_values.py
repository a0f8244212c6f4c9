"""What the embedded PanDA server tells of its jobs, pilots and queues, as values for pages to show.

Texts come from payloads, users and pilots: whoever shows them escapes them. Times are in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hpo_pilot.jobs import JobState


@dataclass(frozen=True)
class BoardJob:
    """One attempt of a job.

    Attributes:
        panda_id: the attempt's; every attempt has its own.
        task_id: the task's (jeditaskid).
        task: the task's name.
        user: whose task it is.
        search: the search's name; None: a task that no search of ours submitted.
        uid: the search's identity in its store; None likewise.
        generation: within the search; None likewise.
        members: (trial, fold) of each point that the job runs, in order; empty likewise.
        number: which of the task's jobs it is, from 1.
        attempt: from 1.
        attempts: how many the job may have.
        sub_state: the pilot's or server's further word on the state, often empty.
        queue: where it is, or waits; empty: any queue may take it.
        node: the machine; empty: no pilot has said.
        pilot: `BoardPilot.key` of who has or had it; empty: nobody, or nobody who has a name.
        created: when it began to wait.
        changed: when its state changed last.
        heard: when its pilot, or whoever ended it, reported last; None: nobody has it.
        nodes: how many it runs on at once.
        gpus: on each node.
        cores: on each node.
        memory_mb: on each node.
        minutes: the longest that it may run; 0: not said.
        step: of the last value that its payload reported; None: none.
        value: that value.
        error: PanDA's errors in one line, most telling first; empty: none.
        has_log: whether `JobBoard.log` will find something.
        payload_error: why payloads of a finished job gave no figure of merit, in one line; empty: all did.
    """

    panda_id: int
    task_id: int
    task: str
    user: str
    search: str | None
    uid: str | None
    generation: int | None
    members: tuple[tuple[int, int], ...]
    number: int
    attempt: int
    attempts: int
    state: JobState
    sub_state: str
    queue: str
    node: str
    pilot: str
    created: datetime
    changed: datetime
    started: datetime | None
    ended: datetime | None
    heard: datetime | None
    nodes: int
    gpus: int
    cores: int
    memory_mb: int
    minutes: float
    step: int | None
    value: float | None
    error: str
    has_log: bool
    payload_error: str = ""


@dataclass(frozen=True)
class BoardPage:
    """Jobs, newest first, and what there is beside them.

    Attributes:
        jobs: at most as many as were asked for.
        before: what to ask for next to see older ones; None: these were the last.
        counts: how many attempts are in which state, of all that the filters but `states` let through. Without any
            such filter those that are over count once for each job, not for each attempt.
    """

    jobs: tuple[BoardJob, ...]
    before: int | None
    counts: Mapping[JobState, int]


@dataclass(frozen=True)
class BoardFile:
    """A file that a job writes.

    Attributes:
        kind: output or log.
        size: bytes; None: it is not at the server (not written yet, or kept elsewhere).
    """

    name: str
    dataset: str
    kind: str
    size: int | None


@dataclass(frozen=True)
class BoardJobView:
    """All about one job.

    Attributes:
        job: the attempt that was asked for.
        attempts: all attempts of the same job, the first one first; `job` is among them.
        files: its outputs and its log.
        progress: (step, value) that the payload reported, as far as the server keeps them; NaN is infinity.
        measures: what the pilot measured, by PanDA's names: maxRSS (kB), cpuConsumptionTime (s), …
        metrics: the pilot's `jobMetrics`, as it came: words ``name=value``.
    """

    job: BoardJob
    attempts: tuple[BoardJob, ...]
    files: tuple[BoardFile, ...]
    progress: tuple[tuple[int, float], ...]
    measures: Mapping[str, int | float | str]
    metrics: str


@dataclass(frozen=True)
class BoardLog:
    """The end of a job's log.

    Attributes:
        text: a heading for each of its files (``==> payload.log <==``), and the file's end. Control characters but
            newline and tab are replaced.
        is_whole: False where something is left out before it.
    """

    text: str
    is_whole: bool


class PilotState(StrEnum):
    """What a pilot is doing, by its last words."""

    BUSY = "busy"  #: it has jobs
    WAITING = "waiting"  #: it asks for some
    SILENT = "silent"  #: it has not been heard of for longer than it should
    ENDED = "ended"  #: it said that it ends, or its batch system did


@dataclass(frozen=True)
class BoardPilot:
    """A pilot that has called lately.

    Attributes:
        key: names it: ``harvester/worker``, or, of a pilot that does not say them, ``host at queue``.
        host: the machine that it runs on.
        kind: ``hpo-pilot``, ``Pilot 3``, or what else it calls itself.
        version: of its program; empty: it does not say.
        since: when this server first heard of it; a restart of the server begins anew.
        heard: when last, by asking for jobs or reporting on one.
        slots: how many jobs it would run side by side, those that it has included; None: it does not say.
        nodes: free nodes of its batch allocation; None: it has no allocation.
        jobs: PandaIDs of the jobs that it has now.
    """

    key: str
    state: PilotState
    host: str
    queue: str
    kind: str
    version: str
    since: datetime | None
    heard: datetime | None
    slots: int | None
    nodes: int | None
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class BoardQueue:
    """A queue.

    Attributes:
        name: empty: jobs that any queue may take, as far as they wait.
        status: online, test, brokeroff, offline; empty: no queue file describes it, every pilot may serve it.
        description: the queue file's, for people.
        waiting: jobs that wait for a pilot.
        running: jobs that pilots have.
        pilots: pilots there that are alive.
        slots: jobs that those could run side by side; None: some do not say.
        limits: what one job may have there, in the queue file's words: cores, memory_mb, gpus, minutes, …
    """

    name: str
    status: str
    description: str
    waiting: int
    running: int
    pilots: int
    slots: int | None
    limits: Mapping[str, int | float | str] = field(default_factory=dict)
