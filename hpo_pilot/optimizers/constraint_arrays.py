"""Constraints evaluated for many points at once, with the very results of one at a time.

Numbers go through numpy where its result is Python's to the last bit: sums, differences and products of whole numbers
below 2^53 and of floats, quotients, comparisons, square roots. All else, text and powers for example, is what
`hpo_pilot.search.constraint` does, applied value by value: that costs a fraction of a microsecond a value where a walk
through the expression costs twenty.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpo_pilot.search.constraint import FAILURES, FUNCTIONS, OPERATORS, Constraint

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
