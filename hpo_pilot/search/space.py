"""The search space: parameters, conditions and constraints, and a test whether any point satisfies them."""

from __future__ import annotations

import ast
import itertools
import math
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import simpleeval
from pydantic import Field, ValidationError

from hpo_pilot.errors import InputError
from hpo_pilot.search.fields import Section
from hpo_pilot.search.mistakes import FieldPath, Mistake, did_you_mean, listing, mistakes_of
from hpo_pilot.search.parameters import DIMENSION, DIMENSION_TYPES, Dimension
from hpo_pilot.search.prior import Prior, prior_mistakes
from hpo_pilot.search.values import Point, show, value_key


class SearchSpace(Section):
    """Named dimensions in a fixed order, and constraints on them.

    A *point* maps the names of the active dimensions to native Python values. A *unit vector* has one number in [0, 1]
    for each dimension, also inactive ones, in the order of `names`; shape (n_dims,).
    """

    dimensions: dict[str, Dimension]
    constraints: tuple[str, ...] = ()
    prior: dict[str, Prior] = Field(default_factory=dict)

    @classmethod
    def from_dict(
        cls, dimensions: Mapping[str, Any], constraints: Sequence[str] = (), prior: Mapping[str, Any] | None = None
    ) -> SearchSpace:
        """Returns the space of the sections `space`, `constraints` and `prior` of a search file.

        Raises:
            InputError: a dimension, condition or constraint is wrong; the message has every mistake with its place.
        """
        checked: dict[str, Dimension] = {}
        mistakes: list[Mistake] = []
        for name, value in dimensions.items():
            try:
                checked[name] = DIMENSION.validate_python(value)
            except ValidationError as error:
                mistakes += [mistake.under(name) for mistake in mistakes_of(error, value, DIMENSION_TYPES)]
        if not mistakes:
            try:
                return cls(dimensions=checked, constraints=tuple(constraints), prior=dict(prior or {}))
            except ValidationError as error:
                given = {"dimensions": dimensions, "constraints": constraints, "prior": prior}
                mistakes += mistakes_of(error, given, cls)
        raise InputError("search space: " + "; ".join(str(mistake) for mistake in mistakes))

    def _mistakes(self) -> Iterator[Mistake]:
        if not self.dimensions:
            yield Mistake(("dimensions",), "the space is empty", "name at least one parameter")
        yield from (m.under("dimensions") for m in name_mistakes(self.dimensions))
        yield from (m.under("dimensions") for m in condition_mistakes(self.dimensions))
        yield from (m.under("constraints") for m in constraint_mistakes(self.constraints, self.dimensions))
        yield from (m.under("prior") for m in prior_mistakes(self.dimensions, self.prior))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all dimensions, in the order of the file."""
        return tuple(self.dimensions)

    @cached_property
    def parents_first(self) -> tuple[str, ...]:
        """Names of all dimensions, each after its parents (`when`)."""
        order: list[str] = []
        while len(order) < len(self.dimensions):
            order += [n for n, d in self.dimensions.items() if n not in order and d.when.keys() <= set(order)]
        return tuple(order)

    @cached_property
    def conditions(self) -> dict[str, tuple[tuple[str, frozenset[str]], ...]]:
        """Parents of each dimension, with the keys of the values required, in the parent's own type."""
        conditions = {}
        for name, dimension in self.dimensions.items():
            wanted = {p: value if isinstance(value, list) else [value] for p, value in dimension.when.items()}
            conditions[name] = tuple(
                (parent, frozenset(value_key(self.dimensions[parent].canonical(value)) for value in values))
                for parent, values in wanted.items()
            )
        return conditions

    @cached_property
    def _constraints(self) -> tuple[Constraint, ...]:
        return tuple(Constraint(expression) for expression in self.constraints)

    def is_active(self, name: str, point: Mapping[str, Any]) -> bool:
        """Returns whether dimension `name` is active; `point` has the canonical values of its parents."""
        conditions = self.conditions[name]  # mostly none, and it is asked for each value of each result
        return not conditions or all(
            parent in point and value_key(point[parent]) in wanted for parent, wanted in conditions
        )

    def decode(self, unit: Sequence[float]) -> Point:
        """Returns the point at a unit vector of shape (n_dims,), active dimensions only; ignores constraints."""
        place = dict(zip(self.dimensions, unit, strict=True))
        values: Point = {}
        for name in self.parents_first:
            if self.is_active(name, values):
                values[name] = self.dimensions[name].from_unit(float(place[name]))
        return {name: values[name] for name in self.dimensions if name in values}

    def encode(self, point: Mapping[str, Any]) -> list[float]:
        """Returns the unit vector of shape (n_dims,) of a valid point; inactive dimensions are 0.5.

        Raises:
            ValueError: a value is not a number where one is needed, or not one of the choices.
        """
        return [d.to_unit(point[n]) if n in point else 0.5 for n, d in self.dimensions.items()]

    def canonical(self, point: Mapping[str, Any]) -> Point:
        """Returns `point` with native values, in the order of `names`.

        Raises:
            InputError: a name is unknown, missing or inactive, a value is outside its domain, or the point violates a
                constraint; the message has every mistake.
        """
        values, mistakes = self._checked(point)
        if mistakes:
            raise InputError("; ".join(str(mistake) for mistake in mistakes))
        return values

    def mistakes(self, point: Mapping[str, Any]) -> list[Mistake]:
        """Returns all mistakes of a point; paths start at a name, or are empty for the point as a whole."""
        return self._checked(point)[1]

    def _checked(self, point: Mapping[str, Any]) -> tuple[Point, list[Mistake]]:
        mistakes = [
            Mistake((name,), "is not a parameter of the space", did_you_mean(name, self.dimensions), at_key=True)
            for name in point
            if name not in self.dimensions
        ]
        values: Point = {}
        unsure: set[str] = set()  # with a wrong or missing value: whether their children are active is not known
        for name in self.parents_first:
            dimension = self.dimensions[name]
            if not unsure.isdisjoint(dimension.when):
                unsure.add(name)
            elif not self.is_active(name, values):
                if name in point:
                    mistakes.append(
                        Mistake((name,), f"is not active here: it needs {_condition(dimension)}", at_key=True)
                    )
            elif name not in point:
                mistakes.append(Mistake((name,), "is missing"))
                unsure.add(name)
            else:
                try:
                    values[name] = dimension.canonical(point[name])
                except ValueError as error:
                    mistakes.append(Mistake((name,), str(error), value_hint(point[name], dimension)))
                    unsure.add(name)
        if not mistakes:
            mistakes = [
                Mistake((), f"breaks the constraint {constraint.expression!r}")
                for constraint in self._constraints
                if not constraint.holds(values)
            ]
        return {name: values[name] for name in self.dimensions if name in values}, mistakes

    def is_feasible(self, point: Mapping[str, Any]) -> bool:
        """Returns whether a valid point satisfies all constraints."""
        return all(constraint.holds(point) for constraint in self._constraints)

    @cached_property
    def size(self) -> float:
        """Upper limit of the number of points, ignoring conditions and constraints; `math.inf` if continuous."""
        return math.prod(dimension.size for dimension in self.dimensions.values())

    def grid(self, points_per_dimension: int) -> Iterator[Point]:
        """Yields each feasible point of a regular grid once; the last name varies fastest.

        Dimensions with numbers get at most `points_per_dimension` values; dimensions with choices get all choices.
        """
        return self._product(
            {name: dimension.grid(points_per_dimension) for name, dimension in self.dimensions.items()}
        )

    def all_points(self) -> Iterator[Point]:
        """Yields each feasible point of a finite space once.

        Raises:
            ValueError: the space is continuous.
        """
        if not math.isfinite(self.size):
            raise ValueError("a space with a continuous dimension has no list of points")
        return self._product({name: dimension.grid(int(dimension.size)) for name, dimension in self.dimensions.items()})

    def _product(self, axes: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
        for values in itertools.product(*axes.values()):
            full = dict(zip(axes, values, strict=True))
            active: Point = {}
            for name in self.parents_first:
                if self.is_active(name, active):
                    active[name] = full[name]
                elif full[name] is not axes[name][0]:
                    break  # all values of an inactive dimension give the same point: only the first is used
            else:
                point = {name: active[name] for name in self.dimensions if name in active}
                if self.is_feasible(point):
                    yield point


def _condition(dimension: Dimension) -> str:
    wanted = {p: v if isinstance(v, list) else [v] for p, v in dimension.when.items()}
    return " and ".join(f"{parent}: {' or '.join(show(v) for v in values)}" for parent, values in wanted.items())


# Constraints are expressions that every proposed point satisfies. simpleeval evaluates them on the syntax tree. The
# parser here allows only the nodes and functions listed below: no attributes, subscripts, f-strings, keyword arguments
# or other calls. Arithmetic takes only numbers, and powers are bounded. User input never reaches ``eval``.

#: Longest and deepest expression: no person writes a longer one.
MAX_LENGTH = 1000
MAX_DEPTH = 50

#: Largest power of whole numbers, in bits: larger ones would take seconds and gigabytes.
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


#: Functions that a constraint may call.
_OF_ONE = (abs, math.sqrt, math.log, math.log2, math.log10, math.exp, math.floor, math.ceil, int, float)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{function.__name__: _of_number(function) for function in _OF_ONE},
    "min": min,
    "max": max,
    "round": _round,
}

#: Operators that a constraint may use.
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot)
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{kind: _arithmetic(simpleeval.DEFAULT_OPERATORS[kind]) for kind in _ARITHMETIC},
    **{kind: _of_number(simpleeval.DEFAULT_OPERATORS[kind]) for kind in (ast.USub, ast.UAdd)},
    ast.Pow: _power,
    **{kind: simpleeval.DEFAULT_OPERATORS[kind] for kind in (ast.Not, *_COMPARISONS)},
}

_ALLOWED = (
    *OPERATORS,
    *(ast.BinOp, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Compare, ast.IfExp),
    *(ast.Call, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)

#: Errors of an expression without a value at a point.
FAILURES = (simpleeval.InvalidExpression, ArithmeticError, ValueError, TypeError)

#: Operators of other languages, and the Python operators meant.
_FOREIGN = (
    (re.compile(r"&&"), "&&", "and"),
    (re.compile(r"\|\|"), "||", "or"),
    (re.compile(r"!(?!=)"), "!", "not"),
    (re.compile(r"(?<![=<>!])=(?!=)"), "=", "=="),
)

# One evaluator for each thread: it holds the names as state, and making one costs more than an evaluation.
_threads = threading.local()


def _evaluator(names: dict[str, Any]) -> simpleeval.SimpleEval:
    evaluator = getattr(_threads, "evaluator", None)
    if evaluator is None:
        # EvalWithCompoundTypes adds functions to the dictionary, so it gets a copy.
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


def _check_tree(tree: ast.expr, functions: Collection[str]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in functions:
                called = ast.unparse(node.func)
                raise ValueError(f"calls {called}, which is not a function here: {did_you_mean(called, functions)}")
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
    """A parsed expression that is true or false for a point.

    Attributes:
        names: names of the hyper-parameters in the expression.
        tree: the parsed expression, which has only allowed parts.
    """

    def __init__(self, expression: str, functions: Collection[str] = FUNCTIONS) -> None:
        """Parses `expression`, which may call `functions`.

        Raises:
            ValueError: it is not one expression, or it has a part that is not allowed; the message follows the
                expression.
        """
        self.expression = expression
        tree = _parse(expression)
        _check_tree(tree, functions)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        self.names: frozenset[str] = frozenset(
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
        )
        self.tree = tree

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Returns whether `point` satisfies the expression.

        A constraint on an inactive dimension (absent from the point) holds. An expression that cannot be evaluated (a
        division by zero, a comparison of text with a number) does not hold. That is not an error, because the user
        cannot correct a proposed point; `failure` returns the reason.
        """
        if not self.names <= point.keys():
            return True
        try:
            return bool(self._evaluate(point))
        except FAILURES:
            return False

    def failure(self, point: Mapping[str, Any]) -> str | None:
        """Returns the reason why the expression has no value at `point`; None if it has one."""
        if not self.names <= point.keys():
            return None
        try:
            self._evaluate(point)
        except FAILURES as error:
            return str(error)
        return None

    def _evaluate(self, point: Mapping[str, Any]) -> Any:
        return _evaluator(dict(point)).eval(self.expression, previously_parsed=self.tree)


# Checks across the parts of a space. Each function returns all mistakes with their paths; each part by itself has been
# checked before. `faulty` has the names of wrong parameters: nothing that depends on them is reported.


def name_mistakes(names: Collection[str]) -> list[Mistake]:
    """Returns mistakes in the names of the parameters; paths start at a name."""
    return [
        Mistake((name,), f"{name!r} is not a usable name", "remove blanks at its ends", at_key=True)
        for name in names
        if not name or name != name.strip()
    ]


def condition_mistakes(dimensions: Mapping[str, Dimension], faulty: Collection[str] = ()) -> Iterator[Mistake]:
    """Yields mistakes in the conditions (`when`); paths start at a name."""
    for name, dimension in dimensions.items():
        for parent, wanted in dimension.when.items():
            if parent in faulty or parent == name:  # `_circles` reports the latter
                continue
            if parent not in dimensions:
                hint = did_you_mean(parent, [n for n in dimensions if n != name])
                yield Mistake((name, "when", parent), f"{parent!r} is not in the space", hint, at_key=True)
            else:
                yield from _impossible((name, "when", parent), parent, dimensions[parent], wanted)
    yield from _circles(dimensions)


def _impossible(path: FieldPath, parent: str, dimension: Dimension, wanted: Any) -> Iterator[Mistake]:
    if not dimension.is_discrete:
        hint = f"give {parent} a step, or use a parameter with choices in the condition"
        yield Mistake(path, f"{parent} is continuous, so it is never exactly one value", hint)
        return
    if wanted == []:
        yield Mistake(path, "lists no value, so it can never be true", "list at least one value")
    for index, value in enumerate(wanted if isinstance(wanted, list) else [wanted]):
        try:
            dimension.canonical(value)
        except ValueError as error:
            place = (*path, index) if isinstance(wanted, list) else path
            yield Mistake(place, f"can never be true: {parent} {error}", value_hint(value, dimension))


def _circles(dimensions: Mapping[str, Dimension]) -> Iterator[Mistake]:
    try:
        TopologicalSorter({name: dimension.when for name, dimension in dimensions.items()}).prepare()
    except CycleError as error:
        circle = [name for name in dimensions if name in error.args[1]]
        loop = f"the conditions of {listing(circle)} go round in a circle"
        message = loop if len(circle) > 1 else "depends on itself"
        yield Mistake((circle[0], "when"), message, "remove one of the conditions")


def constraint_mistakes(
    constraints: Sequence[str | None], names: Collection[str], faulty: Collection[str] = ()
) -> Iterator[Mistake]:
    """Yields mistakes in each constraint; paths start at its index. None: not text, reported before."""
    known = {*names, *faulty}
    for index, expression in enumerate(constraints):
        if expression is None:
            continue
        try:
            unknown = sorted(Constraint(expression).names - known)
        except ValueError as error:
            yield Mistake((index,), f"{expression!r} {error}")
            continue
        if dashed := [name for name in known if "-" in name and set(name.split("-")) & set(unknown)]:
            message = f"{expression!r} reads {dashed[0]} as a subtraction"
            yield Mistake((index,), message, "name the parameter with '_' instead of '-'")
            continue
        for name in unknown:
            hint = did_you_mean(name, sorted(known))
            if not hint.startswith("did") and f"= {name}" in expression:
                hint = f"is it text? put it in quotes: '{name}'"
            yield Mistake((index,), f"{expression!r} names {name}, which is not in the space", hint)


def value_hint(value: Any, dimension: Dimension) -> str:
    """Returns a hint for a value outside `dimension`; empty if the intention is not clear."""
    choices = [choice for choice in getattr(dimension, "choices", ()) if isinstance(choice, str)]
    if isinstance(value, str) and choices:
        hint = did_you_mean(value, choices)
        return hint if hint.startswith("did") else ""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return f"write {value.strip()} without quotes"
    if any(choice == show(value) for choice in choices):
        return f"put it in quotes: '{show(value)}'"
    return ""


#: Number of random points tried. A feasible thousandth of the space is missed with probability exp(-20).
SAMPLES = 20_000

#: Finite spaces and regular grids up to this size are tried completely.
GRID = 20_000

#: CPU seconds after which the trying ends, if at least a tenth of the points was tried.
PATIENCE = 2.0


def feasibility_mistakes(space: SearchSpace, *, grid: bool = False) -> list[Mistake]:
    """Returns the reason why no point is feasible; an empty list if a feasible point was found.

    Tries random points; a small finite space completely, so the answer is certain there. Takes at most about two
    seconds, and much less if much of the space is feasible. The paths are those of a search file: `constraints`, or one
    of its members if no point satisfies that one.

    Args:
        space: the space.
        grid: the points of a coarse regular grid are tried, too; only the optimizer grid proposes these.
    """
    if not space.constraints:
        return []
    tried: list[Point] = []
    for point in _candidates(space, grid=grid):
        if space.is_feasible(point):
            return []
        tried.append(point)
    mistake = _culprit([Constraint(expression) for expression in space.constraints], tried)
    of = [space.constraints[index] for index in mistake.path if isinstance(index, int)]
    return [replace(mistake, hint=equality_hint(space, of or space.constraints))]


def equality_hint(space: SearchSpace, constraints: Sequence[str]) -> str:
    """Returns how to write the first of some constraints that wants real numbers to be equal; empty: there is none."""
    for node in itertools.chain(*(ast.walk(Constraint(expression).tree) for expression in constraints)):
        if not isinstance(node, ast.Compare) or len(node.ops) > 1 or not isinstance(node.ops[0], ast.Eq):
            continue
        named = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in space.dimensions]
        real = [name for name in named if not space.dimensions[name].is_discrete]
        if real:
            difference = ast.unparse(ast.BinOp(node.left, ast.Sub(), node.comparators[0]))
            drop = f"drop {real[-1]}" + (" and compute it in the payload" if len(named) > 1 else "")
            return f"real numbers are hardly ever equal: {drop}, or write abs({difference}) <= TOLERANCE"
    return ""


def is_seen_feasible(space: SearchSpace) -> bool:
    """Returns True if one of the first hundred points of `feasibility_mistakes` is feasible, as in most searches.

    Takes about a millisecond.
    """
    return any(space.is_feasible(point) for point in itertools.islice(_candidates(space), 100))


def _candidates(space: SearchSpace, *, grid: bool = False) -> Iterator[Point]:
    unconstrained = SearchSpace(dimensions=space.dimensions)
    if space.size <= GRID:
        yield from unconstrained.all_points()
        return
    deadline = time.thread_time() + PATIENCE
    # The same points each time: the validity of a file must not depend on chance.
    numbers = random.Random(0)  # noqa: S311  nothing secret here
    for number in range(SAMPLES):
        if number >= SAMPLES // 10 and time.thread_time() > deadline:
            break
        yield space.decode([numbers.random() for _ in space.names])
    if grid:
        yield from itertools.islice(unconstrained.grid(_grid_points(space)), GRID)


def _grid_points(space: SearchSpace) -> int:
    """Returns the largest number of points per dimension with a grid of at most `GRID` points; at least 2."""
    points, dimensions = 2, space.dimensions.values()
    while points < 100 and math.prod(len(dimension.grid(points + 1)) for dimension in dimensions) <= GRID:
        points += 1
    return points


def _culprit(constraints: list[Constraint], tried: list[Point]) -> Mistake:
    """Returns the mistake of the constraint, or pair of constraints, that no point satisfied."""
    count = f"none of the {len(tried)} points tried satisfies"
    hold = [[constraint.holds(point) for point in tried] for constraint in constraints]
    for index, (constraint, row) in enumerate(zip(constraints, hold, strict=True)):
        if not any(row):
            reasons = {constraint.failure(point) for point in tried}
            why = "" if None in reasons or not reasons else f" (it fails: {min(str(r) for r in reasons)})"
            return Mistake(("constraints", index), f"no feasible point: {count} {constraint.expression!r}{why}")
    for (i, a), (j, b) in itertools.combinations(enumerate(hold), 2):
        if not any(map(all, zip(a, b, strict=True))):
            message = f"no feasible point: {count} both this and {constraints[i].expression!r}"
            return Mistake(("constraints", j), message)
    return Mistake(("constraints",), f"no feasible point: {count} all constraints together")
