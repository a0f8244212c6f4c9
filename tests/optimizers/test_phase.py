"""What an optimizer does, in words, is what it does."""

from __future__ import annotations

from hpo_pilot.optimizers.bayesian import BayesianOptimizer
from hpo_pilot.optimizers.evolutionary import EvolutionaryOptimizer
from hpo_pilot.optimizers.phase import Knowledge, optimizer_phase
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict({f"x{i}": {"type": "real", "low": 0, "high": 1} for i in range(8)})


def said(name: str, known: int, told: int | None = None, good: int | None = None, **more) -> str:
    told = known if told is None else told
    settings = more.pop("settings", {})
    knowledge = Knowledge(known, told, told if good is None else good, more.pop("earlier", False))
    return optimizer_phase(name, settings, knowledge, dimensions=8, trials=more.pop("trials", 96), **more)


def test_bayesian_explores_as_long_as_it_has_start_points():
    optimizer = BayesianOptimizer(SPACE, trials=96)
    assert optimizer.start_points == 16
    assert said("bayesian", 12) == "exploring: 12 of 16 start points"
    assert said("bayesian", 16) == "modelling: goes where a model of 16 results expects improvement"
    assert said("bayesian", 4, settings={"start_points": 5}) == "exploring: 4 of 5 start points"


def test_bayesian_without_good_results_has_no_model():
    assert said("bayesian", 20, good=2).startswith("exploring: its model needs 3 results")
    assert said("bayesian", 20, good=0, earlier=True).startswith("modelling")


def test_evolutionary_says_its_own_population():
    optimizer = EvolutionaryOptimizer(SPACE, trials=96)
    assert said("evolutionary", 3) == f"exploring: 3 of {optimizer.population} founders"
    assert said("evolutionary", 20, told=17).startswith("breeding: generation 3 of about 12, 8 parents")


def test_auto_takes_turns_from_a_thousand_results_on():
    assert said("auto", 7) == "exploring: 7 of 16 start points"
    ties = "; every fourth point by cma while values are ties, more where noise is heavy"
    assert said("auto", 12) == f"exploring: 12 of 16 start points{ties}"
    assert said("auto", 16).endswith(f"expects improvement{ties}")
    assert said("auto", 12, objectives=2) == "exploring: 12 of 16 start points"
    assert said("auto", 1000, trials=2000).startswith("taking turns: every other point is an evolution's (cma)")
    assert "evolutionary" in said("auto", 1000, trials=2000, objectives=2)
