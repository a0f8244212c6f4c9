"""Searches for the pages: their rows of progress, their headlines and figures."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Generic, TypeVar

from sqlalchemy import Engine

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.operations.documents import best_standing, hours_used
from hpo_pilot.report.catalogue import build, check_axes, kinds
from hpo_pilot.report.figure_data import FigureReader
from hpo_pilot.report.formatting import (
    UNITS,
    count,
    duration,
    front_text,
    number,
    plus_minus,
    shortened,
    span,
    time_left,
    used_of,
    whole,
)
from hpo_pilot.search import Search
from hpo_pilot.search.estimate import Estimate
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.ranking import Standing, front_of
from hpo_pilot.search.trials import Cost, TrialCounts, TrialState
from hpo_pilot.steering.status import expected_end
from hpo_pilot.store import Annotation, SearchRecord, SearchState, Store
from hpo_pilot.store.annotations import search_annotations
from hpo_pilot.store.progress import all_progress
from hpo_pilot.store.queries import SearchHead, failure_of, records_of, search_heads, values_reported
from hpo_pilot.store.trial_queries import TrialFilter, confirmation_runs, count_trials, level_counts, trials_numbered
from hpo_pilot.web.figure_worker import FigureWorker

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

#: Searches among which those to compare are looked for.
_OTHERS = 200

#: Records cached, with their parsed definitions: about 30 kB each.
_RECORDS = 500

#: Trials of a Pareto front on a search's page.
FRONT_SHOWN = 12


@dataclass(frozen=True)
class SearchView:
    """One search at one moment, without its trials. It does not change.

    Attributes:
        record: the search.
        progress: its counts, best trials and costs.
        annotation: its own note and tags.
    """

    record: SearchRecord
    progress: SearchProgress
    annotation: Annotation

    @property
    def search(self) -> Search:
        """The definition of the search."""
        return self.record.search

    @cached_property
    def tag(self) -> str:
        """Hash of the record's version, state, message and times, and of the progress."""
        r = self.record
        text = repr((r.uid, r.version, r.state, r.message, r.started, r.ended, self.progress))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @cached_property
    def extent(self) -> TrialCounts:
        """The counters of the search."""
        return self.progress.extent(self.record.planned_trials, is_done=self.record.state is SearchState.DONE)

    @cached_property
    def cost(self) -> Cost:
        """Resources that its jobs have used so far, in hours and kWh."""
        return price_of(self.search).cost(self.progress.spent)

    @property
    def best_text(self) -> str:
        """The best figure of merit as text; for several objectives the size and hypervolume of the front."""
        progress = self.progress
        if progress.front:
            return front_text(len(progress.front), progress.hypervolume)
        if progress.confirmed is not None:
            return plus_minus(progress.confirmed_value, None)
        return "" if progress.best is None else plus_minus(progress.best_value, progress.best_std)


def shown_counts(engine: Engine, view: SearchView) -> dict[str, int]:
    """Returns the number of trials in each state as users see it."""
    counts = {state.value: view.progress.counts.get(state, 0) for state in TrialState}
    if (levels := view.search.levels) is not None:
        counts["paused"] = count_trials(engine, view.record.id, TrialFilter("paused", levels=levels))
        # The progress was read before: trials may have finished since.
        counts["finished"] = max(0, counts["finished"] - counts["paused"])
    return counts


class Kept(Generic[_Key, _Value]):
    """The values that were used last, at most `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        """Returns a value; None: it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Keeps a value, and returns it."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


class SearchCache:
    """Reads the searches of a store, and keeps parsed records. Thread-safe."""

    def __init__(self, store: Store) -> None:
        """Reads nothing yet. The caller closes the store."""
        self.store = store
        self._records: Kept[int, SearchRecord] = Kept(_RECORDS)

    def heads(self) -> list[SearchHead]:
        """Returns the heads of all searches, newest first.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        return search_heads(self.store.engine)

    def views(self, numbers: Sequence[int]) -> list[SearchView]:
        """Returns the searches with these numbers, in this order, without searches that do not exist.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        found = {record.id: record for record in records_of(self.store.engine, numbers)}
        return self._views([found[each] for each in numbers if each in found])

    def view(self, identity: str) -> SearchView:
        """Returns the search with that name or number.

        Raises:
            UnknownSearchError: there is no such search.
            TryAgainError: the store cannot be reached.
        """
        return self._views([self.store.search(identity[:100])])[0]

    def others(self, view: SearchView) -> list[SearchRecord]:
        """Returns the other ones of the newest 200 searches, newest first.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        numbers = {head.id for head in self.heads()[:_OTHERS]} - {view.record.id}
        records = map(self._parsed, records_of(self.store.engine, numbers))
        return sorted(records, key=lambda record: -record.id)

    def best(self, view: SearchView) -> list[Standing]:
        """Returns the best trial; for several objectives the first trials of the front; empty: no result.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        engine, progress, number = self.store.engine, view.progress, view.record.id
        if progress.best_for_people is None:
            return []
        if not progress.front:
            trials = trials_numbered(engine, number, [progress.best_for_people])
            return [standing for trial in trials if (standing := best_standing(trial, progress)) is not None]
        shown = progress.front[:FRONT_SHOWN]
        runs = confirmation_runs(engine, number, shown) if progress.confirmations_over else []
        return front_of(view.search, [*trials_numbered(engine, number, shown), *runs])

    def _views(self, records: Sequence[SearchRecord]) -> list[SearchView]:
        numbers = [record.id for record in records]
        progress = all_progress(self.store.engine, numbers)
        notes = search_annotations(self.store.engine, numbers)
        return [
            SearchView(self._parsed(record), progress[record.id], notes.get(record.id, Annotation()))
            for record in records
            if record.id in progress
        ]

    def _parsed(self, record: SearchRecord) -> SearchRecord:
        """Returns the same record from the cache, where its definition may be parsed already."""
        known = self._records.get(record.id)
        return known if known is not None and known == record else self._records.put(record.id, record)


#: From this number of failures in a row, the headline reports them first.
_IN_A_ROW = 3

#: A search no longer improves if this share of its results, and at least this number, came after its best one.
_STALE_SHARE, _STALE_LEAST = 0.4, 12

_REASON = 220


@dataclass(frozen=True)
class Limit:
    """One limit of the budget.

    Attributes:
        name: unit, in words.
        used: amount used.
        allowed: amount allowed in total.
    """

    name: str
    used: float
    allowed: float

    @property
    def text(self) -> str:
        """Both amounts, in words."""
        return used_of(self.used, self.allowed, self.name)

    @property
    def percent(self) -> float:
        """Used share of the limit, 0 to 100."""
        return max(0.0, min(100.0, 100 * self.used / self.allowed)) if self.allowed > 0 else 100.0


#: Verdict of a search in each of these states if no process steers it.
_UNSTEERED = {
    SearchState.SUBMITTED: "Submitted, but no process steers it: it does not start.",
    SearchState.RUNNING: "Started, but no process steers it now: it does not continue.",
    SearchState.STOPPING: "Stopping, but no process steers it now: its jobs still run.",
}


@dataclass(frozen=True)
class Headline:
    """Summary of a search; each part is computed when it is first used.

    Attributes:
        store: the store of the search.
        view: the search.
        now: the current time.
        unsteered: why no process steers it, and the remedy, in a sentence; empty: one does, or the search is over.
    """

    store: Store
    view: SearchView
    now: datetime
    unsteered: str = ""

    @property
    def percent(self) -> float:
        """Finished share of the planned trials, 0 to 100."""
        extent = self.view.extent
        return 100.0 * extent.over / extent.planned if extent.planned else 0.0

    @cached_property
    def expected(self) -> Estimate | None:
        """The estimated end; None: it is unknown, or the search does not run."""
        view = self.view
        return expected_end(self.store, view.record, view.progress, self.now.timestamp(), steered=not self.unsteered)

    @property
    def end(self) -> str:
        """Time until the end, or run time if it has ended, as text."""
        record = self.view.record
        if record.state.is_over:
            took = span(record.started, record.ended)
            return f"ended after {duration(took)}" if took is not None else "ended"
        if self.unsteered:
            return "not steered"
        if record.state is not SearchState.RUNNING:
            # Its trials may still run.
            words = {SearchState.SUBMITTED: "not started yet", SearchState.STOPPING: "being stopped"}
            return words.get(record.state, record.state.value)
        if self.expected is None:
            return "no estimate yet"
        why = f" (limit of {UNITS[self.expected.limit]})" if self.expected.limit in UNITS else ""
        ends = self.expected
        return f"in {time_left(ends.seconds, ends.earliest, ends.latest)}{why}"

    @property
    def limits(self) -> list[Limit]:
        """The budget's limits in GPU-hours, core-hours, hours and levels, in this order."""
        budget, cost = self.view.search.budget, self.view.cost
        hours = hours_used(self.view.record, self.now.timestamp()) or 0.0
        used = {"gpu_hours": cost.gpu_hours, "core_hours": cost.core_hours, "hours": hours}
        allowed = {key: getattr(budget, key) for key in UNITS}
        found = [Limit(unit, used[key], allowed[key]) for key, unit in UNITS.items() if allowed[key] is not None]
        if budget.fidelity is not None and (levels := self.view.search.levels) is not None:
            trained = sum(one.trained for one in level_counts(self.store.engine, self.view.record.id, levels))
            found.append(Limit(self.view.search.level_name, trained, budget.fidelity))
        return found

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of trials in each state as users see it."""
        return shown_counts(self.store.engine, self.view)

    @cached_property
    def trouble(self) -> list[str]:
        """Problems, one sentence each; empty: none."""
        progress = self.view.progress
        found = [f"{self.unsteered[0].upper()}{self.unsteered[1:]}."] if self.unsteered else []
        if progress.last_failure is not None:
            latest = failure_of(self.store.engine, self.view.record.id, progress.last_failure).error
            reason = shortened((latest or "no reason was recorded").strip().partition("\n")[0], _REASON)
            over = count(self.view.extent.over, "trial")
            found.append(f"{whole(progress.failed)} of {over} failed; the latest: {reason}")
        return found

    @cached_property
    def verdict(self) -> tuple[str, str]:
        """The condition of the search (`good`, `bad`, `busy` or `idle`, for the colour), and a sentence on it."""
        record, progress = self.view.record, self.view.progress
        state, has_best, over = record.state, progress.best_for_people is not None, self.view.extent.over
        in_a_row = progress.failed_in_a_row(record.forgiven)
        if self.unsteered and state in _UNSTEERED:
            return "bad", _UNSTEERED[state]
        if state is SearchState.SUBMITTED:
            return "idle", "Submitted; it has not started yet."
        if state is SearchState.PAUSED:
            return "idle", "Paused: no new trials start until you resume the search."
        if state is SearchState.STOPPING:
            return "idle", "Stopping: its jobs are being killed."
        if state is SearchState.FAILED:
            return "bad", f"Failed: {shortened(record.message or 'no reason was recorded', 2 * _REASON)}"
        if state is SearchState.STOPPED:
            return "idle", f"Stopped after {count(over, 'trial')}."
        if state is SearchState.DONE:
            message = f"; {shortened(record.message, _REASON).rstrip('.')}" if record.message else ""
            return "good", f"Done: {count(over, 'trial')} are over{message}.{self._gain}"
        if self.trouble and not has_best and progress.told:
            return "bad", "Running, but no trial has succeeded yet."
        if in_a_row >= _IN_A_ROW:
            return "bad", f"Running, but the last {whole(in_a_row)} trials failed."
        if not has_best:
            return "busy", "Running; there is no result yet."
        since = self.since_best
        if since >= max(_STALE_LEAST, _STALE_SHARE * progress.told):
            return "busy", f"Running; no improvement in the last {count(since, 'result')}.{self._gain}"
        when = "the newest result is the best" if not since else f"the best result was {count(since, 'result')} ago"
        return "good", f"Going well: {when}.{self._gain}"

    @property
    def since_best(self) -> int:
        """Results since the best one; for several objectives, since the hypervolume last grew."""
        progress = self.view.progress
        if progress.front:
            return progress.told - progress.course[-1][0] if progress.course else 0
        return progress.since_best or 0

    @property
    def _gain(self) -> str:
        """A sentence with the first and the current best value; empty if they are equal, or for several objectives."""
        objectives, course = self.view.search.objectives, self.view.progress.course
        if len(objectives) > 1 or not course or course[0][1] == course[-1][1]:
            return ""
        confirmed = f"; confirmed, it is {self.view.best_text}" if self.view.progress.confirmed is not None else ""
        return (
            f" The best {objectives[0].metric} went from {number(course[0][1])} to {number(course[-1][1])}{confirmed}."
        )


#: A figure is drawn again after at least `_AGE` seconds, and at least `_REST` times its own drawing time.
_AGE, _REST = 3.0, 8.0

#: Figures cached.
_KEPT = 200

#: Most trials in the figure of slots.
_SLOT_TRIALS = 5_000

#: Figures that change with the clock while jobs run, and the seconds between their updates.
_MOVING, _STEP = frozenset({"slots"}), 10

#: Figures of the intermediate values that trials reported.
_REPORTED = frozenset({"curves"})

#: Figures that need scikit-learn or scipy, or seconds, in a process of their own. They show only results, so only a new
#: result makes them out of date.
SLOW = frozenset({"importance", "correlations", "contours", "ranks"})


@dataclass(frozen=True)
class DrawnFigures:
    """The figures of one kind for one search, ready to send.

    Attributes:
        packed: gzipped JSON.
        tag: ETag; changes with the content.
        since: when they were drawn, by the monotonic clock, in seconds.
        seconds: time that drawing took.
        source: version of the data that they show.
    """

    packed: bytes
    tag: str
    since: float
    seconds: float
    source: str


class FigureCache:
    """Draws figures and caches them. Thread-safe."""

    def __init__(self, library: SearchCache, worker: FigureWorker) -> None:
        """Draws the searches of `library`."""
        self._library, self._worker = library, worker
        self._drawn: Kept[tuple[int, str, tuple[str, ...]], DrawnFigures] = Kept(_KEPT)

    def kept(self, view: SearchView, key: str, axes: tuple[str, ...] = ()) -> DrawnFigures | None:
        """Returns the figures of a kind if they need not be drawn; they may be some seconds old.

        Args:
            view: the search.
            key: the kind.
            axes: the two parameters of a figure of pairs; empty: the most important ones.

        Raises:
            InputError: there is no such kind for this search, or it has no such axes.
            TryAgainError: the store cannot be reached.
        """
        if key not in {kind.key for kind in kinds(view.search)}:
            raise InputError(f"there is no figure {key!r} of search {view.record.name!r}")
        check_axes(view.search, axes)
        known = self._drawn.get((view.record.id, key, axes))
        if known is None:
            return None
        age = time.monotonic() - known.since
        is_fresh = known.source == self._source(view, key) or age < max(_AGE, _REST * known.seconds)
        return known if is_fresh else None

    def drawn(self, view: SearchView, key: str, axes: tuple[str, ...] = ()) -> DrawnFigures:
        """Returns the figures of a kind, and draws them if needed; arguments and errors as of `kept`."""
        return self.kept(view, key, axes) or self._made(view, key, axes)

    def _source(self, view: SearchView, key: str) -> str:
        more = ""
        if key in SLOW:
            return f"{view.record.uid}.{view.record.version}.{view.progress.told}"
        if key in _MOVING and not view.record.state.is_over and view.progress.running:
            more = str(int(time.time()) // _STEP)
        elif key in _REPORTED:
            more = str(values_reported(self._library.store.engine, view.record.id))
        return f"{view.tag}.{more}"

    def _made(self, view: SearchView, key: str, axes: tuple[str, ...]) -> DrawnFigures:
        begun, source = time.monotonic(), self._source(view, key)
        until = None if view.record.state.is_over else datetime.now(UTC)
        others = partial(self._library.others, view)
        reader = FigureReader(self._library.store, view.record, view.progress, others, _SLOT_TRIALS, until)
        data = replace(reader.data(key), axes=axes)
        figures = [asdict(one) for one in (self._worker.build if key in SLOW else build)(key, data)]
        content = json.dumps({"figures": figures}, allow_nan=False, separators=(",", ":")).encode()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        now = time.monotonic()
        packed = DrawnFigures(gzip.compress(content, 5, mtime=0), tag, now, now - begun, source)
        return self._drawn.put((view.record.id, key, axes), packed)
