"""The figure of convergence: what each trial gave, and the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_pilot.figures.axis import figure_axis, label, view_note
from hpo_pilot.figures.figure import (
    BLUE,
    GREEN,
    LEGEND,
    ORANGE,
    PALE_BLUE,
    POINT_LIMIT,
    Figure,
    add_failures,
    add_stopped,
    guess_of,
    guessed,
    is_finite,
    joined_notes,
    no_ring_note,
    rings_note,
    rounded,
    sample_note,
    thinned,
    value_of,
)
from hpo_pilot.figures.subject import PEER_LIMIT, Peer, same_question
from hpo_pilot.figures.summary import convergence, figure_of, ranking
from hpo_pilot.figures.wording import count, number, plus_minus, scalar
from hpo_pilot.search import Search, Trial, TrialState

HOVER_PARAMETERS = 12
#: Above this many trials error bars only hide the points.
BAR_LIMIT = 200


def convergence_figure(search: Search, trials: Sequence[Trial], peers: Sequence[Peer] = ()) -> Figure:
    """Each trial's figure of merit in the order of results, and the best so far; that of peers as thin lines."""
    comparable = [peer for peer in peers if same_question(search, peer.search) and ranking(peer.search, peer.trials)]
    compared = comparable[-PEER_LIMIT:]
    told = [trial for trial in trials if trial.told is not None]
    scanned = [trial for trial in told if trial.confirms is None and figure_of(trial) is not None]
    shown = sorted(thinned(search, scanned, POINT_LIMIT), key=lambda trial: trial.told or 0)
    repeated = [trial for trial in told if trial.confirms is not None and figure_of(trial) is not None][:POINT_LIMIT]
    steps = convergence(search, trials)
    stopped = guessed(told)
    axis = figure_axis(search, [*map(value_of, [*scanned, *repeated]), *map(guess_of, stopped)])
    data: list[dict[str, Any]] = [
        *(_peer(peer, first=place == 0) for place, peer in enumerate(compared)),
        {**_markers(search, shown), "name": "trial"},
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best so far",
            "line": {"shape": "hv", "color": ORANGE, "width": 2.5},
            "hoverinfo": "skip",
            **corners(steps),
        },
    ]
    if repeated:
        symbols = {"symbol": "diamond-open", "color": GREEN, "size": 9}
        data.append({**_markers(search, repeated), "name": "confirmation run", "marker": symbols})
    add_stopped(data, search, [(trial.told, trial) for trial in stopped])
    failed = [trial for trial in told if trial.state is TrialState.FAILED]
    order: dict[str, Any] = {"title": {"text": "results, in the order in which they came"}}
    if len(told) <= 12:
        order["dtick"] = 1
    layout = {
        "xaxis": order,
        "yaxis": axis.layout,
        "legend": LEGEND,
    }
    add_failures(data, layout, [(trial.told, trial) for trial in failed])
    metric = search.objective.metric
    others = [(peer.name, convergence(peer.search, peer.trials)[-1][1]) for peer in compared]
    reached = f"; the best {metric} reached is {number(steps[-1][1])}" if steps else ""
    return Figure(
        "convergence",
        "Convergence",
        f"{metric} of {count(len(scanned), 'finished trial')} in the order of results, with the best so far"
        f"{reached}; {count(len(failed), 'failed trial')}.{_compared(metric, others)}",
        joined_notes(
            sample_note(len(shown), len(scanned)),
            rings_note(told),
            no_ring_note(told),
            view_note(axis),
            f"the latest {PEER_LIMIT} of {len(comparable)} searches of the same space"
            if compared != comparable
            else "",
        ),
        {"data": data, "layout": layout},
    )


def _peer(peer: Peer, first: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "other searches of the same space",
        "legendgroup": "peers",
        "showlegend": first,
        "line": {"shape": "hv", "color": "rgba(128,138,149,0.8)", "width": 1.2},
        "hovertemplate": f"{label(peer.name)}: best %{{y}} after %{{x}} results<extra></extra>".replace("\n", " "),
        **corners(convergence(peer.search, peer.trials)),
    }


def _compared(metric: str, others: Sequence[tuple[str, float]]) -> str:
    """The peers in a sentence of its own."""
    if not others:
        return ""
    reached = ", ".join(f"{name} {number(best)}" for name, best in others)
    return f" Other searches of the same space reached a {metric} of: {reached}."


def _markers(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [trial.told for trial in trials],
        "y": [value_of(trial) for trial in trials],
        "text": [hover_text(search, trial) for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": BLUE, "size": 7, "opacity": 0.75},
    }
    spreads = [trial.std if is_finite(trial.std) else None for trial in trials]
    if len(trials) <= BAR_LIMIT and any(spread is not None for spread in spreads):
        bars = [0 if spread is None else rounded(spread) for spread in spreads]
        trace["error_y"] = {"type": "data", "array": bars, "color": PALE_BLUE, "thickness": 1, "width": 0}
    return trace


def hover_text(search: Search, trial: Trial) -> str:
    """The text beside a point; the page's script makes its line ends plotly's."""
    figures, spreads = trial.figures or (), trial.spreads or (None,) * len(search.objectives)
    texts = [
        f"{label(objective.metric)} {plus_minus(figure, spread)}"
        for objective, figure, spread in zip(search.objectives, figures, spreads, strict=False)
    ]
    lines = [f"<b>trial {trial.number}</b>  {', '.join(texts)}"]
    if trial.confirms is not None:
        lines.append(f"confirms trial {trial.confirms}")
    names = list(trial.point)[:HOVER_PARAMETERS]
    lines += [f"{label(name)}: {label(scalar(trial.point[name]))}" for name in names]
    if len(trial.point) > len(names):
        lines.append(f"and {len(trial.point) - len(names)} more")
    return "\n".join(lines)


def corners(steps: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """The places where the best so far changes, and the end: a step line needs no others."""
    kept = [s for i, s in enumerate(steps) if i in (0, len(steps) - 1) or s[1] != steps[i - 1][1]]
    return {"x": [place for place, _ in kept], "y": [rounded(best) for _, best in kept]}
