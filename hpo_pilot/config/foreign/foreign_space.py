"""A search space on its way from another tool to a search file."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from typing import Any

from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.search import PointShape
from hpo_pilot.search.misfit import Path
from hpo_pilot.search.point import show

#: At most so many multiples of a step on a logarithmic scale become choices.
MOST_MULTIPLES = 64

#: A normal distribution has no bounds; so many standard deviations around its mean are searched.
SIGMAS = 3


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
        self, name: str, path: Path, low: float, high: float, origin: str, *, log: bool = False, whole: bool = False
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

    def add_multiples(self, name: str, path: Path, low: float, high: float, q: float, origin: str) -> None:
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

    def add_log_multiples(self, name: str, path: Path, low: float, high: float, q: float, origin: str) -> None:
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

    def _ends(self, path: Path, low: float, high: float, q: float) -> tuple[int, int] | None:
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
        self, name: str, path: Path, mu: float, sigma: float, origin: str, *, q: float | None = None, base: float | None
    ) -> None:
        """Adds what a normal distribution covers; with `base` its values are exponents of it."""
        if sigma < 0:
            self.file.wrong((*path, "sigma"), f"must be 0 or more, not {show(sigma)}")
            return
        ends = [mu - SIGMAS * sigma, mu + SIGMAS * sigma]
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
            self.file.warn(path, f"{reason} within {SIGMAS} standard deviations of the mean")
        if q is None:
            self.add_range(name, path, ends[0], ends[1], origin, log=base is not None)
        elif base is None:
            self.add_multiples(name, path, ends[0], ends[1], q, origin)
        else:
            self.add_log_multiples(name, path, max(ends[0], min(q, ends[1])), ends[1], q, origin)

    def add_choices(self, name: str, path: Path, choices: Any, origin: str, *, ordered: bool = False) -> None:
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

    def searchable(self, path: Path) -> None:
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
