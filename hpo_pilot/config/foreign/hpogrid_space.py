"""hpogrid's search-space map, which phpo uses too: `{name: {method: …, dimension: {…}}}`.

What may stand there is what hpogrid 1.3.3 accepts (`hpogrid/core/defaults.py`, `kSearchSpaceFormat`).
"""

from __future__ import annotations

import math
from typing import Any

from hpo_pilot.config.foreign.foreign_space import ForeignSpace
from hpo_pilot.search.misfit import Path, closest, listing
from hpo_pilot.search.point import show

#: Method -> what its dimension needs, and what it may have.
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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

#: Written for other distributions: base of the natural logarithm is hpogrid's default where it has one.
_BASE = math.e


def is_hpogrid_entry(value: Any) -> bool:
    """Whether a parameter is described as hpogrid does it."""
    return isinstance(value, dict) and ("method" in value or "dimension" in value)


def add_hpogrid(space: ForeignSpace, name: str, path: Path, entry: Any) -> None:
    """Adds the parameter that hpogrid calls `name`; what is wrong with it is noted."""
    file = space.file
    if not isinstance(entry, dict):
        file.wrong(path, f"must be a mapping of method and dimension, not {show(entry)}")
        return
    missing = [key for key in ("method", "dimension") if key not in entry]
    for key in entry.keys() - {"method", "dimension"}:
        meant = closest(key, missing)
        hint = f"did you mean {meant}?" if meant else "a parameter has method and dimension"
        file.wrong((*path, key), "is not known here", hint, at_key=True)
        missing = [name for name in missing if name != meant]
    for key in missing:
        file.wrong((*path, key), "is missing", at_key=True)
    method, dimension = entry.get("method"), entry.get("dimension")
    if "method" in entry and not (isinstance(method, str) and method in METHODS):
        meant = closest(method, METHODS) if isinstance(method, str) else None
        hint = f"did you mean {meant}?" if meant else f"there is {listing(list(METHODS))}"
        file.wrong((*path, "method"), f"{show(method)} is not a method of hpogrid", hint)
        return
    if "dimension" in entry and not isinstance(dimension, dict):
        file.wrong((*path, "dimension"), f"must be a mapping, not {show(dimension)}")
        return
    if isinstance(method, str) and isinstance(dimension, dict):
        before = len(file.problems)
        numbers = _arguments(space, (*path, "dimension"), method, dimension)
        if len(file.problems) == before:
            _add(space, name, (*path, "dimension"), method, dimension, numbers)


def _arguments(space: ForeignSpace, path: Path, method: str, dimension: dict[str, Any]) -> dict[str, float]:
    """The numbers of a dimension; what is missing, unknown or no number is noted."""
    needed, optional = METHODS[method]
    for key in needed:
        if key not in dimension:
            space.file.wrong((*path, key), f"is missing, and {method} needs it", at_key=True)
    for key in dimension:
        if key not in (*needed, *optional):
            meant = closest(key, [k for k in (*needed, *optional) if k not in dimension])
            hint = f"did you mean {meant}?" if meant else f"{method} has {listing([*needed, *optional])}"
            space.file.wrong((*path, key), f"is not known to {method}", hint, at_key=True)
    numbers: dict[str, float] = {}
    for key in ("low", "high", "q", "base", "mu", "sigma"):
        if key not in dimension or key not in (*needed, *optional):
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


def _add(
    space: ForeignSpace, name: str, path: Path, method: str, dimension: dict[str, Any], numbers: dict[str, float]
) -> None:
    low, high, q = numbers.get("low", 0), numbers.get("high", 0), numbers.get("q", 1)
    mu, sigma, base = numbers.get("mu", 0), numbers.get("sigma", 0), numbers.get("base", _BASE)
    if method == "categorical":
        space.add_choices(name, (*path, "categories"), dimension["categories"], method)
        if dimension.get("grid_search"):
            message = f"{name}: not every choice is tried with every other; `optimizer: grid` does that"
            space.file.warn((*path, "grid_search"), message)
    elif method == "fixed":
        space.fix(name, dimension["value"])
    elif method == "uniformint":
        if low == high:
            space.file.wrong(
                (*path, "high"), f"uniformint is [low, high): there is no number from {low} to below {high}"
            )
        else:
            space.add_range(name, path, low, high - 1, f"uniformint [{low}, {high}): {high} is not in it", whole=True)
    elif method == "uniform":
        space.add_range(name, path, low, high, method)
    elif method == "quniform":
        space.add_multiples(name, path, low, high, q, f"quniform, q = {show(q)}")
    elif method == "loguniform":
        space.add_range(name, path, low, high, "loguniform; its base changes nothing", log=True)
    elif method == "qloguniform":
        space.add_log_multiples(name, path, low, high, q, f"qloguniform, q = {show(q)}")
    elif method in ("normal", "qnormal"):
        step = q if "q" in numbers else None
        space.add_normal(name, path, mu, sigma, f"{method} ({show(mu)} ± {show(sigma)})", q=step, base=None)
    else:
        step = q if "q" in numbers else None
        origin = f"{method} ({show(base)} to the power of {show(mu)} ± {show(sigma)})"
        space.add_normal(name, path, mu, sigma, origin, q=step, base=base)
