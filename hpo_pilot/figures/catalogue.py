"""Every kind of figure by its key: the one way in for the report, the monitor and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from hpo_pilot.errors import InputError
from hpo_pilot.figures.convergence_figure import convergence_figure
from hpo_pilot.figures.figure import Figure
from hpo_pilot.figures.fold_figure import fold_figures
from hpo_pilot.figures.front_figure import front_figures, volume_figure
from hpo_pilot.figures.learning_curves import Reports, curve_figure
from hpo_pilot.figures.parameter_figure import figures_by_objective
from hpo_pilot.figures.summary import front_of, ranking
from hpo_pilot.search import Search, Trial


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


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Attributes:
        key: what `build` and addresses of pages call it.
        title: what people call it.
    """

    key: str
    title: str


_Builder: TypeAlias = Callable[[Subject], list[Figure]]


def kinds(search: Search) -> tuple[Kind, ...]:
    """The kinds that make sense for a search, in the order in which pages show them."""
    several = len(search.objectives) > 1
    senseless = {
        "front": not several,
        "folds": search.folds.k < 2,
        "contours": len(search.space.names) < 2,
    }
    return tuple(
        Kind(key, "Hypervolume" if several and key == "convergence" else title)
        for key, (title, _) in _KINDS.items()
        if not senseless.get(key)
    )


def build(key: str, subject: Subject) -> list[Figure]:
    """The figures of a kind; none where there is nothing to draw yet.

    The same values give the same figures.

    Raises:
        InputError: there is no such kind.
    """
    if key not in _KINDS:
        raise InputError(f"there is no figure {key!r}; there is {', '.join(_KINDS)}")
    if not subject.trials:
        return []
    return _KINDS[key][1](subject)


def same_question(search: Search, other: Search) -> bool:
    """Whether two searches look for the same in the same space: their figures of merit can be compared."""
    return (
        search.space_dimensions == other.space_dimensions
        and search.constraints == other.constraints
        and [(o.metric, o.goal) for o in search.objectives] == [(o.metric, o.goal) for o in other.objectives]
    )


def _convergence(subject: Subject) -> list[Figure]:
    if not ranking(subject.search, subject.trials):
        return []
    if len(subject.search.objectives) > 1:
        return [volume_figure(subject.search, subject.trials)]
    return [convergence_figure(subject.search, subject.trials)]


def _front(subject: Subject) -> list[Figure]:
    if len(subject.search.objectives) < 2 or not front_of(subject.search, subject.trials):
        return []
    return front_figures(subject.search, subject.trials)


def _slices(subject: Subject) -> list[Figure]:
    if not ranking(subject.search, subject.trials):
        return []
    return [figure for _, figures in figures_by_objective(subject.search, subject.trials) for figure in figures]


def _folds(subject: Subject) -> list[Figure]:
    return fold_figures(subject.search, subject.trials)


def _curves(subject: Subject) -> list[Figure]:
    figure = curve_figure(subject.search, subject.trials, subject.reports)
    return [] if figure is None else [figure]


_KINDS: Mapping[str, tuple[str, _Builder]] = {
    "convergence": ("Convergence", _convergence),
    "front": ("Pareto front", _front),
    "slices": ("Slices", _slices),
    "folds": ("Spread over the folds", _folds),
    "curves": ("Learning curves", _curves),
}
