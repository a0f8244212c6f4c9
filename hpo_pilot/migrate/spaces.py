"""Reads search spaces of hpogrid, nevergrad (iDDS), scikit-optimize and bayes_opt, parameter by parameter."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.search import PointShape
from hpo_pilot.search.mistakes import FieldPath, closest, did_you_mean, listing, mistakes_of
from hpo_pilot.search.parameters import DIMENSION, DIMENSION_TYPES
from hpo_pilot.search.values import is_number, show

#: Largest number of choices made of the multiples of a step on a logarithmic scale.
_MAX_MULTIPLES = 64

#: A normal distribution has no bounds: the search covers this many standard deviations on each side of its mean.
_SIGMAS = 3

#: Largest number of members of an array parameter.
_MAX_MEMBERS = 1000


def read_space(file: ForeignFile, path: FieldPath, value: Any, library: str | None = None) -> ForeignSpace:
    """Returns the space at `path` of a file; mistakes are recorded in the file.

    Args:
        file: the file.
        path: the place of the space in it.
        value: the space.
        library: the library that has read the space, by its name in hpogrid; None: not known.
    """
    space = ForeignSpace(file, library)
    entries = file.mapping(path, value, "must be a mapping of parameters")
    if entries is None:
        return space
    space.fill(path, [(name, (*path, name), entry) for name, entry in entries.items()], _add_parameter)
    return space


def _add_parameter(space: ForeignSpace, name: str, path: FieldPath, entry: Any) -> None:
    """Adds one parameter; its form says which tool it was written for."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    kind = kind if isinstance(kind, str) else None
    if isinstance(entry, list):
        _add_list(space, name, path, entry)
    elif not isinstance(entry, dict):
        message = f"must be a mapping with method and dimension (hpogrid) or with type (iDDS), not {show(entry)}"
        space.file.wrong(path, message)
    elif "method" in entry or "dimension" in entry:
        _add_hpogrid(space, name, path, entry)
    elif kind in NEVERGRAD_KINDS:
        _add_nevergrad(space, name, path, entry)
    elif kind in _SKOPT_KEYS:
        _add_skopt(space, name, path, entry)
    elif kind in DIMENSION_TYPES:
        _add_own_dimension(space, name, path, entry)
    elif "type" in entry:
        space.file.one_of((*path, "type"), entry["type"], [*NEVERGRAD_KINDS, *_SKOPT_KEYS, *DIMENSION_TYPES])
    else:
        known = ("method", "dimension", "type")
        near = next((key for key in entry if closest(key, known)), None)
        message = "has neither method and dimension (hpogrid) nor type (iDDS)"
        hint = did_you_mean(near, known) if near else ""
        space.file.wrong((*path, near) if near else path, message, hint, at_key=True)


def _add_own_dimension(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    """Adds a parameter in the form of hpo-pilot's search files."""
    try:
        DIMENSION.validate_python(entry)
    except ValidationError as error:
        for mistake in mistakes_of(error, entry, DIMENSION_TYPES):
            space.file.wrong((*path, *mistake.path), mistake.message, mistake.hint, at_key=mistake.at_key)
    else:
        space.add(name, entry, "as it was")


@dataclass
class ForeignSpace:
    """Parameters of another tool in the form of a search file.

    Attributes:
        file: the file that has them; mistakes and warnings are recorded there.
        library: as for `read_space`.
        names: the tool's own names of the parameters.
        dimensions: the `space` section of the search file.
        fixed, arrays, values: as in `PointShape`.
        origins: for each dimension a comment on its origin.
    """

    file: ForeignFile
    library: str | None = None
    names: frozenset[str] = frozenset()
    dimensions: dict[str, dict[str, Any]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, list[Any]] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> PointShape:
        """How the tool's points are built from points of the search."""
        return PointShape(fixed=self.fixed, arrays=self.arrays, values=self.values)

    def fill(
        self,
        path: FieldPath,
        entries: Sequence[tuple[str, FieldPath, Any]],
        add: Callable[[ForeignSpace, str, FieldPath, Any], None],
    ) -> None:
        """Adds all parameters of the space at `path`: `add` adds one from its name, place and value."""
        self.names = frozenset(name for name, _, _ in entries)
        if not entries:
            self.file.wrong(path, "is empty: there is nothing to search")
        for name, place, entry in entries:
            if not name or name != name.strip():
                self.file.wrong(place, f"{name!r} is not a usable name", "remove the blanks at its ends", at_key=True)
            elif self.file.is_readable(place):
                add(self, name, place, entry)
        if entries and not self.dimensions and not self.file.problems:
            self.file.wrong(path, "has no parameter with more than one value")

    def add(self, name: str, dimension: dict[str, Any], origin: str) -> None:
        """Adds a parameter."""
        self.dimensions[name] = dimension
        self.origins[name] = origin

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
        """Adds the numbers from `low` to `high`, both included; a range of one number becomes a constant."""
        if not self._are_bounds(path, low, high, log=log):
            return
        if low == high:
            self.fixed[name] = int(low) if whole else low
            return
        kind = "integer" if whole else "real"
        self.add(name, {"type": kind, "low": low, "high": high, **({"scale": "log"} if log else {})}, origin)

    def add_multiples(self, name: str, path: FieldPath, low: float, high: float, q: float, origin: str) -> None:
        """Adds the multiples of `q` from `low` to `high`."""
        ends = self._multiples(path, low, high, q)
        if ends is None:
            return
        first, last = (_multiple(k, q) for k in ends)
        if first == last:
            self.fixed[name] = first
            return
        whole = float(q).is_integer()
        step = {"step": int(q) if whole else q} if q != 1 else {}
        self.add(name, {"type": "integer" if whole else "real", "low": first, "high": last, **step}, origin)

    def add_log_multiples(self, name: str, path: FieldPath, low: float, high: float, q: float, origin: str) -> None:
        """Adds the multiples of `q` from `low` to `high` on a logarithmic scale."""
        if not self._are_bounds(path, low, high, log=True):
            return
        ends = self._multiples(path, low, high, q)
        if ends is None:
            return
        first, last = max(1, ends[0]), ends[1]
        if first >= last:
            self.fixed[name] = _multiple(last, q)
        elif q == 1:
            self.add(name, {"type": "integer", "low": first, "high": last, "scale": "log"}, origin)
        else:
            chosen = list(range(first, last + 1)) if last - first < _MAX_MULTIPLES else _log_spread(first, last)
            what = f"{len(chosen)} multiples of {show(q)}, as choices in their order"
            self.file.warn(path, f"a search file has no step on a logarithmic scale: {name} becomes {what}")
            self.add(name, {"type": "ordinal", "choices": [_multiple(k, q) for k in chosen]}, origin)

    def _are_bounds(self, path: FieldPath, low: float, high: float, *, log: bool = False) -> bool:
        if log and low <= 0:
            self.file.wrong((*path, "low"), f"a logarithmic parameter needs low above 0, not {show(low)}")
            return False
        if low > high:
            self.file.wrong((*path, "low"), f"low ({show(low)}) must be below high ({show(high)})", "swap the two?")
            return False
        return True

    def _multiples(self, path: FieldPath, low: float, high: float, q: float) -> tuple[int, int] | None:
        """Returns the first and the last k with k * q between the bounds."""
        if not q > 0:
            self.file.wrong((*path, "q"), f"must be above 0, not {show(q)}")
            return None
        if not self._are_bounds(path, low, high):
            return None
        if q < 1e-9 * max(abs(low), abs(high)):
            self.file.wrong((*path, "q"), f"{show(q)} is too small beside the bounds to tell the values apart")
            return None
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        if first > last:
            self.file.wrong((*path, "q"), f"no multiple of {show(q)} lies between {show(low)} and {show(high)}")
            return None
        ends = _multiple(first, q), _multiple(last, q)
        if not all(math.isclose(end, bound, abs_tol=1e-12) for end, bound in zip(ends, (low, high), strict=True)):
            message = f"the bounds are not multiples of q = {show(q)}"
            self.file.warn(path, f"{message}: the values go from {show(ends[0])} to {show(ends[1])}")
        return first, last

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
        """Adds the range that a normal distribution covers; with `base` its values are exponents of `base`."""
        if sigma < 0:
            self.file.wrong((*path, "sigma"), f"must be 0 or more, not {show(sigma)}")
            return
        ends = [mu - _SIGMAS * sigma, mu + _SIGMAS * sigma]
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
            self.file.warn(path, f"{reason} within {_SIGMAS} standard deviations of the mean")
        if q is None:
            self.add_range(name, path, ends[0], ends[1], origin, log=base is not None)
        elif base is None:
            self.add_multiples(name, path, ends[0], ends[1], q, origin)
        else:
            self.add_log_multiples(name, path, max(ends[0], min(q, ends[1])), ends[1], q, origin)

    def add_choices(self, name: str, path: FieldPath, choices: Any, origin: str, *, ordered: bool = False) -> None:
        """Adds a list of values of any types; values listed twice are taken once."""
        if not isinstance(choices, list) or not choices:
            self.file.wrong(path, "is empty" if choices == [] else f"must be a list, not {show(choices)}")
            return
        distinct = {json.dumps(choice, sort_keys=True): choice for choice in choices}
        if len(distinct) < len(choices):
            keys = [json.dumps(choice, sort_keys=True) for choice in choices]
            again = ", ".join(show(choice) for key, choice in distinct.items() if keys.count(key) > 1)
            self.file.warn(path, f"{again} is listed more than once; the choices of a search file have equal weights")
        values = list(distinct.values())
        step = _even_step(values) if ordered else None
        if len(values) == 1:
            self.fixed[name] = values[0]
        elif step is not None:
            self.add(name, {"type": "integer", "low": values[0], "high": values[-1], **step}, origin)
        else:
            labels = _labels(values)
            self.add(name, {"type": "ordinal" if ordered else "categorical", "choices": labels}, origin)
            labelled = zip(labels, values, strict=True)
            if meanings := {label: value for label, value in labelled if isinstance(value, dict | list)}:
                self.values[name] = meanings

    def unused(self, name: str) -> str:
        """Returns `name`, with underscores appended until no parameter has that name."""
        while name in self.names or name in self.dimensions:
            name += "_"
        return name


def _multiple(k: int, q: float) -> float | int:
    """Returns k * q without rounding noise; whole where q is whole."""
    return k * int(q) if float(q).is_integer() else float(f"{k * q:.12g}")


def _log_spread(first: int, last: int) -> list[int]:
    """Returns at most `_MAX_MULTIPLES` whole numbers from `first` to `last`, evenly spread on a logarithmic scale."""
    span = math.log(last) - math.log(first)
    return sorted({round(first * math.exp(span * i / (_MAX_MULTIPLES - 1))) for i in range(_MAX_MULTIPLES)})


def _labels(values: list[Any]) -> list[Any]:
    """Returns the choices, with a text label in place of each list or mapping."""
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


def _even_step(values: list[Any]) -> dict[str, int] | None:
    """Returns the `step` setting of an integer dimension with these values; None where they are not evenly spaced."""
    if len(values) < 3 or not all(type(value) is int for value in values):
        return None
    step = values[1] - values[0]
    if step < 1 or any(after - before != step for before, after in itertools.pairwise(values)):
        return None
    return {"step": step} if step > 1 else {}


# hpogrid's search spaces, which phpo uses too: `{name: {method: …, dimension: {…}}}`.
# It accepts the same as hpogrid 1.3.3 (`hpogrid/core/defaults.py`, `kSearchSpaceFormat`).

#: hpogrid's names of Ray Tune, whose `randint` leaves the upper end out. `uniformint` of hpogrid's other libraries (ax,
#: bohb, hyperopt, nevergrad, optuna, skopt) includes it (`hpogrid/search_space/`).
_TUNE = ("random", "tune")

#: Method -> required and optional keys of its dimension.
HPOGRID_METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "categorical": (("categories",), ("grid_search",)),
    "uniform": (("low", "high"), ()),
    "uniformint": (("low", "high"), ()),
    "quniform": (("low", "high", "q"), ()),
    "loguniform": (("low", "high"), ("base",)),
    "qloguniform": (("low", "high", "q"), ("base",)),
    "normal": (("mu", "sigma"), ()),
    "qnormal": (("mu", "sigma", "q"), ()),
    "lognormal": (("mu", "sigma"), ("base",)),
    "qlognormal": (("mu", "sigma", "q"), ("base",)),
    "fixed": (("value",), ()),
}


def _add_hpogrid(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    file = space.file
    missing = [key for key in ("method", "dimension") if key not in entry]
    for key in entry.keys() - {"method", "dimension"}:
        file.unknown_key((*path, key), "is not known here", missing, "a parameter has method and dimension")
        meant = closest(key, missing)
        missing = [name for name in missing if name != meant]
    for key in missing:
        file.wrong((*path, key), "is missing", at_key=True)
    method, dimension = entry.get("method"), entry.get("dimension")
    if "method" in entry and not (isinstance(method, str) and method in HPOGRID_METHODS):
        hint = did_you_mean(method if isinstance(method, str) else "", HPOGRID_METHODS)
        file.wrong((*path, "method"), f"{show(method)} is not a method of hpogrid", hint)
        return
    if "dimension" in entry and not isinstance(dimension, dict):
        file.wrong((*path, "dimension"), f"must be a mapping, not {show(dimension)}")
        return
    if isinstance(method, str) and isinstance(dimension, dict):
        before = len(file.problems)
        numbers = _hpogrid_numbers(space, (*path, "dimension"), method, dimension)
        if len(file.problems) == before:
            _add_distribution(space, name, (*path, "dimension"), method, dimension, numbers)


def _hpogrid_numbers(space: ForeignSpace, path: FieldPath, method: str, dimension: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a dimension; missing keys, unknown keys and values of a wrong type are recorded."""
    needed, optional = HPOGRID_METHODS[method]
    known = (*needed, *optional)
    for key in needed:
        if key not in dimension:
            space.file.wrong((*path, key), f"is missing, and {method} needs it", at_key=True)
    numbers: dict[str, float] = {}
    for key in dimension:
        if key not in known:
            free = [k for k in known if k not in dimension]
            space.file.unknown_key((*path, key), f"is not known to {method}", free, f"{method} has {listing(known)}")
    for key in ("low", "high", "q", "base", "mu", "sigma"):
        if key not in dimension or key not in known:
            continue
        value = space.file.number((*path, key), dimension[key])
        if value is None:
            continue
        numbers[key] = value
        if method == "uniformint" and not isinstance(value, int):
            space.file.wrong((*path, key), f"must be a whole number, not {show(value)}")
        if key == "base" and (value <= 0 or value == 1):
            space.file.wrong((*path, key), f"{show(value)} is not the base of any logarithm")
    grid_search = dimension.get("grid_search", 0)
    if method == "categorical" and not isinstance(grid_search, int):
        space.file.wrong((*path, "grid_search"), f"must be 0 or 1, not {show(grid_search)}")
    return numbers


def _add_distribution(
    space: ForeignSpace, name: str, path: FieldPath, method: str, dimension: dict[str, Any], numbers: dict[str, float]
) -> None:
    low, high, q = numbers.get("low", 0), numbers.get("high", 0), numbers.get("q", 1)
    mu, sigma = numbers.get("mu", 0), numbers.get("sigma", 0)
    base = numbers.get("base", math.e)  # hpogrid's default
    if method == "categorical":
        space.add_choices(name, (*path, "categories"), dimension["categories"], method)
        if dimension.get("grid_search"):
            message = f"{name}: not every choice is tried with every other; `optimizer: grid` does that"
            space.file.warn((*path, "grid_search"), message)
    elif method == "fixed":
        space.fixed[name] = dimension["value"]
    elif method == "uniformint" and space.library in _TUNE and low == high:
        message = f"Ray Tune's uniformint is [low, high): there is no number from {low} to below {high}"
        space.file.wrong((*path, "high"), message)
    elif method == "uniformint" and space.library in _TUNE:
        origin = f"uniformint of Ray Tune, [{low}, {high}): {high} is not in it"
        space.add_range(name, path, low, high - 1, origin, whole=True)
    elif method == "uniformint":
        if space.library is None and low < high:
            message = f"the file names no library, so that {name} includes {high}: only Ray Tune leaves it out"
            space.file.warn((*path, "high"), message)
        space.add_range(name, path, low, high, method, whole=True)
    elif method == "uniform":
        space.add_range(name, path, low, high, method)
    elif method == "quniform":
        space.add_multiples(name, path, low, high, q, f"quniform, q = {show(q)}")
    elif method == "loguniform":
        space.add_range(name, path, low, high, "loguniform; its base changes nothing", log=True)
    elif method == "qloguniform":
        space.add_log_multiples(name, path, low, high, q, f"qloguniform, q = {show(q)}")
    elif method in ("normal", "qnormal"):
        origin = f"{method} ({show(mu)} ± {show(sigma)})"
        space.add_normal(name, path, mu, sigma, origin, q=numbers.get("q"), base=None)
    else:
        origin = f"{method} ({show(base)} to the power of {show(mu)} ± {show(sigma)})"
        space.add_normal(name, path, mu, sigma, origin, q=numbers.get("q"), base=base)


# Search spaces of scikit-optimize and bayes_opt: `Real`, `Integer`, `Categorical`, and plain lists.
# A list of two numbers is the bounds, as in iDDS's bayesian method; a third and a fourth member are the prior and its
# base. Any other list is choices.

_SKOPT_KEYS = {
    "Real": ("low", "high", "prior", "base"),
    "Integer": ("low", "high", "prior", "base"),
    "Categorical": ("categories",),
}
_PRIORS = ("uniform", "log-uniform")

#: Keys that only scikit-optimize's models use.
_SKOPT_ONLY = ("transform", "dtype", "name")


def _add_skopt(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    kind, file = entry["type"], space.file
    for key in entry.keys() - {"type", *_SKOPT_KEYS[kind]}:
        if key in _SKOPT_ONLY:
            file.warn((*path, key), f"only scikit-optimize uses {key}; the optimizers here do not")
        else:
            known = _SKOPT_KEYS[kind]
            file.unknown_key((*path, key), f"is not known to {kind}", known, f"{kind} has {listing(known)}")
    if kind == "Categorical":
        space.add_choices(name, (*path, "categories"), entry.get("categories"), kind)
        return
    prior = entry.get("prior", "uniform")
    low, high = (file.number((*path, key), entry.get(key)) for key in ("low", "high"))
    if file.one_of((*path, "prior"), prior, list(_PRIORS)) and low is not None and high is not None:
        _add_skopt_range(space, name, path, low, high, prior, kind)


def _add_list(space: ForeignSpace, name: str, path: FieldPath, entry: list[Any]) -> None:
    prior = entry[2] if len(entry) > 2 else "uniform"
    if 2 <= len(entry) <= 4 and is_number(entry[0]) and is_number(entry[1]) and prior in _PRIORS:
        _add_skopt_range(space, name, path, entry[0], entry[1], prior, "Real")
    else:
        space.add_choices(name, path, entry, "a list of choices")


def _add_skopt_range(
    space: ForeignSpace, name: str, path: FieldPath, low: float, high: float, prior: str, kind: str
) -> None:
    whole = kind == "Integer"
    if whole and not all(float(bound).is_integer() for bound in (low, high)):
        space.file.wrong(path, f"an Integer needs whole bounds, not {show(low)} and {show(high)}")
        return
    low, high = (int(low), int(high)) if whole else (low, high)
    space.add_range(name, path, low, high, f"{kind}, {prior}", log=prior == "log-uniform", whole=whole)


# iDDS's own search spaces: nevergrad's parameters, `{name: {type: …, params: {…}, bounds: […]}}`.
# Source: idds-atlas 2.6, `processing/hyperparameteropt_nevergrad.py`; `params` are the arguments of nevergrad's classes
# `Choice`, `TransitionChoice`, `Scalar`, `Log` and `Array`.

#: Kind -> the params that a search can use, and those that only nevergrad uses.
NEVERGRAD_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Choice": (("choices", "repetitions"), ("deterministic",)),
    "TransitionChoice": (("choices", "repetitions", "ordered"), ("transitions",)),
    "Scalar": (("lower", "upper"), ("init", "mutable_sigma")),
    "Log": (("lower", "upper", "exponent", "init"), ("mutable_sigma",)),
    "Array": (("shape", "init", "lower", "upper"), ("mutable_sigma",)),
}


def _add_nevergrad(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    file, kind = space.file, entry["type"]
    for key in entry.keys() - {"type", "params", "bounds"}:
        file.wrong((*path, key), "is not known here", "a parameter has type, params and bounds", at_key=True)
    params = file.mapping((*path, "params"), entry.get("params") or {})
    if params is None:
        return
    usable, only_nevergrad = NEVERGRAD_KINDS[kind]
    for key in params:
        place = (*path, "params", key)
        if key in only_nevergrad:
            file.warn(place, f"only nevergrad uses {key}; the optimizers here do not")
        elif key not in usable:
            file.unknown_key(place, f"is not known to {kind}", usable, f"{kind} has {listing(usable)}")
    if "bounds" in entry and kind not in ("Scalar", "Array"):
        hint = "give lower and upper under params"
        file.wrong((*path, "bounds"), f"iDDS takes no bounds for {kind}", hint, at_key=True)
    elif kind in ("Choice", "TransitionChoice"):
        _add_repeated_choices(space, name, path, kind, params)
    elif kind == "Scalar":
        if (bounds := _bounds(space, path, entry, params)) is not None:
            (low,), (high,) = bounds
            if low is None or high is None:
                low, high = _usual_bounds(space, name, path)
            space.add_range(name, path, low, high, "Scalar")
    elif kind == "Log":
        _add_log(space, name, path, params)
    else:
        _add_array(space, name, path, entry, params)


def _usual_bounds(space: ForeignSpace, name: str, path: FieldPath) -> tuple[float, float]:
    message = f"{name} has no bounds; the search covers {-_SIGMAS} to {_SIGMAS}, where nevergrad mostly looks"
    space.file.warn(path, message)
    return -_SIGMAS, _SIGMAS


def _add_repeated_choices(space: ForeignSpace, name: str, path: FieldPath, kind: str, params: dict[str, Any]) -> None:
    place = (*path, "params", "choices")
    choices = params.get("choices")
    if isinstance(choices, int) and not isinstance(choices, bool):  # in nevergrad a number n means 0 to n - 1
        choices = list(range(choices))
    ordered = kind == "TransitionChoice" and params.get("ordered", True) is True
    repetitions = params.get("repetitions")
    if repetitions is None:
        space.add_choices(name, place, choices, kind, ordered=ordered)
        return
    count = space.file.count((*path, "params", "repetitions"), repetitions)
    if count is not None:
        members = _members(space, name, [count])
        for member in members:
            space.add_choices(member, place, choices, f"{kind}, one of {count}", ordered=ordered)
        _assemble(space, name, members)


def _add_log(space: ForeignSpace, name: str, path: FieldPath, params: dict[str, Any]) -> None:
    bounds = _bounds(space, path, {}, params)
    if bounds is None:
        return
    (low,), (high,) = bounds
    if low is None and is_number(params.get("init")) and params["init"] > 0:
        base = params.get("exponent", math.e)
        if space.file.number((*path, "params", "exponent"), base) is not None and base > 1:
            origin = f"Log around {show(params['init'])}"
            space.add_normal(name, path, math.log(params["init"], base), 1, origin, base=base)
        return
    if low is None or high is None:
        space.file.wrong(path, "needs its bounds", "give params: {lower: …, upper: …}")
        return
    if "init" in params:
        space.file.warn((*path, "params", "init"), "init is where nevergrad begins; `start` names points to try first")
    space.add_range(name, path, low, high, "Log", log=True)


def _bounds(
    space: ForeignSpace, path: FieldPath, entry: dict[str, Any], params: dict[str, Any], size: int = 1
) -> tuple[list[float | None], list[float | None]] | None:
    """Returns the lower and the upper bounds of all members, from `bounds` or from `params`; None: they are wrong.

    A bound is one number, or one for each member.
    """
    given: list[tuple[FieldPath, Any]] = [((*path, "params", key), params.get(key)) for key in ("lower", "upper")]
    if (bounds := entry.get("bounds")) is not None:
        if not isinstance(bounds, list) or len(bounds) != 2:
            space.file.wrong((*path, "bounds"), f"must be a list of two numbers, lower and upper, not {show(bounds)}")
            return None
        given = [((*path, "bounds", index), bound) for index, bound in enumerate(bounds)]
    if (given[0][1] is None) != (given[1][1] is None):
        space.file.wrong(path, "has one bound only", "give both: bounds: [low, high]")
        return None
    rows = []
    for place, bound in given:
        values = _flat([bound])
        if len(values) not in (1, size):
            one = "one number" if size == 1 else f"one number, or {size} of them"
            space.file.wrong(place, f"must be {one}, not {show(bound)}")
            return None
        if any(value is not None and space.file.number(place, value) is None for value in values):
            return None
        rows.append(values * size if len(values) == 1 else values)
    return rows[0], rows[1]


def _add_array(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any], params: dict[str, Any]) -> None:
    init, shape = params.get("init"), params.get("shape")
    if shape is None and isinstance(init, list):
        shape = _shape_of(init)
        message = "init is where nevergrad begins; only its shape is taken, `start` names points to try first"
        space.file.warn((*path, "params", "init"), message)
    if isinstance(shape, int):
        shape = [shape]
    if not (isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape)):
        hint = "give params: {shape: [3]}, or init with as many numbers"
        space.file.wrong((*path, "params"), "the array has no shape", hint)
        return
    if math.prod(shape) > _MAX_MEMBERS:
        space.file.wrong((*path, "params"), f"the array has {math.prod(shape)} members; {_MAX_MEMBERS} is the limit")
        return
    bounds = _bounds(space, path, entry, params, math.prod(shape))
    if bounds is None:
        return
    members = _members(space, name, shape)
    usual = _usual_bounds(space, name, path) if bounds[0][0] is None else (-_SIGMAS, _SIGMAS)
    for member, lower, upper in zip(_flat(members), *bounds, strict=True):
        low, high = usual if lower is None or upper is None else (lower, upper)
        if low == high:
            space.file.wrong(path, "a member of an array must have more than one value")
            return
        space.add_range(member, path, low, high, f"member of the Array {name}")
    _assemble(space, name, members)


def _members(space: ForeignSpace, name: str, shape: list[int]) -> list[Any]:
    """Returns names for the members of an array, nested as its shape says; members are counted from 1."""

    def row(start: tuple[int, ...]) -> Any:
        if len(start) == len(shape):
            return space.unused("_".join([name, *(str(index + 1) for index in start)]))
        return [row((*start, index)) for index in range(shape[len(start)])]

    return row(())  # type: ignore[no-any-return]  # a shape has at least one number, so this is a list


def _assemble(space: ForeignSpace, name: str, members: list[Any]) -> None:
    """Records how the array is built from its members; an array of constants is a constant."""
    flat = _flat(members)
    if all(member in space.fixed for member in flat):
        values = {member: space.fixed.pop(member) for member in flat}
        space.fixed[name] = [values[member] for member in members]
    elif all(member in space.dimensions for member in flat):
        space.arrays[name] = members


def _flat(values: list[Any]) -> list[Any]:
    return [inner for value in values for inner in (_flat(value) if isinstance(value, list) else [value])]


def _shape_of(value: Any) -> list[int]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape
