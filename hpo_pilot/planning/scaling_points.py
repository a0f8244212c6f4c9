"""Measured points of a scaling run, from a CSV file.

Columns, in any order, by their names in the first line:

    nodes               of the training
    ranks               its processes on all nodes together; default: as many as nodes
    seconds             for an amount of work that is the same in all rows: an epoch, so many images
    images_per_second   of all ranks; one of the two is needed, and seconds count where both are there
    compute_seconds, communication_seconds, input_seconds
                        means over the ranks, as hpo-pilot's metrics of these names; all three or none. Only their
                        shares count

Other columns are passed over. Several rows of one size are repetitions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpo_pilot.errors import InputError

#: What seconds may be given as the sum of.
PARTS = ("compute_seconds", "communication_seconds", "input_seconds")


@dataclass(frozen=True)
class ScalingPoint:
    """One measurement.

    Attributes:
        nodes: of the training.
        ranks: of it, on all nodes.
        seconds: for an amount of work that is the same for all points.
        parts: compute, communication and input, in seconds of that; None: not measured one by one.
    """

    nodes: int
    ranks: int
    seconds: float
    parts: tuple[float, float, float] | None = None


def read_points(text: str, source: str) -> list[ScalingPoint]:
    """The points of a CSV text.

    Args:
        text: the file.
        source: its name, for messages.

    Raises:
        InputError: it is not as described; the message has the line.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    names = [name.strip() for name in reader.fieldnames or ()]
    if "nodes" not in names or not {"seconds", "images_per_second"} & set(names):
        raise InputError(
            f"{source}: the first line names the columns: nodes, and seconds or images_per_second; it has "
            f"{', '.join(names) or 'nothing'}"
        )
    reader.fieldnames = names
    points = [read_point(row, f"{source}, line {reader.line_num}") for row in reader if any(row.values())]
    check_parts(points, source)
    return points


def check_parts(points: Sequence[ScalingPoint], source: str) -> None:
    """Makes sure that all points are of one sort.

    Raises:
        InputError: only some have parts.
    """
    if len({point.parts is None for point in points}) > 1:
        raise InputError(f"{source}: {', '.join(PARTS)} are there in some points only: give them in all, or in none")


def read_point(row: Mapping[str, str | None], place: str) -> ScalingPoint:
    """The point of a row, by the columns' names; `place` is where it stands, for messages.

    Raises:
        InputError: it is none.
    """
    nodes = _whole(row, "nodes", place)
    ranks = _whole(row, "ranks", place) if row.get("ranks") else nodes
    timed = bool(row.get("seconds"))
    seconds = _number(row, "seconds", place) if timed else 1.0 / _number(row, "images_per_second", place)
    given = [name for name in PARTS if row.get(name)]
    if not given:
        return ScalingPoint(nodes, ranks, seconds)
    if len(given) < len(PARTS):
        raise InputError(f"{place}: it has {', '.join(given)} alone: give all of {', '.join(PARTS)}, or none")
    compute, communication, fed = (_number(row, name, place, least=0.0) for name in PARTS)
    whole = compute + communication + fed
    if whole <= 0:
        raise InputError(f"{place}: {', '.join(PARTS)} are all 0")
    # They may be of another amount of work, such as the whole training: only their shares count.
    scale = seconds / whole
    return ScalingPoint(nodes, ranks, seconds, (compute * scale, communication * scale, fed * scale))


def _whole(row: Mapping[str, str | None], name: str, place: str) -> int:
    value = _number(row, name, place)
    if value != int(value) or value < 1:
        raise InputError(f"{place}: {name} is {row[name]!r}: give a whole number, 1 or more")
    return int(value)


def _number(row: Mapping[str, str | None], name: str, place: str, least: float | None = None) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        raise InputError(f"{place}: {name} is {text!r}: give a number{' above 0' if least is None else ', 0 or more'}")
    return value
