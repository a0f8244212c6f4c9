"""SMAC3 by its ask-and-tell interface: `HyperparameterOptimizationFacade`, a random forest, with its defaults.

Every space goes by this facade, as its documentation advises where parameters are mixed or conditional. Its scenario
says that evaluations are deterministic, so that no point is evaluated a second time; with several objectives it has
ParEGO. Ordered choices go by their index. An infeasible or failed point is told as crashed.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ConfigSpace import (
    CategoricalHyperparameter,
    ConfigurationSpace,
    InCondition,
    UniformFloatHyperparameter,
    UniformIntegerHyperparameter,
)
from ConfigSpace.conditions import AndConjunction
from smac import HyperparameterOptimizationFacade, Scenario
from smac.multi_objective import ParEGO
from smac.runhistory.dataclasses import TrialValue
from smac.runhistory.enumerations import StatusType

from hpo_pilot.search import Integer, Ordinal, Point, Real, SearchSpace
from tests.performance.optimizers.problem import Evaluation, Problem, Setting
from tests.performance.optimizers.runners.runner import Proposal, Runner, active_point, has_steps


def configuration_space(space: SearchSpace, seed: int) -> ConfigurationSpace:
    """The space as SMAC has it; categories and ordered choices by index."""
    made = ConfigurationSpace(seed=seed)
    for name, dimension in space.dimensions.items():
        match dimension:
            case Real():
                bounds = (dimension.low, dimension.high)
                made.add(UniformFloatHyperparameter(name, *bounds, log=dimension.scale == "log"))
            case Integer():
                bounds = (dimension.low, dimension.high)
                made.add(UniformIntegerHyperparameter(name, *bounds, log=dimension.scale == "log"))
            case Ordinal():
                made.add(UniformIntegerHyperparameter(name, 0, len(dimension.choices) - 1))
            case _:
                made.add(CategoricalHyperparameter(name, list(range(len(dimension.choices)))))
    for name, dimension in space.dimensions.items():
        conditions = [
            InCondition(made[name], made[parent], [_told(space.dimensions[parent], value) for value in _listed(values)])
            for parent, values in dimension.when.items()
        ]
        if conditions:
            made.add(conditions[0] if len(conditions) == 1 else AndConjunction(*conditions))
    return made


def _listed(values: Any) -> Any:
    return values if isinstance(values, list | tuple) else [values]


def _told(dimension: Any, value: Any) -> Any:
    return value if isinstance(dimension, Real | Integer) else dimension.choices.index(value)


def _value(dimension: Any, told: Any) -> Any:
    return dimension.canonical(told if isinstance(dimension, Real | Integer) else dimension.choices[int(told)])


def point_of(space: SearchSpace, config: Any) -> Point:
    """The point that a configuration means."""
    told = dict(config)
    values = {name: _value(dimension, told[name]) for name, dimension in space.dimensions.items() if name in told}
    return active_point(space, values)


def told_value(value: Any, objectives: int = 1) -> TrialValue:
    """A result as SMAC has it; None or infinity: a crash."""
    if value is None or value == math.inf:
        return TrialValue(cost=1e10 if objectives == 1 else [1e10] * objectives, status=StatusType.CRASHED)
    return TrialValue(cost=list(value) if objectives > 1 else value)


class Smac(Runner):
    """A new model for every eight points, its default."""

    libraries = ("smac", "ConfigSpace", "scikit-learn")

    @classmethod
    def takes(cls, problem: Problem) -> bool:
        """Everything but steps."""
        return not has_steps(problem.space)

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            configuration_space(problem.space, seed),
            objectives=[f"cost{number}" for number in range(problem.objectives)],
            deterministic=True,
            n_trials=setting.evaluations,
            output_directory=Path(self._folder.name),
            seed=seed,
        )
        several = {"multi_objective_algorithm": ParEGO(scenario)} if problem.objectives > 1 else {}
        self._smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed: 0.0, logging_level=logging.ERROR, overwrite=True, **several
        )

    def ask(self, n: int) -> list[Proposal]:
        """One after the other: it knows what runs."""
        return [Proposal(point_of(self.space, info.config), info) for info in (self._smac.ask() for _ in range(n))]

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        for proposal, evaluation in results:
            is_good = evaluation.value is not None and evaluation.feasible
            told = told_value(evaluation.value if is_good else None, self.problem.objectives)
            self._smac.tell(proposal.handle, told, save=False)
