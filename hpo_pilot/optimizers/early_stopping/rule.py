"""What every rule for stopping trials early promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
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


class StoppingRule(ABC):
    """Decides by the values that trials report while they run. Lower is better.

    The contract: a decision is a function of the reports seen so far, in the order of the looks that brought them,
    and of nothing else. Whoever hands the same looks to a new rule gets the same decisions. The best trial at a step
    of comparison is never stopped there.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        """Knows nothing yet.

        Args:
            settings: `early_stopping` of the search.
            folds: of a trial.
        """
        self.curves = Curves()
        self.trials_needed = settings.trials_needed
        self.folds_needed = settings.folds_needed(folds)

    def look(self, reports: Iterable[Report], judged: Collection[int]) -> dict[int, Stop]:
        """Takes what one look at the server brought, and says which trials need not go on.

        Args:
            reports: new values, of any trials; their order does not matter.
            judged: the trials that are out, and were not told to stop before.

        Returns:
            The trials to stop, by number.
        """
        new = sorted(reports)
        for report in new:
            self.see(report, self.curves.see(report))
        stops = {}
        for trial in sorted({report.trial for report in new}):
            stop = self.judge(trial)
            if stop is not None and trial in judged:
                stops[trial] = stop
        return stops

    @abstractmethod
    def see(self, report: Report, came: Sequence[int]) -> None:
        """Takes one value; those of a fold that come after a later step's change nothing.

        Args:
            report: the value; `curves` has it already.
            came: the checkpoints of `curves` that the fold came to by it.
        """

    @abstractmethod
    def judge(self, trial: int) -> Stop | None:
        """Whether the trial must stop, by what was seen of it since it was judged last."""


def place_text(better: int) -> str:
    """`1st`, `2nd`, … for a trial than which so many are better."""
    place = better + 1
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
