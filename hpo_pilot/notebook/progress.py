"""The progress of a search while it runs: a bar in Jupyter, lines of text in a script."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from typing import Any

from hpo_pilot.client.documents import ProgressDocument, is_unsteered, over_count
from hpo_pilot.figures.wording import count, number, plus_minus


def show_progress(news: Iterable[ProgressDocument]) -> None:
    """Shows each piece of news: in Jupyter in the place of the one before, else as a line of its own.

    An interrupt ends it quietly.
    """
    display = _jupyter()
    handle: Any = None
    shown = ""
    try:
        for now in news:
            line = progress_line(now)
            if display is None:
                if line != shown:
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
            elif handle is None:
                handle = display(_Bar(now), display_id=True)
            else:
                handle.update(_Bar(now))
            shown = line
    except KeyboardInterrupt:
        sys.stdout.write("no longer watching; the search goes on\n")


def progress_line(now: ProgressDocument) -> str:
    """How far a search is, on one line."""
    failed = now["trials"].get("failed", 0)
    parts = [f"{now['name']}: {now['state']}, {over_count(now)} of {count(now['total'], 'trial')}"]
    parts += [f"{failed} failed"] if failed else []
    parts += ["nothing steers it now"] if is_unsteered(now) else []
    if best := now["best"]:
        parts.append(f"best {now['metric']} {plus_minus(best['value'], best['std'])} (trial {best['number']})")
    if front := now.get("front"):
        parts.append(f"{count(front['size'], 'trial')} on the front, hypervolume {number(front['hypervolume'])}")
    return ", ".join(parts)


class _Bar:
    """What Jupyter shows: a bar and the line; where no HTML can be shown, the line."""

    def __init__(self, now: ProgressDocument) -> None:
        self._line = progress_line(now)
        self._over, self._total = over_count(now), max(1, now["total"])

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        label = escape(self._line)
        return (
            f'<div><progress value="{self._over}" max="{self._total}" style="width:20em" aria-label="{label}">'
            f"</progress> {label}</div>"
        )


def _jupyter() -> Any:
    """IPython's `display` in a kernel that can update what it showed; None in a terminal or a script."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython  # noqa: PLC0415 - an extra
    from IPython.display import display  # noqa: PLC0415 - as above

    shell = get_ipython()
    return display if shell is not None and hasattr(shell, "kernel") else None
