"""The optimizer's side of the steering loop: told in order, asked in another thread, one ask at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import KnownResult, Point, Search, Trial


class Proposer:
    """Owns the optimizer of one search. An ask never blocks the steering loop, and sees all that was told before."""

    def __init__(self, search: Search, executor: Executor, wake: Callable[[], None]) -> None:
        """Makes an optimizer that knows nothing yet.

        Args:
            search: the search.
            executor: where the optimizer works.
            wake: called from another thread when an ask is done.
        """
        self._sign = search.objective.sign
        self._optimizer = create_optimizer(
            search.optimizer.name,
            search.space,
            seed=search.seed,
            settings=search.optimizer.settings,
            trials=search.budget.trials,
        )
        self._executor = executor
        self._wake = wake
        self._untold: list[tuple[Point, float | None, float | None]] = []
        self._asking: Future[list[Point]] | None = None
        self.exhausted = False
        """True once the optimizer has said that no point is left."""

    def know(self, results: Iterable[KnownResult]) -> None:
        """Takes results from before the search; the optimizer hears of them before all others."""
        for known in results:
            value = None if known.value is None else self._sign * known.value
            self._untold.append((known.point, value, None))

    def tell(self, trial: Trial, good_folds: int) -> None:
        """Takes a result; the optimizer hears of it with the next ask.

        Args:
            trial: a trial that is over, in the order of results.
            good_folds: how many folds its value is the mean of.
        """
        value = None if trial.value is None else self._sign * trial.value
        error = None if trial.std is None or good_folds < 2 else trial.std / good_folds**0.5
        self._untold.append((trial.point, value, error))

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

    def _ask(
        self, told: list[tuple[Point, float | None, float | None]], count: int, pending: list[Point]
    ) -> list[Point]:
        """Runs in the executor: the only place that touches the optimizer."""
        self._optimizer.tell(told)
        return self._optimizer.ask(count, pending)
