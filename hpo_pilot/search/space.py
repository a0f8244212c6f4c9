"""The search space: dimensions, the conditions between them, and the constraints over them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import ValidationError, model_validator

from hpo_pilot.errors import InputError
from hpo_pilot.search.consistency import condition_misfits, constraint_misfits, name_misfits, value_hint
from hpo_pilot.search.constraint import Constraint
from hpo_pilot.search.dimension import DIMENSION, DIMENSION_TYPES, Dimension
from hpo_pilot.search.misfit import Misfit, MisfitError, did_you_mean
from hpo_pilot.search.point import Point, show, value_key
from hpo_pilot.search.section import Section
from hpo_pilot.search.wording import misfits_of


class SearchSpace(Section):
    """Named dimensions in a fixed order, and constraints over them.

    A *point* maps the names of the active dimensions to native Python values. A *unit vector* has one number in [0, 1]
    per dimension, inactive ones included, in the order of `names`; shape (n_dims,).
    """

    dimensions: dict[str, Dimension]
    constraints: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, dimensions: Mapping[str, Any], constraints: Sequence[str] = ()) -> SearchSpace:
        """The space of a search file's `space` (and `constraints`) section.

        Raises:
            InputError: a dimension, condition or constraint is wrong; the message has every mistake, with its name.
        """
        checked: dict[str, Dimension] = {}
        misfits: list[Misfit] = []
        for name, value in dimensions.items():
            try:
                checked[name] = DIMENSION.validate_python(value)
            except ValidationError as error:
                misfits += [misfit.under(name) for misfit in misfits_of(error, value, DIMENSION_TYPES)]
        if not misfits:
            try:
                return cls(dimensions=checked, constraints=tuple(constraints))
            except ValidationError as error:
                misfits += misfits_of(error, {"dimensions": dimensions, "constraints": constraints})
        raise InputError("search space: " + "; ".join(str(misfit) for misfit in misfits))

    @model_validator(mode="after")
    def _check(self) -> SearchSpace:
        if not self.dimensions:
            raise MisfitError([Misfit(("dimensions",), "the space is empty", "name at least one parameter")])
        misfits = [
            *(m.under("dimensions") for m in name_misfits(self.dimensions)),
            *(m.under("dimensions") for m in condition_misfits(self.dimensions)),
            *(m.under("constraints") for m in constraint_misfits(self.constraints, self.dimensions)),
        ]
        if misfits:
            raise MisfitError(misfits)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all dimensions, in the order of the file."""
        return tuple(self.dimensions)

    @cached_property
    def parents_first(self) -> tuple[str, ...]:
        """The names of all dimensions, each after those that it hangs on."""
        order: list[str] = []
        while len(order) < len(self.dimensions):
            order += [n for n, d in self.dimensions.items() if n not in order and d.when.keys() <= set(order)]
        return tuple(order)

    @cached_property
    def conditions(self) -> dict[str, tuple[tuple[str, frozenset[str]], ...]]:
        """For each dimension its parents, each with the keys of the values wanted, as the parent's own type."""
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
        """Whether dimension `name` is active, given the canonical values of its parents in `point`."""
        return all(parent in point and value_key(point[parent]) in wanted for parent, wanted in self.conditions[name])

    def decode(self, unit: Sequence[float]) -> Point:
        """The point at a unit vector of shape (n_dims,): active dimensions only. Constraints are not looked at."""
        place = dict(zip(self.dimensions, unit, strict=True))
        values: Point = {}
        for name in self.parents_first:
            if self.is_active(name, values):
                values[name] = self.dimensions[name].from_unit(float(place[name]))
        return {name: values[name] for name in self.dimensions if name in values}

    def encode(self, point: Mapping[str, Any]) -> list[float]:
        """The unit vector of shape (n_dims,) of a valid point; inactive dimensions stand at 0.5.

        Raises:
            ValueError: a value is no number where one is due, or none of the choices.
        """
        return [d.to_unit(point[n]) if n in point else 0.5 for n, d in self.dimensions.items()]

    def canonical(self, point: Mapping[str, Any]) -> Point:
        """`point` with native values, in the order of `names`.

        Raises:
            InputError: a name is unknown, missing or inactive, a value is outside its domain, or a constraint is
                broken; the message says which, all of them.
        """
        values, misfits = self._settle(point)
        if misfits:
            raise InputError("; ".join(str(misfit) for misfit in misfits))
        return values

    def misfits(self, point: Mapping[str, Any]) -> list[Misfit]:
        """Everything that is wrong with a point; paths start at a name, or are empty for the point as a whole."""
        return self._settle(point)[1]

    def _settle(self, point: Mapping[str, Any]) -> tuple[Point, list[Misfit]]:
        misfits = [
            Misfit((name,), "is not a parameter of the space", did_you_mean(name, self.dimensions), at_key=True)
            for name in point
            if name not in self.dimensions
        ]
        values: Point = {}
        unsure: set[str] = set()  # these have a wrong or missing value: whether their children are active is unknown
        for name in self.parents_first:
            dimension = self.dimensions[name]
            if not unsure.isdisjoint(dimension.when):
                unsure.add(name)
            elif not self.is_active(name, values):
                if name in point:
                    misfits.append(
                        Misfit((name,), f"is not active here: it needs {_condition(dimension)}", at_key=True)
                    )
            elif name not in point:
                misfits.append(Misfit((name,), "is missing"))
                unsure.add(name)
            else:
                try:
                    values[name] = dimension.canonical(point[name])
                except ValueError as error:
                    misfits.append(Misfit((name,), str(error), value_hint(point[name], dimension)))
                    unsure.add(name)
        if not misfits:
            misfits = [
                Misfit((), f"breaks the constraint {constraint.expression!r}")
                for constraint in self._constraints
                if not constraint.holds(values)
            ]
        return {name: values[name] for name in self.dimensions if name in values}, misfits

    def is_feasible(self, point: Mapping[str, Any]) -> bool:
        """Whether a valid point satisfies every constraint."""
        return all(constraint.holds(point) for constraint in self._constraints)

    @cached_property
    def size(self) -> float:
        """An upper bound of the number of points: conditions and constraints not counted; `math.inf` if continuous."""
        return math.prod(dimension.size for dimension in self.dimensions.values())

    def grid(self, points_per_dimension: int) -> Iterator[Point]:
        """Every feasible point of a regular grid, each once, the last name varying fastest.

        Continuous and long dimensions get `points_per_dimension` values, choices all of theirs.
        """
        return self._product(
            {name: dimension.grid(points_per_dimension) for name, dimension in self.dimensions.items()}
        )

    def all_points(self) -> Iterator[Point]:
        """Every feasible point of a finite space, each once.

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
                    break  # all values of an inactive dimension give the same point: only the first counts
            else:
                point = {name: active[name] for name in self.dimensions if name in active}
                if self.is_feasible(point):
                    yield point


def _condition(dimension: Dimension) -> str:
    wanted = {p: v if isinstance(v, list) else [v] for p, v in dimension.when.items()}
    return " and ".join(f"{parent}: {' or '.join(show(v) for v in values)}" for parent, values in wanted.items())
