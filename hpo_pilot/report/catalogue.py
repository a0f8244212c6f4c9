"""Every kind of figure by its key: the one way in for the report, the monitor and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hpo_pilot.errors import InputError
from hpo_pilot.report.figure import Figure
from hpo_pilot.report.importance import failure_figures, importance_figures
from hpo_pilot.report.parameter_figures import contour_figures, figures_by_objective, parallel_figure
from hpo_pilot.report.result_figures import (
    FigureData,
    convergence_figure,
    curve_figure,
    fold_figures,
    front_figures,
    volume_figure,
)
from hpo_pilot.report.slot_figures import slots_figures
from hpo_pilot.report.summary import ranking
from hpo_pilot.search import Search


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Attributes:
        key: what `build` and addresses of pages call it.
        title: what people call it.
    """

    key: str
    title: str


_Builder: TypeAlias = Callable[[FigureData], list[Figure]]


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


def build(key: str, subject: FigureData) -> list[Figure]:
    """The figures of a kind; none where there is nothing to draw yet.

    The same values give the same figures.

    Raises:
        InputError: there is no such kind.
    """
    if key not in _KINDS:
        raise InputError(f"there is no figure {key!r}; there is {', '.join(_KINDS)}")
    if not subject.trials or (key in _OF_RESULTS and not ranking(subject.search, subject.trials)):
        return []
    return _KINDS[key][1](subject)


def _convergence(subject: FigureData) -> list[Figure]:
    if len(subject.search.objectives) > 1:
        return [volume_figure(subject.search, subject.trials)]
    return [convergence_figure(subject.search, subject.trials, subject.peers)]


def _front(subject: FigureData) -> list[Figure]:
    return front_figures(subject.search, subject.trials) if len(subject.search.objectives) > 1 else []


def _parallel(subject: FigureData) -> list[Figure]:
    return [parallel_figure(subject.search, subject.trials)]


def _importance(subject: FigureData) -> list[Figure]:
    return importance_figures(subject.search, subject.trials)


def _slices(subject: FigureData) -> list[Figure]:
    return [figure for _, figures in figures_by_objective(subject.search, subject.trials) for figure in figures]


def _contours(subject: FigureData) -> list[Figure]:
    return contour_figures(subject.search, subject.trials)


def _folds(subject: FigureData) -> list[Figure]:
    return fold_figures(subject.search, subject.trials)


def _curves(subject: FigureData) -> list[Figure]:
    figure = curve_figure(subject.search, subject.trials, subject.reports)
    return [] if figure is None else [figure]


def _slots(subject: FigureData) -> list[Figure]:
    return slots_figures(subject.search, subject.trials, subject.now)


def _failures(subject: FigureData) -> list[Figure]:
    return failure_figures(subject.search, subject.trials)


#: Those that show figures of merit: without any they are empty.
_OF_RESULTS = frozenset({"convergence", "front", "parallel", "importance", "slices", "contours", "folds"})

_KINDS: Mapping[str, tuple[str, _Builder]] = {
    "convergence": ("Convergence", _convergence),
    "front": ("Pareto front", _front),
    "parallel": ("Parallel coordinates", _parallel),
    "importance": ("Importance", _importance),
    "slices": ("Slices", _slices),
    "contours": ("Contours", _contours),
    "folds": ("Spread over the folds", _folds),
    "curves": ("Learning curves", _curves),
    "slots": ("Slots over time", _slots),
    "failures": ("Failures over the space", _failures),
}
