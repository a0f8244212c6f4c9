"""How many nodes a trial should have, by a model of its scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.planning.scaling_model import ScalingModel, fit
from hpo_pilot.planning.scaling_points import ScalingPoint

#: With larger errors on sizes held out nothing is advised.
TOLERATED = 0.2

#: Sizes that a model is fitted to, at least: it has up to four coefficients.
_SIZES = 4

#: Beyond the largest size that was measured no advice is given but to this multiple of it.
_BEYOND = 2


@dataclass(frozen=True)
class Option:
    """A number of nodes for each trial.

    Attributes:
        nodes: of a trial.
        minutes: that one fold of it runs.
        node_hours: of one fold.
        search_hours: that the search takes on the nodes that there are.
        gpu_hours: of the whole search.
        in_budget: whether that is not beyond the budget's.
        measured: whether the size lies within what was measured.
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
    """What the measurements say.

    Attributes:
        model: fitted; None: there were too few sizes.
        options: by nodes.
        thriftiest: that of the most trials per node-hour; None: no advice.
        quickest: that of the shortest search within the budget; None: no advice.
        why_not: why there is no advice; empty: there is.
    """

    model: ScalingModel | None
    options: tuple[Option, ...]
    thriftiest: Option | None
    quickest: Option | None
    why_not: str = ""


@dataclass(frozen=True)
class Asked:
    """What the advice is for.

    Attributes:
        nodes: of a trial as its file has it.
        minutes: that one fold of it runs so.
        ranks_per_node: of a trial.
        gpus_per_node: of a trial.
        folds: of a trial.
        trials: in all.
        parallel: trials at once.
        all_nodes: that there are for the search.
        gpu_hours: of the budget; None: any.
        longest: minutes that a job may run; None: any.
    """

    nodes: int
    minutes: float
    ranks_per_node: int
    gpus_per_node: int
    folds: int
    trials: int
    parallel: int
    all_nodes: int
    gpu_hours: float | None = None
    longest: float | None = None


def advise(points: Sequence[ScalingPoint], asked: Asked) -> Advice:
    """What the measurements advise, as far as they support any advice."""
    model = fit(points)
    sizes = sorted({point.ranks for point in points})
    if model is None or len(sizes) < _SIZES:
        why = f"{len(sizes)} sizes were measured: measure {_SIZES} or more, such as 1, 2, 4 and 8 nodes"
        return Advice(model, (), None, None, why)
    per_node = {point.ranks / point.nodes for point in points}
    if per_node != {float(max(1, asked.ranks_per_node))}:
        shown = ", ".join(f"{ratio:g}" for ratio in sorted(per_node))
        wanted = max(1, asked.ranks_per_node)
        why = f"the points have {shown} ranks a node, and the search {wanted}: measure it as it runs"
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


def _options(model: ScalingModel, asked: Asked, largest: int) -> list[Option]:
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
            Option(
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
