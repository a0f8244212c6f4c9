"""What an optimizer is doing, in words, by the same rules by which it does it; none of their libraries is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpo_pilot.optimizers.auto_rules import ALONE, MANY_DIMENSIONS
from hpo_pilot.optimizers.bayesian.start_rules import LEAST_VALUES, default_start_points
from hpo_pilot.optimizers.evolution.population import default_population


@dataclass(frozen=True)
class Knowledge:
    """What a search's optimizer has to go by.

    Attributes:
        known: distinct points that were told or are out.
        told: results.
        good: those of them with a figure of merit.
        earlier: whether it heard of earlier searches.
    """

    known: int
    told: int
    good: int
    earlier: bool = False


def phase(
    name: str,
    settings: Mapping[str, Any],
    knowledge: Knowledge,
    *,
    dimensions: int,
    trials: int | None,
    objectives: int = 1,
) -> str:
    """What the optimizer does with the next point that it is asked for, and why.

    Args:
        name: of the optimizer, as a search file has it.
        settings: its own, as a search file has them.
        knowledge: what it has to go by.
        dimensions: of the space.
        trials: of the budget; None: unknown.
        objectives: how many.
    """
    if name == "auto":
        return _auto(knowledge, dimensions, trials, objectives)
    if name == "bayesian":
        return _bayesian(settings, knowledge, dimensions, trials)
    if name == "evolutionary":
        return _evolutionary(settings, knowledge, trials, objectives)
    if name == "cma":
        return f"evolving: draws from a normal distribution that {_results(knowledge.told)} have shaped (CMA-ES)"
    if name == "grid":
        return f"scanning: walks through the grid point by point; {knowledge.known} are tried or out"
    if name == "random":
        return "drawing: every point is drawn afresh, whatever the results are"
    if name == "optuna":
        sampler = str(settings.get("sampler", "tpe"))
        return f"sampling: optuna's {sampler} sampler goes by {_results(knowledge.told)}"
    return f"proposing points by {_results(knowledge.told)}"


def _bayesian(settings: Mapping[str, Any], knowledge: Knowledge, dimensions: int, trials: int | None) -> str:
    given = settings.get("start_points")
    starts = given if isinstance(given, int) else default_start_points(dimensions, trials)
    if knowledge.good < LEAST_VALUES and not knowledge.earlier and knowledge.known >= starts:
        return (
            f"exploring: its model wants {LEAST_VALUES} results with a figure of merit and has {knowledge.good}; until "
            "then points spread evenly"
        )
    if knowledge.known < starts:
        here = f"exploring: {knowledge.known} of {starts} start points"
        return f"{here}, most of them where earlier searches were good" if knowledge.earlier else here
    return f"modelling: goes where a model of {_results(knowledge.good)} expects improvement"


def _evolutionary(settings: Mapping[str, Any], knowledge: Knowledge, trials: int | None, objectives: int) -> str:
    given = settings.get("population")
    population = given if isinstance(given, int) else default_population(trials, objectives)
    if knowledge.known < population:
        return f"exploring: {knowledge.known} of {population} founders"
    generation = knowledge.told // population + 1
    of = f" of about {max(generation, -(-trials // population))}" if trials else ""
    return f"breeding: generation {generation}{of}, {population} parents"


def _auto(knowledge: Knowledge, dimensions: int, trials: int | None, objectives: int) -> str:
    model = _bayesian({}, knowledge, dimensions, trials)
    if dimensions <= MANY_DIMENSIONS and knowledge.told < ALONE:
        return model
    evolution = "cma" if objectives == 1 else "evolutionary"
    return f"taking turns: every other point is an evolution's ({evolution}); the model is {model}"


def _results(count: int) -> str:
    return f"{count:,} result{'s' * (count != 1)}"
