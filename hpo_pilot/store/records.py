"""What the store hands out beside trials: searches, tasks, events. Copies, never rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from hpo_pilot.jobs import JobState, Members
from hpo_pilot.search import EarlyStop, Point, Search, Trial, TrialState

#: What stands for the embedded PanDA server, whose address is another each time, where a server is named.
EMBEDDED = "embedded"


class SearchState(StrEnum):
    """The life of a search."""

    SUBMITTED = "submitted"  #: registered; no service has looked at it yet
    RUNNING = "running"  #: steered by a service, or waiting for the next one to go on
    PAUSED = "paused"  #: on request: no new trials; those that are out end as they end
    STOPPING = "stopping"  #: on request: its jobs are being killed
    DONE = "done"  #: its budget is spent and there is a best point
    STOPPED = "stopped"  #: ended on request
    FAILED = "failed"  #: ended without a usable result; `message` says why

    @property
    def is_over(self) -> bool:
        """True where no service will touch it, unless it is extended or resumed."""
        return self in (SearchState.DONE, SearchState.STOPPED, SearchState.FAILED)


class TaskStage(StrEnum):
    """How far the submission of a task got, as far as the store knows."""

    INTENT = "intent"  #: about to be submitted; after a crash it is looked up by name before it is submitted
    SUBMITTED = "submitted"  #: the server has given it an id
    ENDED = "ended"  #: nothing more is expected from it


@dataclass(frozen=True)
class SearchRecord:
    """A registered search.

    Attributes:
        owner: who registered it.
        server: URL of the PanDA server that its tasks go to, or `EMBEDDED`; None: it has gone to none yet.
        family: the search file whose segments it is one of; None: it stands alone.
        forgiven: failures up to this place in the order of results no longer count as failures in a row.
        filed: the search as its file last had it; `search` may have a larger budget.
        version: grows when anything but the state changes; who steers it looks again then.
        clock: the budget's hours count from here.
    """

    id: int
    name: str
    uid: str
    owner: str
    server: str | None
    family: str | None
    state: SearchState
    message: str
    search: Search
    filed: Search
    version: int
    source: str
    forgiven: int
    sandbox: str | None
    created: datetime
    started: datetime | None
    clock: datetime | None
    ended: datetime | None


class Cut(NamedTuple):
    """What a generation's points follow from, with the search itself: asked again, the optimizer gives them again.

    Attributes:
        history: how many results had been told.
        pending: the numbers of the trials that were out.
        asked: how many points the optimizer was asked for; None: it was not asked (start points, confirmation runs).
        budget: the trials of the search's budget then, for schedules follow it.
    """

    history: int
    pending: list[int]
    asked: int | None = None
    budget: int | None = None


@dataclass(frozen=True)
class TaskRecord:
    """One submission: a generation's jobs, or lost folds sent again.

    Attributes:
        jobs: what job number 1, 2, … runs.
        waits: why the server makes no jobs of it yet, as the server says; empty: it does, or nobody says why.
    """

    id: int
    generation: int
    revision: int
    name: str
    stage: TaskStage
    jedi_task_id: int | None
    jobs: tuple[Members, ...]
    created: datetime
    waits: str = ""


@dataclass(frozen=True)
class Event:
    """Who did what when."""

    time: datetime
    who: str
    what: str


def from_epoch(seconds: float | None) -> datetime | None:
    """Seconds since the epoch as an aware UTC datetime."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True)
class NewWish:
    """A point that a user asks for; `retries`: the failed trial whose point it is."""

    point: Point
    retries: int | None = None


@dataclass(frozen=True)
class Wish:
    """A point that a user asked for, as the store has it; `id` grows with the order in which they go out."""

    id: int
    point: Point
    retries: int | None
    who: str
    created: datetime


@dataclass(frozen=True)
class NewTrial:
    """A trial about to be registered.

    Attributes:
        wish: the wish that it comes from, which is fulfilled by it.
    """

    number: int
    point: Point
    seed: int
    confirms: int | None = None
    retries: int | None = None
    wish: int | None = None


@dataclass(frozen=True)
class NewTask:
    """A submission about to be made."""

    name: str
    generation: int
    revision: int
    jobs: tuple[Members, ...]


@dataclass(frozen=True)
class JobOutcome:
    """What is known of one fold in one attempt of its job.

    Attributes:
        state: FINISHED with a value, or FINISHED with an error (the payload's own verdict); FAILED or CANCELLED for an
            attempt that the infrastructure lost; NOT_RUN where the job ran others first; RUNNING and the like while it
            lasts.
        values: of several objectives, the value of each, `value` first; else None.
        metadata: what the payload itself put into its metadata.
        output: logical file name of its packed outputs at the server, if any; where its job ran several, followed by
            a slash and the folder inside.
        seconds: how long it ran; of an attempt that was lost, its share of the job's time.
        joules: its energy, where that was measured.
    """

    task_id: int
    trial: int
    fold: int
    attempt: int
    state: JobState
    panda_id: int | None = None
    value: float | None = None
    values: tuple[float, ...] | None = None
    metrics: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    error: str | None = None
    log_tail: str | None = None
    output: str | None = None
    node: str | None = None
    seconds: float | None = None
    joules: float | None = None
    started: float | None = None
    ended: float | None = None
    progress: tuple[tuple[int, float], ...] = ()

    @property
    def is_verdict(self) -> bool:
        """True where the payload itself has spoken: a figure of merit, or its own failure. A retry would repeat it."""
        return self.state is JobState.FINISHED


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended.

    Attributes:
        told: its place in the order of results; None for trials that no optimizer is told of.
        good_folds: how many folds `value` is the mean of.
        seconds: run time of its longest fold.
        values: of several objectives, the value of each, `value` first; else None.
        stds: of several objectives, the standard deviation of each, `std` first; else None.
        stop: of a trial that was stopped early; of one that finished although it was told to stop there is no word.
    """

    number: int
    state: TrialState
    value: float | None
    std: float | None
    error: str | None
    told: int | None
    ended: float
    good_folds: int = 0
    seconds: float | None = None
    values: tuple[float, ...] | None = None
    stds: tuple[float, ...] | None = None
    stop: EarlyStop | None = None

    def applied_to(self, trial: Trial) -> Trial:
        """The trial as it is by this."""
        return replace(
            trial,
            state=self.state,
            value=self.value,
            std=self.std,
            values=self.values,
            stds=self.stds,
            error=self.error,
            told=self.told,
            stop=self.stop or trial.stop,
        )
