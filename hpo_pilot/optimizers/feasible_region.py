"""The unit cube of a space for many points at once: values, active dimensions, neighbours, and the feasible region."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hpo_pilot.search import Integer, Real, SearchSpace
from hpo_pilot.search.space import Constraint

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: One value per row: float64, bool or object.
Column = npt.NDArray[Any]


def reflected(units: Array) -> Array:
    """Returns coordinates reflected into [0, 1] at the bounds."""
    folded = np.mod(np.abs(units), 2.0)
    return np.asarray(np.where(folded > 1.0, 2.0 - folded, folded))


class UnitCube:
    """The unit vectors of a space as arrays of shape (n, n_dims); constraints are not checked.

    Attributes:
        sizes: number of values of each dimension; 0 if it is continuous.
        is_ordered: which dimensions are ordered, shape (n_dims,).
    """

    def __init__(self, space: SearchSpace) -> None:
        """Takes the dimensions in their order."""
        dimensions = list(space.dimensions.values())
        self._dimensions = dimensions
        self.sizes = [int(d.size) if d.is_discrete else 0 for d in dimensions]
        self.is_ordered = np.array([d.is_ordered for d in dimensions])
        self._steps = np.array([1.0 / size if size else 0.0 for size in self.sizes])
        names = list(space.dimensions)
        self._conditions: list[tuple[int, list[tuple[int, Array]]]] = []  # parents first
        for name in space.parents_first:
            parents = []
            for parent, value in space.dimensions[name].when.items():
                domain, wanted = space.dimensions[parent], value if isinstance(value, list) else [value]
                places = [domain.to_unit(domain.canonical(one)) for one in wanted]
                parents.append((names.index(parent), np.array(places)))
            self._conditions.append((names.index(name), parents))

    def snapped(self, units: Array) -> Array:
        """Returns the vectors of `SearchSpace.encode` for the points at `units`: middles of cells, 0.5 if inactive."""
        snapped: Array = np.minimum(1.0, np.maximum(0.0, units))
        for index, (dimension, size) in enumerate(zip(self._dimensions, self.sizes, strict=True)):
            if not size:
                continue
            if isinstance(dimension, Integer) and dimension.scale == "log":  # the only cells of unequal width
                snapped[:, index] = [dimension.to_unit(dimension.from_unit(u)) for u in snapped[:, index].tolist()]
            else:
                snapped[:, index] = (np.minimum(np.floor(snapped[:, index] * size), size - 1) + 0.5) / size
        snapped[~self.active(snapped)] = 0.5
        return snapped

    def active(self, snapped: Array) -> Mask:
        """Returns which dimensions are active at units whose discrete values are at the middles of their cells."""
        active = np.ones(snapped.shape, dtype=bool)
        for index, parents in self._conditions:
            for parent, places in parents:  # an inactive parent may be at a position that makes its child active
                near = np.abs(snapped[:, parent, None] - places[None, :]).min(axis=1) < 1e-9
                active[:, index] &= near & active[:, parent]
        return active

    def values(self, index: int, places: Array) -> Column:
        """Returns the values of a dimension at snapped places, shape (n,); up to rounding those of `from_unit`."""
        dimension = self._dimensions[index]
        if isinstance(dimension, Integer) and dimension.scale == "linear":
            return dimension.low + dimension.step * np.floor(places * self.sizes[index])
        if isinstance(dimension, Real) and dimension.step is None:
            low, high = dimension.low, dimension.high
            if dimension.scale == "log":
                values = np.exp(math.log(low) + places * (math.log(high) - math.log(low)))
            else:
                values = low + places * (high - low)
            return np.where(places == 1.0, high, np.where(places == 0.0, low, np.clip(values, low, high)))
        seen, which = np.unique(places, return_inverse=True)
        return _column([dimension.from_unit(place) for place in seen.tolist()])[which]

    def moved(self, units: Array, numbers: np.random.Generator, exponents: tuple[float, float], share: float) -> Array:
        """Returns neighbours of `units`, not snapped; choices without an order are drawn again.

        Args:
            units: shape (n, n_dims).
            numbers: the random stream.
            exponents: a shift has the deviation 10^u of the range, u uniform between these, and at least one cell.
            share: the share of the dimensions that change; at least one changes.
        """
        scale = 10.0 ** numbers.uniform(*exponents, (len(units), 1))
        changed = numbers.random(units.shape) < share
        changed[np.arange(len(units)), numbers.integers(units.shape[1], size=len(units))] = True
        shifted = reflected(units + np.maximum(scale, self._steps) * numbers.standard_normal(units.shape))
        other = np.where(self.is_ordered, shifted, numbers.random(units.shape))
        return np.where(changed, other, units)


def _column(values: Sequence[Any]) -> Column:
    """Returns Python values as a column: of floats, of booleans, or of objects."""
    types = set(map(type, values))
    if types <= {int, float}:
        return np.array(values, dtype=np.float64)
    if types == {bool}:
        return np.array(values, dtype=np.bool_)
    return np.array([*values, None], dtype=object)[:-1]  # None, because numpy would not keep text alone as objects


class _PointByPointError(Exception):
    """numpy might evaluate the expression differently from Python."""


#: Larger whole numbers are not all exact as floats.
_EXACT = 2**53

_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in ("abs", "sqrt", "log", "log2", "log10", "exp", "floor", "ceil")},
    "int": np.trunc,
}


def _evaluated(node: ast.expr, columns: Mapping[str, Column]) -> Any:
    """Returns the value of an expression in all rows, a column or a constant; takes a fraction of a µs per row.

    Raises:
        _PointByPointError: the expression has parts whose value or error numpy might not give as Python does.
        TypeError: numpy does not compare such values.
    """
    match node:
        case ast.Constant(value=value) if not isinstance(value, int) or abs(value) <= _EXACT:
            return value
        case ast.Name(id=name):
            return columns[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            numbers = _number(_evaluated(left, columns)), _number(_evaluated(right, columns))
            return _number(_ARITHMETIC[type(op)](*numbers))
        case ast.IfExp(test=test, body=body, orelse=other):
            numbers = _number(_evaluated(body, columns)), _number(_evaluated(other, columns))
            return np.where(_truth(_evaluated(test, columns)), *numbers)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(_evaluated(operand, columns))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_truth(_evaluated(operand, columns))
        case ast.BoolOp(op=op, values=parts):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return join.reduce(np.broadcast_arrays(*(_truth(_evaluated(part, columns)) for part in parts)))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_evaluated(part, columns) for part in (left, *others)]
            pairs = [_compared(op, a, b) for op, a, b in zip(ops, values, values[1:], strict=False)]
            return np.logical_and.reduce(np.broadcast_arrays(*pairs))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_evaluated(item, columns) for item in items]
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, second]):
            numbers = _number(_evaluated(first, columns)), _number(_evaluated(second, columns))
            return np.minimum(*numbers) if name == "min" else np.maximum(*numbers)
        case ast.Call(func=ast.Name(id=name), args=[argument]) if name in _FUNCTIONS:
            return _number(_FUNCTIONS[name](_number(_evaluated(argument, columns))))
    raise _PointByPointError


def _compared(op: ast.cmpop, a: Any, b: Any) -> Any:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(b, list) and b:
        found = np.logical_or.reduce(np.broadcast_arrays(*(_compared(ast.Eq(), a, item) for item in b)))
        return found if isinstance(op, ast.In) else ~found
    if type(op) not in _COMPARISONS or isinstance(a, list) or isinstance(b, list):
        raise _PointByPointError
    return np.asarray(_COMPARISONS[type(op)](a, b), dtype=bool)


def _number(value: Any) -> Array:
    """Returns numbers as floats; infinite ones, NaN (Python has an error there) and inexact integers are refused."""
    number = np.asarray(value)
    if number.dtype.kind not in "bif":
        raise _PointByPointError
    number = number.astype(np.float64)
    if not np.all(np.abs(number) <= _EXACT):
        raise _PointByPointError
    return number


def _truth(value: Any) -> Mask:
    truth = np.asarray(value)
    if truth.dtype.kind != "b":  # Python's `and` and `or` return one of the operands
        raise _PointByPointError
    return truth


#: Unit vectors evaluated together.
_CHUNK = 20_000

#: Draws from the whole cube for the first feasible points of a space, once: a feasible share of 0.001% is missed once
#: in 10^8 spaces. They take up to a second where numpy evaluates the constraints; where Python does, fewer are drawn.
_DRAWS = 2_000_000
_DRAWS_POINT_BY_POINT = 60_000

#: Draws from the whole cube for a sample, at most; if they would not be enough, random walks make the sample.
_DRAWS_IN_A_SAMPLE = 100_000

#: Feasible points that are kept as starts of random walks.
_KEPT = 512

#: Steps of a random walk.
_STEPS = 40


class FeasibleRegion:
    """The part of the unit cube whose points satisfy the constraints of a space."""

    def __init__(self, space: SearchSpace) -> None:
        """Prepares the constraints of `space`; draws no samples yet."""
        self.space = space
        self._constraints = [Constraint(expression) for expression in space.constraints]
        self._index = {name: index for index, name in enumerate(space.names)}
        self._cube = UnitCube(space)

    def mask(self, units: Array) -> Mask:
        """Returns which of `units`, shape (n, n_dims), are feasible, up to rounding as `space.is_feasible` says."""
        feasible: Mask = np.ones(len(units), dtype=np.bool_)
        for start in range(0, len(units), _CHUNK):
            part = slice(start, start + _CHUNK)
            feasible[part] = self._mask(units[part])[0]
        return feasible

    def _mask(self, units: Array) -> tuple[Mask, bool]:
        """Returns which of `units` are feasible, and whether Python had to evaluate some of them point by point."""
        snapped = self._cube.snapped(units)
        active = self._cube.active(snapped)
        feasible: Mask = np.ones(len(units), dtype=np.bool_)
        slow = False
        for constraint in self._constraints:
            names = {name: self._index[name] for name in sorted(constraint.names)}
            # A constraint on an inactive parameter holds.
            rows = np.flatnonzero(feasible & active[:, list(names.values())].all(axis=1))
            if not len(rows):
                continue
            columns = {name: self._cube.values(index, snapped[rows, index]) for name, index in names.items()}
            try:
                with np.errstate(all="ignore"):
                    feasible[rows] = _truth(_evaluated(constraint.tree, columns))
            except (_PointByPointError, TypeError):
                slow = True
                feasible[rows] = [constraint.holds(self.space.decode(unit)) for unit in units[rows].tolist()]
        return feasible, slow

    @property
    def share(self) -> float:
        """The sampled estimate of the feasible share of the cube; 0.0 where nothing was found."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Array, float]:
        """Feasible unit vectors from the whole cube, and its feasible share. They depend only on the space."""
        dims = len(self._index)
        if self.space.size <= _CHUNK:
            listed = [self.space.encode(point) for point in self.space.all_points()]
            return np.array(listed).reshape(len(listed), dims), len(listed) / self.space.size
        numbers = np.random.default_rng(20_260_101)
        found: list[Array] = []
        drawn, most, hits = 0, _DRAWS, 0
        while drawn < most and hits < _KEPT:
            units = numbers.random((_CHUNK, dims))
            feasible, slow = self._mask(units)
            most = _DRAWS_POINT_BY_POINT if slow else most
            drawn += _CHUNK
            found.append(units[feasible])
            hits += len(found[-1])
        return np.concatenate(found)[:_KEPT], hits / drawn

    def sample(self, count: int, numbers: np.random.Generator, anchors: Array | None = None) -> Array:
        """Returns up to `count` unit vectors of feasible points, uniform in the region.

        Args:
            count: the number of vectors.
            numbers: the random stream.
            anchors: unit vectors of feasible points, shape (k, n_dims), for regions that random draws would miss.

        Returns:
            Shape (count, n_dims), or (0, n_dims) where no feasible point is known.
        """
        dims = len(self._index)
        share = self.share
        if share * _DRAWS_IN_A_SAMPLE >= count:
            return self._drawn(count, share, numbers)
        start, _ = self._found
        if anchors is not None and len(anchors):
            start = np.concatenate([start, anchors[self.mask(anchors)]])
        if not len(start):
            return np.empty((0, dims))
        return self._walked(start[numbers.integers(len(start), size=count)], numbers)

    def _drawn(self, count: int, share: float, numbers: np.random.Generator) -> Array:
        found: list[Array] = []
        missing = count
        while missing > 0:
            size = min(_CHUNK, int(missing / share * 1.2) + 16)
            units = numbers.random((size, len(self._index)))
            feasible = units[self.mask(units)][:missing]
            missing -= len(feasible)
            found.append(feasible)
        return np.concatenate(found)

    def _walked(self, units: Array, numbers: np.random.Generator) -> Array:
        """Returns the ends of random walks that start at `units` and stay in the region.

        A step and its reverse have the same probability, so long walks end uniformly in the region. Step lengths from
        a millionth of the cube to its whole width suit regions of any width.
        """
        share = max(0.3, 1.0 / units.shape[1])
        for _ in range(_STEPS):
            moved = self._cube.moved(units, numbers, (-6.0, 0.0), share)
            units = np.where(self.mask(moved)[:, None], moved, units)
        return units


@lru_cache(maxsize=32)
def _region(definition: str) -> FeasibleRegion:
    return FeasibleRegion(SearchSpace.model_validate_json(definition))


def feasible_region(space: SearchSpace) -> FeasibleRegion:
    """Returns the feasible region of a space; later calls return the same object, with its samples."""
    return _region(space.model_dump_json())
