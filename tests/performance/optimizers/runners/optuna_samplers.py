"""Optuna's samplers, define-by-run, with running trials for what is out.

Settings, all of them documented ones of Optuna 5:

- `TPESampler`: the defaults, which for one objective are the multivariate estimator and the constant liar that parallel
  runs are recommended; `group=True` where the space has conditions, as its documentation shows.
- `GPSampler`: the defaults. Where the space has conditions, the dimensions that only some trials have are sampled by
  `TPESampler` instead of at random (`independent_sampler`); that is better for it.
- `AutoSampler`: from a checkout of OptunaHub's registry, github.com/optuna/optunahub-registry, in the folder that
  OPTUNAHUB_REGISTRY names; with its defaults. It chooses among the two above and CMA-ES.
- Ordered choices go by their index as whole numbers, so that their order is known; other choices as categories.
- Constraints are told as numbers by `Trial.set_constraint`. A failed evaluation is a failed trial.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import optuna

from hpo_pilot.search import Categorical, Integer, Ordinal, Point, Real, SearchSpace
from tests.performance.optimizers.problem import Evaluation, Problem, Setting
from tests.performance.optimizers.runners.runner import Proposal, Runner


def distribution(dimension: Any) -> optuna.distributions.BaseDistribution:
    """The dimension as Optuna has it; the values of ordered choices are their indices."""
    match dimension:
        case Real():
            log = dimension.scale == "log"
            return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=log, step=dimension.step)
        case Integer():
            log = dimension.scale == "log"
            return optuna.distributions.IntDistribution(dimension.low, dimension.high, log=log, step=dimension.step)
        case Ordinal():
            return optuna.distributions.IntDistribution(0, len(dimension.choices) - 1)
        case Categorical():
            return optuna.distributions.CategoricalDistribution(dimension.choices)
    raise TypeError(repr(dimension))


def _suggest(trial: optuna.Trial, name: str, dimension: Any) -> Any:
    match distribution(dimension):
        case optuna.distributions.FloatDistribution() as d:
            return trial.suggest_float(name, d.low, d.high, step=d.step, log=d.log)
        case optuna.distributions.IntDistribution() as d:
            value = trial.suggest_int(name, d.low, d.high, step=d.step, log=d.log)
            return dimension.choices[value] if isinstance(dimension, Ordinal) else value
        case optuna.distributions.CategoricalDistribution() as d:
            return trial.suggest_categorical(name, d.choices)
    raise TypeError(f"{name}: {dimension!r}")


def suggested(trial: optuna.Trial, space: SearchSpace) -> Point:
    """The point that a trial suggests."""
    point: Point = {}
    missing = list(space.names)
    while missing:  # parents come first, wherever the file has them
        for name in list(missing):
            dimension = space.dimensions[name]
            if dimension.when.keys() & set(missing):
                continue
            missing.remove(name)
            if space.is_active(name, point):
                point[name] = dimension.canonical(_suggest(trial, name, dimension))
    return {name: point[name] for name in space.names if name in point}


class _OptunaRunner(Runner):
    libraries: ClassVar[tuple[str, ...]] = ("optuna",)

    @classmethod
    def takes(cls, problem: Problem) -> bool:
        """Everything."""
        return True

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._conditional = any(dimension.when for dimension in problem.space.dimensions.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # group=True
            directions = ["minimize"] * problem.objectives
            self._study = optuna.create_study(sampler=self._sampler(), directions=directions)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        raise NotImplementedError

    def ask(self, n: int) -> list[Proposal]:
        """One trial after the other, as parallel workers would ask."""
        return [self._ask_one() for _ in range(n)]

    def _ask_one(self) -> Proposal:
        trial = self._study.ask()
        return Proposal(suggested(trial, self.space), trial)

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        for proposal, evaluation in results:
            for number, violation in enumerate(evaluation.violations):
                proposal.handle.set_constraint(str(number), violation)
            if evaluation.value is None:
                self._study.tell(proposal.handle, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(proposal.handle, evaluation.value)


class OptunaTpe(_OptunaRunner):
    """Tree-structured Parzen estimators."""

    def _sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=self.seed, group=self._conditional)


class OptunaGp(_OptunaRunner):
    """Gaussian process, log-EI, running trials integrated over (q-log-EI)."""

    libraries = ("optuna", "torch", "scipy")

    def _sampler(self) -> optuna.samplers.BaseSampler:
        if find_spec("torch") is None:
            raise ModuleNotFoundError("Optuna's GPSampler needs torch: pip install hpo-pilot[bench-peers]")
        others = optuna.samplers.TPESampler(seed=self.seed) if self._conditional else None
        return optuna.samplers.GPSampler(seed=self.seed, independent_sampler=others, warn_independent_sampling=False)


class OptunaAuto(_OptunaRunner):
    """AutoSampler."""

    libraries = ("optuna", "optunahub", "torch", "scipy")

    def _sampler(self) -> optuna.samplers.BaseSampler:
        registry = os.environ.get("OPTUNAHUB_REGISTRY")
        if registry is None:
            raise ModuleNotFoundError("OPTUNAHUB_REGISTRY names no checkout of github.com/optuna/optunahub-registry")
        import optunahub

        hub = optunahub.load_local_module("samplers/auto_sampler", registry_root=f"{registry}/package")
        return hub.AutoSampler(seed=self.seed)
