"""The values of the store (searches, tasks, requests, outcomes, events), and their conversion from rows."""

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

#: The name of the embedded PanDA server in the store: its address changes with each start.
EMBEDDED = "embedded"


class SearchState(StrEnum):
    """The life of a search."""

    SUBMITTED = "submitted"  #: registered; no service has seen it yet
    RUNNING = "running"  #: steered by a service, or waiting for the next one to go on
    PAUSED = "paused"  #: on request: no new trials; open trials go on to their end
    STOPPING = "stopping"  #: on request: its jobs are being killed
    DONE = "done"  #: its budget is used and there is a best point
    STOPPED = "stopped"  #: ended on request
    FAILED = "failed"  #: ended without a usable result; `message` says why

    @property
    def is_over(self) -> bool:
        """True if no service steers it any more, unless it is extended or resumed."""
        return self in (SearchState.DONE, SearchState.STOPPED, SearchState.FAILED)


class TaskStage(StrEnum):
    """The stage of a task's submission."""

    INTENT = "intent"  #: before submission; after a crash it is looked up by name first
    SUBMITTED = "submitted"  #: the server has given it an id
    ENDED = "ended"  #: no more results are expected


@dataclass(frozen=True)
class SearchRecord:
    """A registered search.

    Attributes:
        owner: the user who registered it.
        server: URL of the PanDA server of its tasks, or `EMBEDDED`; None: none yet.
        family: the name of the search file with segments, if it is one of these; None: it is not.
        forgiven: failures up to this place in the order of results no longer count as failures in a row.
        filed: the search as last read from its file; `search` may have a larger budget.
        version: grows at each change except of the state, so that the service reads it again.
        clock: the start of the budget's hours.
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
    """The state of a search at a generation, from which the optimizer proposes the same points again.

    Attributes:
        history: number of results told to the optimizer.
        pending: numbers of the open trials.
        asked: number of points asked of the optimizer; None: it was not asked (start points, confirmation runs).
        budget: trials of the search's budget at that time: schedules depend on it.
    """

    history: int
    pending: list[int]
    asked: int | None = None
    budget: int | None = None


@dataclass(frozen=True)
class TaskRecord:
    """One submission: a generation's jobs, or lost folds submitted again.

    Attributes:
        jobs: the members that job number 1, 2, … runs.
        waits: the server's reason for making no jobs of it yet; empty: it makes jobs, or the reason is unknown.
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
    """One entry of a search's log."""

    time: datetime
    who: str
    what: str


def from_epoch(seconds: float | None) -> datetime | None:
    """Returns seconds since the epoch as an aware UTC datetime."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True)
class NewPointRequest:
    """A point that a user requests; `retries`: the failed trial with this point."""

    point: Point
    retries: int | None = None


@dataclass(frozen=True)
class PointRequest:
    """A stored point that a user requested; points are submitted in the order of `id`."""

    id: int
    point: Point
    retries: int | None
    who: str
    created: datetime


@dataclass(frozen=True)
class NewTrial:
    """A trial to register.

    Attributes:
        wish: the id of the `PointRequest` that it fulfils.
    """

    number: int
    point: Point
    seed: int
    confirms: int | None = None
    retries: int | None = None
    wish: int | None = None


@dataclass(frozen=True)
class NewTask:
    """A submission to make."""

    name: str
    generation: int
    revision: int
    jobs: tuple[Members, ...]


@dataclass(frozen=True)
class JobOutcome:
    """One fold in one attempt of its job.

    Attributes:
        state: FINISHED with a value, or with an error of the payload itself; FAILED or CANCELLED for an attempt that
            the infrastructure lost; NOT_RUN if the job's time ended before this fold; RUNNING and other states before.
        values: the values of several objectives, `value` first; None for one objective.
        metadata: metadata of the payload itself.
        output: logical file name of its packed outputs at the server, if any; for a job with several folds, with a
            slash and the folder inside.
        seconds: its run time; of a lost attempt, its share of the job's time.
        joules: its energy, if measured.
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
        """True for a figure of merit, or a failure of the payload itself: a retry would repeat it."""
        return self.state is JobState.FINISHED


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended.

    Attributes:
        told: its place in the order of results; None: the optimizer is not told.
        good_folds: number of folds in the mean `value`.
        seconds: run time of its longest fold.
        values: the values of several objectives, `value` first; None for one objective.
        stds: the standard deviations of several objectives, `std` first; None for one objective.
        stop: the stop of a trial that was stopped early; None also if it finished before the stop.
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
        """Returns the trial with this end."""
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
    """Returns a row of `tasks` as a value."""
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
    """Returns a row of `wishes` as a value."""
    return PointRequest(row.id, row.point, row.retries, row.who, from_seconds(row.created))


def from_seconds(seconds: float) -> Any:
    """Returns a time that is never null, as `from_epoch`."""
    return from_epoch(seconds)


def search_record(row: Row[Any]) -> SearchRecord:
    """Returns a row of `searches` as a value."""
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
    """Returns a row of `trials` as a value, with the rows of its jobs by fold, oldest attempt first."""
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
    """Returns the fold's first attempt with a value, or its last attempt."""
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
    """Returns a row of `jobs` as a value, without its progress."""
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
    """Stores the earlier results of a search at its registration."""
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
    """Reads a search's results of earlier searches, in the order of its file."""
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
