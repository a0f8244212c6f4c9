"""Evaluates the constraints of a search space for many points at once, and samples the feasible region."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hpo_pilot.search import Integer, Real, SearchSpace
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.space import FAILURES, FUNCTIONS, OPERATORS, Constraint
from hpo_pilot.search.values import value_key

# Constraints evaluated for many points at once, with the very results of one at a time.
#
# Numbers go through numpy where its result is Python's to the last bit: sums, differences and products of whole
# numbers
# below 2^53 and of floats, quotients, comparisons, square roots. All else, text and powers for example, is what
# `hpo_pilot.search.space` does, applied value by value: that costs a fraction of a microsecond a value where a walk
# through the expression costs twenty.

#: One value a row: int64 (within ±2^53), float64, bool or object.
Column = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: Whole numbers up to here are floats too, so that nothing is lost between the two.
_EXACT = 2**53

_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


def holds(constraint: Constraint, columns: Mapping[str, Column], count: int) -> Mask:
    """Whether each of `count` points satisfies the constraint; shape (count,).

    Args:
        constraint: the constraint.
        columns: the values of the parameters that it reads, each of shape (count,); all of them active.
        count: how many points.
    """
    evaluation = _Evaluation(columns, count)
    with np.errstate(all="ignore"):
        value = evaluation.of(constraint.tree, np.arange(count))
        return _truth(value) & ~evaluation.failed


def column(values: Sequence[Any]) -> Column:
    """Python values as a column."""
    types = set(map(type, values))
    if types == {float}:
        return np.array(values, dtype=np.float64)
    if types == {bool}:
        return np.array(values, dtype=np.bool_)
    if types == {int} and min(values) >= -_EXACT and max(values) <= _EXACT:
        return np.array(values, dtype=np.int64)
    objects = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # one by one, for numpy would take lists apart
        objects[index] = value
    return objects


class _Evaluation:
    """One expression over columns; `failed` are the rows where it has no value."""

    def __init__(self, columns: Mapping[str, Column], count: int) -> None:
        self._columns = columns
        self.failed: Mask = np.zeros(count, dtype=np.bool_)

    def of(self, node: ast.expr, rows: Rows) -> Column:
        """The values of `node` in `rows`, shape (len(rows),); anything where it failed."""
        match node:
            case ast.Constant():
                return np.repeat(column([node.value]), len(rows))
            case ast.Name():
                return self._columns[node.id][rows]
            case ast.BinOp():
                return self._binary(node.op, self.of(node.left, rows), self.of(node.right, rows), rows)
            case ast.UnaryOp():
                return self._unary(node.op, self.of(node.operand, rows), rows)
            case ast.Compare():
                return self._compare(node, rows)
            case ast.BoolOp():
                return self._either(node, rows)
            case ast.IfExp():
                chosen = _truth(self.of(node.test, rows))
                return _joined(
                    len(rows),
                    (np.flatnonzero(chosen), self.of(node.body, rows[chosen])),
                    (np.flatnonzero(~chosen), self.of(node.orelse, rows[~chosen])),
                )
            case ast.Call(func=ast.Name(id=name)):
                return self._call(name, [self.of(argument, rows) for argument in node.args], rows)
            case ast.List() | ast.Tuple():
                made: Callable[..., Any] = _as_list if isinstance(node, ast.List) else _as_tuple
                if not node.elts:
                    return column([made()] * len(rows))
                return self._each(made, [self.of(item, rows) for item in node.elts], rows)
        raise TypeError(f"no expression of a constraint: {ast.dump(node)}")

    def _binary(self, operation: ast.operator, a: Column, b: Column, rows: Rows) -> Column:
        kind = type(operation)
        if _is_numeric(a) and _is_numeric(b):
            floats = a.dtype.kind == "f" or b.dtype.kind == "f"
            if kind in _ARITHMETIC and (floats or _stays_exact(kind, a, b)):
                to = np.float64 if floats else np.int64
                result: Column = _ARITHMETIC[kind](a.astype(to), b.astype(to))
                return result
            if kind is ast.Div:
                divisor = b.astype(np.float64)
                self.failed[rows[divisor == 0.0]] = True
                quotient: Column = a.astype(np.float64) / np.where(divisor == 0.0, 1.0, divisor)
                return quotient
        return self._each(OPERATORS[kind], [a, b], rows)

    def _unary(self, operation: ast.unaryop, value: Column, rows: Rows) -> Column:
        if isinstance(operation, ast.Not):
            return ~_truth(value)
        if _is_numeric(value):
            number: Column = value.astype(np.int64) if value.dtype.kind == "b" else value
            return -number if isinstance(operation, ast.USub) else number
        return self._each(OPERATORS[type(operation)], [value], rows)

    def _compare(self, node: ast.Compare, rows: Rows) -> Column:
        result: Mask = np.ones(len(rows), dtype=np.bool_)
        at = np.arange(len(rows))  # where all comparisons so far are true: the others' next operand has no say
        left = self.of(node.left, rows)
        for operation, following in zip(node.ops, node.comparators, strict=True):
            right = self.of(following, rows[at])
            true = _truth(self._compared(operation, left, right, rows[at]))
            result[at[~true]] = False
            at, left = at[true], right[true]
        return result

    def _compared(self, operation: ast.cmpop, a: Column, b: Column, rows: Rows) -> Column:
        kind = type(operation)
        if kind in _COMPARISONS and _is_numeric(a) and _is_numeric(b):
            result: Column = _COMPARISONS[kind](a, b)
            return result
        return self._each(OPERATORS[kind], [a, b], rows)

    def _either(self, node: ast.BoolOp, rows: Rows) -> Column:
        """`and`, `or`: the value of the first operand that decides, or of the last."""
        parts: list[tuple[Rows, Column]] = []
        at = np.arange(len(rows))
        for position, operand in enumerate(node.values):
            value = self.of(operand, rows[at])
            undecided = _truth(value) if isinstance(node.op, ast.And) else ~_truth(value)
            if position == len(node.values) - 1:
                undecided = np.zeros(len(at), dtype=np.bool_)
            parts.append((at[~undecided], value[~undecided]))
            at = at[undecided]
        return _joined(len(rows), *parts)

    def _call(self, name: str, arguments: Sequence[Column], rows: Rows) -> Column:
        if len(arguments) == 1 and _is_numeric(arguments[0]) and arguments[0].dtype.kind != "b":
            [value] = arguments
            if name == "abs":
                return np.asarray(np.abs(value))
            if name == "sqrt":
                number = value.astype(np.float64)
                self.failed[rows[number < 0.0]] = True
                return np.asarray(np.sqrt(np.abs(number)))
        of_one_kind = len(arguments) > 1 and len({argument.dtype.kind for argument in arguments}) == 1
        if name in ("min", "max") and of_one_kind and arguments[0].dtype.kind in "if":
            stacked = np.stack(arguments)
            if not np.isnan(stacked).any():  # with NaN the order of the arguments counts in Python
                return np.asarray(stacked.min(axis=0) if name == "min" else stacked.max(axis=0))
        if not arguments:
            self.failed[rows] = True
            return np.zeros(len(rows), dtype=np.int64)
        return self._each(FUNCTIONS[name], arguments, rows)

    def _each(self, function: Callable[..., Any], arguments: Sequence[Column], rows: Rows) -> Column:
        """`function` value by value, as it is done for a single point."""
        results: list[Any] = []
        failed: list[int] = []
        for index, values in enumerate(zip(*(argument.tolist() for argument in arguments), strict=True)):
            try:
                results.append(function(*values))
            except FAILURES:
                failed.append(index)
                results.append(None)
        if failed:
            self.failed[rows[failed]] = True
            stand_in = next((result for result in results if result is not None), 0)
            for index in failed:
                results[index] = stand_in
        return column(results)


def _as_list(*items: Any) -> list[Any]:
    return list(items)


def _as_tuple(*items: Any) -> tuple[Any, ...]:
    return items


def _is_numeric(value: Column) -> bool:
    return value.dtype.kind in "ifb"


def _stays_exact(kind: type[ast.AST], a: Column, b: Column) -> bool:
    """Whether whole numbers stay within the floats."""
    if len(a) == 0:
        return True
    largest_a, largest_b = int(np.abs(a.astype(np.int64)).max()), int(np.abs(b.astype(np.int64)).max())
    return (largest_a * largest_b if kind is ast.Mult else largest_a + largest_b) <= _EXACT


def _truth(value: Column) -> Mask:
    if value.dtype.kind == "b":
        return value
    if value.dtype.kind == "O":
        return np.array([bool(one) for one in value.tolist()], dtype=np.bool_)
    return np.asarray(value != 0, dtype=np.bool_)


def _joined(count: int, *parts: tuple[Rows, Column]) -> Column:
    """One column of parts, each with its places."""
    kinds = {value.dtype for _, value in parts if len(value)}
    joined: Column = np.zeros(count, dtype=kinds.pop() if len(kinds) == 1 else object)
    for places, value in parts:
        for_objects = joined.dtype.kind == "O" and value.dtype.kind != "O"
        joined[places] = np.array(value.tolist(), dtype=object) if for_objects else value
    return joined


Array = npt.NDArray[np.float64]

#: Unit vectors looked at together.
_CHUNK = 20_000

#: Draws from the whole cube for the first feasible points of a space, once: a share of 0.001% is missed once in 10^8
#: spaces. They take a second or less where numpy evaluates the constraints, so fewer are drawn where Python does.
_DRAWS = 2_000_000
_DRAWS_IN_PYTHON = 60_000

#: Draws from the whole cube for a sample; where they would not be enough it is found by walking.
_DRAWS_IN_A_SAMPLE = 100_000

#: Feasible points that are kept as the start of every later sample.
_KEPT = 512

#: Steps of the walk that spreads a sample over the region, where it cannot be drawn from the whole cube.
_STEPS = 40


class FeasibleRegion:
    """The part of the unit cube whose points satisfy the constraints of a space."""

    def __init__(self, space: SearchSpace) -> None:
        """Of `space`; nothing is sampled yet."""
        self.space = space
        self._constraints = [Constraint(expression) for expression in space.constraints]
        self._index = {name: index for index, name in enumerate(space.names)}

    def mask(self, units: Array) -> Mask:
        """Which of `units`, shape (n, n_dims), are feasible: what `space.is_feasible` says of each decoded point."""
        feasible: Mask = np.ones(len(units), dtype=np.bool_)
        for start in range(0, len(units), _CHUNK):
            part = slice(start, start + _CHUNK)
            feasible[part] = self._mask(units[part])
        return feasible

    def _mask(self, units: Array) -> Mask:
        feasible: Mask = np.ones(len(units), dtype=np.bool_)
        table = _Table(self.space, self._index, units)
        for constraint in self._constraints:
            asked: Mask = feasible.copy()  # a constraint on an inactive parameter holds
            for name in constraint.names:
                asked &= table.active(name)
            rows = np.flatnonzero(asked)
            if len(rows) == 0:
                continue
            if _compares_identity(constraint):
                feasible[rows] = [constraint.holds(self.space.decode(unit)) for unit in units[rows].tolist()]
            else:
                columns = {name: table.values(name)[rows] for name in constraint.names}
                feasible[rows] = holds(constraint, columns, len(rows))
        return feasible

    @property
    def share(self) -> float:
        """The share of the cube that is feasible, as far as it was sampled; 0.0 where nothing was found."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Array, float]:
        """Feasible unit vectors from anywhere in the cube, and the share of it that is feasible.

        They depend on the space alone, so that it makes no difference who asks first.
        """
        dims = len(self._index)
        if self.space.size <= _CHUNK:
            listed = [self.space.encode(point) for point in self.space.all_points()]
            return np.array(listed).reshape(len(listed), dims), len(listed) / self.space.size
        numbers = np.random.default_rng(20_260_101)
        found: list[Array] = []
        drawn = hits = 0
        most = _DRAWS_IN_PYTHON if any(map(_is_slow, self._constraints)) else _DRAWS
        while drawn < most and hits < _KEPT:
            units = numbers.random((_CHUNK, dims))
            feasible = units[self.mask(units)]
            drawn += _CHUNK
            hits += len(feasible)
            found.append(feasible)
        return np.concatenate(found)[:_KEPT], hits / drawn

    def sample(self, count: int, numbers: np.random.Generator, anchors: Array | None = None) -> Array:
        """Up to `count` unit vectors of feasible points, evenly from anywhere in the region.

        Args:
            count: how many.
            numbers: the random stream.
            anchors: unit vectors known to be feasible, shape (k, n_dims), for regions too small to be hit by chance.

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
        """The ends of random walks that start at `units` and leave the region at no step.

        A step is as likely as the way back, so the walks end anywhere in the region with the same chance, if they are
        long enough; lengths from a millionth of the cube to all of it find their way in regions of any width.
        """
        ordered = np.array([dimension.is_ordered for dimension in self.space.dimensions.values()])
        least = np.array([1.0 / d.size if d.is_discrete else 0.0 for d in self.space.dimensions.values()])
        dims = len(ordered)
        for _ in range(_STEPS):
            scale = np.maximum(10.0 ** numbers.uniform(-6.0, 0.0, (len(units), 1)), least)
            changed = numbers.random(units.shape) < max(0.3, 1.0 / dims)
            changed[np.arange(len(units)), numbers.integers(dims, size=len(units))] = True
            moved = reflected(units + scale * numbers.standard_normal(units.shape))
            moved = np.where(ordered, moved, numbers.random(units.shape))
            moved = np.where(changed, moved, units)
            units = np.where(self.mask(moved)[:, None], moved, units)
        return units


@lru_cache(maxsize=32)
def _region(definition: str) -> FeasibleRegion:
    return FeasibleRegion(SearchSpace.model_validate_json(definition))


def feasible_region(space: SearchSpace) -> FeasibleRegion:
    """The feasible region of a space; asked for again, the same object, with what it has sampled."""
    return _region(space.model_dump_json())


def reflected(units: Array) -> Array:
    """Coordinates folded back into [0, 1] at the bounds."""
    folded = np.mod(np.abs(units), 2.0)
    return np.asarray(np.where(folded > 1.0, 2.0 - folded, folded))


class _Table:
    """The decoded values of unit vectors, a column a dimension, as far as they are asked for."""

    def __init__(self, space: SearchSpace, index: dict[str, int], units: Array) -> None:
        self._space = space
        self._index = index
        self._units = units
        self._values: dict[str, Column] = {}
        self._active: dict[str, Mask] = {}

    def values(self, name: str) -> Column:
        """The value of a dimension in each row, as if it were active there."""
        if name not in self._values:
            self._values[name] = decoded(self._space.dimensions[name], self._units[:, self._index[name]])
        return self._values[name]

    def active(self, name: str) -> Mask:
        """Where a dimension is active."""
        if name not in self._active:
            active: Mask = np.ones(len(self._units), dtype=np.bool_)
            for parent, wanted in self._space.conditions[name]:
                active &= self.active(parent)
                active &= _is_wanted(self._space.dimensions[parent], self._units[:, self._index[parent]], wanted)
            self._active[name] = active
        return self._active[name]


def _is_wanted(dimension: Dimension, places: Array, wanted: frozenset[str]) -> Mask:
    """Where a dimension has one of the values with these keys."""
    has_shares = dimension.is_discrete and not (isinstance(dimension, Integer) and dimension.scale == "log")
    if has_shares and dimension.size <= _CHUNK:
        places, which = np.unique(_shares(dimension, places), return_inverse=True)
        places = (places + 0.5) / dimension.size
    else:
        which = np.arange(len(places))
    found: Mask = np.array([value_key(dimension.from_unit(place)) in wanted for place in places.tolist()], dtype=bool)
    return np.asarray(found[which])


def _shares(dimension: Dimension, places: Array) -> npt.NDArray[np.int64]:
    """Of a discrete dimension that gives each value the same share, whose share each of `places` is in."""
    size = int(dimension.size)
    index: npt.NDArray[np.int64] = (np.clip(places, 0.0, 1.0) * size).astype(np.int64)
    return np.minimum(size - 1, index)


def decoded(dimension: Dimension, places: Array) -> Column:
    """`dimension.from_unit` of each of `places`, shape (n,)."""
    if isinstance(dimension, Real) and dimension.step is None:
        return _reals(dimension, np.clip(places, 0.0, 1.0))
    if isinstance(dimension, Integer) and dimension.scale == "log":
        low, high = math.log(dimension.low - 0.5), math.log(dimension.high + 0.5)
        rounded = np.rint(_exponentials(low + np.clip(places, 0.0, 1.0) * (high - low)))
        return np.asarray(np.minimum(dimension.high, np.maximum(dimension.low, rounded)).astype(np.int64))
    index = _shares(dimension, places)
    if isinstance(dimension, Integer):
        return np.asarray(dimension.low + dimension.step * index)
    seen, which = np.unique(index, return_inverse=True)
    return column([dimension.from_unit((one + 0.5) / dimension.size) for one in seen.tolist()])[which]


def _exponentials(exponents: Array) -> Array:
    """Python's exponentials: numpy's differ in the last bit."""
    return np.fromiter(map(math.exp, exponents.tolist()), dtype=np.float64, count=len(exponents))


def _compares_identity(constraint: Constraint) -> bool:
    """Whether it asks if two values are the same object: that is lost in a column."""
    return any(isinstance(node, ast.Is | ast.IsNot) for node in ast.walk(constraint.tree))


def _is_slow(constraint: Constraint) -> bool:
    """Whether Python evaluates it value by value."""
    fast = (ast.Add, ast.Sub, ast.Mult, ast.Div)
    return any(
        (isinstance(node, ast.operator) and not isinstance(node, fast))
        or isinstance(node, ast.Is | ast.IsNot | ast.In | ast.NotIn)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) not in ("abs", "sqrt", "min", "max"))
        for node in ast.walk(constraint.tree)
    )


def _reals(dimension: Real, places: Array) -> Column:
    if dimension.scale == "log":
        low, high = math.log(dimension.low), math.log(dimension.high)
        values = _exponentials(low + places * (high - low))
    else:
        values = dimension.low + places * (dimension.high - dimension.low)
    values = np.minimum(dimension.high, np.maximum(dimension.low, values)) + 0.0
    values[places == 0.0] = dimension.low
    values[places == 1.0] = dimension.high
    return values
