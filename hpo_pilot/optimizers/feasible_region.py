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

# Evaluation of constraints for many points at once, with exactly the results of single points.
#
# numpy is used where its result equals Python's to the last bit: sums, differences and products of integers below 2^53
# and of floats, quotients, comparisons, square roots. Everything else, for example text and powers, is evaluated value
# by value with the functions of `hpo_pilot.search.space`. This takes a fraction of a microsecond per value, where the
# evaluation of a whole expression takes twenty.

Array = npt.NDArray[np.float64]

#: One value per row: int64 (within ±2^53), float64, bool or object.
Column = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: Integers up to this number are exact as floats.
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
    """Returns whether each of `count` points satisfies the constraint; shape (count,).

    Args:
        constraint: the constraint.
        columns: the values of the parameters in the constraint, each of shape (count,); all of them active.
        count: the number of points.
    """
    evaluation = _Evaluation(columns, count)
    with np.errstate(all="ignore"):
        value = evaluation.of(constraint.tree, np.arange(count))
        return _truth(value) & ~evaluation.failed


def column(values: Sequence[Any]) -> Column:
    """Returns Python values as a column."""
    types = set(map(type, values))
    if types == {float}:
        return np.array(values, dtype=np.float64)
    if types == {bool}:
        return np.array(values, dtype=np.bool_)
    if types == {int} and min(values) >= -_EXACT and max(values) <= _EXACT:
        return np.array(values, dtype=np.int64)
    objects = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # one by one, because numpy would unpack lists
        objects[index] = value
    return objects


class _Evaluation:
    """Evaluates one expression over columns; `failed` marks the rows where it raised an error."""

    def __init__(self, columns: Mapping[str, Column], count: int) -> None:
        self._columns = columns
        self.failed: Mask = np.zeros(count, dtype=np.bool_)

    def of(self, node: ast.expr, rows: Rows) -> Column:
        """Returns the values of `node` in `rows`, shape (len(rows),); undefined where it failed."""
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
        at = np.arange(
            len(rows)
        )  # rows where all comparisons so far are true: Python evaluates the next operand only there
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
        """Evaluates `and` and `or`: the value of the first operand that decides, or of the last."""
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
            if not np.isnan(stacked).any():  # with NaN, Python's result depends on the order of the arguments
                return np.asarray(stacked.min(axis=0) if name == "min" else stacked.max(axis=0))
        if not arguments:
            self.failed[rows] = True
            return np.zeros(len(rows), dtype=np.int64)
        return self._each(FUNCTIONS[name], arguments, rows)

    def _each(self, function: Callable[..., Any], arguments: Sequence[Column], rows: Rows) -> Column:
        """Applies `function` value by value, as for a single point."""
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
    """Tells whether the result of integers is exact as a float."""
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
    """Joins parts to one column, each at its rows."""
    kinds = {value.dtype for _, value in parts if len(value)}
    joined: Column = np.zeros(count, dtype=kinds.pop() if len(kinds) == 1 else object)
    for places, value in parts:
        for_objects = joined.dtype.kind == "O" and value.dtype.kind != "O"
        joined[places] = np.array(value.tolist(), dtype=object) if for_objects else value
    return joined


#: Unit vectors evaluated together.
_CHUNK = 20_000

#: Draws from the whole cube for the first feasible points of a space, once: a feasible share of 0.001% is missed once
#: in 10^8 spaces. They take up to a second where numpy evaluates the constraints; where Python does, fewer are drawn.
_DRAWS = 2_000_000
_DRAWS_IN_PYTHON = 60_000

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

    def mask(self, units: Array) -> Mask:
        """Returns which of `units`, shape (n, n_dims), are feasible, as `space.is_feasible` says of each point."""
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
    """Returns the feasible region of a space; later calls return the same object, with its samples."""
    return _region(space.model_dump_json())


def reflected(units: Array) -> Array:
    """Returns coordinates reflected into [0, 1] at the bounds."""
    folded = np.mod(np.abs(units), 2.0)
    return np.asarray(np.where(folded > 1.0, 2.0 - folded, folded))


class _Table:
    """The decoded values of unit vectors, one column per dimension, decoded when needed."""

    def __init__(self, space: SearchSpace, index: dict[str, int], units: Array) -> None:
        self._space = space
        self._index = index
        self._units = units
        self._values: dict[str, Column] = {}
        self._active: dict[str, Mask] = {}

    def values(self, name: str) -> Column:
        """Returns the value of a dimension in each row, as if it were active there."""
        if name not in self._values:
            self._values[name] = decoded(self._space.dimensions[name], self._units[:, self._index[name]])
        return self._values[name]

    def active(self, name: str) -> Mask:
        """Returns the rows where a dimension is active."""
        if name not in self._active:
            active: Mask = np.ones(len(self._units), dtype=np.bool_)
            for parent, wanted in self._space.conditions[name]:
                active &= self.active(parent)
                active &= _is_wanted(self._space.dimensions[parent], self._units[:, self._index[parent]], wanted)
            self._active[name] = active
        return self._active[name]


def _is_wanted(dimension: Dimension, places: Array, wanted: frozenset[str]) -> Mask:
    """Returns where a dimension has one of the values with these keys."""
    has_shares = dimension.is_discrete and not (isinstance(dimension, Integer) and dimension.scale == "log")
    if has_shares and dimension.size <= _CHUNK:
        places, which = np.unique(_shares(dimension, places), return_inverse=True)
        places = (places + 0.5) / dimension.size
    else:
        which = np.arange(len(places))
    found: Mask = np.array([value_key(dimension.from_unit(place)) in wanted for place in places.tolist()], dtype=bool)
    return np.asarray(found[which])


def _shares(dimension: Dimension, places: Array) -> npt.NDArray[np.int64]:
    """Returns the index of the value at each of `places`, for a discrete dimension with cells of equal width."""
    size = int(dimension.size)
    index: npt.NDArray[np.int64] = (np.clip(places, 0.0, 1.0) * size).astype(np.int64)
    return np.minimum(size - 1, index)


def decoded(dimension: Dimension, places: Array) -> Column:
    """Returns `dimension.from_unit` of each of `places`, shape (n,)."""
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
    """Returns Python's exponentials; numpy's differ in the last bit."""
    return np.fromiter(map(math.exp, exponents.tolist()), dtype=np.float64, count=len(exponents))


def _compares_identity(constraint: Constraint) -> bool:
    """Tells whether a constraint uses `is`: columns do not keep the identity of objects."""
    return any(isinstance(node, ast.Is | ast.IsNot) for node in ast.walk(constraint.tree))


def _is_slow(constraint: Constraint) -> bool:
    """Tells whether Python evaluates the constraint value by value."""
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
