"""Ax, on BoTorch, by `Client.get_next_trials` as its documentation shows, with its default generation strategy.

Ordered choices go as ordered choice parameters, categories as unordered ones. A failed evaluation is a failed trial.
Its generation strategy asks for a point at a time, running trials pending; it gives up where it can find no new point
in a small discrete space, and a random point takes that place.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.utils.common.logger import set_ax_logger_levels

from hpo_pilot.search import Integer, Ordinal, Real
from tests.performance.optimizers.problem import Evaluation, Problem, Setting
from tests.performance.optimizers.runners.runner import Proposal, Runner, has_steps


def _parameter(name: str, dimension: Any) -> RangeParameterConfig | ChoiceParameterConfig:
    match dimension:
        case Real() | Integer():
            return RangeParameterConfig(
                name=name,
                bounds=(dimension.low, dimension.high),
                parameter_type="float" if isinstance(dimension, Real) else "int",
                scaling="log" if dimension.scale == "log" else "linear",
            )
        case Ordinal():
            indices = list(range(len(dimension.choices)))
            return ChoiceParameterConfig(name=name, values=indices, parameter_type="int", is_ordered=True)
    indices = [str(number) for number in range(len(dimension.choices))]
    return ChoiceParameterConfig(name=name, values=indices, parameter_type="str", is_ordered=False)


class Ax(Runner):
    """Sobol' points, then expected improvement of a Gaussian process."""

    libraries = ("ax-platform", "botorch", "torch")

    @classmethod
    def takes(cls, problem: Problem) -> bool:
        """Boxes without conditions, constraints and steps."""
        space = problem.space
        return not space.constraints and not has_steps(space) and not any(d.when for d in space.dimensions.values())

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        set_ax_logger_levels(logging.CRITICAL)
        torch.manual_seed(seed)
        np.random.seed(seed)  # parts of it read numpy's own generator
        self._dice = random.Random(f"ax {seed}")
        self._client = Client(random_seed=seed)
        self._client.configure_experiment(
            parameters=[_parameter(name, dimension) for name, dimension in problem.space.dimensions.items()]
        )
        names = [f"cost{number}" for number in range(problem.objectives)]
        self._client.configure_optimization(objective=", ".join(f"-{name}" for name in names))

    def ask(self, n: int) -> list[Proposal]:
        proposals: list[Proposal] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while len(proposals) < n:
                trials = self._client.get_next_trials(max_trials=n - len(proposals))
                proposals += [Proposal(self._point(told), number) for number, told in trials.items()]
                if not trials:
                    places = [self._dice.random() for _ in self.space.names]
                    proposals.append(Proposal(self.space.decode(places)))
        return proposals

    def _point(self, told: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: dimension.canonical(
                told[name] if isinstance(dimension, Real | Integer) else dimension.choices[int(told[name])]
            )
            for name, dimension in self.space.dimensions.items()
        }

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        for proposal, evaluation in results:
            if proposal.handle is None:
                continue
            if evaluation.value is None:
                self._client.mark_trial_failed(trial_index=proposal.handle)
                continue
            values = evaluation.value if isinstance(evaluation.value, tuple) else (evaluation.value,)
            raw = {f"cost{number}": value for number, value in enumerate(values)}
            self._client.complete_trial(trial_index=proposal.handle, raw_data=raw)
