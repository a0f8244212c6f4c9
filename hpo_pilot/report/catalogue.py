"""Builds each kind of figure by its key, for the report, the pages and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
        key: its name for `build` and in the addresses of pages.
        title: its name for people.
    """

    key: str
    title: str


def kinds(search: Search) -> tuple[Kind, ...]:
    """Returns the kinds that make sense for a search, in the order in which pages show them."""
    several = len(search.objectives) > 1
    unsuitable = {"front": not several, "folds": search.folds.k < 2, "contours": len(search.space.names) < 2}
    return tuple(
        Kind(key, "Hypervolume" if several and key == "convergence" else title)
        for key, (title, _) in _KINDS.items()
        if not unsuitable.get(key)
    )


def build(key: str, data: FigureData) -> list[Figure]:
    """Returns the figures of a kind; an empty list where there is nothing to draw yet.

    The same data give the same figures.

    Raises:
        InputError: there is no such kind.
    """
    if key not in _KINDS:
        raise InputError(f"unknown figure {key!r}; the figures are {', '.join(_KINDS)}")
    if (
        not data.trials
        or (key == "front" and len(data.search.objectives) == 1)
        or (key in _OF_RESULTS and not ranking(data.search, data.trials))
    ):
        return []
    return _KINDS[key][1](data)


def _convergence(data: FigureData) -> list[Figure]:
    if len(data.search.objectives) > 1:
        return [volume_figure(data.search, data.trials)]
    return [convergence_figure(data.search, data.trials, data.peers)]


def _slices(data: FigureData) -> list[Figure]:
    return [figure for _, figures in figures_by_objective(data.search, data.trials) for figure in figures]


def _curves(data: FigureData) -> list[Figure]:
    figure = curve_figure(data.search, data.trials, data.reports)
    return [] if figure is None else [figure]


#: Kinds that show figures of merit: they are empty without any.
_OF_RESULTS = frozenset({"convergence", "front", "parallel", "importance", "slices", "contours", "folds"})

#: Title and builder of each kind, in the order in which pages show them.
_KINDS: Mapping[str, tuple[str, Callable[[FigureData], list[Figure]]]] = {
    "convergence": ("Convergence", _convergence),
    "front": ("Pareto front", lambda data: front_figures(data.search, data.trials)),
    "parallel": ("Parallel coordinates", lambda data: [parallel_figure(data.search, data.trials)]),
    "importance": ("Importance", lambda data: importance_figures(data.search, data.trials)),
    "slices": ("Slices", _slices),
    "contours": ("Contours", lambda data: contour_figures(data.search, data.trials)),
    "folds": ("Spread over the folds", lambda data: fold_figures(data.search, data.trials)),
    "curves": ("Learning curves", _curves),
    "slots": ("Slots over time", lambda data: slots_figures(data.search, data.trials, data.now)),
    "failures": ("Failures over the space", lambda data: failure_figures(data.search, data.trials)),
}
