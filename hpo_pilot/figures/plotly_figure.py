"""Figures for what draws them without our script, notebooks and files; `static/figures.js` does the same for pages."""

from __future__ import annotations

from typing import Any

from markupsafe import escape

from hpo_pilot.figures.figure import Figure

_AXIS = {"automargin": True, "gridcolor": "#dde2e8", "linecolor": "#888", "zerolinecolor": "#bbc2ca", "showline": True}
_COMMON = {
    "paper_bgcolor": "#ffffff",
    "plot_bgcolor": "#ffffff",
    "font": {"size": 12, "color": "#1b1f24"},
    "hoverlabel": {"bgcolor": "#1b1f24", "font": {"color": "#ffffff"}, "align": "left"},
    "hovermode": "closest",
}


def plotly_spec(figure: Figure, *, title: bool = False) -> dict[str, Any]:
    """Plotly's ``data`` and ``layout`` of a figure, black on white; `title` draws its title too."""
    layout: dict[str, Any] = {**_COMMON, **figure.spec.get("layout", {})}
    for name in ("xaxis", "yaxis", "yaxis2"):
        if name in layout:
            layout[name] = {**_AXIS, **layout[name]}
    above = (34 if "legend" in layout else 8) + (30 if title else 0)
    layout["margin"] = {"l": 62, "r": 20, "b": 46, **layout.get("margin", {})}
    layout["margin"]["t"] = layout["margin"].get("t", 0) + above
    if title:
        layout["title"] = {"text": str(escape(figure.title)), "x": 0, "xref": "paper", "yref": "container", "y": 0.97}
    return {"data": [_broken(trace) for trace in figure.spec.get("data", ())], "layout": layout}


def _broken(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace with plotly's line breaks in its texts."""
    text = trace.get("text")
    if not isinstance(text, list) or trace["type"] in ("contour", "heatmap"):
        return trace
    return {**trace, "text": [str(one).replace("\n", "<br>") for one in text]}
