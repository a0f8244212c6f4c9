"""Asks the optimizer of one search for points, in another thread, and tells it the results.

After a restart the first ask reads the results of the search from the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import cached_property
from typing import Any

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.base import Optimizer, Result, Told
from hpo_pilot.optimizers.level_results import LevelResults
from hpo_pilot.search import Point, Search, Trial
from hpo_pilot.search.earlier_results import EarlierResults
from hpo_pilot.search.ranking import costs
from hpo_pilot.steering.metrics import ASK_SECONDS
from hpo_pilot.steering.recommendation import optimizer_of, told_result
from hpo_pilot.store import SearchRecord, SteeringStore
from hpo_pilot.store.queries import fold_seconds


class Proposer:
    """Asks the optimizer of one search in another thread. Each ask sees every result told before it."""

    def __init__(
        self,
        search: Search,
        executor: Executor,
        wake: Callable[[], None],
        earlier: Sequence[EarlierResults] = (),
        stored: StoredResults | None = None,
    ) -> None:
        """Makes no optimizer yet: the first ask makes it, in the executor.

        Args:
            search: the search.
            executor: runs the optimizer.
            wake: called from another thread when an ask is done.
            earlier: results of earlier searches, which the optimizer learns before all others.
            stored: the results before those told; read in the executor.
        """
        self._search = search
        self._stored = stored
        self._earlier = earlier
        self._executor = executor
        self._wake = wake
        self._untold: list[tuple[Trial, int, float | None]] = []
        self._levels = LevelResults() if search.levels is not None else None  # only `_ask` uses it
        self._asking: Future[list[Point]] | None = None
        self.exhausted = False
        """True once the optimizer has no new point left."""
        self.chose_continuations = False
        """Whether the last ask was also for points that go on to their next levels."""

    def tell(self, trial: Trial, chain: int | None = None, seconds: float | None = None) -> None:
        """Takes a trial that is over, in the order of results. The optimizer learns it with the next ask.

        Args:
            trial: the trial.
            chain: number of the first trial of its point; None: of the trial itself.
            seconds: its `Trial.fold_seconds`.
        """
        self._untold.append((trial, chain or trial.number, seconds))

    @cached_property
    def _optimizer(self) -> Optimizer:
        """The optimizer of a search without levels, made in the executor: its libraries take a second to load."""
        return optimizer_of(self._search, self._earlier)

    @property
    def busy(self) -> bool:
        """Whether an ask was started and `take` has not returned its points yet."""
        return self._asking is not None

    @property
    def has_untold(self) -> bool:
        """Whether results came after the last ask was started."""
        return bool(self._untold)

    def start(self, count: int, pending: Sequence[Point], *, continuations: bool = False, new: bool = True) -> None:
        """Starts an ask.

        Args:
            count: the number of points.
            pending: the points of open trials.
            continuations: whether points are wanted that go on to their next levels.
            new: whether new points are wanted.
        """
        untold, self._untold, self.chose_continuations = self._untold, [], continuations
        self._asking = self._executor.submit(self._ask, untold, count, list(pending), continuations, new)
        self._asking.add_done_callback(lambda _: self._wake())

    def take(self) -> list[Point] | None:
        """Returns the points of the ask once it is done, and only once; else None."""
        if self._asking is None or not self._asking.done():
            return None
        asking, self._asking = self._asking, None
        try:
            return asking.result()
        except ExhaustedError:
            self.exhausted = True
            return []

    def _ask(
        self,
        untold: list[tuple[Trial, int, float | None]],
        count: int,
        pending: list[Point],
        continuations: bool = False,
        new: bool = True,
    ) -> list[Point]:
        """Tells and asks the optimizer; runs in the executor, and nothing else uses the optimizer."""
        with ASK_SECONDS.labels(self._search.optimizer.name).time():
            stored, self._stored = self._stored, None
            if self._levels is not None:  # results of lower levels change as others come: a new optimizer is told all
                for trial, chain, seconds in itertools.chain(stored.with_chains() if stored else (), untold):
                    self._levels.tell(chain, trial.level or 0, told_result(self._search, trial, seconds))
                optimizer = optimizer_of(self._search, self._earlier, uses_levels=continuations)
                results = self._levels.told if continuations else self._levels.results()
                optimizer.tell_stored(results, lambda places: [results[place] for place in places])
                return optimizer.ask(count, pending) if new else optimizer.go_on(count, pending)
            if stored is not None:
                self._optimizer.tell_stored(stored.brief(), stored.whole)
            self._optimizer.tell(told_result(self._search, trial, seconds) for trial, _, seconds in untold)
            return self._optimizer.ask(count, pending)


class StoredResults:
    """The results of a search in the store, for the first ask of `Proposer`; read when they are asked for."""

    def __init__(self, store: SteeringStore, record: SearchRecord, last: int) -> None:
        """Reads nothing yet; `last`: number of the results."""
        self._store, self._number, self._search, self._last = store, record.id, record.search, last
        self._limits: dict[str, Any] = {"folds": bool(record.search.limit_texts), "figures": record.search.limit_texts}

    def brief(self) -> Iterator[Told]:
        """Yields all results as `Optimizer.tell_stored` wants them."""
        if self._search.measured_limits:
            yield from (told_result(self._search, trial) for page in self._pages() for trial in page)
        else:
            for point, figures in self._store.brief_results(self._number, self._last):
                yield point, costs(self._search.objectives, figures) if figures else None

    def whole(self, places: Sequence[int]) -> Iterator[Result]:
        """Yields the results at these places in `brief`."""
        for page in self._pages(places):
            seconds = self._seconds(page)
            for trial in page:
                yield told_result(self._search, trial, seconds.get(trial.number))

    def with_chains(self) -> Iterator[tuple[Trial, int, float | None]]:
        """Yields all results, each with the number of the first trial of its point and its `Trial.fold_seconds`."""
        chains = dict[int, int]()
        for page in self._pages():
            seconds = self._seconds(page)
            for trial in page:
                yield trial, first_of(chains, trial), seconds.get(trial.number)

    def _seconds(self, page: Sequence[Trial]) -> dict[int, float]:
        return fold_seconds(self._store.engine, self._number, [trial.number for trial in page])

    def _pages(self, places: Sequence[int] | None = None) -> Iterator[list[Trial]]:
        wanted = range(self._last) if places is None else places
        return self._store.results(self._number, [place + 1 for place in wanted], **self._limits)


def first_of(chains: dict[int, int], trial: Trial) -> int:
    """Returns the number of the first trial of a point, in the order of results.

    Args:
        chains: the first trials of the trials before that go on from others, by number; this one is added.
        trial: a trial of the point.
    """
    if trial.continues is None:
        return trial.number
    return chains.setdefault(trial.number, chains.get(trial.continues, trial.continues))
