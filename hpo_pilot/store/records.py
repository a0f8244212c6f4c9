"""The values of the store (searches, tasks, requests, events), and their conversion from and to rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from sys import intern
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Row, insert, null, select

from hpo_pilot.jobs import Attempt, JobState, Member, Members
from hpo_pilot.jobs.results import from_epoch
from hpo_pilot.search.trials import EarlyStop, Fold, Trial, TrialState, planned_trials
from hpo_pilot.search.values import Point
from hpo_pilot.store import tables as t

if TYPE_CHECKING:
    from hpo_pilot.search.earlier_results import EarlierResults
    from hpo_pilot.search.fidelity import Levels
    from hpo_pilot.search.search import Search

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
        return self in ENDED_SEARCHES


ENDED_SEARCHES = (SearchState.DONE, SearchState.STOPPED, SearchState.FAILED)


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
        definition: the search as JSON values, with a budget extended by commands.
        filed_definition: the search as its file last had it, as JSON values.
        version: grows at each change except of the state, so that the service reads it again.
        clock: the start of the budget's hours.
        holder: the process that steers it, or had it at its end; see `hpo_pilot.store.lease`.
    """

    id: int
    name: str
    uid: str
    owner: str
    server: str | None
    family: str | None
    state: SearchState
    message: str
    definition: Mapping[str, Any]
    filed_definition: Mapping[str, Any]
    version: int
    source: str
    forgiven: int
    sandbox: str | None
    created: datetime
    started: datetime | None
    clock: datetime | None
    ended: datetime | None
    holder: str | None

    @cached_property
    def search(self) -> Search:
        """The search; checked when it is first used, which takes a millisecond, and a tenth of a second to import."""
        return stored_search(self.definition)

    @property
    def objectives(self) -> list[dict[str, Any]]:
        """The objectives as JSON values."""
        objective = self.definition["objective"]
        return objective if isinstance(objective, list) else [objective]

    @property
    def budget(self) -> dict[str, Any]:
        """The budget as JSON values."""
        budget: dict[str, Any] = self.definition["budget"]
        return budget

    @property
    def planned_trials(self) -> int:
        """`Search.planned_trials`, without a check of the whole search."""
        confirm = self.definition["confirm"]
        return planned_trials(
            self.budget["trials"],
            len(self.objectives),
            confirm["top"],
            confirm["repeats"],
            self.levels,
            self.budget.get("fidelity"),
        )

    @property
    def levels(self) -> Levels | None:
        """The levels of the training; None: every trial is a whole training."""
        given = next(iter(self.definition.get("fidelity", {}).values()), None)
        if given is None:
            return None
        from hpo_pilot.search.fidelity import Levels  # noqa: PLC0415 - lists load no pydantic

        return Levels.model_validate(given)

    @property
    def filed(self) -> Search:
        """The search as last read from its file; `search` may have a larger budget."""
        return stored_search(self.filed_definition)


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
class NewTask:
    """A submission to make."""

    name: str
    generation: int
    revision: int
    jobs: tuple[Members, ...]


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
    values = {name: getattr(row, name) for name in _SAME}
    values |= {name: from_epoch(getattr(row, name)) for name in ("created", "started", "clock", "ended")}
    return SearchRecord(**values, state=SearchState(row.state), filed_definition=row.filed)


#: The columns of `searches` that are values of a `SearchRecord` as they are.
_SAME = (
    *("id", "name", "uid", "owner", "server", "family", "message", "definition", "version", "source"),
    *("forgiven", "sandbox", "holder"),
)


def stored_search(definition: Mapping[str, Any]) -> Search:
    """Returns a stored search."""
    from hpo_pilot.search.search import Search  # noqa: PLC0415 - lists load no pydantic

    return Search.model_validate(definition)


# Rows of `trials` and `jobs` are unpacked in the order of the columns: reading attributes of a row takes four times as
# long, and a search may have 100,000 trials.


def trial_record(row: Sequence[Any], attempts: Mapping[int, Sequence[Attempt]]) -> Trial:
    """Returns a row of `trial_rows`, also with `good_folds`, as a value; `attempts`: of its jobs by fold, in order."""
    _, _, number, generation, point, state, seed, confirms, retries, told, value, std, figures, spreads, *more = row
    error, look, reason, step, stop_value, projected, submitted, started, ended, level, continues, *last = more
    from_start, promoted, good = (*last, None)[:3]
    return Trial(
        number=number,
        generation=generation,
        point={intern(name): value for name, value in (point or {}).items()},  # one text for all trials
        state=TrialState(state),
        values=one_or_more(value, figures),
        stds=one_or_more(std, spreads),
        folds=tuple(Fold(fold, tuple(of_fold)) for fold, of_fold in sorted(attempts.items())),
        error=error,
        stop=None if look is None else EarlyStop(look, reason, step, stop_value, projected and tuple(projected)),
        seed=seed,
        confirms=confirms,
        retries=retries,
        level=level if level is None or level % 1 else int(level),
        continues=continues,
        from_start=bool(from_start),
        promoted=promoted,
        told=told,
        submitted=from_epoch(submitted),
        started=from_epoch(started),
        ended=from_epoch(ended),
        good=good,
    )


def trial_records(rows: Iterable[Sequence[Any]], jobs: Iterable[Sequence[Any]]) -> list[Trial]:
    """Returns rows of `trials` as values, with their rows of `jobs`, which are in order."""
    attempts: dict[tuple[int, int], dict[int, list[Attempt]]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        attempt = attempt_record(job)
        attempts[job[1], attempt.trial][attempt.fold].append(attempt)
    return [trial_record(row, attempts.pop((row[1], row[2]), {})) for row in rows]


def trial_end_row(trial: Trial) -> dict[str, Any]:
    """Returns the columns of `trials` that the end of a trial sets."""
    columns = {
        "state": trial.state,
        "value": trial.value,
        "std": trial.std,
        "figures": _several(trial.values),
        "spreads": _several(trial.stds),
        "error": trial.error,
        "told": trial.told,
        "ended": None if trial.ended is None else trial.ended.timestamp(),
    }
    return columns | (stop_row(trial.stop) if trial.stop else {})


def stop_row(stop: EarlyStop) -> dict[str, Any]:
    """Returns the columns of `trials` with the decision to stop a trial early."""
    return {
        "stop_look": stop.look,
        "stop_reason": stop.reason,
        "stop_step": stop.step,
        "stop_value": stop.value,
        "projected": stop.projected and list(stop.projected),
    }


def one_or_more(first: float | None, several: list[float] | None) -> tuple[float, ...]:
    """Returns the figures of a row: one has a column of numbers, by which SQL sorts; several have a column of JSON."""
    return tuple(several) if several else () if first is None else (first,)


def _several(figures: Sequence[float]) -> list[float] | None:
    return list(figures) if len(figures) > 1 else None


def attempt_record(row: Sequence[Any]) -> Attempt:
    """Returns a row of `jobs` as a value, without its progress."""
    _, _, task_id, trial, fold, attempt, state, panda_id, value, figures, metrics, metadata, error, log_tail, *more = (
        row
    )
    output, node, seconds, joules, started, ended = more
    return Attempt(
        task_id=task_id,
        trial=trial,
        fold=fold,
        attempt=attempt,
        state=JobState(state),
        panda_id=panda_id,
        values=one_or_more(value, figures),
        metrics=metrics,
        metadata=metadata,
        error=error,
        log_tail=log_tail,
        output=output,
        node=node,
        seconds=seconds,
        joules=joules,
        started=started,
        ended=ended,
    )


def columns_without(names: Collection[str], figures: ColumnElement[Any] | None = None) -> list[ColumnElement[Any]]:
    """Returns the columns of `jobs` for `attempt_record`, with null for those named.

    Args:
        names: the columns that are left out.
        figures: replaces the column `metrics`; None: nothing does.
    """
    left_out: dict[str, ColumnElement[Any]] = {name: null().label(name) for name in names}
    if figures is not None:
        left_out["metrics"] = figures
    return [left_out.get(column.name, column) for column in t.jobs.columns]


#: The columns of `jobs` that a field of `Attempt` has under the same name.
_ATTEMPT_COLUMNS = [field.name for field in fields(Attempt) if field.name in t.jobs.columns]


def attempt_row(attempt: Attempt) -> dict[str, Any]:
    """Returns an attempt as a row of `jobs`, without the search."""
    row = {name: getattr(attempt, name) for name in _ATTEMPT_COLUMNS}
    return row | {"value": attempt.value, "figures": _several(attempt.values)}


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
    from hpo_pilot.search.earlier_results import EarlierResults  # noqa: PLC0415 - lists load no pydantic

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
