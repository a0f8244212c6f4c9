"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console

#: Columns of a terminal that nobody looks at: more than any table has.
_NO_TERMINAL = 1_000_000


def console() -> Console:
    """Where tables go; only on a terminal do they have to fit."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    return Console(width=_NO_TERMINAL, soft_wrap=True, highlight=False, markup=False)


def dump(document: Any) -> None:
    """Prints a document as JSON."""
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def printable(text: str) -> str:
    """`text` without control characters: a payload's log, or a server's, must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def value_text(trial: Mapping[str, Any], digits: int = 6) -> str:
    """The value of a trial, or of a figure of merit, with the spread of its folds."""
    value = trial["value"]
    return "-" if value is None else figure_text(value, trial["std"], digits)


def figure_text(value: float, std: float | None, digits: int = 6) -> str:
    """A figure of merit with its spread."""
    return f"{value:.{digits}g}" + (f" ± {std:.2g}" if std is not None else "")
