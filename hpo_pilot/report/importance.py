"""Parameter importance, and the parameters that separate failed from finished trials: statistics and figures.

scipy and scikit-learn are imported where they are used: they take half a second or more, and processes that draw
nothing load this module.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo_pilot.report.axes import Axis, label, parameter_axis, rounded
from hpo_pilot.report.figure import (
    BLUE,
    FAILURE_LIMIT,
    GREY,
    LEGEND,
    RED,
    Figure,
    FigureData,
    Results,
    evenly,
    for_each_objective,
    markers,
    message_figure,
    plot,
    value_of,
)
from hpo_pilot.report.formatting import count, first_of, number, scalar
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.values import value_key

Matrix: TypeAlias = NDArray[np.float64]

#: A categorical parameter with up to this number of choices gets one column per choice: their order has no meaning.
_MOST_COLUMNS = 12


@dataclass(frozen=True)
class Encoded:
    """The points of trials as columns of numbers.

    Attributes:
        names: the parameters, in the order of the search file.
        columns: shape (n_trials, n_columns), each in [0, 1].
        groups: for each parameter the indices of its columns.
        active: shape (n_trials, n_params); False where a trial has no value of the parameter, or a value that the space
            does not have. Its columns are 0.5 there.
    """

    names: tuple[str, ...]
    columns: Matrix
    groups: tuple[NDArray[np.intp], ...]
    active: NDArray[np.bool_]


def encoded(search: Search, trials: Sequence[Trial]) -> Encoded:
    """Encodes the points of `trials`: one column per parameter on its scale, several for choices without an order."""
    blocks, groups, active = [], [], []
    first = 0
    for name, dimension in search.space_dimensions.items():
        block, is_active = _columns(dimension, name, trials)
        blocks.append(block)
        active.append(is_active)
        groups.append(np.arange(first, first + block.shape[1]))
        first += block.shape[1]
    return Encoded(search.space.names, np.hstack(blocks), tuple(groups), np.column_stack(active))


def _columns(dimension: Dimension, name: str, trials: Sequence[Trial]) -> tuple[Matrix, NDArray[np.bool_]]:
    choices: Sequence[Any] = getattr(dimension, "choices", ())
    if dimension.type == "categorical" and 2 < len(choices) <= _MOST_COLUMNS:
        places = {value_key(choice): place for place, choice in enumerate(choices)}
        found = np.array([places.get(value_key(t.point[name]), -1) if name in t.point else -1 for t in trials])
        block = np.where(found[:, None] < 0, 0.5, found[:, None] == np.arange(len(choices))[None, :])
        return block.astype(float), found >= 0
    units = _units(dimension, name, trials)
    known = np.isfinite(units)
    return np.where(known, np.clip(units, 0, 1), 0.5)[:, None], known


def _units(dimension: Dimension, name: str, trials: Sequence[Trial]) -> Matrix:
    """Returns the positions of trials along a parameter, usually in [0, 1]; NaN where they have no known value."""
    return np.array([_unit(dimension, t.point[name]) if name in t.point else math.nan for t in trials])


def _unit(dimension: Dimension, value: Any) -> float:
    try:
        return float(dimension.to_unit(value))
    except (ValueError, TypeError, OverflowError):
        return float("nan")  # the trial is from an older version of the space


def ranks(values: Sequence[float] | Matrix) -> Matrix:
    """Returns the ranks of `values` in [0, 1], equal for equal values: outliers then have no extra weight."""
    from scipy.stats import rankdata  # noqa: PLC0415

    found: Matrix = (rankdata(values) - 0.5) / max(1, len(values))
    return found


# Permutation importance.

#: The least number of finished trials.
LEAST_TRIALS = 16
_SEED = 20_011

#: Largest number of trials; trees of each forest; parts of the trials, each predicted by a forest that is fitted to the
#: other parts; shuffles of each parameter in each part.
_POINTS, _TREES, _PARTS, _REPEATS = 2000, 80, 4, 3


@dataclass(frozen=True)
class Importance:
    """The importance of one parameter.

    Attributes:
        name: name of the parameter.
        value: of `importances` the mean loss of R² when its values are shuffled among the trials that have it; of
            `ped_anova` its share of all parameters.
        spread: standard deviation of `value` over shuffles and parts; 0 where it is not measured.
        active: share of the trials that have the parameter.
        beyond_chance: of `ped_anova`, whether random choices of as many trials as the best all give less.
    """

    name: str
    value: float
    spread: float
    active: float
    beyond_chance: bool = True


@dataclass(frozen=True)
class Importances:
    """The importances of all parameters.

    Attributes:
        parameters: the most important first.
        score: R² of the forest on trials that it was not fitted to: 1 is perfect, 0 is no better than their mean.
        used: number of trials used.
        finished: number of trials with a figure of merit or a projected one.
    """

    parameters: tuple[Importance, ...]
    score: float
    used: int
    finished: int


def importances(results: Results) -> Importances | None:
    """Measures permutation importances for an objective.

    This is the permutation importance (Breiman, Machine Learning 45 (2001) 5) of scikit-learn's random forest, on
    trials that the forest was not fitted to. The forest predicts the rank of the figure of merit and not the figure;
    otherwise a few diverged trainings would dominate. The same trials give the same importances.

    Returns:
        None where fewer than `LEAST_TRIALS` trials have a figure or a projected one, or all have the same.
    """
    search, finished = results.search, results.estimated
    if not is_enough(finished):
        return None
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415

    many = len(search.space.names) > 20  # the cost grows with the number of parameters
    # An even sample: preferring the best trials would bias the importances.
    shown = evenly(finished, _POINTS // (2 if many else 1))
    points, wanted = encoded(search, shown), ranks([value_of(trial) for trial in shown])
    repeats = 1 if many else _REPEATS
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(shown))
    errors = 0.0
    lost = np.zeros((_PARTS * repeats, len(points.names)))
    spread = float(np.var(wanted))
    for part in range(_PARTS):
        held = order[part::_PARTS]
        fitted = np.setdiff1d(order, held)
        forest = RandomForestRegressor(
            _TREES // (2 if many else 1), min_samples_leaf=2, max_features=0.5, random_state=_SEED + part
        )
        forest.fit(points.columns[fitted], wanted[fitted])
        error = (forest.predict(points.columns[held]) - wanted[held]) ** 2
        errors += float(error.sum())
        for repeat in range(repeats):
            row = part * repeats + repeat
            shuffled = []
            for index, group in enumerate(points.groups):
                columns = points.columns[held].copy()
                having = np.flatnonzero(points.active[held, index])
                columns[np.ix_(having, group)] = columns[np.ix_(rng.permutation(having), group)]
                shuffled.append(columns)
            # All at once: a call of a forest has a large overhead.
            answers = forest.predict(np.vstack(shuffled)).reshape(len(shuffled), len(held))
            lost[row] = (((answers - wanted[held]) ** 2).mean(axis=1) - error.mean()) / spread
    found = [
        Importance(name, float(lost[:, i].mean()), float(lost[:, i].std()), float(points.active[:, i].mean()))
        for i, name in enumerate(points.names)
    ]
    found.sort(key=lambda one: -one.value)  # equal ones stay in the order of the search file
    return Importances(tuple(found), 1 - errors / (len(shown) * spread), len(shown), len(finished))


def is_enough(finished: Sequence[Trial]) -> bool:
    """Tells whether importances can be measured: there are enough trials, and they differ."""
    return len(finished) >= LEAST_TRIALS and len({value_of(trial) for trial in finished}) > 1


# PED-ANOVA.

#: Share of the trials that are "the best", and the least number of them.
_BEST_SHARE, _LEAST_BEST = 0.1, 5
#: Cells of a numeric parameter with more values; random choices of as many trials as the best.
_CELLS, _DIVISIONS = 50, 40


def ped_anova(results: Results) -> tuple[list[Importance], list[Trial]] | None:
    """Measures for an objective how much each parameter decides whether a trial is among the best.

    This is PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023): for each parameter the Pearson divergence of the density
    of the best tenth of the trials from the density of all trials. A conditional parameter counts only the trials that
    have it, as in Conditional PED-ANOVA (arXiv:2601.20800). It takes milliseconds, needs no model, and sees each
    parameter alone: a parameter that matters only together with another one gets little.

    Returns:
        The parameters, the most important first, and the best trials; None where `importances` returns None.
    """
    search, finished = results.search, results.estimated
    if not is_enough(finished):
        return None
    values = search.objective.sign * np.array([value_of(trial) for trial in finished])
    best = values <= np.sort(values)[max(_LEAST_BEST, math.ceil(_BEST_SHARE * len(values))) - 1]
    rng = np.random.default_rng(_SEED)
    divisions = [best, *(rng.permutation(best) for _ in range(_DIVISIONS))]
    found = []
    for name, dimension in search.space_dimensions.items():
        units = _units(dimension, name, finished)
        active = np.isfinite(units)
        cells = int(min(dimension.size, _CELLS) if dimension.is_ordered else dimension.size)
        places = np.clip((units[active] * cells).astype(int), 0, cells - 1)
        everywhere = _density(places, np.full(cells, 1 / cells), dimension.is_ordered)
        divergences = []
        for chosen in divisions:
            # One more trial as all are: few best trials alone would differ from all by chance.
            density = _density(places[chosen[active]], everywhere, dimension.is_ordered)
            share = chosen[active].sum() ** 2 / best.sum() ** 2 / max(active.mean(), 1 / len(active))
            divergences.append(float(share * (everywhere @ (density / everywhere - 1) ** 2)))
        found.append(Importance(name, divergences[0], 0.0, float(active.mean()), divergences[0] > max(divergences[1:])))
    total = sum(one.value for one in found) or 1.0
    found = sorted((replace(one, value=one.value / total) for one in found), key=lambda one: -one.value)
    return found, [trial for trial, is_best in zip(finished, best, strict=True) if is_best]


def _density(places: NDArray[np.intp], prior: Matrix, is_ordered: bool) -> Matrix:
    """Returns a Gaussian kernel density over the cells, of the width by Scott's rule, with one trial as `prior`."""
    cells = len(prior)
    counts: Matrix = np.bincount(places, minlength=cells).astype(float)
    if is_ordered and len(places):
        low, high = np.quantile(places, [0.25, 0.75])
        # At least 0.3 cells: 90 % of the kernel is inside its cell.
        width = max(0.3, 1.059 * min((high - low) / 1.34, float(places.std())) * len(places) ** -0.2)
        kernel = np.exp(-0.5 * ((np.arange(cells)[:, None] - np.arange(cells)) / width) ** 2)
        counts = (kernel / kernel.sum(axis=0)) @ counts
    density: Matrix = (counts + prior) / (len(places) + 1)
    return density


#: Bars in the figure.
BAR_LIMIT = 20
#: Below this R², the forest explains too little.
POOR_SCORE = 0.3


def importance_figures(data: FigureData) -> list[Figure]:
    """Draws the importances for each objective by both methods; a figure without data says why."""
    return for_each_objective(data, _importance_figures, "{title} for {metric}")


def _importance_figures(results: Results) -> list[Figure]:
    found, decisive = importances(results), ped_anova(results)
    if found is None or decisive is None:
        return [message_figure("importance", "Importance", too_few(results))]
    metric, (by_best, best) = results.search.objective.metric, decisive
    limit = max(map(value_of, best), key=lambda value: value * results.search.objective.sign)
    return [
        _bars(
            "importance",
            "Permutation importance",
            found.parameters,
            f"How much of its R² of {number(found.score, 2)} a forest that predicts {metric} loses without each "
            "parameter",
            "R² lost when the parameter is shuffled",
            "tells which parameters a model of all results uses, alone or together",
            _importance_note(found.score),
            "bars: permutation importance for the rank of the figure, whiskers its standard deviation over parts of "
            "the trials and shuffles",
            results.estimated_note,
            f"from {found.used:,} of {found.finished:,} trials" if found.used < found.finished else "",
            _conditional(found.parameters, "shuffled only among trials with a value"),
        ),
        _bars(
            "importance-best",
            "PED-ANOVA importance",
            by_best,
            f"How much each parameter decides whether {metric} is among the best {len(best):,} of "
            f"{found.finished:,} trials",
            "share of the importance",
            f"tells which parameters, each alone, decide whether a trial is among the best: {metric} {number(limit)} "
            "or better",
            f"bars: divergence of the values of the best {len(best):,} trials from those of all {found.finished:,}, "
            "as a share of the sum over the parameters",
            "" if all(one.beyond_chance for one in by_best) else "grey: no more than chance gives",
            results.estimated_note,
            _conditional(by_best, "compared only among trials with a value"),
        ),
    ]


def _bars(key: str, title: str, found: Sequence[Importance], description: str, horizontal: str, *notes: str) -> Figure:
    shown = found[:BAR_LIMIT]
    bars = list(reversed(shown))  # plotly draws the first at the bottom
    data = {
        "type": "bar",
        "orientation": "h",
        "name": "importance",
        "x": [rounded(one.value) for one in bars],
        "y": list(range(len(bars))),
        "text": [_importance_text(one) for one in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": [BLUE if one.beyond_chance else GREY for one in bars]},
    }
    if any(one.spread for one in shown):
        whiskers = {"type": "data", "array": [rounded(one.spread) for one in bars], "thickness": 1.5, "width": 4}
        data["error_x"] = {**whiskers, "color": GREY}
    names = [label(one.name, 24) for one in bars]
    ticks = {"tickmode": "array", "tickvals": list(range(len(bars))), "ticktext": names}
    return plot(
        key,
        title,
        f"{description}: {', '.join(f'{one.name} {_value_text(one, 2)}' for one in shown[:5])}.",
        [data],
        *notes,
        f"shows {len(shown)} of {len(found)} parameters" if len(shown) < len(found) else "",
        xaxis={"title": {"text": horizontal}, "rangemode": "tozero"},
        yaxis={**ticks, "showgrid": False, "zeroline": False},
        showlegend=False,
    )


def too_few(results: Results) -> str:
    """Returns a sentence that says why importances cannot be measured."""
    finished = len(results.finished)
    if rings := len(results.projected):
        return (
            f"Needs {LEAST_TRIALS} trials with different results; so far {finished} finished and {rings} stopped early "
            "with a projected value."
        )
    if finished < LEAST_TRIALS:
        return f"Needs {LEAST_TRIALS} finished trials; there {'is' if finished == 1 else 'are'} {finished} so far."
    return f"All {count(finished, 'finished trial')} have the same {results.search.objective.metric}."


def _importance_note(score: float) -> str:
    if score < POOR_SCORE:
        return (
            f"the forest predicts poorly (R² {number(score, 2)} on trials that it was not fitted to): "
            "do not rely on this order"
        )
    return f"the forest's R² on trials that it was not fitted to is {number(score, 2)}"


def _conditional(found: Sequence[Importance], how: str) -> str:
    partly = [one.name for one in found if one.active < 1]
    return f"not active in all trials, and {how}: {first_of(partly, 3)}" if partly else ""


def _importance_text(one: Importance) -> str:
    part = f"\nin {100 * one.active:.0f}% of the trials" if one.active < 1 else ""
    return f"<b>{label(one.name)}</b>\n{_value_text(one, 3)}{part}"


def _value_text(one: Importance, digits: int) -> str:
    return number(one.value, digits) + (f" ± {number(one.spread, 2)}" if one.spread else "")


# Separation of failed from finished trials.

#: Largest number of failed and of finished trials that are used.
_MOST = 2000
_SHUFFLES = 200


@dataclass(frozen=True)
class Separation:
    """The separation of failed from finished trials by one parameter.

    Attributes:
        name: name of the parameter.
        strength: from 0 (none) to 1 (complete): |2 AUC - 1|, where AUC is the probability that a failed trial has a
            larger value than a finished one (for choices without an order: of the choice that separates best).
        beyond_chance: whether it is larger than that of the best parameter in 95 % of random divisions of the trials.
    """

    name: str
    strength: float
    beyond_chance: bool


def separations(search: Search, finished: Sequence[Trial], failed: Sequence[Trial]) -> list[Separation]:
    """Returns the separations of all parameters, the best first; the same trials give the same result.

    Args:
        search: the search.
        finished: at least one trial.
        failed: at least one trial.
    """
    from scipy.stats import rankdata  # noqa: PLC0415

    sides = [evenly(finished, _MOST), evenly(failed, _MOST)]
    points = encoded(search, [*sides[0], *sides[1]])
    count, lost = len(points.columns), len(sides[1])
    # Trials without a value get the middle rank, so that they have no effect.
    ordered = rankdata(points.columns, axis=0)
    for index, group in enumerate(points.groups):
        without = ~points.active[:, index]
        if without.any():
            known = rankdata(points.columns[~without][:, group], axis=0)
            ordered[np.ix_(~without, group)] = known + without.sum() / 2
            ordered[np.ix_(without, group)] = (count + 1) / 2
    centred = ordered - (count + 1) / 2
    rng = np.random.default_rng(_SEED)
    marks = np.zeros((_SHUFFLES + 1, count))
    marks[0, count - lost :] = 1
    for row in range(1, _SHUFFLES + 1):
        marks[row, rng.permutation(count)[:lost]] = 1
    # Mann-Whitney: the mean rank of one side gives the AUC.
    strengths = np.abs(marks @ centred) * 2 / (lost * (count - lost))
    each = np.column_stack([strengths[:, group].max(axis=1) for group in points.groups])
    by_chance = float(np.quantile(each[1:].max(axis=1), 0.95))
    found = [
        Separation(name, min(1.0, float(each[0, i])), bool(each[0, i] > by_chance))
        for i, name in enumerate(points.names)
    ]
    return sorted(found, key=lambda one: -one.strength)


#: Number of parameters for which the share of failures is drawn.
PARAMETERS = 3
#: Number of intervals of a numeric parameter.
SPANS = 8
#: Finished trials in the plane, besides at most `FAILURE_LIMIT` failed ones.
DOT_LIMIT = 600


def failure_figures(data: FigureData) -> list[Figure]:
    """Draws the plane of the two parameters that separate best, and the share of failures over the best parameters.

    Empty where no trial has failed.
    """
    search, results = data.search, data.results[0]
    failed = [trial for trial in results.failed if trial.point]
    # Trials that were stopped early did not fail.
    good = [t for t in results.scanned if t.point and (t.state is TrialState.FINISHED or t.stopped_early)]
    if not failed:
        return []
    order = separations(search, good, failed) if good else [Separation(n, 0.0, False) for n in search.space.names]
    trust = _failure_note(order, good)
    best = order[:PARAMETERS]
    axes = [parameter_axis(search, one.name, [*good, *failed]) for one in best]
    figures = [_plane(axes[0], axes[1], good, failed, trust)] if len(axes) > 1 else []
    return figures + [_share(one, axes[index], index, good, failed) for index, one in enumerate(best)]


def _failure_note(order: Sequence[Separation], good: Sequence[Trial]) -> str:
    if not good:
        return "no trial has finished yet: there is nothing to compare with"
    telling = [one.name for one in order if one.beyond_chance]
    if not telling:
        return "no parameter separates failed from finished trials better than chance would"
    return f"more than chance would separate: {first_of(telling, 3)}"


def _spans(axis: Axis) -> list[tuple[float, float]]:
    """Returns intervals of the axis: of equal width, or one for each choice or each of a few integers."""
    if axis.choices:
        return [(index - 0.5, index + 0.5) for index in range(len(axis.choices))]
    distinct = sorted(set(axis.places.values()))
    if axis.is_integer and len(distinct) <= SPANS:
        return [(value - 0.5, value + 0.5) for value in distinct]
    values = [axis.scaled(value) for value in distinct]
    low, high = values[0], values[-1]
    if high <= low:
        return [(axis.unscaled(low - 0.5), axis.unscaled(high + 0.5))]
    edges = [axis.unscaled(low + (high - low) * i / SPANS) for i in range(SPANS + 1)]
    edges[-1] = math.nextafter(max(distinct[-1], edges[-1]), math.inf)  # the last interval includes its end
    edges[0] = min(distinct[0], edges[0])
    return list(itertools.pairwise(edges))


def _plane(x: Axis, y: Axis, good: Sequence[Trial], failed: Sequence[Trial], trust: str) -> Figure:
    names = (x.name, y.name)
    data = []
    for word, trials, most, marker in (
        ("finished", good, DOT_LIMIT, {"color": BLUE, "size": 7, "opacity": 0.55}),
        ("failed", failed, FAILURE_LIMIT, {"symbol": "x-thin", "size": 8, "line": {"color": RED, "width": 2}}),
    ):
        shown = evenly([t for t in trials if t.number in x.places and t.number in y.places], most)
        data.append(
            markers(
                word,
                [(x.places[t.number] + aside(t, x), y.places[t.number] + aside(t, y, 7), t) for t in shown],
                marker,
                text=partial(_failure_text, word=word, names=names),
            )
        )
    drawn = [len(trace["x"]) for trace in data]
    return plot(
        "failures-plane",
        f"Failures over {names[0]} and {names[1]}",
        f"{count(len(failed), 'failed trial')} among {count(len(good) + len(failed), 'trial')}, over the two "
        f"parameters that separate them best: {names[0]} and {names[1]}.",
        data,
        trust,
        f"shows {drawn[0]:,} of {len(good):,} finished and {drawn[1]:,} of {len(failed):,} failed trials"
        if drawn != [len(good), len(failed)]
        else "",
        "within a choice, trials are drawn side by side" if x.choices or y.choices else "",
        xaxis=x.layout,
        yaxis=y.layout,
        legend=LEGEND,
    )


def _share(one: Separation, axis: Axis, index: int, good: Sequence[Trial], failed: Sequence[Trial]) -> Figure:
    from scipy.stats import binomtest  # noqa: PLC0415

    spans = _spans(axis) if axis.places else []
    counts = [[0, 0] for _ in spans]
    for side, trials in enumerate((good, failed)):
        for trial in trials:
            if (place := axis.places.get(trial.number)) is not None:
                at = next((i for i, (low, high) in enumerate(spans) if low <= place < high), None)
                if at is not None:
                    counts[at][side] += 1
    bars = [(span, lost, lost + kept) for span, (kept, lost) in zip(spans, counts, strict=True) if lost + kept]
    shares = [lost / total for _, lost, total in bars]
    # Wilson's score interval: JASA 22 (1927) 209.
    ends = [binomtest(lost, total).proportion_ci(0.95, "wilson") for _, lost, total in bars]
    middles = [_middle(axis, span) for span, _, _ in bars]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "share of failed trials",
            "x": middles,
            "y": [round(100 * share, 2) for share in shares],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [round(100 * (high - share), 2) for share, (_, high) in zip(shares, ends, strict=True)],
                "arrayminus": [round(100 * (share - low), 2) for share, (low, _) in zip(shares, ends, strict=True)],
                "color": RED,
                "thickness": 1.5,
            },
            "text": [f"{lost} of {total} failed\n{_span_text(axis, span)}" for span, lost, total in bars],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": RED, "size": 9, "symbol": "diamond"},
        }
    ]
    worst = max(zip(shares, bars, strict=True), key=lambda pair: pair[0], default=None)
    most = f"; most at {_span_text(axis, worst[1][0])}: {worst[1][1]} of {worst[1][2]}" if worst is not None else ""
    without = len(good) + len(failed) - len(axis.places)
    return plot(
        f"failures-{index}",
        f"Failures over {one.name}",
        f"Share of failed trials over {one.name}{most}.",
        data,
        f"separates failed from finished trials by {number(one.strength, 2)} (0: not at all, 1: completely)"
        + ("" if one.beyond_chance or not good else ", which may be chance"),
        "whiskers: 95 % confidence interval of the share (Wilson)",
        f"not active in {count(without, 'trial')}" if without else "",
        xaxis=axis.layout,
        yaxis={"title": {"text": "failed, %"}, "range": [-4, 104]},
        showlegend=False,
    )


def _middle(axis: Axis, span: tuple[float, float]) -> float:
    low, high = span
    return float(rounded(math.sqrt(low * high) if axis.is_log else low + (high - low) / 2))


def _span_text(axis: Axis, span: tuple[float, float]) -> str:
    low, high = span
    if axis.choices:
        return f"{label(axis.name)} {axis.choices[round((low + high) / 2)]}"
    if axis.is_integer and high - low == 1:
        return f"{label(axis.name)} {number(low + 0.5)}"
    return f"{label(axis.name)} {number(low, 3)} to {number(high, 3)}"


def aside(trial: Trial, axis: Axis, salt: int = 3) -> float:
    """Returns a fixed small shift for choices, where all trials would be drawn at one place."""
    return ((trial.number * 0.618034 * salt) % 1 - 0.5) * 0.6 if axis.choices else 0.0


def _failure_text(trial: Trial, word: str, names: Sequence[str]) -> str:
    lines = [f"<b>trial {trial.number}</b> {word}"]
    lines += [f"{label(name)}: {label(scalar(trial.point[name]))}" for name in names]
    return "\n".join(lines)
