"""Search spaces as other tools write them."""

from __future__ import annotations

from typing import Any

from hpo_pilot.config.foreign.exported import Exported
from hpo_pilot.search import Categorical, Dimension, Integer, Ordinal, PointShape, Real, Search

#: Whole numbers up to so many become choices where a tool has no integers.
_LISTABLE = 256


def hpogrid_space(search: Search, exported: Exported, *, arrays: bool) -> dict[str, Any]:
    """The space as hpogrid's map.

    Args:
        search: the search.
        exported: takes the warnings.
        arrays: write lists as iDDS does, for a steering container that reads them; else each member is a parameter.
    """
    shape = search.payload.point
    space = {name: _hpogrid(name, d, shape, exported) for name, d in search.space_dimensions.items()}
    # hpogrid has a method `fixed`, but its own check fails on it.
    space |= {
        name: {"method": "categorical", "dimension": {"categories": [value]}} for name, value in shape.fixed.items()
    }
    for name, members in shape.arrays.items():
        entry = _array(name, members, search, exported) if arrays else None
        if entry is not None:
            space = {key: value for key, value in space.items() if key not in _flat(members)}
            space[name] = entry
        else:
            exported.warn(
                f"payload.point.arrays.{name}", "its members are parameters of their own: the payload gets these"
            )
    return space


def nevergrad_space(search: Search, exported: Exported) -> dict[str, Any]:
    """The space as iDDS's own kinds."""
    shape = search.payload.point
    space = {name: _nevergrad(name, d, shape, exported) for name, d in search.space_dimensions.items()}
    space |= {name: {"type": "Choice", "params": {"choices": [value]}} for name, value in shape.fixed.items()}
    for name, members in shape.arrays.items():
        entry = _array(name, members, search, exported)
        if entry is None:
            exported.warn(
                f"payload.point.arrays.{name}", "its members are parameters of their own: the payload gets these"
            )
            continue
        space = {key: value for key, value in space.items() if key not in _flat(members)}
        space[name] = entry
    return space


def _warn_of_conditions(name: str, dimension: Dimension, exported: Exported) -> None:
    if dimension.when:
        exported.warn(f"space.{name}.when", "there are no conditions: it is in every point")


def _hpogrid(name: str, dimension: Dimension, shape: PointShape, exported: Exported) -> dict[str, Any]:
    _warn_of_conditions(name, dimension, exported)
    if isinstance(dimension, Categorical | Ordinal):
        if isinstance(dimension, Ordinal):
            exported.warn(f"space.{name}", "hpogrid's choices have no order")
        return _categories(_choices(name, dimension, shape))
    low, high = dimension.low, dimension.high
    if isinstance(dimension, Real):
        if dimension.scale == "log":
            return {"method": "loguniform", "dimension": {"low": low, "high": high, "base": 10}}
        if dimension.step is None:
            return {"method": "uniform", "dimension": {"low": low, "high": high}}
        return _steps(name, dimension, dimension.step, exported)
    if dimension.scale == "log":
        return {"method": "qloguniform", "dimension": {"low": low, "high": high, "q": 1, "base": 10}}
    if dimension.step == 1:
        return {"method": "uniformint", "dimension": {"low": low, "high": int(high) + 1}}
    return _steps(name, dimension, dimension.step, exported)


def _steps(name: str, dimension: Real | Integer, step: float, exported: Exported) -> dict[str, Any]:
    """Multiples of the step where they are that, else choices."""
    values = dimension.grid(int(dimension.size))
    if all(abs(value / step - round(value / step)) < 1e-9 for value in (values[0], values[-1])):
        return {"method": "quniform", "dimension": {"low": values[0], "high": values[-1], "q": step}}
    exported.warn(f"space.{name}.step", f"hpogrid's steps are multiples of {step:g}: the values become choices")
    return _categories(list(values))


def _categories(values: list[Any]) -> dict[str, Any]:
    return {"method": "categorical", "dimension": {"categories": values, "grid_search": 0}}


def _choices(name: str, dimension: Categorical | Ordinal, shape: PointShape) -> list[Any]:
    """The choices as the payload gets them."""
    meant = shape.values.get(name, {})
    return [meant.get(choice, choice) if isinstance(choice, str) else choice for choice in dimension.choices]


def _nevergrad(name: str, dimension: Dimension, shape: PointShape, exported: Exported) -> dict[str, Any]:
    _warn_of_conditions(name, dimension, exported)
    if isinstance(dimension, Categorical | Ordinal):
        kind = "Choice" if isinstance(dimension, Categorical) else "TransitionChoice"
        return {"type": kind, "params": {"choices": _choices(name, dimension, shape)}}
    if dimension.is_discrete and dimension.size <= _LISTABLE:
        if dimension.scale == "log":
            exported.warn(f"space.{name}.scale", "iDDS has no whole numbers on a logarithmic scale: they are choices")
        return {"type": "TransitionChoice", "params": {"choices": dimension.grid(int(dimension.size))}}
    if dimension.is_discrete:
        exported.warn(
            f"space.{name}", f"iDDS has no list of {dimension.size:g} numbers: the points are between them too"
        )
    if dimension.scale == "log":
        return {"type": "Log", "params": {"lower": dimension.low, "upper": dimension.high}}
    return {"type": "Scalar", "bounds": [dimension.low, dimension.high]}


def _array(name: str, members: list[Any], search: Search, exported: Exported) -> dict[str, Any] | None:
    """An Array of iDDS's; None where the members are not numbers on a linear scale, in equal rows."""
    dimensions = [search.space_dimensions[member] for member in _flat(members)]
    shape = _shape(members)
    if shape is None or not all(isinstance(d, Real) and d.scale == "linear" and d.step is None for d in dimensions):
        return None
    bounds = [[d.low for d in dimensions if isinstance(d, Real)], [d.high for d in dimensions if isinstance(d, Real)]]
    single = [bound[0] if len(set(bound)) == 1 else bound for bound in bounds]
    return {"type": "Array", "params": {"shape": shape}, "bounds": single}


def _flat(values: list[Any]) -> list[Any]:
    return [inner for value in values for inner in (_flat(value) if isinstance(value, list) else [value])]


def _shape(values: Any) -> list[int] | None:
    """The lengths of equal rows; None where they are not."""
    if not isinstance(values, list):
        return []
    inner = [_shape(value) for value in values]
    first = inner[0] if inner else None
    return None if first is None or any(shape != first for shape in inner) else [len(values), *first]
