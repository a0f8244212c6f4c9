"""The recipe's formulas against numbers worked out by hand."""

from __future__ import annotations

import random

import pytest

from hpo_pilot.optimizers.evolutionary import (
    Individual,
    crossed,
    heuristic_crossover,
    mutated,
    mutation_share,
    non_uniform_mutation,
)
from hpo_pilot.search import SearchSpace

REAL = {"type": "real", "low": 0, "high": 1}
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
    ("r2", "expected"),
    [(0.9, 0.4 + 0.75 * 0.6), (0.51, 0.85), (0.5, 0.4 - 0.75 * 0.4), (0.1, 0.1)],
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
