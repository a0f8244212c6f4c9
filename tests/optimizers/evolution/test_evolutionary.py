"""The evolutionary optimizer and its operators."""

from __future__ import annotations

import random
import statistics
from typing import Any

import numpy as np
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.evolutionary import (
    DEAP_OPERATORS,
    EvolutionaryOptimizer,
    Individual,
    crossed,
    heuristic_crossover,
    mutated,
    mutation_share,
    non_uniform_mutation,
    reflected,
)
from hpo_pilot.optimizers.phase import default_population
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import CUBE, REAL, best, run, sphere


def make(**settings: Any) -> EvolutionaryOptimizer:
    optimizer = create_optimizer("evolutionary", CUBE, settings=settings, trials=96)
    assert isinstance(optimizer, EvolutionaryOptimizer)
    return optimizer


def point(value: float) -> dict[str, float]:
    return {f"x{i}": value for i in range(5)}


def test_it_improves_on_a_sphere() -> None:
    found = {
        name: statistics.median(
            # Negative near the optimum: values are compared, not inverted.
            best(run(create_optimizer(name, CUBE, seed=seed, trials=96), lambda point: sphere(point) - 1.0, 12))
            for seed in range(7)
        )
        for name in ("random", "evolutionary")
    }
    assert found["evolutionary"] < found["random"] - 0.2


def test_generation_number_over_number_of_generations() -> None:
    optimizer = make(population=8)
    for told, progress in ((0, 0.0), (7, 0.0), (8, 1 / 12), (24, 3 / 12), (96, 1.0), (200, 1.0)):
        while len(optimizer.history) < told:
            optimizer.tell([(point(len(optimizer.history) / 300), None)])
        assert optimizer.progress() == pytest.approx(progress)


def test_parents_are_the_fittest_fifth_and_the_newest() -> None:
    optimizer = make(population=5, elite=0.2)
    values = [3.0, 0.0, 5.0, None, 4.0, 6.0, 2.0]
    optimizer.tell([(point(i / 10), value) for i, value in enumerate(values)])
    assert [parent.fitness.values[0] for parent in optimizer.parents()] == [0.0, 2.0, 6.0, 4.0, 5.0]


def test_failed_and_outside_points_never_become_parents() -> None:
    optimizer = make()
    optimizer.tell([(point(0.1), None), (point(0.2), float("nan")), (point(7.0), -5.0)])
    assert optimizer.parents() == []


def test_a_point_told_again_has_the_mean_of_its_values() -> None:
    optimizer = make(population=3)
    optimizer.tell([(point(0.1), 1.0), (point(0.2), 2.0), (point(0.1), 5.0)])
    assert [parent.fitness.values[0] for parent in optimizer.parents()] == [2.0, 3.0]


def test_the_first_population_is_random_and_breeding_waits_for_nobody() -> None:
    optimizer = make(population=8)
    plain = create_optimizer("random", CUBE, trials=96)
    first = optimizer.ask(6, [])
    assert first == plain.ask(6, [])
    optimizer.tell([(p, sphere(p)) for p in first[:3]])
    # 6 known of 8: two more founders, then children of the three that are back
    assert len(optimizer.ask(5, first[3:])) == 5


def test_operators_of_deap_leave_the_global_generators_alone() -> None:
    state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()
    optimizer = make(
        mate={"name": "cxBlend", "alpha": 0.2}, mutate="mutGaussian", select={"name": "selTournament", "tournsize": 3}
    )
    points = create_optimizer("random", CUBE, seed=5).ask(20, [])
    optimizer.tell([(p, sphere(p)) for p in points])
    asked = optimizer.ask(6, [])
    assert asked == optimizer.ask(6, [])
    for p in asked:
        CUBE.canonical(p)
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == numpy_state


def test_default_population() -> None:
    assert [default_population(trials) for trials in (None, 10, 96, 300, 5000)] == [8] * 5
    assert [default_population(trials, 2) for trials in (None, 10, 96, 300, 5000)] == [20, 8, 16, 50, 100]


def test_a_stopped_trial_is_a_parent_but_never_elite() -> None:
    optimizer = make(population=4, elite=0.5)
    told = [(point(0.1), 3.0), (point(0.2), 1.0), (point(0.3), -9.0, None, True), (point(0.4), 2.0)]
    optimizer.tell(told)
    # two elite, then the newest: the stopped one with no better a value than the best finished one
    assert [parent.fitness.values[0] for parent in optimizer.parents()] == [1.0, 2.0, 1.0, 3.0]
    optimizer.tell([(point(0.3), -2.0)])  # it ran in full after all
    assert optimizer.parents()[0].fitness.values[0] == -2.0


def noisy(std: float | None, newest: float) -> EvolutionaryOptimizer:
    optimizer = make(population=2, elite=0.5)
    optimizer.tell([(point(0.0), -1.0, std)])
    optimizer.tell([(point(i / 100), newest + i / 1000, std) for i in range(1, 30)])
    return optimizer


@pytest.mark.parametrize(
    ("std", "best"),
    [
        (None, -1.0),
        (0.0, -1.0),
        (0.4, -1.0),  # ahead of all newer ones (the last 16) by 1.1, more than two standard errors: no luck
        (0.6, 0.114),
    ],
)
def test_a_lucky_value_is_not_elite_for_ever(std: float | None, best: float) -> None:
    assert noisy(std, 0.1).parents()[0].fitness.values[0] == pytest.approx(best)


def test_values_told_again_do_not_overflow() -> None:
    optimizer = make(population=3)
    optimizer.tell([(point(0.1), 1.7e308), (point(0.1), -1.7e308), (point(0.2), 0.0), (point(0.1), 1.7e308)])
    assert all(np.isfinite(parent.fitness.values[0]) for parent in optimizer.parents())


def test_the_best_of_earlier_searches_are_among_the_founders() -> None:
    optimizer = make(population=8)
    optimizer.tell_earlier("old", [(point(i / 50), abs(i / 50 - 0.3)) for i in range(50)])
    optimizer.tell_earlier("other", [({"y": 1.0}, -5.0), (point(0.9), -9.0, None, True), (point(7.0), -9.0)])
    first = optimizer.ask(8, [])
    assert first[:2] == [point(0.3), point(0.32)] or first[:2] == [point(0.3), point(0.28)]
    plain = make(population=8)
    assert all(p not in first[2:] for p in first[:2])
    optimizer.tell([(p, sphere(p)) for p in first])
    assert len(optimizer.parents()) == 8  # the old values are not of this search
    assert all(p in plain.ask(8, []) for p in first[2:])


# --- the recipe's formulas, against numbers worked out by hand ---


TWO = SearchSpace.from_dict({"x": REAL, "y": REAL})


class Scripted(random.Random):
    """A generator that returns the numbers it is given."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


@pytest.mark.parametrize(
    ("fitter", "other", "r", "child"),
    [(0.6, 0.2, 0.5, 0.8), (0.2, 0.6, 0.5, 0.0), (0.5, 0.5, 0.9, 0.5), (0.7, 0.1, 0.0, 0.7), (0.9, 0.5, 1.0, 1.3)],
)
def test_crossover_formula(fitter: float, other: float, r: float, child: float) -> None:
    assert crossed(fitter, other, r) == pytest.approx(child)


@pytest.mark.parametrize(
    ("r1", "progress", "share"),
    [
        (0.25, 0.0, 0.75),  # 1 - 0.25^1
        (0.25, 0.5, 1 - 0.25**0.125),  # (1/2)^3 = 1/8
        (0.0625, 1 - 0.5, 0.2928932188),  # 0.0625^(1/8) = 2^-0.5
        (0.3, 1.0, 0.0),  # r^0 = 1
        (0.0, 0.5, 1.0),
    ],
)
def test_mutation_share(r1: float, progress: float, share: float) -> None:
    assert mutation_share(r1, progress) == pytest.approx(share)


@pytest.mark.parametrize(
    ("r2", "expected"), [(0.9, 0.4 + 0.75 * 0.6), (0.51, 0.85), (0.5, 0.4 - 0.75 * 0.4), (0.1, 0.1)]
)
def test_mutation_goes_up_only_where_r2_is_above_a_half(r2: float, expected: float) -> None:
    assert mutated(0.4, 0.25, r2, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize("values", [(-2.0, -1.0), (0.0, 1.0), (-1.0, 0.0), (1e-300, 1e300)])
def test_the_fitter_parent_leads_whatever_the_sign(values: tuple[float, float]) -> None:
    low, high = values
    for first, second in (((0.5, 0.3), (0.3, 0.5)), ((0.3, 0.5), (0.5, 0.3))):
        parents = {first: low, second: high}
        a, b = (Individual(genes, (True, True), value) for genes, value in parents.items())
        for one, other in ((a, b), (b, a)):
            child = Individual(one, one.active)
            child.fitness = one.fitness
            heuristic_crossover(child, other, space=TWO, rng=Scripted(0.5, 0.25))
            assert child == pytest.approx([crossed(first[0], second[0], 0.5), crossed(first[1], second[1], 0.25)])


@pytest.mark.parametrize(
    ("place", "folded"), [(0.3, 0.3), (1.2, 0.8), (-0.2, 0.2), (2.3, 0.3), (-1.4, 0.6), (1.0, 1.0)]
)
def test_reflected(place: float, folded: float) -> None:
    assert reflected(place) == pytest.approx(folded)


def test_a_child_beyond_a_bound_is_folded_back() -> None:
    a, b = Individual((0.9, 0.1), (True, True), 0.0), Individual((0.5, 0.5), (True, True), 1.0)
    heuristic_crossover(a, b, space=TWO, rng=Scripted(0.5, 0.5))
    assert a == pytest.approx([0.9, 0.1])  # 1.1 and -0.1, folded


def test_categories_and_inactive_genes() -> None:
    space = SearchSpace.from_dict(
        {"c": {"type": "categorical", "choices": ["a", "b", "c"]}, "x": {**REAL, "when": {"c": "a"}}}
    )
    a, b = Individual((0.1, 0.3), (True, True), 0.0), Individual((0.9, 0.5), (True, False), 1.0)

    def child_of(one: Individual, other: Individual, *numbers: float) -> list[float]:
        child = Individual(one, one.active)
        child.fitness = one.fitness
        heuristic_crossover(child, other, space=space, rng=Scripted(*numbers))
        return list(child)

    assert child_of(a, b, 0.74, 0.6) == [0.1, 0.3]  # the fitter's category; x from the one that has it
    assert child_of(a, b, 0.76, 0.6) == [0.9, 0.3]
    assert child_of(b, b, 0.5, 0.6) == [0.9, 0.6]  # neither has x: drawn


def test_mutation_of_an_individual() -> None:
    space = SearchSpace.from_dict({"x": REAL, "y": REAL, "c": {"type": "categorical", "choices": ["a", "b", "c"]}})

    def mutant(*numbers: float, progress: float = 0.0) -> list[float]:
        individual = Individual((0.4, 0.4, 0.1), (True, True, True))
        return list(
            non_uniform_mutation(individual, space=space, rng=Scripted(*numbers), progress=progress, probability=0.5)[0]
        )

    # x: chosen, r1 = 0.25, up; y: passed over; c: chosen, drawn afresh because 0.7 is below 1 - 0.25
    assert mutant(0.4, 0.25, 0.9, 0.6, 0.4, 0.25, 0.9, 0.7, 0.66) == pytest.approx([0.85, 0.4, 0.66])
    # c stays because 0.8 is not
    assert mutant(0.6, 0.6, 0.4, 0.25, 0.9, 0.8) == pytest.approx([0.4, 0.4, 0.1])
    # in the last generation nothing moves
    assert mutant(0.4, 0.25, 0.9, 0.4, 0.25, 0.9, 0.4, 0.25, 0.9, 0.0, progress=1.0) == pytest.approx([0.4, 0.4, 0.1])


# --- DEAP's operators by name ---


ONE_REAL = SearchSpace.from_dict({"x": REAL})
REAL_AND_CHOICE = SearchSpace.from_dict({"x": REAL, "c": {"type": "categorical", "choices": ["a", "b", "c"]}})


@pytest.mark.parametrize("space", [ONE_REAL, REAL_AND_CHOICE])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in DEAP_OPERATORS for name in DEAP_OPERATORS[kind]])
def test_every_operator_in_spaces_of_one_and_two(kind: str, name: str, space: SearchSpace) -> None:
    optimizer = create_optimizer("evolutionary", space, settings={"population": 4, kind: name}, trials=24)
    for _ in range(3):
        points = optimizer.ask(4, [])
        for point in points:
            space.canonical(point)
        optimizer.tell([(point, point["x"]) for point in points])


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("select", {"name": "selTournament", "tournsize": 0}),
        ("select", {"name": "selTournament", "tournsize": "two"}),
        ("mate", {"name": "cxBlend", "alpha": "wide"}),
        ("mate", {"name": "cxSimulatedBinary", "eta": -1.0}),
        ("mutate", {"name": "mutGaussian", "sigma": None}),
        ("mutate", {"name": "mutGaussian", "mu": float("nan"), "indpb": 1.0}),
        ("mutate", {"name": "mutPolynomialBounded", "low": [0.0]}),
    ],
)
def test_wrong_values_are_refused(kind: str, operator: dict[str, Any]) -> None:
    state = random.getstate()
    with pytest.raises(InputError, match=operator["name"]):
        create_optimizer("evolutionary", REAL_AND_CHOICE, settings={kind: operator})
    assert random.getstate() == state
