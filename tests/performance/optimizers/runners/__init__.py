"""Who takes part, by name: this product's optimizers, and peers. A peer's library is imported when it runs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TypeAlias

from hpo_pilot.optimizers import optimizer_names
from tests.performance.optimizers.problem import Problem, Setting
from tests.performance.optimizers.runners.runner import Ours, Proposal, Runner

__all__ = ["OURS", "PEERS", "Maker", "Proposal", "Runner", "make_runner", "runner_class"]

Maker: TypeAlias = Callable[[Problem, Setting, int], Runner]

#: `grid` is left out: it is for spaces small enough to try everything.
OURS = tuple(name for name in optimizer_names() if name not in ("grid", "optuna"))

#: Name -> (module, class).
_PEERS = {
    "optuna-tpe": ("optuna_samplers", "OptunaTpe"),
    "optuna-gp": ("optuna_samplers", "OptunaGp"),
    "optuna-auto": ("optuna_samplers", "OptunaAuto"),
    "smac": ("smac_facade", "Smac"),
    "ax": ("ax_client", "Ax"),
    "cmaes": ("cmaes_package", "Cmaes"),
    "cmaes-quarter": ("cmaes_package", "CmaesQuarter"),
    "deap-mu-lambda": ("genetic", "DeapMuPlusLambda"),
    "seeds-ea": ("genetic", "SeedsEvolution"),
    "skopt": ("skopt_stock", "SkoptStock"),
}

PEERS = tuple(_PEERS)


def runner_class(name: str) -> type[Runner]:
    """The class behind `name`.

    Raises:
        ValueError: there is none of that name.
        ImportError: the peer's library is not installed.
    """
    if name in OURS:
        return Ours
    if name not in _PEERS:
        raise ValueError(f"no runner {name!r}; there are {', '.join((*OURS, *PEERS))}")
    module, cls = _PEERS[name]
    found: type[Runner] = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
    return found


def make_runner(name: str, problem: Problem, setting: Setting, seed: int) -> Runner:
    """A runner that knows nothing yet."""
    cls = runner_class(name)
    maker: Maker = functools.partial(Ours, name) if cls is Ours else cls
    return maker(problem, setting, seed)
