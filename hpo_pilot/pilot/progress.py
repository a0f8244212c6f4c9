"""The values that a payload reports while it runs, as heartbeats carry them.

A payload that wants to be seen appends lines such as ``{"step": 3, "loss": 0.25}`` to progress.jsonl: a whole number
from 0, and the figure of merit under its own name or as ``value``. NaN and infinity are told as ``nan``: the training
diverges. A line that is no such object (half-written, not a number) is passed over; of two lines with one step the
first counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from hpo_pilot.transformation.payload_document import PayloadDocument

#: Characters of `jobMetrics` that a PanDA server keeps.
METRICS = 500

#: Bytes that are read at a time; of a file that grows faster the end counts.
_READ = 4 << 20

#: How many values are kept, and how many shown where they fit; see `thinned`.
_KEPT = 200
_SHOWN = 48

_LARGEST_STEP = 2**53


class Progress:
    """What one job has reported so far. Used by one thread at a time."""

    def __init__(self, folder: Path, document: PayloadDocument | None = None) -> None:
        """Reads nothing yet.

        Args:
            folder: where the payload runs.
            document: says what the file is called, and the figure of merit.
        """
        document = document or PayloadDocument()
        self._path = folder / document.progress
        self._keys = (document.metric, "value")
        self._gpus = document.gpus * document.nodes
        self._values: list[tuple[int, float]] = []
        self._member = ""
        self._offset = 0
        self._seen: tuple[int, int, str] | None = None

    def has_news(self) -> bool:
        """Whether the file has changed since it was last read."""
        return self._look() not in (None, self._seen)

    def text(self) -> str:
        """All that is known, as a heartbeat tells it; empty where there is nothing.

        ``nGPU=2 hpoStep=12 hpoValue=0.345 hpoPast=1:0.9,2:0.72``: the job's GPUs, by which a BigPanDA knows it for a
        GPU job; the last step's value, then earlier ones to six digits.
        In a job that runs several points ``hpoMember=t3f0`` names the one that these are of.
        """
        self._read()
        gpus = f"nGPU={self._gpus} " if self._gpus else ""
        if not self._values:
            return f"{gpus}{self._member}".rstrip()[:METRICS]
        *past, (step, value) = self._values
        head = f"{gpus}hpoStep={step} hpoValue={value!r} {self._member}".rstrip()
        for most in range(_SHOWN, 0, -4):
            shown = ",".join(f"{at}:{earlier:.6g}" for at, earlier in thinned(past, most))
            whole = f"{head} hpoPast={shown}" if shown else head
            if len(whole) <= METRICS:
                return whole
        return head[:METRICS]

    def _look(self) -> tuple[int, int, str] | None:
        """Size and time of the file, and whose it is; None where there is none, for now."""
        try:
            member = f"hpoMember={self._path.readlink().parts[0]}" if self._path.is_symlink() else ""
            if not self._path.is_file():  # a pipe would keep us waiting
                return (0, 0, member) if member else None
            status = self._path.stat()
        except OSError:
            return None  # it is gone: another point's turn
        return status.st_size, status.st_mtime_ns, member

    def _read(self) -> None:
        """Takes the lines that were added."""
        now = self._look()
        if now is None or now == self._seen:
            return
        size, _, member = now
        if member != self._member or size < self._offset:  # the next point's file, or a new one
            self._values, self._member, self._offset = [], member, 0
        begin, data = max(self._offset, size - _READ), b""
        try:
            if size:
                with self._path.open("rb") as file:
                    file.seek(begin)
                    data = file.read(_READ)
        except OSError:
            return
        self._seen = now
        lines = data.split(b"\n")
        for line in lines:  # where the begin was skipped, the first is no line and is passed over
            self._take(line)
        self._offset = begin + len(data) - len(lines[-1])  # the last one may have its end to come

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            step = _number(entry["step"])
            value = _number(next(entry[key] for key in self._keys if key in entry))
        except (ValueError, TypeError, KeyError, RecursionError, StopIteration):
            return  # half-written, or not ours
        if 0 <= step <= _LARGEST_STEP:
            _insert(self._values, int(step), value if math.isfinite(value) else math.nan)
        if len(self._values) > 2 * _KEPT:
            self._values = thinned(self._values, _KEPT)


def _number(value: object) -> float:
    """The value as a float; infinity where it is beyond them.

    Raises:
        TypeError: it is no number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(type(value))
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _insert(values: list[tuple[int, float]], step: int, value: float) -> None:
    """Enters a value in the order of steps, unless the step has one."""
    place = len(values)
    while place and values[place - 1][0] > step:
        place -= 1
    if not place or values[place - 1][0] != step:
        values.insert(place, (step, value))


def thinned(values: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many of the values: the newest half as they are, of those before some, with growing steps between.

    Args:
        values: (step, value), steps rising from 0 or more.
        most: how many, 1 or more.
    """
    if len(values) <= most:
        return list(values)
    newest = (most + 1) // 2
    old, new = values[:-newest], list(values[-newest:])
    room = most - newest
    if not room:
        return new
    first, last = old[0][0] + 1, old[-1][0] + 1
    kept: list[tuple[int, float]] = []
    target = float(first)
    for value in old:
        if value[0] + 1 >= target and len(kept) < room:
            kept.append(value)
            left = room - len(kept)  # spread anew, for steps may have gaps
            target = (value[0] + 1) * (last / (value[0] + 1)) ** (1 / left) if left else math.inf
    return kept + new
