"""Constraints: expressions over the hyper-parameters that every proposed point satisfies.

Evaluated by simpleeval, which walks the expression's syntax tree. What may stand in the tree is listed here and checked
when the expression is parsed: no attributes, no subscripts, no f-strings, no keyword arguments, no calls but the
functions named here. Arithmetic takes numbers only, and powers are bounded. User input never reaches ``eval``.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import simpleeval

from hpo_pilot.search.misfit import did_you_mean

#: An expression longer or deeper than this is no constraint that a person wrote.
MAX_LENGTH = 1000
MAX_DEPTH = 50

#: Powers of whole numbers larger than this many bits are refused: they would take seconds and gigabytes.
MAX_POWER_BITS = 4096


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):  # bool is an int: `use_bias * width` is meant
        raise TypeError(f"{value!r} is not a number")
    return value


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(a: Any, b: Any) -> Any:
        return function(_number(a), _number(b))

    return checked


def _power(a: Any, b: Any) -> Any:
    if isinstance(_number(a), int) and isinstance(_number(b), int) and a.bit_length() * abs(b) > MAX_POWER_BITS:
        raise OverflowError(f"{a} ** {b} is too large")
    result = a**b
    if isinstance(result, complex):
        raise ValueError(f"{a} ** {b} is not a real number")
    return result


def _round(value: Any, digits: Any = 0) -> Any:
    if abs(_number(digits)) > 300:
        raise ValueError("round to at most 300 digits")
    return round(_number(value), int(digits)) if digits else round(_number(value))


def _of_number(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        return function(_number(value))

    return checked


#: The functions that a constraint may call.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _of_number(abs),
    "min": min,
    "max": max,
    "round": _round,
    "sqrt": _of_number(math.sqrt),
    "log": _of_number(math.log),
    "log2": _of_number(math.log2),
    "log10": _of_number(math.log10),
    "exp": _of_number(math.exp),
    "floor": _of_number(math.floor),
    "ceil": _of_number(math.ceil),
    "int": _of_number(int),
    "float": _of_number(float),
}

#: What the operators of a constraint do.
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _arithmetic(operator.add),
    ast.Sub: _arithmetic(operator.sub),
    ast.Mult: _arithmetic(operator.mul),
    ast.Div: _arithmetic(operator.truediv),
    ast.FloorDiv: _arithmetic(operator.floordiv),
    ast.Mod: _arithmetic(operator.mod),
    ast.Pow: _power,
    ast.BitAnd: _arithmetic(operator.and_),
    ast.BitOr: _arithmetic(operator.or_),
    ast.USub: _of_number(operator.neg),
    ast.UAdd: _of_number(operator.pos),
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}

_ALLOWED = (
    *OPERATORS,
    ast.BinOp,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.List,
    ast.Tuple,
)

#: What an expression raises that has no value at a point.
FAILURES = (simpleeval.InvalidExpression, ArithmeticError, ValueError, TypeError)

#: What people write from other languages, and what is meant.
_FOREIGN = (
    (re.compile(r"&&"), "&&", "and"),
    (re.compile(r"\|\|"), "||", "or"),
    (re.compile(r"!(?!=)"), "!", "not"),
    (re.compile(r"(?<![=<>!])=(?!=)"), "=", "=="),
)

# One evaluator per thread: it carries the names as state, and making one for each point costs more than evaluating.
_threads = threading.local()


def _evaluator(names: dict[str, Any]) -> simpleeval.SimpleEval:
    evaluator = getattr(_threads, "evaluator", None)
    if evaluator is None:
        # EvalWithCompoundTypes adds its own to the functions it is given, so it gets a copy.
        evaluator = simpleeval.EvalWithCompoundTypes(operators=dict(OPERATORS), functions=dict(FUNCTIONS))
        _threads.evaluator = evaluator
    evaluator.names = names
    return evaluator


def _depth(node: ast.AST) -> int:
    deepest, level = 0, [node]
    while level:
        deepest += 1
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
    return deepest


def _parse(expression: str) -> ast.expr:
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH} characters: split it into several constraints")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        for pattern, foreign, meant in _FOREIGN:
            if pattern.search(expression):
                raise ValueError(f"is not a valid expression: write {meant}, not {foreign}") from error
        where = f" (character {error.offset})" if error.offset else ""
        raise ValueError(f"is not a valid expression: {error.msg}{where}") from error
    except (ValueError, MemoryError, RecursionError) as error:  # null bytes; hundreds of brackets
        raise ValueError("is not a valid expression") from error
    if _depth(tree) > MAX_DEPTH:
        raise ValueError("is nested too deeply: split it into several constraints")
    return tree


def _check_tree(tree: ast.expr) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
                called = ast.unparse(node.func)
                raise ValueError(f"calls {called}, which is not a function here: {did_you_mean(called, FUNCTIONS)}")
            if node.keywords:
                raise ValueError(f"{node.func.id} takes no named arguments")
        elif isinstance(node, ast.BitXor):
            raise ValueError("^ is not an operator here: write ** for a power")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes | complex | type(Ellipsis)):
            raise ValueError(f"has {ast.unparse(node)}, which is neither a number nor text")
        elif not isinstance(node, _ALLOWED):
            what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ValueError(f"has {what}, which a constraint cannot: use comparisons, arithmetic, and, or, not, in")
    is_arithmetic = isinstance(tree, ast.BinOp) and not isinstance(tree.op, ast.BitAnd | ast.BitOr)
    if is_arithmetic or (isinstance(tree, ast.Constant) and not isinstance(tree.value, bool)):
        raise ValueError("is a value, neither true nor false: compare it with something, as in a * b <= 1024")


class Constraint:
    """A parsed expression, true or false for a point."""

    def __init__(self, expression: str) -> None:
        """Parses `expression`.

        Raises:
            ValueError: it is not one expression, or has something that is not allowed; the message says what, to be
                read after the expression.
        """
        self.expression = expression
        tree = _parse(expression)
        _check_tree(tree)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        self.names: frozenset[str] = frozenset(
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
        )
        """The hyper-parameters that the expression reads."""
        self.tree = tree
        """The parsed expression: nothing in it but what a constraint may have."""

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Whether `point` satisfies the expression.

        A constraint on an inactive dimension (absent from the point) holds: it says nothing there. An expression that
        fails to evaluate (a division by zero, a comparison of text with a number) does not hold: the point is
        infeasible, not an error, for the user cannot mend a single point; `failure` says why.
        """
        if not self.names <= point.keys():
            return True
        try:
            return bool(self._evaluate(point))
        except FAILURES:
            return False

    def failure(self, point: Mapping[str, Any]) -> str | None:
        """Why the expression has no value at `point`; None where it has one."""
        if not self.names <= point.keys():
            return None
        try:
            self._evaluate(point)
        except FAILURES as error:
            return str(error)
        return None

    def _evaluate(self, point: Mapping[str, Any]) -> Any:
        return _evaluator(dict(point)).eval(self.expression, previously_parsed=self.tree)
