from __future__ import annotations

import random
import statistics
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.evolutionary import EvolutionaryOptimizer
from hpo_pilot.optimizers.phase import default_population
from tests.optimizers.runs import CUBE, best, run, sphere


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
