"""iDDS's own search spaces: nevergrad's parameters, `{name: {type: …, params: {…}, bounds: […]}}`.

What iDDS reads of them is in idds-atlas 2.6, `processing/hyperparameteropt_nevergrad.py`; the meaning of `params` is
that of nevergrad's classes `Choice`, `TransitionChoice`, `Scalar`, `Log` and `Array`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from hpo_pilot.config.foreign.foreign_space import SIGMAS, ForeignSpace
from hpo_pilot.search.misfit import Path, closest, listing
from hpo_pilot.search.point import is_number, show

#: Kind -> the params that have a meaning for a search, and those that only speak to nevergrad.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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
    return isinstance(value, dict) and value.get("type") in KINDS


def add_nevergrad(space: ForeignSpace, name: str, path: Path, entry: dict[str, Any]) -> None:
    """Adds the parameter that iDDS calls `name`; what is wrong with it is noted."""
    file, kind = space.file, entry["type"]
    for key in entry.keys() - {"type", "params", "bounds"}:
        file.wrong((*path, key), "is not known here", "a parameter has type, params and bounds", at_key=True)
    params = file.mapping((*path, "params"), entry.get("params") or {})
    if params is None:
        return
    meant, only_nevergrad = KINDS[kind]
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


def _add_choices(space: ForeignSpace, name: str, path: Path, kind: str, params: dict[str, Any]) -> None:
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


def _add_real(space: ForeignSpace, name: str, path: Path, low: float | None, high: float | None, origin: str) -> None:
    if low is None and high is None:
        space.file.warn(path, f"{name} has no bounds; {-SIGMAS} to {SIGMAS} is searched, where nevergrad mostly looks")
        low, high = -SIGMAS, SIGMAS
    if low is None or high is None:
        space.file.wrong(path, "has one bound only", "give both: bounds: [low, high]")
        return
    space.add_range(name, path, low, high, origin)


def _add_log(space: ForeignSpace, name: str, path: Path, params: dict[str, Any]) -> None:
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
    space: ForeignSpace, path: Path, entry: dict[str, Any], params: dict[str, Any]
) -> tuple[float | None, float | None]:
    """Lower and upper bound, from `bounds` or from `params`; None where there is none."""
    given: list[tuple[Path, Any]] = []
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


def _add_array(space: ForeignSpace, name: str, path: Path, entry: dict[str, Any], params: dict[str, Any]) -> None:
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
        space.file.warn(path, f"{name} has no bounds; {-SIGMAS} to {SIGMAS} is searched, where nevergrad mostly looks")
    for member, low, high in zip(_flat(members), *bounds, strict=True):
        if low is None or high is None:
            space.add_range(member, path, -SIGMAS, SIGMAS, f"member of the Array {name}")
        elif low == high:
            space.file.wrong(path, "a member of an array must have more than one value")
            return
        else:
            space.add_range(member, path, low, high, f"member of the Array {name}")
    _assemble(space, name, members)


def _array_bounds(
    space: ForeignSpace, path: Path, entry: dict[str, Any], params: dict[str, Any], shape: list[int]
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
