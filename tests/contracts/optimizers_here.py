"""The optimizers that there are here, made for the checks of their contract."""

from __future__ import annotations

import importlib.util
from typing import Any

from hpo_pilot.optimizers import create_optimizer, optimizer_names
from hpo_pilot.optimizers.base import Optimizer
from hpo_pilot.search import SearchSpace

#: What those need that do not run without settings.
NEEDED = {"gest": {"generator": "libensemble.gen_classes.sampling:UniformSample"}}

#: Those that take their time.
SLOW = ("bayesian", "auto", "optuna")


def names_here() -> list[str]:
    """All of them; optuna where it is installed, and so for a generator of libEnsemble."""
    names = [name for name in optimizer_names() if name != "optuna" or importlib.util.find_spec("optuna")]
    return [*names, *(["gest"] if importlib.util.find_spec("libensemble") else [])]


def make(
    name: str, space: SearchSpace, seed: int = 3, trials: int | None = 60, objectives: int = 1, **options: Any
) -> Optimizer:
    # The grid of a finite space is made to hold every point of it, so that it can keep the promises of the others.
    grown = {"points_per_dimension": 1000} if name == "grid" and space.size < 1e5 else NEEDED.get(name)
    return create_optimizer(name, space, seed=seed, settings=grown, trials=trials, objectives=objectives, **options)
