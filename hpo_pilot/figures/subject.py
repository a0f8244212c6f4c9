"""What figures are drawn of: a search, its trials, and what it may be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hpo_pilot.figures.learning_curves import Reports
from hpo_pilot.search import Search, Trial

#: Other searches beside one: the latest; more lines cannot be told apart.
PEER_LIMIT = 6


@dataclass(frozen=True)
class Peer:
    """Another search, to compare with.

    Attributes:
        name: of the search, as the figure shows it.
        search: what it searches.
        trials: all its trials.
    """

    name: str
    search: Search
    trials: Sequence[Trial]


@dataclass(frozen=True)
class Subject:
    """What is drawn.

    Attributes:
        search: the search.
        trials: all its trials, in any order and state; none is fine.
        reports: what trials reported while they ran, of those that `learning_curves.drawn_trials` names.
        peers: other searches; those that ask the same question are drawn beside this one.
        now: the moment to which running jobs are drawn; None: to the last moment that the trials know.
    """

    search: Search
    trials: Sequence[Trial]
    reports: Reports = field(default_factory=dict)
    peers: Sequence[Peer] = ()
    now: datetime | None = None


def same_question(search: Search, other: Search) -> bool:
    """Whether two searches look for the same in the same space: their figures of merit can be compared."""
    return (
        search.space_dimensions == other.space_dimensions
        and search.constraints == other.constraints
        and [(o.metric, o.goal) for o in search.objectives] == [(o.metric, o.goal) for o in other.objectives]
    )
