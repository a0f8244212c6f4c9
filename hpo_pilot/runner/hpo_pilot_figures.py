"""Reads figures of merit and intermediate values from the training's own output and files.

hpo_pilot_runner.py loads this file if the search has `payload.result` or `payload.progress`. Standard library only,
Python 3.6 syntax.
"""

import csv
import io
import json
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

LONGEST = 64 * 1024  # bytes of a line that are looked at
LIMIT = 10 * 1024 * 1024  # bytes that are read at once; of larger files the figure of merit is read from the end
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
        self.seen, self.next = (), 0.0  # type: Any, float
        # Of the file of intermediate values: its first line, what was before `offset`, the number of rows there, and
        # the largest such number.
        self.head, self.last, self.offset, self.place, self.taken = b"", b"", 0, 0, 0

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
        name, began = self.progress.get("file"), time.monotonic()
        if not name or (not until and began < self.next):
            return
        self.next = began + EVERY
        try:
            seen = (os.stat(name).st_size, os.stat(name).st_mtime, until)
            rows = self.new_rows(name, whole=bool(until)) if seen != self.seen else []
        except (OSError, ValueError, csv.Error):
            return
        self.seen = seen
        for row in rows:
            self.append(row.get(self.progress["step"]), row.get(self.progress["column"]))
        self.next += min(20 * (time.monotonic() - began), 30)  # looks take 5% of the time

    def new_rows(self, name: str, whole: bool) -> "List[Dict[Any, Any]]":
        """Return the rows that were not taken yet; `whole`: also a last row without an end of line."""
        check_inside(name)
        if not os.path.isfile(name):
            raise ValueError("no plain file")
        found = []  # type: List[Dict[Any, Any]]
        with open(name, "rb") as file:
            head = file.readline(LIMIT)
            file.seek(max(0, self.offset - len(self.last)))
            # Loggers may write the whole file again, with more columns.
            if head != self.head or file.read(len(self.last)) != self.last:
                self.head, self.last, self.offset, self.place = head, head[-LONGEST:], len(head), 0
            while head.endswith(b"\n"):
                file.seek(self.offset)
                data = file.read(LIMIT)
                data = data if whole and len(data) < LIMIT else complete_rows(head, data)
                if not data:
                    break
                try:
                    rows = table((head + data).decode("utf-8-sig", "replace"))
                except csv.Error:  # a quote that is not closed for longer than a field may be
                    rows = []
                found += rows[max(0, self.taken - self.place) :]
                self.last, self.offset, self.place = data[-LONGEST:], self.offset + len(data), self.place + len(rows)
                self.taken = max(self.taken, self.place)
        return found

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
            rows, column = table(self.read(name)), self.result["column"]
            found = [row[column] for row in rows if (row.get(column) or "").strip()]
            known = list(rows[0]) if rows else []
        else:
            column, found, known = self.result["key"], [], []
            for document in documents(self.read(name, head=False), name):
                known = list(document) if isinstance(document, dict) else known
                found += values_at(document, column)
        if not found:
            there = ", ".join(map(repr, known[:20])) or "nothing"
            raise ValueError("%s has no value of %r; it has %s" % (name, column, there))
        return found[-1]

    def read(self, name: str, head: bool = True) -> str:
        """Return the text of a file in the job's folder; of a large one the last lines, and with `head` the first."""
        check_inside(name)
        if os.path.isfile(name) and os.path.getsize(name) > LIMIT:
            with open(name, "rb") as file:
                first = file.readline(LIMIT) if head else b""
                file.seek(-LIMIT // 2, os.SEEK_END)
                file.readline()
                return (first + file.read(LIMIT)).decode("utf-8-sig", "replace")
        try:
            return self.written(name, LIMIT).decode("utf-8-sig", "replace")
        except ValueError as error:
            raise ValueError("%s: %s" % (name, error)) from error


def check_inside(name: str) -> None:
    """Raise ValueError if a file is outside of the job's folder."""
    if not os.path.realpath(name).startswith(os.path.realpath(".") + os.sep):
        raise ValueError("%s is outside of the job's folder" % name)


def table(text: str) -> "List[Dict[Any, Any]]":
    """Return the rows of a table."""
    lines = list(io.StringIO(text, newline=""))
    return list(csv.DictReader(lines, delimiter=delimiter_of("".join(lines[:1])), skipinitialspace=True))


def delimiter_of(head: str) -> str:
    """Return what separates the fields in the first line of a table."""
    return max(",;\t", key=head.count)


def complete_rows(head: bytes, data: bytes) -> bytes:
    """Return the data of a table with this first line without a last row that has no end; quotes may hold line ends.

    A quote that is open for longer than `LONGEST` is taken for a character.
    """
    data = data[: data.rfind(b"\n") + 1]
    if b'"' not in data:
        return data
    lines = data.splitlines(True)
    # One line more, of its own or part of an open field: then the row that has it is not complete.
    texts = [line.decode("utf-8", "replace") for line in lines] + ["\n"]
    reader = csv.reader(texts, delimiter=delimiter_of(head.decode("utf-8", "replace")), skipinitialspace=True)
    try:
        ends = [0] + [reader.line_num for _ in reader]
    except csv.Error:
        return data
    found = b"".join(lines[: max(end for end in ends if end <= len(lines))])
    return found if len(data) - len(found) <= LONGEST else data


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
