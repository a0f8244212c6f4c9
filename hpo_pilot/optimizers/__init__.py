"""Optimizers behind one ask/tell contract, by name.

The implementations are imported when they are asked for: naming `random` loads neither scikit-optimize nor DEAP, and
saying what an optimizer does (`hpo_pilot.optimizers.phase`) not even numpy.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpo_pilot.errors import InputError
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.mistakes import listing

if TYPE_CHECKING:
    from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer

#: Name in a search file -> (module, class).
_OPTIMIZERS = {
    "auto": ("auto", "AutoOptimizer"),
    "random": ("grid_random", "RandomSearch"),
    "grid": ("grid_random", "GridSearch"),
    "bayesian": ("bayesian", "BayesianOptimizer"),
    "evolutionary": ("evolutionary", "EvolutionaryOptimizer"),
    "cma": ("cma", "CmaOptimizer"),
    "optuna": ("optuna_sampler", "OptunaOptimizer"),
}

__all__ = [
    "BaseSettings",
    "Observation",
    "Optimizer",
    "create_optimizer",
    "optimizer_class",
    "optimizer_names",
    "several_takers",
]


def __getattr__(name: str) -> Any:
    if name not in ("BaseSettings", "Observation", "Optimizer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("hpo_pilot.optimizers.base"), name)


def optimizer_names() -> tuple[str, ...]:
    """The names that a search file may use."""
    return tuple(_OPTIMIZERS)


def optimizer_class(name: str) -> type[Optimizer]:
    """The optimizer called `name`.

    Raises:
        InputError: there is none of that name; the message says which was probably meant.
    """
    if name not in _OPTIMIZERS:
        near = difflib.get_close_matches(str(name).lower(), _OPTIMIZERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_OPTIMIZERS)}"
        raise InputError(f"unknown optimizer {name!r}; {hint}")
    module, cls = _OPTIMIZERS[name]
    found: type[Optimizer] = getattr(importlib.import_module(f"hpo_pilot.optimizers.{module}"), cls)
    return found


def several_takers() -> list[str]:
    """The names of the optimizers that take several objectives; loads them all."""
    return [name for name in _OPTIMIZERS if optimizer_class(name).several_objectives]


def create_optimizer(
    name: str,
    space: SearchSpace,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    trials: int | None = None,
    objectives: int = 1,
) -> Optimizer:
    """An optimizer that knows nothing yet.

    Args:
        name: one of `optimizer_names()`.
        space: what it searches.
        seed: same seed and same history, same points.
        settings: what stands beside the name in the search file.
        trials: how many trials the search may spend; schedules (the evolution's mutation, the grid's pitch) follow it.
        objectives: how many figures of merit a trial has.

    Raises:
        InputError: the name is unknown, a setting is unknown or wrong, or it cannot take so many objectives.
    """
    wanted = optimizer_class(name)
    if objectives > 1 and not wanted.several_objectives:
        raise InputError(f"{name} takes one objective, not {objectives}; several take {listing(several_takers())}")
    return wanted(space, seed=seed, settings=settings, trials=trials, objectives=objectives)
