"""Rows of the tables as the values that the store hands out."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from hpo_pilot.jobs import JobState, Member
from hpo_pilot.search import EarlyStop, FoldResult, Search, Trial, TrialState
from hpo_pilot.search.cost import Spent
from hpo_pilot.search.limits import stored
from hpo_pilot.store.records import JobOutcome, SearchRecord, SearchState, TaskRecord, TaskStage, Wish, from_epoch


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


def wish_record(row: Row[Any]) -> Wish:
    """A row of `wishes` as a value."""
    return Wish(row.id, row.point, row.retries, row.who, from_seconds(row.created))


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
        search=stored(Search, row.definition),
        filed=stored(Search, row.filed),
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
