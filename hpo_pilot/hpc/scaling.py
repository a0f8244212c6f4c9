"""Advises on the number of nodes of a trial, from measured run times and a model fitted to them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hpo_pilot.errors import InputError

# Measurements come from a CSV file with these columns, in any order, named in the first line:
#
#     nodes               number of nodes
#     ranks               processes on all nodes together; default: number of nodes
#     seconds             time for an amount of work that is the same in all rows, e.g. an epoch
#     images_per_second   of all ranks; give seconds or this, with both seconds count
#     compute_seconds, communication_seconds, input_seconds
#                         means over the ranks, as in hpo-pilot's metrics; all three or none. Only their ratios count
#
# Other columns are ignored. Several rows with the same size are repetitions.

#: Columns with the parts of `seconds`.
PARTS = ("compute_seconds", "communication_seconds", "input_seconds")


@dataclass(frozen=True)
class ScalingPoint:
    """One measurement.

    Attributes:
        nodes: number of nodes.
        ranks: number of processes on all nodes.
        seconds: time for an amount of work that is the same for all points.
        parts: seconds of these for compute, communication and input; None: not measured.
    """

    nodes: int
    ranks: int
    seconds: float
    parts: tuple[float, float, float] | None = None


def read_points(text: str, source: str) -> list[ScalingPoint]:
    """Reads the points of a CSV text; see above for its columns.

    Args:
        text: the text of the file.
        source: its name, for messages.

    Raises:
        InputError: the text has a mistake; the message has the line.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    names = [name.strip() for name in reader.fieldnames or ()]
    if "nodes" not in names or not {"seconds", "images_per_second"} & set(names):
        raise InputError(
            f"{source}: the first line names the columns: nodes, and seconds or images_per_second; it has "
            f"{', '.join(names) or 'nothing'}"
        )
    reader.fieldnames = names
    points = [read_point(row, f"{source}, line {reader.line_num}") for row in reader if any(row.values())]
    check_parts(points, source)
    return points


def check_parts(points: Sequence[ScalingPoint], source: str) -> None:
    """Checks that all points have parts, or none.

    Raises:
        InputError: only some points have parts.
    """
    if len({point.parts is None for point in points}) > 1:
        raise InputError(f"{source}: {', '.join(PARTS)} are there in some points only: give them in all, or in none")


def read_point(row: Mapping[str, str | None], place: str) -> ScalingPoint:
    """Reads the point of a row.

    Args:
        row: the values by column.
        place: file and line of the row, for messages.

    Raises:
        InputError: a value is missing or wrong.
    """
    nodes = _whole(row, "nodes", place)
    ranks = _whole(row, "ranks", place) if row.get("ranks") else nodes
    timed = bool(row.get("seconds"))
    seconds = _number(row, "seconds", place) if timed else 1.0 / _number(row, "images_per_second", place)
    given = [name for name in PARTS if row.get(name)]
    if not given:
        return ScalingPoint(nodes, ranks, seconds)
    if len(given) < len(PARTS):
        raise InputError(f"{place}: it has {', '.join(given)} alone: give all of {', '.join(PARTS)}, or none")
    compute, communication, fed = (_number(row, name, place, least=0.0) for name in PARTS)
    whole = compute + communication + fed
    if whole <= 0:
        raise InputError(f"{place}: {', '.join(PARTS)} are all 0")
    # They may be for another amount of work, such as the whole training: only their ratios count.
    scale = seconds / whole
    return ScalingPoint(nodes, ranks, seconds, (compute * scale, communication * scale, fed * scale))


def _whole(row: Mapping[str, str | None], name: str, place: str) -> int:
    value = _number(row, name, place)
    if value != int(value) or value < 1:
        raise InputError(f"{place}: {name} is {row[name]!r}: give a whole number, 1 or more")
    return int(value)


def _number(row: Mapping[str, str | None], name: str, place: str, least: float | None = None) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        raise InputError(f"{place}: {name} is {text!r}: give a number{' above 0' if least is None else ', 0 or more'}")
    return value


def search_points(name: str, resources: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> list[ScalingPoint]:
    """Returns a point for each fold with a figure of merit.

    It uses the images per second if the training reports them, else the run time of the whole fold.

    Args:
        name: name of the search.
        resources: resources of its definition, as JSON.
        trials: documents of its trials.

    Raises:
        InputError: no fold has a figure of merit, or only some report images per second.
    """
    folds = [fold for trial in trials for fold in trial["folds"] if fold["value"] is not None and fold["seconds"]]
    if not folds:
        raise InputError(f"search {name!r} has no trial with a figure of merit: it measured nothing")
    told = [fold for fold in folds if fold["metrics"].get("images_per_second")]
    if told and len(told) < len(folds):
        raise InputError(f"only {len(told)} of {len(folds)} folds of search {name!r} report images_per_second")
    return [_point(f"search {name!r}", resources, fold) for fold in folds]


def _point(source: str, resources: Mapping[str, Any], fold: Mapping[str, Any]) -> ScalingPoint:
    metrics, nodes = fold["metrics"], int(resources["nodes"])
    per_node = resources.get("ranks_per_node") or (resources["gpus_per_node"] or 1 if nodes > 1 else 1)
    row = {"nodes": nodes, "ranks": metrics.get("ranks") or nodes * per_node}
    if metrics.get("images_per_second"):
        row["images_per_second"] = metrics["images_per_second"]
    else:
        row["seconds"] = fold["seconds"]
    if all(metrics.get(part) is not None for part in PARTS):
        row |= {part: metrics[part] for part in PARTS}
    return read_point({key: str(value) for key, value in row.items()}, source)


# The model: the time of a training with w ranks, for a constant amount of work, is the sum of
#
#     compute         a / w
#     all-reduce      (b (w - 1) / w + c (w - 1)) s(w)
#     input, serial   d
#
# with a, b, c, d >= 0. A ring sends 2 (w - 1) messages with 1/w of the gradients each (P. Patarasuk, X. Yuan,
# J. Parallel Distrib. Comput. 69 (2009) 117): b is for their bytes, c for their latencies. s(w) is the frequency of
# summing gradients: constant if the batch is split between the ranks (`split batch`: s = 1), and falling if each rank
# keeps its own batch (`batch per rank`: s = 1/w). The kind that better predicts held-out points is taken.
#
# Total times alone do not determine all of a, b, c and d, because 1 = 1/w + (w - 1)/w; they do determine the predicted
# times. If compute, communication and input were measured, each is fitted by itself.
#
# `python -m tests.performance scaling`: at 1.5 and 2 times the largest measured size the mean error is 7.0% on a ring,
# and 9.9% on five other kinds of curves. Straight lines between the points in logarithms have 12.7% and 10.3%, Amdahl's
# law has 8.4% and 15.8%.

_Terms = Callable[[float], tuple[float, float, float, float]]

#: The factors of a, b, c and d (compute, bytes, latency, input) for w ranks.
_KINDS: dict[str, _Terms] = {
    "split batch": lambda w: (1 / w, (w - 1) / w, w - 1, 1.0),
    "batch per rank": lambda w: (1 / w, (w - 1) / w**2, (w - 1) / w, 1.0),
}

#: The terms of each measured part; input may be split between ranks, or not.
_PART_TERMS = ((0,), (1, 2), (0, 3))


@dataclass(frozen=True)
class ScalingModel:
    """A fitted model.

    Attributes:
        kind: `split batch` or `batch per rank`.
        coefficients: a, b, c, d, in seconds.
        error: largest relative error of the prediction for one size from a fit without that size.
        error_beyond: this error for the largest size, which then lies beyond all fitted sizes.
        sizes: measured numbers of ranks, ascending.
        has_parts: whether the parts were measured, so that each coefficient has its own meaning.
    """

    kind: str
    coefficients: tuple[float, float, float, float]
    error: float
    error_beyond: float
    sizes: tuple[int, ...]
    has_parts: bool = False

    def seconds(self, ranks: float) -> float:
        """Returns the predicted time for a number of ranks."""
        return sum(self.parts(ranks))

    def parts(self, ranks: float) -> tuple[float, float, float]:
        """Returns (compute, all-reduce, input and other serial work) in seconds; meaningful if `has_parts`."""
        a, b, c, d = (x * t for x, t in zip(self.coefficients, _KINDS[self.kind](ranks), strict=True))
        return a, b + c, d


def fit_scaling(points: Sequence[ScalingPoint]) -> ScalingModel | None:
    """Fits the model; None: fewer than three sizes, so that none can be held out."""
    sizes = tuple(sorted({point.ranks for point in points}))
    if len(sizes) < 3:
        return None
    return min((_fit(kind, points, sizes) for kind in _KINDS), key=lambda model: model.error)


def _fit(kind: str, points: Sequence[ScalingPoint], sizes: tuple[int, ...]) -> ScalingModel:
    errors = {}
    for size in sizes:
        held = [point for point in points if point.ranks == size]
        rest = ScalingModel(kind, _solve(kind, [p for p in points if p.ranks != size]), 0.0, 0.0, sizes)
        measured = math.exp(math.fsum(math.log(point.seconds) for point in held) / len(held))
        errors[size] = abs(rest.seconds(size) / measured - 1)
    return ScalingModel(
        kind, _solve(kind, points), max(errors.values()), errors[sizes[-1]], sizes, points[0].parts is not None
    )


def _solve(kind: str, points: Sequence[ScalingPoint]) -> tuple[float, float, float, float]:
    """Fits by non-negative least squares of relative errors; measured parts are fitted separately."""
    terms = np.array([_KINDS[kind](point.ranks) for point in points])
    weights = 1.0 / np.array([point.seconds for point in points])
    if points[0].parts is None:
        rows, targets = terms * weights[:, None], np.ones(len(points))
    else:
        measured = np.array([point.parts for point in points])
        blocks = []
        for which in _PART_TERMS:
            block = np.zeros((len(points), 5))
            for term in which:
                # Input that is split between ranks has its own coefficient, the fifth.
                block[:, 4 if term == 0 and 3 in which else term] = terms[:, term]
            blocks.append(block * weights[:, None])
        rows, targets = np.vstack(blocks), (measured * weights[:, None]).T.ravel()
    # Scale the columns: the tolerance of the solver is absolute.
    scale = np.where(rows.any(axis=0), np.linalg.norm(rows, axis=0), 1.0)
    found = nnls(rows / scale, targets)[0] / scale
    a, b, c, d = (float(x) for x in found[:4])
    return a + (float(found[4]) if len(found) > 4 else 0.0), b, c, d


#: There is no advice with larger errors on held-out sizes.
TOLERATED = 0.2

#: Least number of sizes for a fit: the model has up to four coefficients.
_SIZES = 4

#: Advice goes up to this multiple of the largest measured size.
_BEYOND = 2


@dataclass(frozen=True)
class NodesOption:
    """A number of nodes for each trial.

    Attributes:
        nodes: nodes of a trial.
        minutes: run time of one fold.
        node_hours: node-hours of one fold.
        search_hours: run time of the search on all nodes.
        gpu_hours: GPU-hours of the whole search.
        in_budget: whether these are within the budget.
        measured: whether the size lies within the measured range.
    """

    nodes: int
    minutes: float
    node_hours: float
    search_hours: float
    gpu_hours: float
    in_budget: bool
    measured: bool


@dataclass(frozen=True)
class Advice:
    """The advice from measurements.

    Attributes:
        model: the fitted model; None: too few sizes.
        options: the numbers of nodes, ascending.
        thriftiest: the option with the most trials per node-hour; None: no advice.
        quickest: the option with the shortest search within the budget; None: no advice.
        why_not: the reason for no advice; empty: there is advice.
    """

    model: ScalingModel | None
    options: tuple[NodesOption, ...]
    thriftiest: NodesOption | None
    quickest: NodesOption | None
    why_not: str = ""


@dataclass(frozen=True)
class AdviceRequest:
    """The search that the advice is for.

    Attributes:
        nodes: nodes of a trial in the search file.
        minutes: run time of one fold on these.
        ranks_per_node: ranks of a trial on each node.
        gpus_per_node: GPUs of a trial on each node.
        folds: folds of a trial.
        trials: number of trials.
        parallel: trials at once.
        all_nodes: nodes for the whole search.
        gpu_hours: the budget; None: no limit.
        longest: longest run time of a job in minutes; None: no limit.
    """

    nodes: int
    minutes: float
    ranks_per_node: int
    gpus_per_node: float
    folds: int
    trials: int
    parallel: int
    all_nodes: int
    gpu_hours: float | None = None
    longest: float | None = None


def advise(points: Sequence[ScalingPoint], asked: AdviceRequest) -> Advice:
    """Returns advice, as far as the measurements support it."""
    model = fit_scaling(points)
    sizes = sorted({point.ranks for point in points})
    if model is None or len(sizes) < _SIZES:
        why = f"{len(sizes)} sizes were measured: measure {_SIZES} or more, such as 1, 2, 4 and 8 nodes"
        return Advice(model, (), None, None, why)
    per_node = {point.ranks / point.nodes for point in points}
    if per_node != {float(max(1, asked.ranks_per_node))}:
        shown = ", ".join(f"{ratio:g}" for ratio in sorted(per_node))
        wanted = max(1, asked.ranks_per_node)
        why = f"the points have {shown} ranks per node, and the search {wanted}: measure with the same number"
        return Advice(model, (), None, None, why)
    if model.error > TOLERATED:
        why = (
            f"the model is off by up to {100 * model.error:.0f}% on sizes held out, where {100 * TOLERATED:.0f}% are "
            "tolerated: measure each size several times, and more sizes"
        )
        return Advice(model, (), None, None, why)
    options = tuple(_options(model, asked, max(point.nodes for point in points)))
    able = [option for option in options if asked.longest is None or option.minutes <= asked.longest]
    if not able:
        why = f"with none of these numbers of nodes a trial ends within the {asked.longest:g} minutes allowed"
        return Advice(model, options, None, None, why)
    within = [option for option in able if option.in_budget]
    thriftiest = min(able, key=lambda option: (option.node_hours, option.nodes))
    quickest = min(within, key=lambda option: (option.search_hours, option.nodes), default=None)
    why = "" if quickest else f"no number of nodes keeps the search within {asked.gpu_hours:g} GPU-hours"
    return Advice(model, options, thriftiest, quickest, why)


def _options(model: ScalingModel, asked: AdviceRequest, largest: int) -> list[NodesOption]:
    per_node = max(1, asked.ranks_per_node)
    here = model.seconds(asked.nodes * per_node)
    found = []
    most = min(_BEYOND * largest, asked.all_nodes)
    sizes = {*range(1, min(most, 16) + 1), *(round(16 * 2 ** (k / 4)) for k in range(1, 41)), most, asked.nodes}
    for nodes in sorted(sizes):
        if nodes > most:
            continue
        minutes = asked.minutes * model.seconds(nodes * per_node) / here
        at_once = min(asked.parallel * asked.folds, asked.all_nodes // nodes)
        jobs = asked.trials * asked.folds
        gpu_hours = jobs * nodes * asked.gpus_per_node * minutes / 60
        found.append(
            NodesOption(
                nodes,
                minutes,
                nodes * minutes / 60,
                math.ceil(jobs / at_once) * minutes / 60,
                gpu_hours,
                asked.gpu_hours is None or gpu_hours <= asked.gpu_hours,
                min(model.sizes) <= nodes * per_node <= max(model.sizes),
            )
        )
    return found
