"""Reads figures of merit and intermediate values from the training's own output and files.

hpo_pilot_runner.py loads this file if the search has `payload.result` or `payload.progress`. Standard library only,
Python 3.6 syntax.
"""

import csv
import json
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

LONGEST = 64 * 1024  # bytes of a line that are looked at
LIMIT = 10 * 1024 * 1024  # bytes of a file
EVERY = 1.0  # seconds between looks at a file that grows
AROUND = " ,;()[]{}'\""  # characters around a number: `loss=0.5,` matches `loss=(\S+)`


class Figures:
    """The values of one run of the payload."""

    def __init__(self, payload: "Dict[str, Any]", target: str, written: "Callable[[str, int], bytes]") -> None:
        """Read nothing yet.

        Args:
            payload: its description, with `result` or `progress`.
            target: the file to which intermediate values are appended.
            written: the runner's function that reads a file of the payload.
        """
        self.result, self.progress = payload.get("result") or {}, payload.get("progress") or {}  # type: Any, Any
        self.target, self.written = target, written
        self.wanted, self.steps = (re.compile(each.get("stdout") or "(?!)") for each in (self.result, self.progress))
        self.value = None  # type: Any
        self.rest = b""
        self.taken, self.seen, self.next = 0, (), 0.0  # type: int, Any, float

    def feed(self, data: bytes) -> None:
        """Take a part of the payload's output; carriage returns end lines too."""
        lines = (self.rest + data).replace(b"\r", b"\n").split(b"\n")
        self.rest = lines.pop()[-LONGEST:]
        for line in lines:
            text = line[-LONGEST:].decode("utf-8", "replace")
            for found in self.wanted.finditer(text):
                self.value = found.group("value" if "value" in self.wanted.groupindex else 1)
            for found in self.steps.finditer(text):
                self.append(found.group("step"), found.group("value"))

    def look(self, until: float = 0.0) -> None:
        """Take the new rows of the file of intermediate values; at most every second, unless it is the last look."""
        name = self.progress.get("file")
        if not name or (not until and time.monotonic() < self.next):
            return
        self.next = time.monotonic() + EVERY
        try:
            seen = (os.stat(name).st_size, os.stat(name).st_mtime, until)
            rows = self.rows(name, whole=bool(until)) if seen != self.seen else []
        except (OSError, ValueError, csv.Error):
            return
        self.seen = seen
        for row in rows[self.taken :]:  # loggers may write the whole file again, with more columns
            self.append(row.get(self.progress["step"]), row.get(self.progress["column"]))
        self.taken = max(self.taken, len(rows))

    def end(self) -> None:
        """Take what has no end of line yet."""
        self.feed(b"\n")
        self.look(1.0)

    def append(self, step: "Any", value: "Any") -> None:
        """Append an intermediate value; broken ones are skipped, as in progress.jsonl."""
        try:
            entry = {"step": int(float(step.strip(AROUND))), "value": float(value.strip(AROUND))}
        except (ValueError, OverflowError, AttributeError):
            return
        with open(self.target, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def figure(self, log: str) -> "Any":
        """Return the last value of the figure of merit; ValueError says what is missing, with the end of the log."""
        try:
            if "stdout" in self.result and self.value is None:
                raise ValueError("no line of the output matches %s" % self.result["stdout"])
            return number(self.value_in_file() if "file" in self.result else self.value)
        except (ValueError, RecursionError, csv.Error) as error:
            last = log.strip().rpartition("\n")[2]
            raise ValueError("%s; the log %s" % (error, "ends with: " + last[:300] if last else "is empty")) from error

    def value_in_file(self) -> "Any":
        """Return the last value of a key of JSON, of JSON lines, or of a column of CSV."""
        name = self.result["file"]
        if "column" in self.result:
            rows, column = self.rows(name, whole=True), self.result["column"]
            found = [row[column] for row in rows if (row.get(column) or "").strip()]
            known = list(rows[0]) if rows else []
        else:
            column, found, known = self.result["key"], [], []
            for document in documents(self.read(name), name):
                known = list(document) if isinstance(document, dict) else known
                found += values_at(document, column)
        if not found:
            there = ", ".join(map(repr, known[:20])) or "nothing"
            raise ValueError("%s has no value of %r; it has %s" % (name, column, there))
        return found[-1]

    def read(self, name: str) -> str:
        """Return the text of a file in the job's folder."""
        if not os.path.realpath(name).startswith(os.path.realpath(".") + os.sep):
            raise ValueError("%s is outside of the job's folder" % name)
        try:
            return self.written(name, LIMIT).decode("utf-8-sig", "replace")
        except ValueError as error:
            raise ValueError("%s: %s" % (name, error)) from error

    def rows(self, name: str, whole: bool) -> "List[Dict[Any, Any]]":
        """Return the rows of a table; `whole`: also a last row without an end of line."""
        lines = self.read(name).splitlines(True)
        if not whole and lines and not lines[-1].endswith("\n"):
            lines.pop()
        delimiter = max(",;\t", key=lines[0].count) if lines else ","
        return list(csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True))


def documents(text: str, name: str) -> "List[Any]":
    """Return the JSON document of a file, or the documents of its lines; the last line may be incomplete."""
    found = []  # type: List[Any]
    for part in [text, *text.splitlines()]:
        try:
            found.append(json.loads(part))
        except ValueError:
            continue
        if part is text:
            return found
    if not found:
        raise ValueError("%s is no JSON" % name)
    return found


def values_at(document: "Any", key: str) -> "List[Any]":
    """Return the value of a dotted key, or none; of a list the last member counts."""
    while isinstance(document, list) and document:
        document = document[-1]
    if not key:
        return [document]
    names = document if isinstance(document, dict) else {}
    for end in [len(key)] + [at for at in range(len(key) - 1, 0, -1) if key[at] == "."]:
        if key[:end] in names:
            found = values_at(names[key[:end]], key[end + 1 :])
            if found:
                return found
    return []


def number(value: "Any") -> "Any":
    """Return text as a number if it is one; other values are as they are."""
    try:
        return float(value.strip(AROUND)) if isinstance(value, str) else value
    except ValueError:
        return value
