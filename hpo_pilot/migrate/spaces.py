"""Reads search spaces of hpogrid, nevergrad and scikit-optimize, parameter by parameter."""

from __future__ import annotations

import itertools
import math
from typing import Any

from pydantic import ValidationError

from hpo_pilot.migrate.foreign_file import NORMAL_SIGMAS, ForeignFile, ForeignSpace
from hpo_pilot.search.mistakes import FieldPath, closest, listing, mistakes_of
from hpo_pilot.search.parameters import DIMENSION, DIMENSION_TYPES
from hpo_pilot.search.values import is_number, show


def read_space(file: ForeignFile, path: FieldPath, value: Any) -> ForeignSpace:
    """The space at `path` of a file; what is wrong with it is noted there."""
    space = ForeignSpace(file)
    entries = file.mapping(path, value, "must be a mapping of parameters")
    if entries is None:
        return space
    space.names = frozenset(entries)
    if not entries:
        file.wrong(path, "is empty: there is nothing to search")
    for name, entry in entries.items():
        place = (*path, name)
        if not name or name != name.strip():
            file.wrong(place, f"{name!r} is not a usable name", "leave out blanks at its ends", at_key=True)
        elif not file.is_readable(place):
            continue
        elif is_hpogrid_entry(entry):
            add_hpogrid(space, name, place, entry)
        elif is_nevergrad_entry(entry):
            add_nevergrad(space, name, place, entry)
        elif is_skopt_entry(entry):
            add_skopt(space, name, place, entry)
        elif isinstance(entry, dict) and entry.get("type") in DIMENSION_TYPES:
            _add_own_dimension(space, name, place, entry)
        else:
            _refuse(file, place, entry)
    if entries:
        space.searchable(path)
    return space


def _add_own_dimension(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    """A parameter as search files have it."""
    try:
        DIMENSION.validate_python(entry)
    except ValidationError as error:
        for misfit in mistakes_of(error, entry, DIMENSION_TYPES):
            space.file.wrong((*path, *misfit.path), misfit.message, misfit.hint, at_key=misfit.at_key)
    else:
        space.add(name, entry, "as it was")


def _refuse(file: ForeignFile, path: FieldPath, entry: Any) -> None:
    if not isinstance(entry, dict):
        message = f"must be a mapping with method and dimension (hpogrid) or with type (iDDS), not {show(entry)}"
        file.wrong(path, message)
    elif "type" in entry:
        known = [*NEVERGRAD_KINDS, "Real", "Integer", "Categorical", *DIMENSION_TYPES]
        file.one_of((*path, "type"), entry["type"], known)
    else:
        near = next((key for key in entry if closest(key, ("method", "dimension", "type"))), None)
        meant = closest(near, ("method", "dimension", "type")) if near else None
        place = (*path, near) if near else path
        message = "has neither method and dimension (hpogrid) nor type (iDDS)"
        file.wrong(place, message, f"did you mean {meant}?" if meant else "", at_key=True)


# hpogrid's search-space map, which phpo uses too: `{name: {method: …, dimension: {…}}}`.
#
# What may stand there is what hpogrid 1.3.3 accepts (`hpogrid/core/defaults.py`, `kSearchSpaceFormat`).

#: Method -> what its dimension needs, and what it may have.
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

#: Written for other distributions: base of the natural logarithm is hpogrid's default where it has one.
_BASE = math.e


def is_hpogrid_entry(value: Any) -> bool:
    """Whether a parameter is described as hpogrid does it."""
    return isinstance(value, dict) and ("method" in value or "dimension" in value)


def add_hpogrid(space: ForeignSpace, name: str, path: FieldPath, entry: Any) -> None:
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
    if "method" in entry and not (isinstance(method, str) and method in HPOGRID_METHODS):
        meant = closest(method, HPOGRID_METHODS) if isinstance(method, str) else None
        hint = f"did you mean {meant}?" if meant else f"there is {listing(list(HPOGRID_METHODS))}"
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


def _arguments(space: ForeignSpace, path: FieldPath, method: str, dimension: dict[str, Any]) -> dict[str, float]:
    """The numbers of a dimension; what is missing, unknown or no number is noted."""
    needed, optional = HPOGRID_METHODS[method]
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
    space: ForeignSpace, name: str, path: FieldPath, method: str, dimension: dict[str, Any], numbers: dict[str, float]
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


# Search spaces in scikit-optimize's and bayes_opt's style: `Real`, `Integer`, `Categorical`, and plain lists.
#
# A list of two numbers is bounds, as iDDS's bayesian method takes them; a third and fourth member are the prior and
# its
# base. Any other list is choices.

_KEYS = {
    "Real": ("low", "high", "prior", "base"),
    "Integer": ("low", "high", "prior", "base"),
    "Categorical": ("categories",),
}
_PRIORS = ("uniform", "log-uniform")

#: What speaks to scikit-optimize's models alone.
_IGNORED = ("transform", "dtype", "name")


def is_skopt_entry(value: Any) -> bool:
    """Whether a parameter is described as scikit-optimize or bayes_opt do it."""
    return isinstance(value, list) or (isinstance(value, dict) and value.get("type") in _KEYS)


def add_skopt(space: ForeignSpace, name: str, path: FieldPath, entry: Any) -> None:
    """Adds a parameter; what is wrong with it is noted."""
    if isinstance(entry, list):
        _add_list(space, name, path, entry)
        return
    kind, file = entry["type"], space.file
    for key in entry.keys() - {"type", *_KEYS[kind]}:
        if key in _IGNORED:
            file.warn((*path, key), f"{key} speaks to scikit-optimize alone; the optimizers here have no use for it")
        else:
            near = closest(key, _KEYS[kind])
            hint = f"did you mean {near}?" if near else f"{kind} has {listing(_KEYS[kind])}"
            file.wrong((*path, key), f"is not known to {kind}", hint, at_key=True)
    if kind == "Categorical":
        space.add_choices(name, (*path, "categories"), entry.get("categories"), kind)
        return
    prior = entry.get("prior", "uniform")
    low, high = (file.number((*path, key), entry.get(key)) for key in ("low", "high"))
    if file.one_of((*path, "prior"), prior, list(_PRIORS)) and low is not None and high is not None:
        _add_range(space, name, path, low, high, prior == "log-uniform", kind)


def _add_list(space: ForeignSpace, name: str, path: FieldPath, entry: list[Any]) -> None:
    numbers = [value for value in entry if is_number(value)]
    if len(numbers) == 2 and entry[:2] == numbers and (len(entry) == 2 or entry[2] in _PRIORS):
        log = len(entry) > 2 and entry[2] == "log-uniform"
        _add_range(space, name, path, numbers[0], numbers[1], log, "Real")
    elif len(numbers) == 3 and len(entry) == 4 and entry[2] in _PRIORS:
        _add_range(space, name, path, numbers[0], numbers[1], entry[2] == "log-uniform", "Real")
    else:
        space.add_choices(name, path, entry, "a list of choices")


def _add_range(space: ForeignSpace, name: str, path: FieldPath, low: float, high: float, log: bool, kind: str) -> None:
    whole = kind == "Integer"
    if whole and not all(float(bound).is_integer() for bound in (low, high)):
        space.file.wrong(path, f"an Integer needs whole bounds, not {show(low)} and {show(high)}")
    else:
        low, high = (int(low), int(high)) if whole else (low, high)
        space.add_range(name, path, low, high, f"{kind}, {'log-uniform' if log else 'uniform'}", log=log, whole=whole)


# iDDS's own search spaces: nevergrad's parameters, `{name: {type: …, params: {…}, bounds: […]}}`.
#
# What iDDS reads of them is in idds-atlas 2.6, `processing/hyperparameteropt_nevergrad.py`; the meaning of `params`
# is
# that of nevergrad's classes `Choice`, `TransitionChoice`, `Scalar`, `Log` and `Array`.

#: Kind -> the params that have a meaning for a search, and those that only speak to nevergrad.
NEVERGRAD_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Choice": (("choices", "repetitions"), ("deterministic",)),
    "TransitionChoice": (("choices", "repetitions", "ordered"), ("transitions",)),
    "Scalar": (("lower", "upper"), ("init", "mutable_sigma")),
    "Log": (("lower", "upper", "exponent", "init"), ("mutable_sigma",)),
    "Array": (("shape", "init", "lower", "upper"), ("mutable_sigma",)),
}

#: An array larger than this is no hyper-parameter.
_MOST_MEMBERS = 1000


def is_nevergrad_entry(value: Any) -> bool:
    """Whether a parameter is described as iDDS does it for nevergrad."""
    return isinstance(value, dict) and value.get("type") in NEVERGRAD_KINDS


def add_nevergrad(space: ForeignSpace, name: str, path: FieldPath, entry: dict[str, Any]) -> None:
    """Adds the parameter that iDDS calls `name`; what is wrong with it is noted."""
    file, kind = space.file, entry["type"]
    for key in entry.keys() - {"type", "params", "bounds"}:
        file.wrong((*path, key), "is not known here", "a parameter has type, params and bounds", at_key=True)
    params = file.mapping((*path, "params"), entry.get("params") or {})
    if params is None:
        return
    meant, only_nevergrad = NEVERGRAD_KINDS[kind]
    for key in params:
        place = (*path, "params", key)
        if key in only_nevergrad:
            file.warn(place, f"{key} speaks to nevergrad alone; the optimizers here have no use for it")
        elif key not in meant:
            near = closest(key, meant)
            hint = f"did you mean {near}?" if near else f"{kind} has {listing(meant)}"
            file.wrong(place, f"is not known to {kind}", hint, at_key=True)
    if "bounds" in entry and kind not in ("Scalar", "Array"):
        file.wrong(
            (*path, "bounds"), f"iDDS takes no bounds for {kind}", "lower and upper belong into params", at_key=True
        )
    elif kind in ("Choice", "TransitionChoice"):
        _add_choices(space, name, path, kind, params)
    elif kind == "Scalar":
        low, high = _bounds(space, path, entry, params)
        _add_real(space, name, path, low, high, "Scalar")
    elif kind == "Log":
        _add_log(space, name, path, params)
    else:
        _add_array(space, name, path, entry, params)


def _add_choices(space: ForeignSpace, name: str, path: FieldPath, kind: str, params: dict[str, Any]) -> None:
    place = (*path, "params", "choices")
    choices = params.get("choices")
    if isinstance(choices, int) and not isinstance(choices, bool):  # nevergrad: that many, counted from 0
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


def _add_real(
    space: ForeignSpace, name: str, path: FieldPath, low: float | None, high: float | None, origin: str
) -> None:
    if low is None and high is None:
        space.file.warn(
            path, f"{name} has no bounds; {-NORMAL_SIGMAS} to {NORMAL_SIGMAS} is searched, where nevergrad mostly looks"
        )
        low, high = -NORMAL_SIGMAS, NORMAL_SIGMAS
    if low is None or high is None:
        space.file.wrong(path, "has one bound only", "give both: bounds: [low, high]")
        return
    space.add_range(name, path, low, high, origin)


def _add_log(space: ForeignSpace, name: str, path: FieldPath, params: dict[str, Any]) -> None:
    low, high = _bounds(space, path, {}, params)
    if low is None and high is None and is_number(params.get("init")) and params["init"] > 0:
        base = params.get("exponent", math.e)
        if space.file.number((*path, "params", "exponent"), base) is None or not base > 1:
            return
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
    space: ForeignSpace, path: FieldPath, entry: dict[str, Any], params: dict[str, Any]
) -> tuple[float | None, float | None]:
    """Lower and upper bound, from `bounds` or from `params`; None where there is none."""
    given: list[tuple[FieldPath, Any]] = []
    bounds = entry.get("bounds")
    if bounds is not None:
        if not isinstance(bounds, list) or len(bounds) != 2:
            space.file.wrong((*path, "bounds"), f"must be a list of two numbers, not {show(bounds)}")
            return None, None
        given = [((*path, "bounds", index), bound) for index, bound in enumerate(bounds)]
    else:
        given = [((*path, "params", key), params.get(key)) for key in ("lower", "upper")]
    found: list[float | None] = []
    for place, bound in given:
        single = bound[0] if isinstance(bound, list) and len(bound) == 1 else bound
        found.append(None if single is None else space.file.number(place, single))
    return found[0], found[1]


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
    if math.prod(shape) > _MOST_MEMBERS:
        space.file.wrong((*path, "params"), f"the array has {math.prod(shape)} members; {_MOST_MEMBERS} is the limit")
        return
    bounds = _array_bounds(space, path, entry, params, shape)
    if bounds is None:
        return
    members = _members(space, name, shape)
    if bounds[0][0] is None:
        space.file.warn(
            path, f"{name} has no bounds; {-NORMAL_SIGMAS} to {NORMAL_SIGMAS} is searched, where nevergrad mostly looks"
        )
    for member, low, high in zip(_flat(members), *bounds, strict=True):
        if low is None or high is None:
            space.add_range(member, path, -NORMAL_SIGMAS, NORMAL_SIGMAS, f"member of the Array {name}")
        elif low == high:
            space.file.wrong(path, "a member of an array must have more than one value")
            return
        else:
            space.add_range(member, path, low, high, f"member of the Array {name}")
    _assemble(space, name, members)


def _array_bounds(
    space: ForeignSpace, path: FieldPath, entry: dict[str, Any], params: dict[str, Any], shape: list[int]
) -> tuple[list[float | None], list[float | None]] | None:
    """Lower and upper bounds of all members in a row; a bound is one number, or one for each member."""
    bounds = entry.get("bounds", [params.get("lower"), params.get("upper")])
    if not isinstance(bounds, list) or len(bounds) != 2:
        space.file.wrong((*path, "bounds"), f"must be a list of two, lower and upper, not {show(bounds)}")
        return None
    if (bounds[0] is None) != (bounds[1] is None):
        space.file.wrong(path, "has one bound only", "give both: bounds: [low, high]")
        return None
    size, rows = math.prod(shape), []
    for index, bound in enumerate(bounds):
        values = _flat(bound) if isinstance(bound, list) else [bound]
        if len(values) not in (1, size) or not all(value is None or is_number(value) for value in values):
            place = (*path, "bounds", index) if "bounds" in entry else (*path, "params", ("lower", "upper")[index])
            space.file.wrong(place, f"must be one number, or {size} of them, not {show(bound)}")
            return None
        rows.append(values * size if len(values) == 1 else values)
    return rows[0], rows[1]


def _members(space: ForeignSpace, name: str, shape: list[int]) -> list[Any]:
    """Names of the members of an array, in its shape; counted from 1."""
    names = {
        place: space.unused("_".join([name, *(str(number + 1) for number in place)]))
        for place in itertools.product(*(range(length) for length in shape))
    }

    def row(start: tuple[int, ...]) -> Any:
        if len(start) == len(shape):
            return names[start]
        return [row((*start, index)) for index in range(shape[len(start)])]

    return row(())  # type: ignore[no-any-return]  # a shape has at least one number, so this is a list


def _assemble(space: ForeignSpace, name: str, members: list[Any]) -> None:
    """Says how the array is made again; an array of constants is a constant."""
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
