"""Figures of results: convergence, dates, distribution, Pareto front, hypervolume, folds and learning curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.report.axes import FARTHEST, Axis, label, merit_axis, rounded
from hpo_pilot.report.correlations import correlation
from hpo_pilot.report.figure import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    PALE_BLUE,
    POINT_LIMIT,
    RED,
    VALUE_AXIS,
    Figure,
    FigureData,
    PeerSearch,
    Results,
    add_failures,
    add_stopped,
    changes,
    evenly,
    for_each_objective,
    hover_text,
    is_finite,
    line_trace,
    markers,
    plot,
    projected_value,
    same_question,
    sample_note,
    step_line,
    thinned,
    value_of,
    view_note,
)
from hpo_pilot.report.formatting import NOTHING_BEYOND, count, duration, number, plus_minus, span, utc
from hpo_pilot.report.trial_documents import mean_curve
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.promotion import first_of_chain
from hpo_pilot.search.ranking import (
    TimedResult,
    best_so_far,
    convergence,
    figure_of_merit,
    figures_of_merit,
    front_of,
    hypervolumes,
    reference_of,
    reference_point,
)
from hpo_pilot.search.trials import Spent

#: Above this number of trials, error bars hide the points.
BAR_LIMIT = 200
#: Number of other searches, the latest, in the figure: more lines cannot be distinguished.
PEER_LIMIT = 6

_IN_ORDER = "results, in the order in which they came"


def convergence_figures(data: FigureData) -> list[Figure]:
    """Draws the figures of merit in the order of results, with the best so far; peers are thin lines.

    With several objectives, it is the hypervolume.
    """
    if len(data.search.objectives) > 1:
        return [_volume_figure(data.search, data.trials)]
    return [_course_figure(data.results[0], [peer for peer in data.peers if same_question(data.search, peer.search)])]


def timeline_figures(data: FigureData) -> list[Figure]:
    """Draws each figure of merit over the date at which the trial ended, with the best so far."""
    return for_each_objective(data, lambda results: [_course_figure(results, by_date=True)], "{title}: {metric}")


def _ended_at(trial: Trial) -> int | None:
    """Returns when a trial ended, in milliseconds, as plotly takes dates."""
    return round(1000 * utc(trial.ended).timestamp()) if trial.ended is not None else None


def _course_figure(results: Results, comparable: Sequence[PeerSearch] = (), *, by_date: bool = False) -> Figure:
    search, place_of = results.search, _ended_at if by_date else attrgetter("told")
    peers = [(peer, steps) for peer in comparable if (steps := convergence(peer.search, peer.trials))]
    compared = peers[-PEER_LIMIT:]
    places = {t.number: place for t in results.trials if (place := place_of(t)) is not None and t.told is not None}
    told = sorted((trial for trial in results.trials if trial.number in places), key=lambda t: places[t.number])
    scanned = [trial for trial in told if trial.confirms is None and figure_of_merit(trial) is not None]
    repeated = [trial for trial in told if trial.confirms is not None and figure_of_merit(trial) is not None]
    failed = [trial for trial in told if trial.state is TrialState.FAILED]
    projected = [trial for trial in results.projected if trial.number in places]
    infeasible = [trial for trial in results.infeasible if trial.number in places][:POINT_LIMIT]
    shown = thinned(search, scanned, POINT_LIMIT)
    steps = best_so_far(search.objective, [(places[t.number], figure_of_merit(t)) for t in told if t.confirms is None])
    own = [*map(value_of, [*scanned, *repeated, *infeasible]), *map(projected_value, projected)]
    axis = merit_axis(search, [*own, *(line[-1][1] for _, line in compared)])
    traces: list[dict[str, Any]] = [
        *(_peer_line(peer, line, first=place == 0) for place, (peer, line) in enumerate(compared)),
        _told_marks("trial", search, shown, places, {"color": BLUE, "size": 7, "opacity": 0.75}),
        {**step_line("best so far", steps, ORANGE), "hoverinfo": "skip"},
    ]
    if repeated:
        symbols = {"symbol": "diamond-open", "color": GREEN, "size": 9}
        traces.append(_told_marks("confirmation run", search, repeated[:POINT_LIMIT], places, symbols))
    if infeasible:
        symbols = {"symbol": "square-open", "color": GREY, "size": 7}
        traces.append(_told_marks("infeasible trial", search, infeasible, places, symbols))
    add_stopped(traces, search, [(places[trial.number], trial) for trial in projected])
    order: dict[str, Any] = {"title": {"text": _IN_ORDER}}
    if by_date:
        order = {"title": {"text": "end of the trial (UTC)"}, "type": "date"}
    own_width = max([search.budget.trials, *places.values()])
    longest = max((line[-1][0] for _, line in compared), default=0)
    if longest > own_width:  # else few trials would be a heap at the left
        order["range"] = [0, 1.03 * own_width]
    if not by_date and max([longest, *places.values()]) <= 12:
        order["dtick"] = 1
    layout = {"xaxis": order, "yaxis": axis.layout, "legend": LEGEND, "meta": VALUE_AXIS}
    add_failures(traces, layout, [(places[trial.number], trial) for trial in failed])
    metric = search.objective.metric
    reached = f"; the best {metric} reached is {number(steps[-1][1])}" if steps else ""
    others = ", ".join(f"{peer.name} {number(line[-1][1])}" for peer, line in compared)
    rings = len(projected)
    return plot(
        "timeline" if by_date else "convergence",
        "Results by date" if by_date else "Convergence",
        f"{metric} of {count(len(scanned), 'finished trial')} {'by date' if by_date else 'in the order of results'}, "
        f"with the best so far{reached}; {count(len(failed), 'failed trial')}."
        + (f" Other searches of the same space reached a {metric} of: {others}." if others else ""),
        traces,
        sample_note(len(shown), len(scanned)),
        f"rings: {count(rings, 'trial')} stopped early, each at its probable final value" if rings else "",
        results.not_projected_note,
        view_note(axis),
        f"the latest {PEER_LIMIT} of {len(peers)} searches of the same space" if compared != peers else "",
        f"other searches have up to {longest:,} results, beyond the first view; double-click shows all"
        if longest > own_width
        else "",
        **layout,
    )


def _peer_line(peer: PeerSearch, steps: Sequence[tuple[int, float]], first: bool) -> dict[str, Any]:
    return {
        **step_line("other searches of the same space", steps, "rgba(128,138,149,0.8)", 1.2),
        "legendgroup": "peers",
        "showlegend": first,
        "hovertemplate": f"{label(peer.name)}: best %{{y}} after %{{x}} results<extra></extra>".replace("\n", " "),
    }


def _told_marks(
    name: str, search: Search, trials: Sequence[Trial], places: Mapping[int, int], marker: Mapping[str, Any]
) -> dict[str, Any]:
    points = [(places[trial.number], value_of(trial), trial) for trial in trials]
    trace = markers(name, points, marker, text=partial(hover_text, search))
    spreads = [trial.std if is_finite(trial.std) else None for trial in trials]
    if len(trials) <= BAR_LIMIT and any(spread is not None for spread in spreads):
        bars = [0 if spread is None else rounded(spread) for spread in spreads]
        trace["error_y"] = {"type": "data", "array": bars, "color": PALE_BLUE, "thickness": 1, "width": 0}
    return trace


#: Points of a line of the distribution; least number of results for a line for each half of them.
_LEVELS, _LEAST_HALVES = 400, 16


def distribution_figures(data: FigureData) -> list[Figure]:
    """Draws for each objective the share of trials that are at least as good as a figure of merit."""
    return for_each_objective(data, _distribution_figures, "{title}: {metric}")


def _distribution_figures(results: Results) -> list[Figure]:
    search = results.search
    if not results.finished:
        return []
    trials = sorted(results.finished, key=lambda trial: trial.told or 0)
    middle = len(trials) // 2 if len(trials) >= _LEAST_HALVES else 0
    parts = [("all results", trials, BLUE, 2.5)]
    if middle:
        parts += [("first half", trials[:middle], GREY, 1.5), ("second half", trials[middle:], ORANGE, 1.5)]
    traces = []
    for name, part, colour, width in parts:
        values = sorted(map(value_of, part), reverse=search.objective.sign < 0)
        steps = [(value, 100 * place / len(values)) for place, value in enumerate(values, start=1)]
        levels = [*evenly(steps[:-1], _LEVELS), steps[-1]]
        x, y = [value for value, _ in levels], [rounded(share) for _, share in levels]
        hover = "%{y:.3g} % have %{x} or better<extra>" + name + "</extra>"
        line = {"shape": "hv", "color": colour, "width": width}
        traces.append(line_trace(name, x, y, line, hovertemplate=hover))
    axis = merit_axis(search, results.values)
    ordered = sorted(results.values)
    return [
        plot(
            "distribution",
            "Distribution of results",
            f"Share of {count(len(trials), 'finished trial')} over {axis.name}; half of them have "
            f"{number(ordered[len(ordered) // 2])} or better.",
            traces,
            "how many trials are at least as good as a value (empirical distribution)",
            "if the optimizer learns, the second half of the results is above the first" if middle else "",
            f"{count(len(results.stopped), 'stopped trial')} left out" if results.stopped else "",
            view_note(axis),
            xaxis=axis.layout,
            yaxis={"title": {"text": "trials, %"}, "range": [0, 101]},
            legend=LEGEND,
            meta={"values": ["xaxis"]},
        )
    ]


#: Most searches in a comparison: more colours cannot be distinguished.
COMPARED_LIMIT = 8
COLOURS = (BLUE, ORANGE, GREEN, RED, "#b065d8", "#8a6d3b", "#17a2b8", "#6b7280")


@dataclass(frozen=True)
class ComparedSearch:
    """A search in a comparison.

    Attributes:
        name: name of the search in the figure.
        search: its definition.
        results: its results in their order; with one objective only those that improved the best value, and the last.
    """

    name: str
    search: Search
    results: Sequence[TimedResult]


def comparison_figures(searches: Sequence[ComparedSearch]) -> list[Figure]:
    """Draws the best so far of searches with the same objectives, over results, time and cost.

    With several objectives, it is the hypervolume beyond the reference point of the first search.
    """
    first = searches[0]
    found = (one.figures for one in first.results if one.figures is not None)
    reference = reference_point(first.search.objectives, found)
    unit = "GPU-hours" if all(one.search.resources.gpus for one in searches) else "core-hours"
    courses = [(one.name, _course(one, reference, unit)) for one in searches]
    several = len(first.search.objectives) > 1
    what = "hypervolume" if several else first.search.objective.metric
    values = [value for _, course in courses for value in _values_after_results(course)]
    if not values:
        return []
    title = {"title": {"text": label(f"best {what} so far" if not several else what)}}
    axis = Axis(what, {}) if several else merit_axis(first.search, values)
    reached = ", ".join(f"{name} {number(course[-1][3])}" for name, course in courses if course)
    titles = ("results", "hours since the first submission", f"{unit} of all jobs so far")
    return [
        plot(
            f"compare-{key}",
            f"Over {key}",
            f"Best {what} over {horizontal} of {count(len(courses), 'search', 'searches')}; reached: {reached}.",
            [_course_line(*one, index, COLOURS[place % 8]) for place, one in enumerate(courses) if one[1]],
            view_note(axis, what="step"),
            xaxis={"title": {"text": horizontal}, "rangemode": "tozero"},
            yaxis={**axis.layout, **title},
            legend=LEGEND,
            meta=VALUE_AXIS,
        )
        for index, (key, horizontal) in enumerate(zip(("trials", "time", "cost"), titles, strict=True))
    ]


#: Result number, hours since the first submission, cost so far, best so far, and the trial that reached it.
_Step: TypeAlias = tuple[int, float, float, float, int]


def _course(one: ComparedSearch, reference: Sequence[float] | None, unit: str) -> list[_Step]:
    """Returns the steps of a search at its results; `unit`: of the cost."""
    objectives, price = one.search.objectives, price_of(one.search)
    if len(objectives) == 1:
        values = ((each.told, each.figures[0] if each.figures else None) for each in one.results)
        best = dict(best_so_far(objectives[0], values))
    else:
        best = dict(hypervolumes(objectives, [(each.told, each.figures) for each in one.results], reference or ()))
    steps: list[_Step] = []
    for each in one.results:
        if each.told in best:
            took = price.cost(Spent(each.job_seconds))
            cost = took.gpu_hours if unit == "GPU-hours" else took.core_hours
            same = steps and steps[-1][3] == best[each.told]
            steps.append((each.told, each.passed / 3600, cost, best[each.told], steps[-1][4] if same else each.trial))
    return steps


def _values_after_results(course: Sequence[_Step]) -> list[float]:
    """Returns the best value after each result, also after those that are left out."""
    following = [*(step[0] for step in course[1:]), course[-1][0] + 1] if course else []
    return [step[3] for step, told in zip(course, following, strict=True) for _ in range(step[0], told)]


def _course_line(name: str, course: Sequence[_Step], index: int, colour: str) -> dict[str, Any]:
    kept = changes(course, lambda step: step[3])
    texts = [
        f"<b>{label(name)}</b>\n{number(step[3])} by trial {step[4]}, after {count(step[0], 'result')}" for step in kept
    ]
    return line_trace(
        label(name),
        [rounded(step[index]) for step in kept],
        [rounded(step[3]) for step in kept],
        {"shape": "hv", "color": colour, "width": 2.5},
        mode="lines+markers",
        meta=name,  # the search of these trials
        customdata=[step[4] for step in kept],
        marker={"size": 5},
        text=texts,
        hovertemplate="%{text}<extra></extra>",
    )


#: Number of figures of pairs of objectives; more than four objectives would have too many.
_MOST_PAIRS = 6


def front_figures(data: FigureData) -> list[Figure]:
    """Draws the trials in the plane of each pair of objectives, with the front marked."""
    front = [standing.trial for standing in front_of(data.search, data.trials)]
    on_front = {trial.number for trial in front}
    others = [
        trial
        for trial in data.trials
        if trial.confirms is None and trial.number not in on_front and figures_of_merit(data.search, trial) is not None
    ]
    pairs = itertools.islice(itertools.combinations(range(len(data.search.objectives)), 2), _MOST_PAIRS)
    return [_pair_figure(data, x, y, front, others) for x, y in pairs]


def _pair_figure(data: FigureData, x: int, y: int, front: Sequence[Trial], others: Sequence[Trial]) -> Figure:
    search = data.search
    shown = evenly(others, max(0, POINT_LIMIT - len(front)))
    traces = []
    for name, trials, marker in (
        ("other trial", shown, {"color": PALE_BLUE, "size": 7}),
        ("front", front, {"color": ORANGE, "size": 9}),
    ):
        points = [(rounded(trial.values[x]), rounded(trial.values[y]), trial) for trial in trials]
        traces.append(markers(name, points, marker, text=partial(hover_text, search)))
    if len(search.objectives) == 2:  # with more, the front is not a line in this plane
        traces[1] |= {"mode": "lines+markers", "line": {"shape": "hv", "color": ORANGE, "width": 1.5}}
    across, along = (
        merit_axis(data.results[index].search, [rounded(trial.values[index]) for trial in [*others, *front]])
        for index in (x, y)
    )
    stopped = sum(trial.stopped_early for trial in data.trials)
    better = ("left" if search.objectives[x].sign > 0 else "right", "down" if search.objectives[y].sign > 0 else "up")
    return plot(
        f"front-{x}-{y}",
        f"{across.name} and {along.name}",
        f"{along.name} against {across.name} for {count(len(front) + len(others), 'finished trial')}; "
        f"{count(len(front), 'trial')} on the Pareto front.",
        traces,
        sample_note(len(shown), len(others)),
        view_note(across, along),
        f"better is to the {better[0]} and {better[1]}",
        f"{count(stopped, 'trial')} stopped early not shown" if stopped else "",
        xaxis=across.layout,
        yaxis=along.layout,
        legend=LEGEND,
        meta={"values": ["xaxis", "yaxis"]},
    )


def _volume_figure(search: Search, trials: Sequence[Trial]) -> Figure:
    """Draws the hypervolume after each result."""
    steps, reference = convergence(search, trials), reference_of(search, trials)
    line = {**step_line("hypervolume", steps, BLUE), "hovertemplate": "%{x}: %{y}<extra></extra>"}
    reached = f": {number(steps[-1][1])}" if steps else ""
    at = ", ".join(
        f"{o.metric} {number(figure)}" for o, figure in zip(search.objectives, reference or (), strict=False)
    )
    given = all(objective.reference is not None for objective in search.objectives)
    how = "given in the search file" if given else "chosen from the first results where the search file gives none"
    return plot(
        "convergence",
        "Hypervolume",
        f"The volume between the Pareto front and the reference point after each result{reached}.",
        [line],
        f"results beyond the reference point {at} ({how}) do not count",
        NOTHING_BEYOND if steps and not steps[-1][1] else "",
        view_note(Axis("hypervolume", {}, cut=bool(steps) and steps[-1][1] > FARTHEST)),
        xaxis={"title": {"text": _IN_ORDER}},
        yaxis={"title": {"text": "hypervolume"}, "rangemode": "tozero"},
        showlegend=False,
    )


FOLD_TRIALS = 20


def fold_figures(data: FigureData) -> list[Figure]:
    """Draws for each objective the folds of its best trials; empty where no trial has two folds."""
    return for_each_objective(data, _fold_figures, "{title}: {metric}")


def _fold_figures(results: Results) -> list[Figure]:
    search, top = results.search, results.ranked[:FOLD_TRIALS]
    dots = [(trial, fold.value) for trial in top for fold in trial.folds if is_finite(fold.value)]
    if len(dots) == len({trial.number for trial, _ in dots}):
        return []
    spreads = [rounded(trial.std) if is_finite(trial.std) else 0 for trial in top]

    def marked(name: str, kind: str, points: Sequence[tuple[Trial, float]], marker: dict[str, Any]) -> dict[str, Any]:
        hover = f"trial %{{x}}<br>%{{y}}<extra>{kind}</extra>"
        return markers(name, [(str(trial.number), rounded(figure), trial) for trial, figure in points], marker, hover)

    ring = {"symbol": "circle-open", "color": BLUE, "size": 7}
    bar = {"symbol": "line-ew-open", "color": ORANGE, "size": 14, "line": {"width": 2.5}}
    means = marked("mean ± standard deviation", "mean", [(trial, value_of(trial)) for trial in top], bar)
    means["error_y"] = {"type": "data", "array": spreads, "color": ORANGE, "thickness": 1.5}
    first = top[0]
    return [
        plot(
            "folds",
            "Spread over the folds",
            f"{search.objective.metric} in each fold of the {count(len(top), 'best trial')}; "
            f"trial {first.number}: {plus_minus(first.value, first.std)}.",
            [marked("fold", "fold", dots, ring), means],
            xaxis={"title": {"text": "trial, best first"}, "type": "category"},
            yaxis=merit_axis(search, [figure for _, figure in dots]).layout,
            legend=LEGEND,
            meta=VALUE_AXIS,
        )
    ]


#: Number of curves in the figure, and points of each: more cannot be distinguished.
CURVE_LIMIT = 100
PLACE_LIMIT = 60
#: Steps over more than this factor are drawn on a log scale.
_LOG_FACTOR = 200

_Curve: TypeAlias = list[tuple[int, float]]

_PALE_RED = "rgba(214,69,69,0.45)"


def drawn_trials(data: FigureData) -> list[int]:
    """Returns the numbers of the trials whose curves are drawn: a quarter are the best, the rest is an even sample."""
    scanned = [trial.number for trial in data.trials if trial.confirms is None]
    if len(scanned) <= CURVE_LIMIT:
        return scanned
    keep = {trial.number for trial in data.reported.ranked[: CURVE_LIMIT // 4]}
    keep.update(evenly([number for number in scanned if number not in keep], CURVE_LIMIT - len(keep)))
    return [number for number in scanned if number in keep]


def curve_figures(data: FigureData) -> list[Figure]:
    """Draws intermediate values over steps; empty where no trial reported two values."""
    results = data.reported
    search = results.search
    curves = {number: _thinned(mean_curve(folds.values())) for number, folds in data.reports.items()}
    known = [trial for trial in results.trials if len(curves.get(trial.number, ())) > 1]
    if not known:
        return []
    best = results.best.number if results.best else None
    stopped = [trial.number for trial in known if trial.stopped_early]
    others = [trial.number for trial in known if not trial.stopped_early and trial.number != best]
    traces = [
        _lines(name, {number: curves[number] for number in numbers}, line)
        for name, numbers, line in (
            ("trial", others, {"color": PALE_BLUE, "width": 1.2}),
            ("stopped early", stopped, {"color": _PALE_RED, "width": 1.2}),
            ("best", [trial.number for trial in known if trial.number == best], {"color": ORANGE, "width": 2.5}),
        )
        if numbers
    ]
    ends = [(trial, last) for trial in known if trial.stopped_early and (last := _last(curves[trial.number]))]
    if ends:
        traces.append(
            markers(
                "stopped here",
                [(step, rounded(value), trial) for trial, (step, value) in ends],
                {"symbol": "x-thin", "size": 6, "line": {"color": RED, "width": 1.5}},
                "%{text}<br>stopped at step %{x}<br>%{y}<extra></extra>",
                lambda trial: f"trial {trial.number}",
            )
        )
    steps = [step for trial in known for step, _ in curves[trial.number]]
    horizontal: dict[str, Any] = {"title": {"text": "step"}}
    if min(steps) > 0 and max(steps) > _LOG_FACTOR * min(steps):
        horizontal["type"] = "log"
    axis = merit_axis(search, [value for trial in known for _, value in curves[trial.number] if math.isfinite(value)])
    diverged = sum(not math.isfinite(curves[trial.number][-1][1]) for trial in known)
    return [
        plot(
            "curves",
            "Learning curves",
            f"{axis.name} over the steps of {count(len(known), 'trial')}; {len(stopped):,} stopped early.",
            traces,
            f"shows {len(known):,} of {len(results.scanned):,} trials" if len(known) < len(results.scanned) else "",
            "means over the folds" if search.folds.k > 1 else "",
            f"{count(diverged, 'trial')} ended with no number" if diverged else "",
            view_note(axis, what="value"),
            xaxis=horizontal,
            yaxis=axis.layout,
            legend=LEGEND,
            meta=VALUE_AXIS,
        )
    ]


def level_figures(data: FigureData) -> list[Figure]:
    """Draws the figure of merit of each point over the levels of its training; empty for a search without levels."""
    return for_each_objective(data, _level_figures, "{title}: {metric}") if data.search.levels is not None else []


def _level_figures(results: Results) -> list[Figure]:
    search, trials = results.search, {trial.number: trial for trial in results.scanned}
    chains: dict[int, list[Trial]] = {}
    for trial in sorted(results.finished, key=lambda trial: trial.level or 0):
        if trial.level is not None and (trial.continues is None or trial.continues in trials):
            chains.setdefault(first_of_chain(trials, trial), []).append(trial)
    if not chains:
        return []
    name = search.level_name
    best = first_of_chain(trials, results.best) if results.best and results.best.number in trials else None
    shown = {number: chains[number] for number in evenly(sorted(chains), POINT_LIMIT)}
    groups = (
        ("point", [n for n in shown if n != best], {"color": PALE_BLUE, "width": 1.2}),
        ("best", [n for n in shown if n == best], {"color": ORANGE, "width": 2.5}),
    )
    lines = {number: [(trial.level or 0.0, value_of(trial)) for trial in chain] for number, chain in shown.items()}
    hover = f"%{{text}}<br>{label(name)} %{{x}}<br>%{{y}}<extra></extra>"
    traces = [
        {**_lines(text, {n: lines[n] for n in numbers}, line), "mode": "lines+markers", "hovertemplate": hover}
        for text, numbers, line in groups
        if numbers
    ]
    axis = merit_axis(search, [value_of(trial) for chain in chains.values() for trial in chain])
    return [
        plot(
            "levels",
            "Levels",
            f"{axis.name} of {count(len(chains), 'point')} over {name}.",
            traces,
            _levels_text(results, chains, name),
            sample_note(len(shown), len(chains), "an even sample"),
            view_note(axis),
            xaxis={"title": {"text": label(name)}, "type": "log"},
            yaxis=axis.layout,
            legend=LEGEND,
            meta=VALUE_AXIS,
        )
    ]


def _levels_text(results: Results, chains: Mapping[int, Sequence[Trial]], name: str) -> str:
    """Returns trials, run time and rank correlation with the highest level of each level in words."""
    by_level: dict[float, dict[int, float]] = {}
    for first, chain in chains.items():
        for trial in chain:
            by_level.setdefault(trial.level or 0, {})[first] = value_of(trial)
    top, texts = max(by_level), []
    for level, values in sorted(by_level.items()):
        seconds = sum(span(t.started, t.ended) or 0.0 for t in results.scanned if t.level == level)
        text = f"{name} {level:g}: {count(len(values), 'trial')}, {duration(seconds)}"
        both = [(value, by_level[top][key]) for key, value in values.items() if key in by_level[top]]
        if level < top and both:
            found = correlation(*np.array(both).T)
            text += "" if found is None else f", rank correlation with {top:g}: {number(found)}"
        texts.append(text)
    return "; ".join(texts)


def _thinned(curve: _Curve) -> _Curve:
    """Returns at most `PLACE_LIMIT` points of a curve, with the last one."""
    return curve if len(curve) <= PLACE_LIMIT else [*evenly(curve[:-1], PLACE_LIMIT - 1), curve[-1]]


def _last(curve: _Curve) -> tuple[int, float] | None:
    """Returns the last point that can be drawn."""
    return next((place for place in reversed(curve) if math.isfinite(place[1])), None)


def _lines(name: str, curves: Mapping[int, Sequence[tuple[float, float]]], line: dict[str, Any]) -> dict[str, Any]:
    """Returns curves as one trace, because a hundred would be slow; gaps are between curves and at missing values."""
    points: list[tuple[float | None, float | None, str, int | None]] = []
    for trial, curve in curves.items():
        points += [(None, None, "", None)] if points else []
        points += [(step, rounded(v) if math.isfinite(v) else None, f"trial {trial}", trial) for step, v in curve]
    steps, values, texts, trials = map(list, zip(*points, strict=True))
    hover = "%{text}<br>step %{x}<br>%{y}<extra></extra>"
    more = {"text": texts, "customdata": trials, "connectgaps": False, "hovertemplate": hover}
    return line_trace(name, steps, values, line, **more)
