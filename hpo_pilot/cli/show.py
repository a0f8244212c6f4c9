"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from hpo_pilot.advice import Place

if TYPE_CHECKING:
    from hpo_pilot.client.outlook_documents import EtaDocument

#: Columns of a terminal that nobody looks at: more than any table has.
_NO_TERMINAL = 1_000_000

#: Where the searches are that the running command is about, as its options say.
_place: ContextVar[Place] = ContextVar("place", default=Place())  # noqa: B039  it is frozen

#: The version of what ``--json`` prints; it grows where a key goes or changes its meaning.
JSON_VERSION = 1

#: What a hypervolume of nothing means.
NOTHING_BEYOND = "no trial is better than the reference point in every objective: the hypervolume is 0"


def advised(text: str) -> str:
    """`text` with the options that commands in it need to mean the searches that the running command is about."""
    return _place.get().completed(text)


@contextmanager
def about_place(options: Mapping[str, Any]) -> Iterator[None]:
    """For the length of a block, `options` are those that the running command was given."""
    token = _place.set(Place(**{field.name: options.get(field.name) for field in fields(Place)}))
    try:
        yield
    finally:
        _place.reset(token)


def console() -> Console:
    """Where tables go; only on a terminal do they have to fit."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    return Console(width=_NO_TERMINAL, soft_wrap=True, highlight=False, markup=False)


def dump(document: Any) -> None:
    """Prints a document as JSON; an object says of which version it is. `schemas/cli` has the schema of each."""
    versioned = {"version": JSON_VERSION, **document} if isinstance(document, Mapping) else document
    dump_plain(versioned)


def dump_plain(document: Any) -> None:
    """Prints a document that is not ours to number, such as a task's parameters, as JSON."""
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def printable(text: str) -> str:
    """`text` without control characters: a payload's log, or a server's, must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def value_text(trial: Mapping[str, Any], digits: int = 6) -> str:
    """The value of a trial, or of a figure of merit, with the spread of its folds; of several, with commas between."""
    return ", ".join(value_texts(trial, 1, digits))


def value_texts(trial: Mapping[str, Any], objectives: int, digits: int = 6) -> list[str]:
    """The value of a trial for each objective, with the spread of its folds; as many dashes where it has none."""
    values, stds = trial["value"], trial["std"]
    if values is None:
        return ["-"] * objectives
    if not isinstance(values, list):
        values, stds = [values], [stds]
    return [figure_text(value, std, digits) for value, std in zip(values, stds or [None] * len(values), strict=True)]


def metrics_of(search: Mapping[str, Any]) -> list[str]:
    """The metrics of a search's document, one for each objective."""
    objective = search["objective"]
    return [each["metric"] for each in (objective if isinstance(objective, list) else [objective])]


def eta_text(eta: EtaDocument) -> str:
    """When a search will probably be over: in how long, at what time, and by what that is judged."""
    from hpo_pilot.search.eta import duration_text

    end = datetime.fromisoformat(eta["end"]).astimezone()
    day = "" if end.date() == datetime.now().astimezone().date() else f"{end:%a %d %b} "
    return f"{duration_text(eta['seconds'])} ({day}{end:%H:%M}), {eta['basis']}"


def front_text(front: Mapping[str, Any]) -> str:
    """How large a Pareto front is."""
    size = front["size"] if "size" in front else len(front["trials"])
    return f"{counted(size, 'trial')} on the front, hypervolume {front['hypervolume']:.6g}"


def figure_text(value: float, std: float | None, digits: int = 6) -> str:
    """A figure of merit with its spread."""
    return f"{value:.{digits}g}" + (f" ± {std:.2g}" if std is not None else "")


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
