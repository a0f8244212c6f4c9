"""Searches, tasks and events as values, and the conversion of rows to values. Copies, never rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, insert, select

from hpo_pilot.jobs import JobState, Member, Members
from hpo_pilot.search import EarlyStop, FoldResult, Point, Search, Trial, TrialState
from hpo_pilot.search.earlier_results import EarlierResults
from hpo_pilot.search.limits import read_stored
from hpo_pilot.search.trials import Spent
from hpo_pilot.store import tables as t

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
class NewPointRequest:
    """A point that a user asks for; `retries`: the failed trial whose point it is."""

    point: Point
    retries: int | None = None


@dataclass(frozen=True)
class PointRequest:
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


def task_record(row: Row[Any]) -> TaskRecord:
    """A row of `tasks` as a value."""
    jobs = tuple(tuple(Member(*map(int, member)) for member in job) for job in row.jobs)
    return TaskRecord(
        row.id,
        row.generation,
        row.revision,
        row.name,
        TaskStage(row.state),
        row.jedi_task_id,
        jobs,
        from_seconds(row.created),
        row.waits or "",
    )


def point_request(row: Row[Any]) -> PointRequest:
    """A row of `wishes` as a value."""
    return PointRequest(row.id, row.point, row.retries, row.who, from_seconds(row.created))


def from_seconds(seconds: float) -> Any:
    """A time that is never null."""
    return from_epoch(seconds)


def search_record(row: Row[Any]) -> SearchRecord:
    """A row of `searches` as a value."""
    return SearchRecord(
        id=row.id,
        name=row.name,
        uid=row.uid,
        owner=row.owner,
        server=row.server,
        family=row.family,
        state=SearchState(row.state),
        message=row.message,
        search=read_stored(Search, row.definition),
        filed=read_stored(Search, row.filed),
        version=row.version,
        source=row.source,
        forgiven=row.forgiven,
        sandbox=row.sandbox,
        created=from_seconds(row.created),
        started=from_epoch(row.started),
        clock=from_epoch(row.clock),
        ended=from_epoch(row.ended),
    )


def trial_record(row: Row[Any], jobs: dict[int, list[Row[Any]]]) -> Trial:
    """A row of `trials` as a value, with the rows of its jobs by fold, oldest attempt first."""
    spent = Spent()
    for job in (job for attempts in jobs.values() for job in attempts):
        spent = spent.and_one(job.seconds, job.joules)
    return Trial(
        number=row.number,
        generation=row.generation,
        point=row.point,
        state=TrialState(row.state),
        value=row.value,
        std=row.std,
        values=row.figures and tuple(row.figures),
        stds=row.spreads and tuple(row.spreads),
        folds=tuple(_fold(fold, attempts) for fold, attempts in sorted(jobs.items())),
        error=row.error,
        stop=_stop(row),
        seed=row.seed,
        confirms=row.confirms,
        told=row.told,
        submitted=from_epoch(row.submitted),
        started=from_epoch(row.started),
        ended=from_epoch(row.ended),
        spent=spent,
        retries=row.retries,
    )


def _stop(row: Row[Any]) -> EarlyStop | None:
    if row.stop_look is None:
        return None
    projected = row.projected and tuple(row.projected)
    return EarlyStop(row.stop_look, row.stop_reason, row.stop_step, row.stop_value, projected)


def _fold(fold: int, attempts: list[Row[Any]]) -> FoldResult:
    """The fold's good attempt where there is one, else its last."""
    attempts = [job for job in attempts if job.state != JobState.NOT_RUN or job.seconds] or attempts
    good = [job for job in attempts if job.state == JobState.FINISHED and job.value is not None]
    job = good[0] if good else attempts[-1]
    return FoldResult(
        fold=fold,
        value=job.value,
        values=job.figures and tuple(job.figures),
        error=job.error,
        log_tail=job.log_tail,
        attempt=attempts.index(job) + 1,
        seconds=job.seconds,
        metrics=job.metrics or {},
        metadata=job.metadata,
        panda_id=job.panda_id,
        node=job.node,
        started=from_epoch(job.started),
        ended=from_epoch(job.ended),
    )


def job_outcome(row: Row[Any]) -> JobOutcome:
    """A row of `jobs` as a value; its progress is not in it."""
    return JobOutcome(
        task_id=row.task_id,
        trial=row.trial,
        fold=row.fold,
        attempt=row.attempt,
        state=JobState(row.state),
        panda_id=row.panda_id,
        value=row.value,
        values=row.figures and tuple(row.figures),
        metrics=row.metrics,
        metadata=row.metadata,
        error=row.error,
        log_tail=row.log_tail,
        output=row.output,
        node=row.node,
        seconds=row.seconds,
        joules=row.joules,
        started=row.started,
        ended=row.ended,
    )


def add_earlier(connection: Connection, search_id: int, earlier: Sequence[EarlierResults]) -> None:
    """Stores them with a search that is being registered."""
    for number, one in enumerate(earlier):
        connection.execute(
            insert(t.earlier_results).values(
                search_id=search_id,
                number=number,
                source=one.source,
                results=[list(result) for result in one.results],
                notes=list(one.notes),
            )
        )


def earlier_of(connection: Connection, search_id: int) -> list[EarlierResults]:
    """What a search has from earlier ones, in the order of its file."""
    table = t.earlier_results
    rows = connection.execute(select(table).where(table.c.search_id == search_id).order_by(table.c.number))
    return [
        EarlierResults(
            row.source,
            tuple((point, _tuple(values), _tuple(errors), stopped) for point, values, errors, stopped in row.results),
            tuple(row.notes),
        )
        for row in rows
    ]


def _tuple(numbers: list[float] | None) -> tuple[float, ...] | None:
    return None if numbers is None else tuple(numbers)
