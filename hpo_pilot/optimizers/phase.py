"""Describes in words what an optimizer does next, and holds the rules that decide it; loads no numerical library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Up to this number of results, `auto` uses the model alone: it is better than an evolution with the same results, in
#: narrow batches and in wide ones. Later its hyper-parameters and its posterior use only a part of the results, and an
#: evolution, which uses all of them, improves where the model stalls.
ALONE = 1_000

#: In more dimensions than this the model learns little; there the evolution proposes half of the points from the start.
#: A trust region in the model's half (TuRBO: Eriksson et al. 2019) was tried on five kinds in 60 and 100 dimensions,
#: 8 x 16, with half of the fits, and not built, because 60 code lines are much for 5% of the regret. With equal sides,
#: on new problems: lower in 86 runs, higher in 63 (Wilcoxon, p = 0.03), but higher in 14 of 20 where few of 60
#: dimensions matter. With sides scaled by the length scales: lower in 14, higher in 16.
MANY_DIMENSIONS = 50

#: Where values are steps, such as an accuracy of few test samples, the model takes each step for a flat region with
#: steep sides, and stays on it. There one of this many points is `cma`'s. The regret was lower in 16 and higher in
#: 5 of 32 runs (three problems in steps, 8 x 12; accuracies of decision trees and of support vectors, 8 x 8).
#: Other problems have no equal values.
ON_STEPS = 4

#: The least number of points with a value, before values are compared.
STEPS_NEED = 8

#: Where noise is as large as the differences between good points, `cma` is better than a model, which needs half of a
#: hundred results until it sees the noise. So this number of points are proposed next to the best ones, once this
#: number of results is known, in budgets from this one on.
PAIRS, PAIRS_NEED, _PAIRS_BUDGET = 3, 8, 48


def allows_pairs(trials: int | None, objectives: int) -> bool:
    """Returns whether `auto` proposes points next to the best ones; arguments as of `optimizer_phase`."""
    return objectives == 1 and (trials is None or trials >= _PAIRS_BUDGET)


def auto_rules(dimensions: int, objectives: int, trials: int | None, *, has_levels: bool) -> str:
    """Describes for a report what `auto` does; arguments as of `optimizer_phase`."""
    evolution = "cma" if objectives == 1 else "evolutionary (NSGA-II)"
    if has_levels:
        return "bayesian"
    if dimensions > MANY_DIMENSIONS:
        return f"more than {MANY_DIMENSIONS} dimensions: every other point by bayesian, the others by {evolution}"
    rules = ["bayesian"]
    if objectives == 1:
        rules.append("every fourth point by cma while a quarter of the values are ties")
    if allows_pairs(trials, objectives):
        rules.append("all or every other one where points beside the best ones show heavy noise")
    return "; ".join([*rules, f"from {ALONE:,} results on every other point by {evolution}"])


#: The least number of good values for a fit.
LEAST_VALUES = 3


def default_start_points(dimensions: int, trials: int | None) -> int:
    """Returns the default number of start points for a space and a budget."""
    points = min(40, max(8, 2 * dimensions))
    return points if trials is None else max(1, min(points, trials // 3))


#: One objective: few parents, for any budget and batch size. Of 6 to 43, 6 and 8 were best with 256 and 512 trials
#: in batches of 8, and of 6 to 20 with 512 in batches of 64 (15 problems, 5 seeds each); about a twelfth of the budget
#: had 1.5 times the regret with 256 and 2.9 times with 512 trials. With 96, told one by one, 5 was as good as 6.
_POPULATION = 8

#: Several objectives: the population is the front, and a budget is spent in about this many generations.
#: (With 96 trials, four problems and 20 seeds, sixteen of a population found more than eight, twelve or twenty-four.)
_GENERATIONS = 6
_LEAST_FRONT, _MOST_FRONT = 8, 100
_FRONT_WITHOUT_BUDGET = 20


def default_population(trials: int | None, objectives: int = 1) -> int:
    """Returns the default population for a budget of `trials`."""
    if objectives == 1:
        return _POPULATION
    if trials is None:
        return _FRONT_WITHOUT_BUDGET
    return min(_MOST_FRONT, max(_LEAST_FRONT, round(trials / _GENERATIONS)))


@dataclass(frozen=True)
class Knowledge:
    """Counts that describe the state of an optimizer.

    Attributes:
        known: distinct points that are told or pending.
        told: results.
        good: results with a figure of merit.
        earlier: whether it has results of earlier searches.
    """

    known: int
    told: int
    good: int
    earlier: bool = False


def optimizer_phase(
    name: str,
    settings: Mapping[str, Any],
    knowledge: Knowledge,
    *,
    dimensions: int,
    trials: int | None,
    objectives: int = 1,
) -> str:
    """Describes how the optimizer chooses the next point, and why.

    Args:
        name: name of the optimizer, as in a search file.
        settings: its settings, as in a search file.
        knowledge: the state of the optimizer.
        dimensions: number of dimensions of the space.
        trials: the budget in trials; None: unknown.
        objectives: the number of objectives.
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
            f"exploring: its model needs {LEAST_VALUES} results with a figure of merit and has {knowledge.good}; until "
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
        steps = objectives == 1 and knowledge.good >= STEPS_NEED
        noise = ", more where noise is heavy" if allows_pairs(trials, objectives) else ""
        return f"{model}; every fourth point by cma while values are ties{noise}" if steps else model
    evolution = "cma" if objectives == 1 else "evolutionary"
    return f"taking turns: every other point is an evolution's ({evolution}); the model is {model}"


def _results(count: int) -> str:
    return f"{count:,} result{'s' * (count != 1)}"
