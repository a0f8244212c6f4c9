"""Builds each kind of figure by its key, for the report, the pages and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hpo_pilot.errors import InputError
from hpo_pilot.report.correlations import correlation_figures
from hpo_pilot.report.figure import Figure, FigureData
from hpo_pilot.report.importance import failure_figures, importance_figures
from hpo_pilot.report.parameter_figures import contour_figures, parallel_figures, rank_figures, slice_figures
from hpo_pilot.report.result_figures import (
    convergence_figures,
    curve_figures,
    distribution_figures,
    fold_figures,
    front_figures,
    level_figures,
    timeline_figures,
)
from hpo_pilot.report.slot_figures import slots_figures
from hpo_pilot.search import Search
from hpo_pilot.search.earlier_results import learnt_level
from hpo_pilot.search.ranking import figures_of_merit, top_level


class Kind(NamedTuple):
    """A kind of figure.

    Attributes:
        key: its name for `build` and in the addresses of pages.
        title: its name for people.
        draw: draws its figures; an empty list where there is nothing to draw.
        of_results: True if it shows figures of merit; then `draw` needs at least one.
        pairs: True if it shows pairs of parameters, which users can choose.
    """

    key: str
    title: str
    draw: Callable[[FigureData], list[Figure]]
    of_results: bool = True
    pairs: bool = False


#: In the order in which pages show them.
_KINDS = (
    Kind("convergence", "Convergence", convergence_figures),
    Kind("front", "Pareto front", front_figures),
    Kind("parallel", "Parallel coordinates", parallel_figures),
    Kind("importance", "Importance", importance_figures),
    Kind("correlations", "Rank correlation", correlation_figures),
    Kind("slices", "Slices", slice_figures),
    Kind("contours", "Contours", contour_figures, pairs=True),
    Kind("ranks", "Ranks", rank_figures, pairs=True),
    Kind("distribution", "Distribution of results", distribution_figures),
    Kind("timeline", "Results by date", timeline_figures),
    Kind("folds", "Spread over the folds", fold_figures),
    Kind("curves", "Learning curves", curve_figures, of_results=False),
    Kind("levels", "Levels", level_figures),
    Kind("slots", "Slots over time", slots_figures, of_results=False),
    Kind("failures", "Failures over the space", failure_figures, of_results=False),
)


def kinds(search: Search) -> list[Kind]:
    """Returns the kinds that make sense for a search, in the order in which pages show them."""
    several = len(search.objectives) > 1
    single = len(search.space.names) < 2
    unsuitable = {"front": not several, "folds": search.folds.k < 2, "contours": single, "ranks": single}
    unsuitable["levels"] = search.levels is None
    return [
        kind._replace(title="Hypervolume") if several and kind.key == "convergence" else kind
        for kind in _KINDS
        if not unsuitable.get(kind.key)
    ]


def check_axes(search: Search, axes: Sequence[str]) -> None:
    """Raises InputError unless `axes` are two different parameters of the search, or empty."""
    names = search.space.names
    if axes and (len(axes) != 2 or axes[0] == axes[1] or not set(axes) <= set(names)):
        raise InputError(f"the axes of a figure are two different parameters of {', '.join(names)}")


def build(key: str, data: FigureData) -> list[Figure]:
    """Returns the figures of a kind; an empty list where there is nothing to draw yet.

    The same data give the same figures.

    Raises:
        InputError: there is no such kind.
    """
    kind = next((kind for kind in _KINDS if kind.key == key), None)
    if kind is None:
        raise InputError(f"unknown figure {key!r}; the figures are {', '.join(kind.key for kind in _KINDS)}")
    has_results = any(t.confirms is None and figures_of_merit(data.search, t) is not None for t in data.trials)
    if kind.of_results and key != "levels" and data.search.levels is not None and has_results:
        data = _of_one_level(data, key)
    figures = kind.draw(data) if has_results or not kind.of_results else []
    return [replace(one, note=f"{one.note} {data.note}".strip()) for one in figures] if data.note else figures


#: Figures of the best results so far; only results of the highest level count.
_OF_HIGHEST = ("convergence", "front", "timeline")


def _of_one_level(data: FigureData, key: str) -> FigureData:
    """Returns the data of one level of the training: figures of different levels cannot be compared."""
    finished = [trial for trial in data.trials if figures_of_merit(data.search, trial) is not None]
    top = top_level(data.search, finished)
    level = top if key in _OF_HIGHEST else learnt_level(trial.level for trial in finished if trial.confirms is None)
    trials = [trial for trial in data.trials if trial.level == level]
    return replace(data, trials=trials, note=f"{data.note} Only results of {data.search.level_name} {level:g}.".strip())
