"""What the ledger of a search is made of: trials that are out, and what a look at the server changes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hpo_pilot.jobs import Members
from hpo_pilot.search import EarlyStop, Point
from hpo_pilot.store import JobOutcome, TrialEnd


@dataclass
class OpenTrial:
    """A trial that is out.

    Attributes:
        verdicts: by fold.
        lost: how many tasks gave up on each fold.
        stop: why it was told to stop early, once it was.
        halted: folds whose jobs have ended since without a verdict.
    """

    number: int
    point: Point
    seed: int
    confirms: int | None
    started: bool = False
    verdicts: dict[int, JobOutcome] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    stop: EarlyStop | None = None
    halted: set[int] = field(default_factory=set)

    def awaits(self, fold: int) -> bool:
        """Whether a verdict on the fold may still come."""
        return fold not in self.verdicts and fold not in self.halted


@dataclass
class Changes:
    """What a look at the server brought; all of it goes to the store in one transaction.

    Attributes:
        again: the jobs to submit again.
        seconds: by how much the time grew that all jobs ran.
        look: the number of this look, where it brought intermediate values for a rule to judge by.
        stops: the trials that are told to stop early.
    """

    outcomes: list[JobOutcome] = field(default_factory=list)
    ends: list[TrialEnd] = field(default_factory=list)
    started: list[tuple[int, float]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    again: list[Members] = field(default_factory=list)
    seconds: float = 0.0
    look: int | None = None
    stops: dict[int, EarlyStop] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.ends or self.started or self.events or self.again)
