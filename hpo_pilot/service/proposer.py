"""The optimizer's side of the steering loop: told in order, asked in another thread, one ask at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import cached_property

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import Optimizer, create_optimizer
from hpo_pilot.search import KnownResult, Point, Search, Trial
from hpo_pilot.search.earlier import EarlierResults
from hpo_pilot.search.objective import costs
from hpo_pilot.service.metrics import asking

#: A point with its values and their standard errors, one for each objective; and whether it was stopped early, so that
#: the values are what it would probably have come to.
_Told = tuple[Point, tuple[float, ...] | None, tuple[float, ...] | None, bool]


class Proposer:
    """Owns the optimizer of one search. An ask never blocks the steering loop, and sees all that was told before."""

    def __init__(
        self,
        search: Search,
        executor: Executor,
        wake: Callable[[], None],
        earlier: Sequence[EarlierResults] = (),
    ) -> None:
        """Prepares; the optimizer is made when it is asked.

        Args:
            search: the search.
            executor: where the optimizer works.
            wake: called from another thread when an ask is done.
            earlier: what the search has from earlier ones; the optimizer hears of it before all else.
        """
        self._search = search
        self._objectives = search.objectives
        self._earlier = earlier
        self._executor = executor
        self._wake = wake
        self._untold: list[_Told] = []
        self._asking: Future[list[Point]] | None = None
        self.exhausted = False
        """True once the optimizer has said that no point is left."""

    def know(self, results: Iterable[KnownResult]) -> None:
        """Takes results of the same problem from before the search: told as if they were of this search, and first."""
        for known in results:
            self._untold.append((known.point, known.figures and costs(self._objectives, known.figures), None, False))

    def tell(self, trial: Trial, good_folds: int) -> None:
        """Takes a result; the optimizer hears of it with the next ask.

        Args:
            trial: a trial that is over, in the order of results.
            good_folds: how many folds its value is the mean of.
        """
        if trial.stopped_early and trial.stop is not None:
            guessed = trial.stop.projected
            # One that diverged would have failed. Of another there is no guess, with several objectives, where no
            # trial had finished by then: nothing is known of it.
            diverged = trial.stop.value is None
            self._untold.append((trial.point, guessed and costs(self._objectives, guessed), None, not diverged))
            return
        errors = None
        if trial.spreads is not None and good_folds >= 2:
            errors = tuple(spread / good_folds**0.5 for spread in trial.spreads)
        self._untold.append((trial.point, trial.figures and costs(self._objectives, trial.figures), errors, False))

    @cached_property
    def _optimizer(self) -> Optimizer:
        """Made where it works, for its libraries take a second to load; it has heard of the earlier searches."""
        search = self._search
        made = create_optimizer(
            search.optimizer.name,
            search.space,
            seed=search.seed,
            settings=search.optimizer.settings,
            trials=search.budget.trials,
            objectives=len(search.objectives),
        )
        for one in self._earlier:
            made.tell_earlier(one.source, one.results)
        return made

    @property
    def busy(self) -> bool:
        """True from `start` until `take` has given the points."""
        return self._asking is not None

    def start(self, count: int, pending: Sequence[Point]) -> None:
        """Asks for `count` points, given those that are out."""
        told, self._untold = self._untold, []
        self._asking = self._executor.submit(self._ask, told, count, list(pending))
        self._asking.add_done_callback(lambda _: self._wake())

    def take(self) -> list[Point]:
        """The points that were asked for, once; an empty list while they are not ready."""
        if self._asking is None or not self._asking.done():
            return []
        asking, self._asking = self._asking, None
        try:
            return asking.result()
        except ExhaustedError:
            self.exhausted = True
            return []

    def _ask(self, told: list[_Told], count: int, pending: list[Point]) -> list[Point]:
        """Runs in the executor: the only place that touches the optimizer."""
        with asking(self._search.optimizer.name):
            self._optimizer.tell(told)
            return self._optimizer.ask(count, pending)
