"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console


def console() -> Console:
    """Where tables go; lines are only wrapped on a terminal."""
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False, markup=False)


def dump(document: Any) -> None:
    """Prints a document as JSON."""
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def printable(text: str) -> str:
    """`text` without control characters: a payload's log, or a server's, must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def value_text(trial: Mapping[str, Any]) -> str:
    """The value of a trial, or of a figure of merit, with the spread of its folds."""
    value = trial["value"]
    return "-" if value is None else figure_text(value, trial["std"])


def figure_text(value: float, std: float | None) -> str:
    """A figure of merit with its spread."""
    return f"{value:.6g}" + (f" ± {std:.2g}" if std is not None else "")
