"""The searches of a store as the pages see them: read once, then only what changed, however many look."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hpo_pilot.config.site_power import price_of
from hpo_pilot.figures.summary import Standing, convergence, figure_of, front_of, ranking
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.cost import Cost, Spent
from hpo_pilot.store import SearchRecord, Store, UnknownSearchError
from hpo_pilot.store.identity import is_number
from hpo_pilot.store.overview import (
    Pulse,
    SearchHead,
    pulses,
    records_of,
    search_heads,
    trials_changed,
    trials_with_folds,
)
from hpo_pilot.store.tallies import spent

#: Trials with folds are kept of the searches last looked at, together so many: one takes about 3 kB.
_FOLDS_KEPT = 40_000

#: Seconds after which the cost of a search that runs is read again although no trial is another: jobs end one by one.
_COST_AGES = 10.0

_NOTHING = Pulse(0, 0, 0, 0)


@dataclass(frozen=True)
class View:
    """One search at one moment; whoever holds it sees nothing change.

    Attributes:
        record: the search.
        trials: all its trials by number, without their folds.
        pulse: changes when they do.
        took: what its jobs took so far.
        costed: when that was read, by the monotonic clock.
    """

    record: SearchRecord
    trials: Sequence[Trial]
    pulse: Pulse
    took: Spent = field(default_factory=Spent)
    costed: float = 0.0

    @property
    def search(self) -> Search:
        """What is searched."""
        return self.record.search

    @cached_property
    def tag(self) -> str:
        """Changes when anything does that is shown."""
        r = self.record
        text = repr((r.uid, r.version, r.state, r.message, r.started, r.ended, self.pulse))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @cached_property
    def counts(self) -> dict[TrialState, int]:
        """How many trials are in each state."""
        found = dict.fromkeys(TrialState, 0)
        for trial in self.trials:
            found[trial.state] += 1
        return found

    @cached_property
    def standings(self) -> list[Standing]:
        """The trials with a figure of merit, best first; of several objectives the Pareto front."""
        if len(self.search.objectives) > 1:
            return front_of(self.search, self.trials)
        return ranking(self.search, self.trials)

    @cached_property
    def best(self) -> Standing | None:
        """The best one; of several objectives the best by the first."""
        if len(self.search.objectives) > 1 or self.search.confirm.top:
            return self.standings[0] if self.standings else None
        # Without ranking all of them: this is asked for whenever one has ended.
        sign = self.search.objective.sign
        good = ((sign * value, trial.number, trial) for trial in self.trials if (value := figure_of(trial)) is not None)
        best = min(good, key=lambda one: one[:2], default=None)
        return None if best is None else Standing(best[2], (sign * best[0],))

    def place_of(self, trial: Trial) -> tuple[int, int]:
        """A trial's place among those with a figure of merit, and how many these are; place 0: it has none there."""
        if len(self.search.objectives) > 1:
            return 0, len(self.standings)
        if self.search.confirm.top:
            numbers = [standing.trial.number for standing in self.standings]
            return numbers.index(trial.number) + 1 if trial.number in numbers else 0, len(numbers)
        sign = self.search.objective.sign
        places = [(sign * value, one.number) for one in self.trials if (value := figure_of(one)) is not None]
        own = figure_of(trial)
        return (0 if own is None else 1 + sum(each < (sign * own, trial.number) for each in places)), len(places)

    @cached_property
    def steps(self) -> list[tuple[int, float]]:
        """The best so far after each result; of several objectives the hypervolume."""
        return convergence(self.search, self.trials)

    @cached_property
    def cost(self) -> Cost:
        """What its jobs took so far, in hours and kWh."""
        return price_of(self.search).cost(self.took)

    @cached_property
    def failures(self) -> list[Trial]:
        """The trials that failed, the newest first."""
        failed = [trial for trial in self.trials if trial.state is TrialState.FAILED]
        return sorted(failed, key=lambda trial: (trial.told or 0, trial.number), reverse=True)


class Library:
    """All searches of a store. Safe to use from any thread; an answer is as fresh as the moment it was asked for."""

    def __init__(self, store: Store) -> None:
        """Reads nothing yet; the store stays the caller's."""
        self.store = store
        self._lock = threading.Lock()
        self._views: dict[int, View] = {}
        self._heads: dict[int, SearchHead] = {}
        self._folds: OrderedDict[int, tuple[View, list[Trial]]] = OrderedDict()

    def views(self) -> list[View]:
        """All searches, newest first.

        Raises:
            TryAgainError: the store is out of reach.
        """
        with self._lock:
            heads = search_heads(self.store.engine)
            self._refresh(heads)
            for number in self._views.keys() - {head.id for head in heads}:
                del self._views[number], self._heads[number]
            return [self._views[head.id] for head in heads]

    def view(self, identity: str) -> View:
        """The search of that name or number.

        Raises:
            UnknownSearchError: there is none.
            TryAgainError: the store is out of reach.
        """
        with self._lock:
            heads = search_heads(self.store.engine)
            number = int(identity) if is_number(identity) else None
            found = next((head for head in heads if head.name == identity or head.id == number), None)
            if found is None:
                there = ", ".join(head.name for head in heads[:10])
                raise UnknownSearchError(identity[:100], f"there are {there}" if there else "the store is empty", "")
            self._refresh([found])
            view = self._views[found.id]
            if view.pulse.running and time.monotonic() - view.costed > _COST_AGES:
                took = spent(self.store.engine, found.id)
                view = self._views[found.id] = replace(view, took=took, costed=time.monotonic())
            return view

    def with_folds(self, view: View) -> list[Trial]:
        """The trials of a view with their folds, without logs; those that were over when last asked are not read again.

        Raises:
            TryAgainError: the store is out of reach.
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

    def _refresh(self, heads: Sequence[SearchHead]) -> None:
        """Reads what changed of these searches."""
        engine = self.store.engine
        changed = [head for head in heads if self._heads.get(head.id) != head]
        records = {record.id: record for record in records_of(engine, [head.id for head in changed])}
        # A search that is over has trials that change no more; one that just ended may have had its last ones now.
        beating = {head.id for head in heads if not head.state.is_over} | {head.id for head in changed}
        beats = pulses(engine, beating) if beating else {}
        for head in heads:
            if head.id not in beats:
                continue
            old = self._views.get(head.id)
            record = records.get(head.id) or (old.record if old else None)
            if record is None:  # gone between the two readings: the next look does without it
                continue
            beat = beats[head.id]
            if old is None or old.pulse != beat:
                trials = self._trials(head.id, old, beat)
                took = spent(engine, head.id) if trials else Spent()
                self._views[head.id] = View(record, trials, beat, took, time.monotonic())
            elif record is not old.record:
                self._views[head.id] = replace(old, record=record)
            self._heads[head.id] = head

    def _trials(self, number: int, old: View | None, beat: Pulse) -> list[Trial]:
        """The trials of a search: those that are known and over, and the others as they are now."""
        if beat == _NOTHING:
            return []
        known = list(old.trials) if old else []
        waiting = [trial.number for trial in known if not trial.state.is_over]
        read = trials_changed(self.store.engine, number, known[-1].number if known else 0, waiting)
        merged = {trial.number: trial for trial in known} | {trial.number: trial for trial in read}
        return [merged[each] for each in sorted(merged)]
