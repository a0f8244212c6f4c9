"""DEAP's toolbox, filled by name: the recipe's operators by default, DEAP's own where the search file says so."""

from __future__ import annotations

import contextlib
import inspect
import math
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from deap import base, tools
from pydantic import BaseModel, ConfigDict, model_validator

from hpo_pilot.optimizers.evolution.recipe import Individual, heuristic_crossover, non_uniform_mutation
from hpo_pilot.search import SearchSpace

#: The name of the recipe's own operators.
RECIPE = "recipe"

#: DEAP's operators that make sense on genes in [0, 1], with arguments that do; the search file may give others.
#: Operators on permutations, bits, trees and evolution strategies are left out.
DEAP_OPERATORS: dict[str, dict[str, dict[str, Any]]] = {
    "select": {
        "selTournament": {"tournsize": 2},
        "selDoubleTournament": {"fitness_size": 2, "parsimony_size": 1.0, "fitness_first": True},
        "selBest": {},
        "selRandom": {},
    },
    "mate": {
        "cxOnePoint": {},
        "cxTwoPoint": {},
        "cxUniform": {"indpb": 0.5},
        "cxBlend": {"alpha": 0.5},
        "cxSimulatedBinary": {"eta": 15.0},
        "cxSimulatedBinaryBounded": {"eta": 15.0, "low": 0.0, "up": 1.0},
    },
    "mutate": {
        "mutGaussian": {"mu": 0.0, "sigma": 0.1, "indpb": 0.2},
        "mutPolynomialBounded": {"eta": 20.0, "low": 0.0, "up": 1.0, "indpb": 0.2},
    },
}


#: These cut a chromosome in pieces, and know none of one gene.
_CUTTING = {"cxOnePoint", "cxTwoPoint"}


def _uncut(first: Any, second: Any) -> tuple[Any, Any]:
    return first, second


class Operator(BaseModel):
    """An operator's name and, beside it, its arguments: ``{name: cxBlend, alpha: 0.3}``, or the name alone."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def arguments(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.__pydantic_extra__ or {})

    def check(self, kind: str) -> None:
        """Checks name and arguments.

        Args:
            kind: select, mate or mutate.

        Raises:
            ValueError: there is no such operator, or it takes no such argument.
        """
        known = DEAP_OPERATORS[kind]
        if self.name not in known and (self.name != RECIPE or kind == "select"):
            names = [*([] if kind == "select" else [RECIPE]), *known]
            raise ValueError(f"unknown operator {self.name!r} for {kind}; there are {', '.join(names)}")
        takes = set() if self.name == RECIPE else set(inspect.signature(getattr(tools, self.name)).parameters)
        for argument in self.arguments.keys() - (takes - {"individual", "individuals", "ind1", "ind2", "k"}):
            raise ValueError(f"{self.name} takes no argument {argument!r}")
        if self.name != RECIPE:
            self._try(kind)

    def _try(self, kind: str) -> None:
        """Runs it once, so that a wrong value is refused before a search and not in the middle of one."""
        arguments = {**DEAP_OPERATORS[kind][self.name], **self.arguments}
        some = [Individual((0.25, 0.75), (True, True), value) for value in (0.0, 1.0)]
        given = {"select": (some, 2), "mate": (some[0], some[1]), "mutate": (some[0],)}[kind]
        try:
            with deap_randomness(random.Random(0)):  # noqa: S311 - no secret
                getattr(tools, self.name)(*given, **arguments)
            fine = kind == "select" or all(isinstance(gene, float) and math.isfinite(gene) for gene in some[0])
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ValueError(f"{self.name} does not work with {arguments}: {error}") from error
        if not fine:
            raise ValueError(f"{self.name} with {arguments} makes genes that are no numbers")


def make_toolbox(
    space: SearchSpace,
    *,
    select: Operator,
    mate: Operator,
    mutate: Operator,
    rng: random.Random,
    progress: float,
    probability: float,
) -> base.Toolbox:
    """A toolbox with `select(individuals, k)`, `mate(first, second)` and `mutate(individual)`.

    Args:
        space: the space.
        select: which selection.
        mate: which crossover.
        mutate: which mutation.
        rng: the random stream of the recipe's operators.
        progress: g/G for the recipe's mutation.
        probability: the recipe's mutation probability per gene.
    """
    toolbox = base.Toolbox()
    recipes: dict[str, tuple[Any, dict[str, Any]]] = {
        "mate": (heuristic_crossover, {"space": space, "rng": rng}),
        "mutate": (
            non_uniform_mutation,
            {"space": space, "rng": rng, "progress": progress, "probability": probability},
        ),
    }
    for kind, operator in (("select", select), ("mate", mate), ("mutate", mutate)):
        if operator.name == RECIPE:
            function, arguments = recipes[kind]
        elif operator.name in _CUTTING and len(space.names) < 2:
            function, arguments = _uncut, {}
        else:
            function = getattr(tools, operator.name)
            arguments = {**DEAP_OPERATORS[kind][operator.name], **operator.arguments}
        toolbox.register(kind, function, **arguments)
    return toolbox


@contextlib.contextmanager
def deap_randomness(rng: random.Random) -> Iterator[None]:
    """Makes DEAP's own operators, which draw from the global generators, follow `rng`; restores those afterwards.

    One thread at a time: the optimizers of several searches may be at work.
    """
    with _GLOBAL_GENERATORS:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        random.seed(rng.getrandbits(64))
        np.random.seed(rng.getrandbits(32))
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


_GLOBAL_GENERATORS = threading.Lock()
