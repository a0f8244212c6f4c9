"""Optimizers: they propose points and learn from their values.

Begin with `base.Optimizer`, the ask/tell contract, and with `create_optimizer` here. The optimizers are in `auto`,
`grid_random`, `bayesian`, `evolutionary`, `cma` and `optuna_sampler`; `proposals` collects the points of one ask, and
`feasible_region` samples spaces with constraints. `bayesian` uses `gaussian_process`, `objective_models`,
`acquisition`, `training_data` and, with levels of training, `level_process`; `nondominated` compares points with
several costs. `early_stopping` holds the rules that stop trials; `phase` describes in words what an optimizer does
next. `gest` takes generators of other packages, by an entry point because it needs an extra and a setting;
`gest_generator` has our optimizers as such generators.

Implementations are imported when they are used: the name `random` loads neither scikit-optimize nor DEAP, and `phase`
not even numpy.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpo_pilot.errors import InputError
from hpo_pilot.plugins import find_plugin
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.mistakes import listing

if TYPE_CHECKING:
    from hpo_pilot.optimizers.base import Optimizer
    from hpo_pilot.search.measured_limits import MeasuredLimit

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


def optimizer_names() -> tuple[str, ...]:
    """Returns the names of the package's own optimizers."""
    return tuple(_OPTIMIZERS)


def optimizer_class(name: str) -> type[Optimizer]:
    """Returns the class of the optimizer `name`.

    Raises:
        InputError: there is no such optimizer; the message suggests a similar name.
        PluginError: another package has it, and it cannot be used.
    """
    if name not in _OPTIMIZERS:
        from hpo_pilot.optimizers.base import Optimizer  # noqa: PLC0415 - numpy takes its time to load

        if (plugin := find_plugin("optimizers", name, Optimizer)) is not None:
            return plugin
        similar = difflib.get_close_matches(str(name).lower(), _OPTIMIZERS, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(_OPTIMIZERS)}"
        raise InputError(f"unknown optimizer {name!r}; {hint}")
    module, cls = _OPTIMIZERS[name]
    found: type[Optimizer] = getattr(importlib.import_module(f"hpo_pilot.optimizers.{module}"), cls)
    return found


def several_takers() -> list[str]:
    """Returns the names of the package's own optimizers that support several objectives; imports them all."""
    return [name for name in _OPTIMIZERS if optimizer_class(name).several_objectives]


def create_optimizer(
    name: str,
    space: SearchSpace,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    trials: int | None = None,
    objectives: int = 1,
    limits: Sequence[MeasuredLimit] = (),
    levels: Sequence[float] = (),
) -> Optimizer:
    """Makes an optimizer without results.

    Args:
        name: one of `optimizer_names()`, or the name of an optimizer of another package.
        space: the search space.
        seed: the same seed and history give the same points.
        settings: the settings beside the name in the search file.
        trials: the budget in trials; the mutation of `evolutionary` and the spacing of `grid` depend on it.
        objectives: the number of objectives.
        limits: the limits on measured figures, which `Result.measured` has.
        levels: the levels of trainings in ascending order, for an optimizer that uses them; see `Optimizer`.

    Raises:
        InputError: the name is unknown, a setting is unknown or wrong, or the optimizer does not support several
            objectives.
    """
    wanted = optimizer_class(name)
    if objectives > 1 and not wanted.several_objectives:
        raise InputError(f"{name} takes one objective, not {objectives}; several take {listing(several_takers())}")
    more = {"levels": levels} if levels else {}
    return wanted(space, seed=seed, settings=settings, trials=trials, objectives=objectives, limits=limits, **more)
