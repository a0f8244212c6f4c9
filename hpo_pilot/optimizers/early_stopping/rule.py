"""What every rule for stopping trials early promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpo_pilot.optimizers.early_stopping.curves import Curves, Report
from hpo_pilot.search import EarlyStopping


@dataclass(frozen=True)
class Stop:
    """Why a trial need not go on.

    Attributes:
        step: where it was judged.
        value: what it was judged by, lower is better: the mean of its folds.
        reason: in words, such as `5th of 9 at step 27, where 3 go on`.
    """

    step: int
    value: float
    reason: str


#: Trials, and trainings, of which this part is done run to their end: little is saved by stopping them.
NEARLY_DONE = 0.75


class StoppingRule(ABC):
    """Decides by the values that trials report while they run. Lower is better.

    The contract: a decision is a function of the reports seen so far, in the order of the looks that brought them, of
    the folds that were over by then, and of nothing else. Whoever hands the same looks to a new rule gets the same
    decisions. The best trial at a step of comparison is never stopped there. A trial is judged by the newest step of
    comparison that it has come to: one that is beyond a step is not stopped by what it was there.

    Folds of a trial may run side by side or one after another. A trial is judged when enough of them have come to that
    step, and is compared with each other trial over the folds that both have there.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        """Knows nothing yet.

        Args:
            settings: `early_stopping` of the search.
            folds: of a trial.
        """
        self._folds = folds
        self.curves = Curves(folds)
        self.trials_needed = settings.trials_needed
        self.folds_needed = settings.folds_needed(folds)
        self._waits_for_folds = settings.folds is not None
        self._steps = settings.max_steps

    def look(
        self, reports: Iterable[Report], judged: Collection[int], ended: Mapping[tuple[int, int], float] | None = None
    ) -> dict[int, Stop]:
        """Takes what one look at the server brought, and says which trials need not go on.

        Args:
            reports: new values, of any trials; their order does not matter.
            judged: the trials that are out, and were not told to stop before.
            ended: the figures of merit of folds that ran to their end, by trial and fold.

        Returns:
            The trials to stop, by number.
        """
        new = sorted(report for report in reports if 0 <= report.fold < self._folds)
        for report in new:
            self.see(report, self.curves.see(report))
        for (trial, fold), final in (ended or {}).items():
            self.curves.end(trial, fold, final)
        stops = {}
        for trial in sorted({report.trial for report in new}):
            if trial in judged and self.curves.share(trial, self.length) < NEARLY_DONE:
                stop = self.judge(trial)
                if stop is not None:
                    stops[trial] = stop
        return stops

    def needed_of(self, trial: int) -> int:
        """How many folds of a trial must have come to a step before it is judged there: at least one.

        Where the search file does not say, those that have begun are enough: with few slots the others begin when these
        are over, and nothing would be saved by waiting for them.
        """
        if self._waits_for_folds:
            return self.folds_needed
        return max(1, min(self.folds_needed, self.curves.begun(trial)))

    @property
    def length(self) -> int | None:
        """The steps of a whole training; None where nobody knows."""
        return self._steps or self.curves.length

    @abstractmethod
    def see(self, report: Report, came: Sequence[int]) -> None:
        """Takes one value; those of a fold that come after a later step's change nothing.

        Args:
            report: the value; `curves` has it already.
            came: the checkpoints of `curves` that the fold came to by it.
        """

    @abstractmethod
    def judge(self, trial: int) -> Stop | None:
        """Whether the trial must stop, by the newest step of comparison that it has come to."""


def place_text(better: int) -> str:
    """`1st`, `2nd`, … for a trial than which so many are better."""
    place = better + 1
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
