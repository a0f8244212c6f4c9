"""Searches for the pages: a cache of their trials, their headlines and figures."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.report.catalogue import build, kinds
from hpo_pilot.report.figure import FigureData, PeerSearch, same_question
from hpo_pilot.report.formatting import count, duration, number, plus_minus, span
from hpo_pilot.report.result_figures import drawn_trials
from hpo_pilot.report.summary import shortened
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.ranking import Standing, best_remarks, convergence, figure_of_merit, front_of, ranking
from hpo_pilot.search.trials import Cost, Spent
from hpo_pilot.steering.status import Outlook, outlook
from hpo_pilot.store import Annotation, SearchRecord, SearchState, Store, UnknownSearchError
from hpo_pilot.store.queries import (
    Pulse,
    SearchHead,
    annotations_of,
    pulses,
    records_of,
    search_heads,
    spent,
    trials_changed,
    trials_with_folds,
    values_reported,
)
from hpo_pilot.store.store import is_search_number

#: Trials cached with their folds, over all searches, about 3 kB each. The search read longest ago is dropped first.
_FOLDS_KEPT = 40_000

#: Searches among which those to compare are looked for.
_OTHERS = 200

#: Seconds after which a running search's cost is read again although no trial changed: jobs end one by one.
_COST_AGES = 10.0

_NOTHING = Pulse(0, 0, 0, 0)


@dataclass(frozen=True)
class SearchView:
    """One search at one moment. It does not change.

    Attributes:
        record: the search.
        trials: all its trials by number, without their folds.
        pulse: changes when the trials change.
        took: resources that its jobs have used so far.
        costed: when `took` was read, by the monotonic clock, in seconds.
        annotations: its notes and tags by trial; 0: of the search itself.
    """

    record: SearchRecord
    trials: Sequence[Trial]
    pulse: Pulse
    took: Spent = field(default_factory=Spent)
    costed: float = 0.0
    annotations: Mapping[int, Annotation] = field(default_factory=dict)

    @property
    def note(self) -> Annotation:
        """Its own note and tags."""
        return self.annotations.get(0, Annotation())

    @property
    def search(self) -> Search:
        """The definition of the search."""
        return self.record.search

    @cached_property
    def tag(self) -> str:
        """Hash of the record's version, state, message and times, and of the trials' pulse."""
        r = self.record
        text = repr((r.uid, r.version, r.state, r.message, r.started, r.ended, self.pulse))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @cached_property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state."""
        found = dict.fromkeys(TrialState, 0)
        for trial in self.trials:
            found[trial.state] += 1
        return found

    @cached_property
    def standings(self) -> list[Standing]:
        """The trials with a figure of merit, best first; for several objectives the Pareto front."""
        if len(self.search.objectives) > 1:
            return front_of(self.search, self.trials)
        return ranking(self.search, self.trials)

    @cached_property
    def best(self) -> Standing | None:
        """The best trial; for several objectives the best by the first objective."""
        if len(self.search.objectives) > 1 or self.search.confirm.top:
            return self.standings[0] if self.standings else None
        # The trials are not ranked here: this is computed each time a trial ends.
        sign = self.search.objective.sign
        good = (
            (sign * value, trial.number, trial)
            for trial in self.trials
            if (value := figure_of_merit(trial)) is not None
        )
        best = min(good, key=lambda one: one[:2], default=None)
        return None if best is None else Standing(best[2], (sign * best[0],))

    @cached_property
    def best_remarks(self) -> list[str]:
        """Remarks on the best trial."""
        if self.best is None:
            return []
        good = [figure_of_merit(trial) for trial in self.trials if trial.confirms is None]
        return best_remarks(
            self.search, self.best.trial.point, 1 if self.best.confirmed else good.count(self.best.value)
        )

    def place_of(self, trial: Trial) -> tuple[int, int]:
        """Returns a trial's rank, from 1, and the number of ranked trials; rank 0: the trial has none.

        With several objectives every rank is 0, and the number is that of the Pareto front.
        """
        if len(self.search.objectives) > 1:
            return 0, len(self.standings)
        return self._ranks.get(trial.number, 0), len(self._ranks)

    @cached_property
    def _ranks(self) -> dict[int, int]:
        """Ranks by trial number."""
        return {standing.trial.number: rank for rank, standing in enumerate(self.standings, 1)}

    @cached_property
    def steps(self) -> list[tuple[int, float]]:
        """The best value so far after each result; for several objectives the hypervolume."""
        return convergence(self.search, self.trials)

    @cached_property
    def cost(self) -> Cost:
        """Resources that its jobs have used so far, in hours and kWh."""
        return price_of(self.search).cost(self.took)

    @cached_property
    def failures(self) -> list[Trial]:
        """The failed trials, newest first."""
        failed = [trial for trial in self.trials if trial.state is TrialState.FAILED]
        return sorted(failed, key=lambda trial: (trial.told or 0, trial.number), reverse=True)


class SearchCache:
    """A cache of the searches of a store. Thread-safe. Each call reads what changed in the store."""

    def __init__(self, store: Store) -> None:
        """Reads nothing yet. The caller closes the store."""
        self.store = store
        self._lock = threading.Lock()
        self._views: dict[int, SearchView] = {}
        self._heads: dict[int, SearchHead] = {}
        self._records: dict[int, SearchRecord] = {}
        """The searches as they were when their heads were read."""
        self._folds: OrderedDict[int, tuple[SearchView, list[Trial]]] = OrderedDict()

    def heads(self) -> list[SearchHead]:
        """Returns the heads of all searches, newest first.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        heads = search_heads(self.store.engine)
        with self._lock:
            for number in self._heads.keys() - {head.id for head in heads}:  # deleted
                del self._heads[number], self._records[number]
                self._views.pop(number, None)
        return heads

    def records(self, heads: Sequence[SearchHead]) -> list[SearchRecord]:
        """Returns these searches, without their trials.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        with self._lock:
            self._read_records(heads)
            return [self._records[head.id] for head in heads if head.id in self._records]

    def views(self, heads: Sequence[SearchHead]) -> list[SearchView]:
        """Returns these searches.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        with self._lock:
            self._refresh(heads)
            return [self._views[head.id] for head in heads if head.id in self._views]

    def others(self, view: SearchView, alike: Callable[[Search, Search], bool]) -> list[SearchHead]:
        """Returns the other searches for which `alike` is true, of the newest 200, newest first.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        heads = [head for head in self.heads()[:_OTHERS] if head.id != view.record.id]
        found = {record.id for record in self.records(heads) if alike(view.search, record.search)}
        return [head for head in heads if head.id in found]

    def view(self, identity: str) -> SearchView:
        """Returns the search with that name or number.

        Raises:
            UnknownSearchError: there is no such search.
            TryAgainError: the store cannot be reached.
        """
        heads = self.heads()
        number = int(identity) if is_search_number(identity) else None
        found = next((head for head in heads if head.name == identity or head.id == number), None)
        if found is None:
            there = ", ".join(head.name for head in heads[:10])
            raise UnknownSearchError(identity[:100], f"there are {there}" if there else "the store is empty", "")
        with self._lock:
            self._refresh([found])
            view = self._views[found.id]
            if view.pulse.running and time.monotonic() - view.costed > _COST_AGES:
                took = spent(self.store.engine, found.id)
                view = self._views[found.id] = replace(view, took=took, costed=time.monotonic())
            return view

    def with_folds(self, view: SearchView) -> list[Trial]:
        """Returns the trials of a view with their folds, without logs.

        Trials that were over at the last call are not read again.

        Raises:
            TryAgainError: the store cannot be reached.
        """
        number, engine = view.record.id, self.store.engine
        with self._lock:
            known = self._folds.get(number)
        if known is not None and known[0].tag == view.tag and view.record.state.is_over:
            return known[1]
        if known is None or known[0].record.version != view.record.version:
            trials = trials_with_folds(engine, number)
        else:
            final = {trial.number: trial for trial in known[1] if trial.state.is_over}
            others = [trial.number for trial in view.trials if trial.number not in final]
            read = trials_with_folds(engine, number, others)
            trials = sorted([*final.values(), *read], key=lambda trial: trial.number)
        with self._lock:
            self._folds[number] = (view, trials)
            self._folds.move_to_end(number)
            while len(self._folds) > 1 and sum(len(kept) for _, kept in self._folds.values()) > _FOLDS_KEPT:
                self._folds.popitem(last=False)
        return trials

    def _read_records(self, heads: Sequence[SearchHead]) -> None:
        """Reads the records that changed."""
        changed = [head for head in heads if self._heads.get(head.id) != head]
        for record in records_of(self.store.engine, [head.id for head in changed]):
            self._records[record.id] = record
        # One that was deleted between the two reads is not found at the next read.
        self._heads |= {head.id: head for head in changed if head.id in self._records}

    def _refresh(self, heads: Sequence[SearchHead]) -> None:
        """Reads what changed in these searches."""
        engine = self.store.engine
        self._read_records(heads)
        # The trials of a finished search do not change. If it has just ended, its last trials are still to be read.
        beating = {head.id for head in heads if not head.state.is_over} | {
            head.id
            for head in heads
            if (old := self._views.get(head.id)) is None or old.record is not self._records.get(head.id)
        }
        beats = pulses(engine, beating) if beating else {}
        notes = annotations_of(engine, beats)
        for head in heads:
            record = self._records.get(head.id)
            if head.id not in beats or record is None:
                continue
            old = self._views.get(head.id)
            beat = beats[head.id]
            if old is None or old.pulse != beat:
                trials = self._trials(head.id, old, beat)
                took = spent(engine, head.id) if trials else Spent()
                self._views[head.id] = SearchView(record, trials, beat, took, time.monotonic(), notes[head.id])
            elif record is not old.record:
                self._views[head.id] = replace(old, record=record, annotations=notes[head.id])

    def _trials(self, number: int, old: SearchView | None, beat: Pulse) -> list[Trial]:
        """Returns the trials of a search: finished ones from the cache, all others from the store."""
        if beat == _NOTHING:
            return []
        known = list(old.trials) if old else []
        waiting = [trial.number for trial in known if not trial.state.is_over]
        read = trials_changed(self.store.engine, number, known[-1].number if known else 0, waiting)
        merged = {trial.number: trial for trial in known} | {trial.number: trial for trial in read}
        return [merged[each] for each in sorted(merged)]


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
        text: both, in words.
    """

    name: str
    used: float
    allowed: float
    text: str

    @property
    def percent(self) -> float:
        """Used share of the limit, 0 to 100."""
        return max(0.0, min(100.0, 100 * self.used / self.allowed)) if self.allowed > 0 else 100.0


@dataclass(frozen=True)
class Headline:
    """Summary of a search.

    Attributes:
        mood: `good`, `bad`, `busy` or `idle`; sets the colour.
        verdict: whether it goes well, in one or two sentences.
        trouble: problems, one sentence each; empty: none.
        best: best figure of merit, as text; empty: none yet.
        outlook: progress and estimated end.
        end: time until the end, or run time if it has ended, as text.
        limits: the budget's limits in GPU-hours, core-hours and hours, in this order.
        cost: amount used, in `unit`, as text.
        unit: GPU-hours, or core-hours if no GPU was used.
        energy: energy used, as text; empty: not known.
    """

    mood: str
    verdict: str
    trouble: tuple[str, ...]
    best: str
    outlook: Outlook
    end: str
    limits: tuple[Limit, ...]
    cost: str
    unit: str
    energy: str

    @property
    def percent(self) -> float:
        """Finished share of the planned trials, 0 to 100."""
        return 100.0 * self.outlook.over / self.outlook.planned if self.outlook.planned else 0.0


def headline(view: SearchView, now: datetime, unsteered: str = "") -> Headline:
    """Returns the summary of a search.

    Args:
        view: the search.
        now: the current time.
        unsteered: why no process steers it, and the remedy, in a sentence; empty: one does, or the search is over.
    """
    record, search = view.record, view.search
    best = view.best
    ahead = outlook(
        search,
        record.state,
        view.trials,
        clock=record.clock,
        cost=view.cost,
        best=None if best is None else best.trial.number,
        now=now,
        steered=not unsteered,
    )
    trouble = _trouble(view, ahead, unsteered)
    mood, verdict = _outcome(view, ahead, trouble, steered=not unsteered)
    return Headline(
        mood=mood,
        verdict=verdict,
        trouble=tuple(trouble),
        best=best_text(view),
        outlook=ahead,
        end=_end(view, ahead, now, steered=not unsteered),
        limits=tuple(_limits(view, now)),
        cost=number(view.cost.gpu_hours if view.cost.gpu_hours > 0 else view.cost.core_hours, 3),
        unit="GPU-hours" if view.cost.gpu_hours > 0 else "core-hours",
        energy="" if view.cost.energy_kwh is None or not view.cost.energy_source else _energy(view),
    )


def best_text(view: SearchView) -> str:
    """Returns the best figure of merit as text; for several objectives the size and hypervolume of the front."""
    best = view.best
    if best is None:
        return ""
    if len(view.search.objectives) > 1:
        volume = f", hypervolume {number(view.steps[-1][1])}" if view.steps else ""
        return f"{count(len(view.standings), 'trial')} on the front{volume}"
    spread = None if best.confirmed else best.trial.std
    return plus_minus(best.value, spread)


#: Verdict of a search in each of these states if no process steers it.
_UNSTEERED = {
    SearchState.SUBMITTED: "Submitted, but no process steers it: it does not start.",
    SearchState.RUNNING: "Started, but no process steers it now: it does not continue.",
    SearchState.STOPPING: "Stopping, but no process steers it now: its jobs still run.",
}


def _outcome(view: SearchView, ahead: Outlook, trouble: Sequence[str], *, steered: bool) -> tuple[str, str]:
    state, best = view.record.state, view.best
    told = view.pulse.told
    if not steered and state in _UNSTEERED:
        return "bad", _UNSTEERED[state]
    if state is SearchState.SUBMITTED:
        return "idle", "Submitted; it has not started yet."
    if state is SearchState.PAUSED:
        return "idle", "Paused: no new trials start until you resume the search."
    if state is SearchState.STOPPING:
        return "idle", "Stopping: its jobs are being killed."
    if state is SearchState.FAILED:
        return "bad", f"Failed: {shortened(view.record.message or 'no reason was recorded', 2 * _REASON)}"
    if state is SearchState.STOPPED:
        return "idle", f"Stopped after {count(ahead.over, 'trial')}."
    if state is SearchState.DONE:
        message = f" {shortened(view.record.message, _REASON).rstrip('.')}." if view.record.message else ""
        return "good", f"Done: {count(ahead.over, 'trial')} are over.{message}" + _gain(view)
    if trouble and best is None and told:
        return "bad", "Running, but no trial has succeeded yet."
    if _failures_in_a_row(view) >= _IN_A_ROW:
        return "bad", f"Running, but the last {_failures_in_a_row(view)} trials failed."
    if best is None:
        return "busy", "Running; there is no result yet."
    since = ahead.since_best or 0
    if since >= max(_STALE_LEAST, _STALE_SHARE * told):
        return "busy", f"Running; no improvement in the last {count(since, 'result')}.{_gain(view)}"
    when = "the newest result is the best" if not since else f"the best result was {count(since, 'result')} ago"
    return "good", f"Going well: {when}.{_gain(view)}"


def _gain(view: SearchView) -> str:
    """Returns a sentence with the first and the current best value.

    It is empty if they are equal, with fewer than two steps, and for several objectives.
    """
    if len(view.search.objectives) > 1 or len(view.steps) < 2 or view.steps[0][1] == view.steps[-1][1]:
        return ""
    metric = view.search.objective.metric
    return f" The best {metric} went from {number(view.steps[0][1])} to {number(view.steps[-1][1])}."


def _failures_in_a_row(view: SearchView) -> int:
    failed = {trial.told for trial in view.failures}
    run, newest = 0, view.pulse.told
    while newest - run in failed and newest - run > view.record.forgiven:
        run += 1
    return run


def _trouble(view: SearchView, ahead: Outlook, unsteered: str) -> list[str]:
    found = [f"{unsteered[0].upper()}{unsteered[1:]}."] if unsteered else []
    failed = view.counts[TrialState.FAILED]
    if failed:
        latest: Trial = view.failures[0]
        reason = shortened((latest.error or "no reason was recorded").strip().partition("\n")[0], _REASON)
        found.append(f"{failed:,} of {count(ahead.over, 'trial')} failed; the latest: {reason}")
    return found


def _end(view: SearchView, ahead: Outlook, now: datetime, *, steered: bool) -> str:
    record = view.record
    if record.state.is_over:
        took = span(record.started, record.ended)
        return f"ended after {duration(took)}" if took is not None else "ended"
    if not steered:
        return "not steered"
    if record.state is not SearchState.RUNNING:
        # Its trials may still run.
        words = {SearchState.SUBMITTED: "not started yet", SearchState.STOPPING: "being stopped"}
        return words.get(record.state, record.state.value)
    if ahead.end is None:
        return "no estimate yet"
    left = (ahead.end - now).total_seconds()
    why = {"hours": " (limit of hours)", "gpu_hours": " (limit of GPU-hours)", "core_hours": " (limit of core-hours)"}
    return f"in about {duration(round(left)) if left > 0 else 'a moment'}{why.get(ahead.limit, '')}"


def _limits(view: SearchView, now: datetime) -> list[Limit]:
    budget, cost, record = view.search.budget, view.cost, view.record
    found = []
    if budget.gpu_hours is not None:
        found.append(_limit("GPU-hours", cost.gpu_hours, budget.gpu_hours))
    if budget.core_hours is not None:
        found.append(_limit("core-hours", cost.core_hours, budget.core_hours))
    if budget.hours is not None:
        passed = (span(record.clock, record.ended or now) or 0.0) / 3600
        found.append(_limit("hours", passed, budget.hours))
    return found


def _limit(name: str, used: float, allowed: float) -> Limit:
    return Limit(name, used, allowed, f"{number(used, 3)} of {number(allowed)} {name}")


def _energy(view: SearchView) -> str:
    source = {"measured": "measured", "estimated": "estimated", "mixed": "partly measured"}
    return f"{number(view.cost.energy_kwh, 3)} kWh, {source[view.cost.energy_source or 'estimated']}"


#: A figure is drawn again after at least `_AGE` seconds, and at least `_REST` times its own drawing time.
_AGE, _REST = 3.0, 8.0

#: Figures cached, and other searches drawn for comparison.
_KEPT, _PEERS = 200, 6

#: Figures that change with the clock while jobs run, and the seconds between their updates.
_MOVING, _STEP = frozenset({"slots"}), 10

#: Figures of the intermediate values that trials reported.
_REPORTED = frozenset({"curves"})

#: Figures that take seconds, mostly in code that lets other threads run: they have their own lock, so that other
#: figures do not wait. They show only results, so only a new result makes them out of date.
_SLOW = frozenset({"importance"})


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
    """Draws figures and caches them. Thread-safe.

    It draws at most one quick and one slow figure at the same time, so that threads remain free for pages.
    """

    def __init__(self, library: SearchCache) -> None:
        """Draws the searches of `library`."""
        self._library = library
        self._making, self._making_slow = threading.Lock(), threading.Lock()
        self._keeping = threading.Lock()
        self._drawn: OrderedDict[tuple[int, str], DrawnFigures] = OrderedDict()

    def drawn(self, view: SearchView, key: str) -> DrawnFigures:
        """Returns the figures of a kind. They may be some seconds old while the search changes.

        Raises:
            InputError: there is no such kind for this search.
            TryAgainError: the store cannot be reached.
        """
        if key not in {kind.key for kind in kinds(view.search)}:
            raise InputError(f"there is no figure {key!r} of search {view.record.name!r}")
        source = self._source(view, key)
        if (known := self._fresh(view, key, source)) is not None:
            return known
        with self._making_slow if key in _SLOW else self._making:
            # Another thread may have drawn it while this one waited for the lock.
            return self._fresh(view, key, source) or self._made(view, key, source)

    def _fresh(self, view: SearchView, key: str, source: str) -> DrawnFigures | None:
        with self._keeping:
            known = self._drawn.get((view.record.id, key))
        if known is None:
            return None
        age = time.monotonic() - known.since
        return known if known.source == source or age < max(_AGE, _REST * known.seconds) else None

    def _source(self, view: SearchView, key: str) -> str:
        more = ""
        if key in _SLOW:
            return f"{view.record.uid}.{view.record.version}.{view.pulse.told}"
        if key in _MOVING and not view.record.state.is_over and view.pulse.running:
            more = str(int(time.time()) // _STEP)
        elif key in _REPORTED:
            more = str(values_reported(self._library.store.engine, view.record.id))
        return f"{view.tag}.{more}"

    def _made(self, view: SearchView, key: str, source: str) -> DrawnFigures:
        begun = time.monotonic()
        figures = [asdict(figure) for figure in build(key, self._subject(view, key))]
        content = json.dumps({"figures": figures}, allow_nan=False, separators=(",", ":")).encode()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        now = time.monotonic()
        drawn = DrawnFigures(gzip.compress(content, 5, mtime=0), tag, now, now - begun, source)
        with self._keeping:
            self._drawn[view.record.id, key] = drawn
            self._drawn.move_to_end((view.record.id, key))
            while len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
        return drawn

    def _subject(self, view: SearchView, key: str) -> FigureData:
        search, store = view.search, self._library.store
        trials = self._library.with_folds(view)
        reports = store.intermediate_values(view.record.id, drawn_trials(search, trials)) if key in _REPORTED else {}
        peers = self._peers(view) if key == "convergence" else []
        return FigureData(search, trials, reports, peers, None if view.record.state.is_over else datetime.now(UTC))

    def _peers(self, view: SearchView) -> list[PeerSearch]:
        """Returns the newest other searches with the same question (`same_question`)."""
        alike = self._library.views(self._library.others(view, same_question)[: 2 * _PEERS])
        shown = [other for other in alike if other.standings][:_PEERS]
        return [PeerSearch(other.record.name, other.search, other.trials) for other in shown]
