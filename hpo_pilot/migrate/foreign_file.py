"""Reads a file of another tool: its values, its problems, and its search space."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES
from hpo_pilot.search import PointShape
from hpo_pilot.search.mistakes import FieldPath, closest, listing, path_text
from hpo_pilot.search.values import is_number, show
from hpo_pilot.search.yaml_document import Document, parse_document, read_document

_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


class ForeignFile:
    """One file, read.

    Attributes:
        name: the file, for messages.
        folder: where its relative paths start.
        value: what it holds.
        problems: what is wrong with it; `check` raises them.
        warnings: what it says and the search file will not, each with its reason.
    """

    def __init__(self, document: Document, folder: FilePath) -> None:
        self.name = document.file
        self.folder = folder
        self.value = document.value
        self.problems: list[Problem] = list(document.problems)
        self.warnings: list[Problem] = []
        self._document = document
        self._placed = bool(document.values)

    @classmethod
    def read(cls, path: FilePath) -> ForeignFile:
        """Reads a YAML or JSON file; what is wrong with it is in its `problems`."""
        text = _json_text(path)
        document = read_document(path) if text is None else parse_document(text, str(path))
        return cls(document, path.parent)

    @classmethod
    def of(cls, value: Any, name: str, folder: FilePath) -> ForeignFile:
        """A file of this value, whose places nobody knows."""
        return cls(Document(name, value), folder)

    def wrong(self, path: FieldPath, message: str, hint: str = "", *, at_key: bool = False) -> None:
        """Notes a mistake."""
        if path not in self._document.faulty:
            self.problems.append(self._problem(path, message, hint, at_key))

    def is_readable(self, path: FieldPath) -> bool:
        """Whether all that stands at `path` could be read; otherwise its mistakes are told already."""
        return not any(faulty[: len(path)] == path for faulty in self._document.faulty)

    def warn(self, path: FieldPath, message: str, hint: str = "") -> None:
        """Notes what cannot be carried over."""
        self.warnings.append(self._problem(path, message, hint, True))

    def join(self, other: ForeignFile) -> None:
        """Takes over what is wrong with a file that this one names."""
        self.problems += other.problems
        self.warnings += other.warnings

    def check(self) -> None:
        """Makes sure that nothing is wrong.

        Raises:
            SearchFileError: something is; it has all mistakes.
        """
        if self.problems:
            raise SearchFileError(self.problems)

    def _problem(self, path: FieldPath, message: str, hint: str, at_key: bool) -> Problem:
        if self._placed:
            return self._document.problem(path, message, hint, at_key=at_key)
        return Problem(self.name, None, None, path_text(path), message, hint)

    # --- values ---

    def mapping(self, path: FieldPath, value: Any, what: str = "must be a mapping") -> dict[str, Any] | None:
        """`value` as a mapping; None where it is none, which is noted."""
        if isinstance(value, dict):
            return value
        self.wrong(path, f"{what}, not {show(value)}")
        return None

    def number(self, path: FieldPath, value: Any) -> float | int | None:
        """`value` as a finite number; None where it is none, which is noted."""
        if is_number(value):
            return value  # type: ignore[no-any-return]  # is_number has just said so
        hint = ""
        if isinstance(value, str):
            try:
                hint = "remove the quotes" if math.isfinite(float(value)) else ""
            except ValueError:
                hint = ""
        self.wrong(path, f"must be a number, not {show(value)}", hint)
        return None

    def count(self, path: FieldPath, value: Any, least: int = 1) -> int | None:
        """`value` as a whole number of at least `least`; None where it is none, which is noted."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"must be a whole number, not {show(value)}")
        elif value < least:
            self.wrong(path, f"must be {least} or more, not {value}")
        else:
            return value
        return None

    def text(self, path: FieldPath, value: Any) -> str | None:
        """`value` as text that is not empty; None where it is none, which is noted."""
        if isinstance(value, str) and value:
            return value
        self.wrong(path, f"must be text, not {show(value)}" if value != "" else "is empty")
        return None

    def one_of(self, path: FieldPath, value: Any, known: list[str]) -> bool:
        """Whether `value` is one of `known`; otherwise it is noted, with what was probably meant."""
        if isinstance(value, str) and value in known:
            return True
        meant = closest(value, known) if isinstance(value, str) else None
        self.wrong(
            path, f"must be {listing(known, 'or')}, not {show(value)}", f"did you mean {meant}?" if meant else ""
        )
        return False


def _json_text(path: FilePath) -> str | None:
    """A JSON file's text as YAML takes it, every character in its place; None where YAML shall read the file itself.

    YAML is a superset of JSON but for tabs as blanks and for characters written as surrogate pairs.
    """
    try:
        if path.stat().st_size > MAX_SEARCH_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None  # the reader says why
    if text.lstrip()[:1] not in ("{", "["):
        return None
    text = _PAIR.sub(lambda found: json.loads(f'"{found[0]}"'), text)
    return _CONSTANT.sub(lambda found: found[1] + _YAML[found[2]], text).replace("\t", " ")


_CONSTANT = re.compile(r"([\[{,:]\s*)(-?Infinity|NaN)\b")

#: What Python writes into JSON for numbers that are not finite, as YAML has it: the reader refuses them, with place.
_YAML = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}


#: At most so many multiples of a step on a logarithmic scale become choices.
MOST_MULTIPLES = 64

#: A normal distribution has no bounds; so many standard deviations around its mean are searched.
NORMAL_SIGMAS = 3


@dataclass
class ForeignSpace:
    """What the parameters became.

    Attributes:
        file: where they come from; mistakes and warnings are noted there.
        dimensions: as a search file's `space` has them.
        fixed, arrays, values: as in `PointShape`.
        origins: for each dimension, where it comes from, in words.
        names: what the tool itself calls its parameters.
    """

    file: ForeignFile
    names: frozenset[str] = frozenset()
    dimensions: dict[str, dict[str, Any]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, list[Any]] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> PointShape:
        """How the tool's points are made of ours."""
        return PointShape(fixed=self.fixed, arrays=self.arrays, values=self.values)

    # --- adding ---

    def add(self, name: str, dimension: dict[str, Any], origin: str) -> None:
        """Adds a parameter."""
        self.dimensions[name] = dimension
        self.origins[name] = origin

    def fix(self, name: str, value: Any) -> None:
        """Adds a constant."""
        self.fixed[name] = value

    def add_range(
        self,
        name: str,
        path: FieldPath,
        low: float,
        high: float,
        origin: str,
        *,
        log: bool = False,
        whole: bool = False,
    ) -> None:
        """Adds the numbers from `low` to `high`, both included; the only one there is becomes a constant."""
        if log and low <= 0:
            self.file.wrong((*path, "low"), f"a logarithmic parameter needs low above 0, not {show(low)}")
        elif low > high:
            self.file.wrong((*path, "low"), f"low ({show(low)}) must be below high ({show(high)})", "swap the two?")
        elif low == high:
            self.fix(name, int(low) if whole else low)
        else:
            kind = "integer" if whole else "real"
            scale = {"scale": "log"} if log else {}
            self.add(name, {"type": kind, "low": low, "high": high, **scale}, origin)

    def add_multiples(self, name: str, path: FieldPath, low: float, high: float, q: float, origin: str) -> None:
        """Adds the multiples of `q` from `low` to `high`."""
        values = self._ends(path, low, high, q)
        if values is None:
            return
        first, last = values
        whole = float(q).is_integer()
        ends = [self.multiple(k, q) for k in values]
        if first == last:
            self.fix(name, ends[0])
            return
        step = {"step": int(q) if whole else q} if q != 1 else {}
        self.add(name, {"type": "integer" if whole else "real", "low": ends[0], "high": ends[1], **step}, origin)

    def add_log_multiples(self, name: str, path: FieldPath, low: float, high: float, q: float, origin: str) -> None:
        """Adds the multiples of `q` from `low` to `high`, spread over orders of magnitude."""
        if low <= 0:
            self.file.wrong((*path, "low"), f"a logarithmic parameter needs low above 0, not {show(low)}")
            return
        values = self._ends(path, low, high, q)
        if values is None:
            return
        first, last = max(1, values[0]), values[1]
        if first >= last:
            self.fix(name, self.multiple(last, q))
        elif q == 1:
            self.add(name, {"type": "integer", "low": first, "high": last, "scale": "log"}, origin)
        else:
            places = range(min(MOST_MULTIPLES, last - first + 1))
            span = math.log(last) - math.log(first)
            spread = [first * math.exp(span * place / (len(places) - 1)) for place in places]
            chosen = sorted({round(k) for k in spread}) if last - first >= MOST_MULTIPLES else range(first, last + 1)
            what = f"{len(chosen)} multiples of {show(q)}, as choices in their order"
            self.file.warn(path, f"a search file has no step on a logarithmic scale: {name} becomes {what}")
            self.add(name, {"type": "ordinal", "choices": [self.multiple(k, q) for k in chosen]}, origin)

    def _ends(self, path: FieldPath, low: float, high: float, q: float) -> tuple[int, int] | None:
        """The first and the last k whose k * q lies between the bounds."""
        if not q > 0:
            self.file.wrong((*path, "q"), f"must be above 0, not {show(q)}")
            return None
        if low > high:
            self.file.wrong((*path, "low"), f"low ({show(low)}) must be below high ({show(high)})", "swap the two?")
            return None
        if q < 1e-9 * max(abs(low), abs(high)):
            self.file.wrong((*path, "q"), f"{show(q)} is too small beside the bounds to tell the values apart")
            return None
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        if first > last:
            self.file.wrong((*path, "q"), f"no multiple of {show(q)} lies between {show(low)} and {show(high)}")
            return None
        ends = self.multiple(first, q), self.multiple(last, q)
        if not all(math.isclose(end, bound, abs_tol=1e-12) for end, bound in zip(ends, (low, high), strict=True)):
            message = f"the bounds are no multiples of q = {show(q)}"
            self.file.warn(path, f"{message}: the values go from {show(ends[0])} to {show(ends[1])}")
        return first, last

    @staticmethod
    def multiple(k: int, q: float) -> float | int:
        """The k-th multiple of q, without the noise of floats; whole where q is."""
        if float(q).is_integer():
            return k * int(q)
        return float(f"{k * q:.12g}")

    def add_normal(
        self,
        name: str,
        path: FieldPath,
        mu: float,
        sigma: float,
        origin: str,
        *,
        q: float | None = None,
        base: float | None,
    ) -> None:
        """Adds what a normal distribution covers; with `base` its values are exponents of it."""
        if sigma < 0:
            self.file.wrong((*path, "sigma"), f"must be 0 or more, not {show(sigma)}")
            return
        ends = [mu - NORMAL_SIGMAS * sigma, mu + NORMAL_SIGMAS * sigma]
        if base is not None:
            try:
                ends = sorted(float(base**end) for end in ends)
            except OverflowError:
                ends = [math.inf]
            if not (all(map(math.isfinite, ends)) and ends[0] > 0):
                self.file.wrong(path, "its values are beyond the largest or smallest numbers")
                return
        else:
            ends = [float(f"{end:.12g}") for end in ends]
        if sigma > 0:
            what = "log-normal" if base is not None else "normal"
            reason = f"a search file has no {what} prior: {name} is searched evenly"
            self.file.warn(path, f"{reason} within {NORMAL_SIGMAS} standard deviations of the mean")
        if q is None:
            self.add_range(name, path, ends[0], ends[1], origin, log=base is not None)
        elif base is None:
            self.add_multiples(name, path, ends[0], ends[1], q, origin)
        else:
            self.add_log_multiples(name, path, max(ends[0], min(q, ends[1])), ends[1], q, origin)

    def add_choices(self, name: str, path: FieldPath, choices: Any, origin: str, *, ordered: bool = False) -> None:
        """Adds a list of values, of any types, in which some may be listed twice."""
        if not isinstance(choices, list) or not choices:
            what = "is empty" if choices == [] else f"must be a list, not {show(choices)}"
            self.file.wrong(path, what)
            return
        distinct: dict[str, Any] = {}
        twice = []
        for choice in choices:
            key = json.dumps(choice, sort_keys=True)
            if key in distinct:
                twice.append(choice)
            distinct[key] = choice
        if twice:
            again = ", ".join(dict.fromkeys(show(choice) for choice in twice))
            self.file.warn(path, f"{again} is listed more than once; the choices of a search file have equal weights")
        values = list(distinct.values())
        if len(values) == 1:
            self.fix(name, values[0])
            return
        step = _even_step(values) if ordered else None
        if step is not None:
            self.add(name, {"type": "integer", "low": values[0], "high": values[-1], **step}, origin)
            return
        labels = self._labels(values)
        kind = "ordinal" if ordered else "categorical"
        self.add(name, {"type": kind, "choices": labels}, origin)
        if meanings := {
            label: value for label, value in zip(labels, values, strict=True) if isinstance(value, dict | list)
        }:
            self.values[name] = meanings

    @staticmethod
    def _labels(values: list[Any]) -> list[Any]:
        """The choices, with a text for each that is no single value."""
        taken = {value for value in values if isinstance(value, str)}
        labels = []
        for number, value in enumerate(values, start=1):
            label = value
            if isinstance(value, dict | list):
                text = json.dumps(value, ensure_ascii=False)
                label = text if len(text) <= 40 and text not in taken else f"choice {number}"
                while label in taken:
                    label += "'"
                taken.add(label)
            labels.append(label)
        return labels

    def unused(self, name: str) -> str:
        """`name`, or something like it that no parameter has."""
        while name in self.names or name in self.dimensions:
            name += "_"
        return name

    def searchable(self, path: FieldPath) -> None:
        """Notes it where there is nothing to search."""
        if not self.dimensions and not self.file.problems:
            self.file.wrong(path, "has no parameter with more than one value")


def _even_step(values: list[Any]) -> dict[str, int] | None:
    """The step of a dimension whose values are these whole numbers; None where they are no such row."""
    if len(values) < 3 or not all(type(value) is int for value in values):
        return None
    step = values[1] - values[0]
    if step < 1 or any(after - before != step for before, after in itertools.pairwise(values)):
        return None
    return {"step": step} if step > 1 else {}
