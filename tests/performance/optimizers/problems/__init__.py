"""The problems of the table, by name; and those to develop on, as `dev:KIND:INSTANCE`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.performance.optimizers.development import KINDS, development_problem
from tests.performance.optimizers.problem import Problem
from tests.performance.optimizers.problems.ackley10 import ackley10
from tests.performance.optimizers.problems.branches import branches
from tests.performance.optimizers.problems.branin import branin
from tests.performance.optimizers.problems.constrained7 import constrained7
from tests.performance.optimizers.problems.hartmann6 import hartmann6
from tests.performance.optimizers.problems.hpolib import naval_propulsion, protein_structure
from tests.performance.optimizers.problems.mixed7 import mixed7
from tests.performance.optimizers.problems.rosenbrock5 import rosenbrock5

_PROBLEMS: dict[str, Callable[[], Problem]] = {
    maker.__name__: maker
    for maker in (
        branin,
        hartmann6,
        rosenbrock5,
        ackley10,
        mixed7,
        branches,
        constrained7,
        naval_propulsion,
        protein_structure,
    )
}

#: The suite of the table.
TABLE = tuple(_PROBLEMS)

#: How many instances of each kind the development suite has.
_INSTANCES = 2

#: Problems by suite.
SUITES = {"table": TABLE, "dev": tuple(f"dev:{kind}:{i}" for kind in KINDS for i in range(_INSTANCES))}


@cache
def problem(name: str) -> Problem:
    """The problem called `name`: one of `TABLE`, or `dev:KIND:INSTANCE`.

    Raises:
        ValueError: there is none of that name.
    """
    if name.startswith("dev:"):
        _, kind, instance = name.split(":")
        return development_problem(kind, int(instance))
    if name not in _PROBLEMS:
        raise ValueError(f"no problem {name!r}; there are {', '.join(TABLE)} and dev:KIND:INSTANCE")
    return _PROBLEMS[name]()
