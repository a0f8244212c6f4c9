"""A figure, as a specification for plotly.js, and what all figures have in common.

Plain dictionaries rather than plotly's Python objects: those would cost every report half a second of checks that a
test makes once. Colours of text and grid come from the page's style sheet, so that figures follow its theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

from markupsafe import escape

from hpo_pilot.figures.wording import count, number
from hpo_pilot.search import Search, Trial, TrialState

_Item = TypeVar("_Item")

#: Markers in one figure: more only cost size and time.
POINT_LIMIT = 1500
FAILURE_LIMIT = 300
STOPPED_LIMIT = 300

#: Values beyond are drawn there: plotly shows nothing from 1.8e304 on.
FARTHEST = 1e304

BLUE, PALE_BLUE, ORANGE, RED, GREEN = "#3987d6", "rgba(57,135,214,0.4)", "#e0810b", "#d64545", "#2a9d6f"

#: Above the plot, where it hides nothing.
LEGEND = {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        key: its id in the page.
        title: what it shows.
        description: the same in a sentence with the main numbers, for those who do not see it.
        note: what a reader must know to read it right; may be empty.
        spec: plotly's ``data`` and ``layout``.
    """

    key: str
    title: str
    description: str
    note: str = ""
    spec: dict[str, Any] = field(default_factory=dict)


def add_failures(data: list[dict[str, Any]], layout: dict[str, Any], failed: Sequence[tuple[Any, Trial]]) -> None:
    """Marks failed trials in a strip of their own under the plot: they have no place on its axis."""
    if not failed:
        return
    failed = evenly(failed, FAILURE_LIMIT)
    layout["yaxis"] = {**layout["yaxis"], "domain": [0.14, 1]}
    layout["xaxis"] = {**layout["xaxis"], "anchor": "y2"}
    layout["yaxis2"] = {
        "domain": [0, 0.09],
        "range": [-1, 1],
        "tickvals": [0],
        "ticktext": ["failed"],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "failed trial",
            "yaxis": "y2",
            "x": [x for x, _ in failed],
            "y": [0] * len(failed),
            "text": [f"trial {trial.number} failed" for _, trial in failed],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "x-thin", "size": 7, "line": {"color": RED, "width": 2}},
        }
    )


def add_stopped(data: list[dict[str, Any]], search: Search, stopped: Sequence[tuple[Any, Trial]]) -> None:
    """Rings where trials that were stopped early would probably have come to; `stopped` are (x, trial) with a guess."""
    if not stopped:
        return
    stopped = evenly(stopped, STOPPED_LIMIT)
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "stopped early: its probable value",
            "x": [x for x, _ in stopped],
            "y": [guess_of(trial) for _, trial in stopped],
            "text": [_stopped_text(search, trial) for _, trial in stopped],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "circle-open", "color": BLUE, "size": 7},
        }
    )


def _stopped_text(search: Search, trial: Trial) -> str:
    assert trial.stop is not None
    return (
        f"trial {trial.number}, stopped at step {trial.stop.step}\n"
        f"its {escape(search.objective.metric)} would probably have become {number(guess_of(trial))}"
    )


def guessed(trials: Sequence[Trial]) -> list[Trial]:
    """Those that were stopped early and of which a guess says what the objective would have come to."""
    return [t for t in trials if t.confirms is None and t.stopped_early and t.stop is not None and t.stop.projected]


def guess_of(trial: Trial) -> float:
    """What a stopped trial would probably have come to."""
    assert trial.stop is not None
    assert trial.stop.projected is not None
    return float(rounded(trial.stop.projected[0]))


def rings_note(trials: Sequence[Trial]) -> str:
    """Says what the rings are; empty where there are none."""
    shown = len(guessed(trials))
    return f"rings: {count(shown, 'trial')} stopped early, each at its probable final value" if shown else ""


def no_ring_note(trials: Sequence[Trial]) -> str:
    """Says how many trials that were stopped early are not shown; empty where all are."""
    without = sum(trial.confirms is None and trial.stopped_early for trial in trials) - len(guessed(trials))
    return f"{count(without, 'stopped trial')} not shown, for lack of a guess" if without else ""


def thinned(search: Search, trials: Sequence[Trial], limit: int) -> list[Trial]:
    """At most `limit` of the finished `trials`, in their order: the best quarter of the limit, and an even sample."""
    if len(trials) <= limit:
        return list(trials)
    best = sorted(trials, key=lambda trial: value_of(trial) * search.objective.sign)[: limit // 4]
    keep = {trial.number for trial in best}
    rest = [trial.number for trial in trials if trial.number not in keep]
    keep.update(evenly(rest, limit - len(keep)))
    return [trial for trial in trials if trial.number in keep]


def evenly(items: Sequence[_Item], limit: int) -> list[_Item]:
    """At most `limit` of the items, spread evenly, in their order."""
    return [items[i * len(items) // limit] for i in range(limit)] if len(items) > limit else list(items)


def value_of(trial: Trial) -> float:
    """The figure of merit of a finished trial."""
    assert trial.value is not None
    return float(rounded(trial.value))


def rounded(value: Any) -> Any:
    """Nine significant digits are more than a figure shows; the rest would only add to its size."""
    return float(f"{max(-FARTHEST, min(FARTHEST, value)):.9g}") if isinstance(value, float) else value


def is_finite(value: float | None) -> TypeGuard[float]:
    """Whether `value` can be drawn."""
    return value is not None and math.isfinite(value)


def finished_count(trials: Sequence[Trial]) -> int:
    """How many trials, confirmation runs aside, finished with a figure of merit."""
    return sum(t.confirms is None and t.state is TrialState.FINISHED and is_finite(t.value) for t in trials)


def message_figure(key: str, title: str, text: str) -> Figure:
    """A figure that shows no more than why there is nothing to show."""
    words = {"text": str(escape(text)), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    layout = {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "annotations": [words]}
    return Figure(key, title, text, spec={"data": [], "layout": layout})


def sample_note(shown: int, all_of_them: int) -> str:
    """Says that a figure shows only some of the trials; empty where it shows all."""
    return f"shows {shown:,} of {all_of_them:,} trials: the best and an even sample" if shown < all_of_them else ""


def joined_notes(*notes: str) -> str:
    """The notes that are not empty, as a sentence."""
    text = "; ".join(note for note in notes if note)
    return text[:1].upper() + text[1:] + "." if text else ""
