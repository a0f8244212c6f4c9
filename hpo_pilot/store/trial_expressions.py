"""Filters of trials written by users, such as `loss < 0.1 and layers == 2`, as conditions in SQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from operator import add, ge, gt, le, lt, mul, sub
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Engine, Float, and_, case, cast, false, func, literal, not_, or_

from hpo_pilot.errors import InputError
from hpo_pilot.search.mistakes import did_you_mean
from hpo_pilot.search.space import Constraint
from hpo_pilot.store import tables as t
from hpo_pilot.store.trial_queries import finite, json_value

if TYPE_CHECKING:
    from hpo_pilot.search import Search

_c = t.trials.c

#: Columns that every search has, by their names in a filter.
_COLUMNS: dict[str, ColumnElement[Any]] = {
    **{"trial": _c.number, "number": _c.number, "generation": _c.generation},
    **{"value": finite(_c.value), "std": finite(_c.std), "seconds": finite(_c.ended - _c.started)},
}

_ORDERS: Mapping[type[ast.cmpop], Any] = dict(zip((ast.Lt, ast.LtE, ast.Gt, ast.GtE), (lt, le, gt, ge), strict=True))


def _divided(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    # The integers of both databases divide to integers, and PostgreSQL refuses to divide by zero.
    return cast(one, Float) / func.nullif(cast(other, Float), 0.0)


_ARITHMETIC: Mapping[type[ast.operator], Any] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: _divided}


class _Value(NamedTuple):
    """A value as a number and as a text; None: it is never one; null in SQL: this trial's is not."""

    number: ColumnElement[Any] | None = None
    text: ColumnElement[Any] | None = None

    @property
    def is_there(self) -> ColumnElement[bool] | None:
        """Whether a trial has the value; None: every trial has it."""
        columns = [column for column in self if column is not None]
        if any(isinstance(column, BindParameter) for column in columns):
            return None
        return or_(*(column.is_not(None) for column in columns))


def condition_of(engine: Engine, search: Search, expression: str) -> ColumnElement[bool]:
    """Returns the condition that a user's expression makes on trials.

    Parameters, metrics of the objectives, and `number`, `state`, `generation`, `value`, `std`, `seconds` and `error`
    have their names; parameters come first. A comparison with a value that a trial lacks selects it neither way, but
    `loss == None` does.

    Raises:
        InputError: it is no such expression; the message has the place and the remedy.
    """
    names = _names(engine, search)
    try:
        return _Translation(names).truth(Constraint(_plain(expression, names), ["abs"]).tree)
    except (ValueError, OverflowError) as error:
        message = (
            str(error)
            .replace("a constraint cannot", "a filter cannot")
            .replace(": split it into several constraints", "")
        )
        raise InputError(f"where: {expression.strip()!r} {message}") from None


def _names(engine: Engine, search: Search) -> dict[str, _Value]:
    """Returns the values that a filter can name."""
    names = {name: _Value(column) for name, column in _COLUMNS.items()}
    names |= {"state": _Value(text=t.shown_state(search.levels)), "error": _Value(text=_c.error)}
    for index, objective in enumerate(search.objectives):
        figure = finite(_c.value) if index == 0 else json_value(engine, _c.figures, index)[0]
        names[objective.metric] = _Value(figure)
    for name, dimension in search.space_dimensions.items():
        number, text = json_value(engine, _c.point, name)
        kinds = {isinstance(choice, str) for choice in getattr(dimension, "choices", ())} or {False}
        names[name] = _Value(number if False in kinds else None, text if True in kinds else None)
    return names


def _plain(expression: str, names: dict[str, _Value]) -> str:
    """Replaces names such as `val-loss` by identifiers of the same length, and adds these to the names."""
    odd = sorted((name for name in names if not name.isidentifier()), key=len, reverse=True)
    if not odd:
        return expression

    def replaced(found: re.Match[str]) -> str:
        if found[1] is None:  # a text in quotes
            return found[0]
        word = f"_{odd.index(found[1])}".ljust(len(found[1]), "_")
        names[word] = names[found[1]]
        return word

    words = "|".join(map(re.escape, odd))
    return re.sub(rf"""'[^']*'|"[^"]*"|(?<![\w.])({words})(?![\w.])""", replaced, expression)


class _Translation:
    """Translates the parts of an expression.

    Methods raise ValueError for a part that a filter cannot have; the message follows the expression.
    """

    def __init__(self, names: Mapping[str, _Value]) -> None:
        self._names = names

    def truth(self, node: ast.expr) -> ColumnElement[bool]:
        """Translates a condition."""
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self.truth(value) for value in values]
                return and_(*parts) if isinstance(op, ast.And) else or_(*parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not_(self.truth(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                return and_(*(self._compared(*pair) for pair in zip(sides, ops, others, strict=False)))
        return self._number(node) != 0

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ColumnElement[bool]:
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple):
                raise ValueError(f"has {ast.unparse(right)} after in: write a list, as in layers in [2, 3]")
            found = or_(false(), *(self._same(left, item) for item in right.elts))
            return not_(found) if isinstance(op, ast.NotIn) else found
        if isinstance(op, ast.Eq | ast.Is):
            return self._same(left, right)
        if isinstance(op, ast.NotEq | ast.IsNot):
            return not_(self._same(left, right))
        one, other = self._value(left), self._value(right)
        ordered = [_ORDERS[type(op)](a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
        if not ordered:
            raise ValueError(f"compares a text with a number: {ast.unparse(left)} and {ast.unparse(right)}")
        return or_(*ordered)

    def _same(self, left: ast.expr, right: ast.expr) -> ColumnElement[bool]:
        for side, other in ((left, right), (right, left)):
            if isinstance(side, ast.Constant) and side.value is None:
                there = self._value(other).is_there
                return false() if there is None else not_(there)
        one, other_one = self._value(left), self._value(right)
        pairs = [a == b for a, b in zip(one, other_one, strict=True) if a is not None and b is not None]
        both = [value.is_there for value in (one, other_one) if value.is_there is not None]
        if not pairs:
            raise ValueError(f"compares a text with a number: {ast.unparse(left)} and {ast.unparse(right)}")
        same = func.coalesce(or_(*pairs), false())
        return case((and_(*both), same)) if both else same

    def _number(self, node: ast.expr) -> ColumnElement[Any]:
        number = self._value(node).number
        if number is None:
            raise ValueError(f"has the text {ast.unparse(node)} where a number belongs: compare it with ==")
        return number

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Name(id=name):
                if name not in self._names:
                    hint = did_you_mean(name, sorted(self._names))
                    hint += "" if hint.startswith("did") else "; write quotes around a text"
                    raise ValueError(f"names {name}, which trials do not have: {hint}")
                return self._names[name]
            case ast.Constant(value=str() as text):
                if not text.isprintable():
                    raise ValueError(f"has {text!r}, which is not printable")
                return _Value(text=literal(text))
            case ast.Constant(value=int() | float() as number):
                return _Value(literal(float(number)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _Value(-self._number(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _Value(_ARITHMETIC[type(op)](self._number(left), self._number(right)))
            case ast.Call(func=ast.Name(id="abs"), args=[argument]):
                return _Value(func.abs(self._number(argument)))
        part = ast.unparse(node)
        raise ValueError(f"has {part}, which a filter cannot: use comparisons, + - * / abs, and, or, not, in")
