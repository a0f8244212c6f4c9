from __future__ import annotations

import math

import numpy as np
import pytest
from deap import tools

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.evolutionary import CrowdedPopulation, EvolutionaryOptimizer, Individual, crowded_fitness
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.nondominated import costs_of, crowding, front, hypervolume, ranked, ranks

ROWS = [(1.0, 4.0), (2.0, 2.0), (4.0, 1.0), (2.0, 3.0), (4.0, 4.0), (2.0, 2.0)]


def test_fronts_and_ranks_by_hand() -> None:
    costs = costs_of(ROWS)
    assert front(costs) == [0, 1, 2, 5]
    assert ranks(costs) == [0, 0, 0, 1, 2, 0]
    assert front(costs_of([])) == ranks(costs_of([])) == []


def test_crowding_by_hand() -> None:
    # The middle one has neighbours 3 apart in a range of 3, in both costs: (1 + 1) / 2.
    assert crowding(costs_of([(1, 4), (2, 2), (4, 1)])) == [math.inf, 1.0, math.inf]
    assert ranked(costs_of([(1, 4), (2, 2), (4, 1), (2, 3)])) == [0, 2, 1, 3]
    assert not np.isnan(crowding(costs_of([(1e308, -1e308), (-1e308, 1e308), (0, 0)]))).any()


def test_hypervolume_by_hand() -> None:
    # Slabs under the staircase (1,4) (2,2) (4,1) up to (5,5): 4x1 + 3x2 + 1x1.
    assert hypervolume(costs_of(ROWS), (5.0, 5.0)) == pytest.approx(4 + 6 + 1)
    assert hypervolume(costs_of([(6.0, 0.0)]), (5.0, 5.0)) == 0.0
    assert hypervolume(costs_of([]), (5.0, 5.0)) == 0.0
    assert math.isfinite(hypervolume(costs_of([(-1e300, -1e300)]), (1e300, 1e300)))


def individual(costs: list[float]) -> Individual:
    made = Individual([0.5], [True])
    made.fitness = crowded_fitness(len(costs))(costs)
    return made


def test_the_population_is_nsga2s() -> None:
    rng = np.random.default_rng(5)
    everyone = [individual(row) for row in rng.random((12, 2)).tolist()]
    crowd = CrowdedPopulation(6)
    for one in everyone:
        crowd.add(one)
    assert {id(i) for i in crowd.parents()} == {id(i) for i in tools.selNSGA2(tools.selNSGA2(everyone, 6), 6)}
    for one in everyone:  # their crowding before this is forgotten
        one.fitness.rank = 9
    chosen = crowd.parents()
    assert chosen[0].fitness.rank == 0
    first, last = chosen[0].fitness, chosen[-1].fitness
    assert first >= last
    assert not first < last


def test_costs_as_far_apart_as_floats_can_be_are_selected_like_others() -> None:
    rows = np.random.default_rng(7).permutation(np.linspace(-1.0, 1.0, 41))
    chosen = []
    for scale in (1.0, 1.7976931348623157e308):
        crowd = CrowdedPopulation(6)
        for x in rows.tolist():
            crowd.add(individual([scale * x, -scale * x]))
        parents = crowd.parents()
        assert not any(math.isnan(parent.fitness.crowding_dist) for parent in parents)
        chosen.append([parent.fitness.values[0] / scale for parent in parents])
    assert chosen[0] == pytest.approx(chosen[1])


def test_stopped_trials_are_no_parents_and_repeats_are_averaged() -> None:
    space = SearchSpace.from_dict({"x": {"type": "real", "low": 0, "high": 1}})
    optimizer = create_optimizer("evolutionary", space, objectives=2, settings={"population": 4})
    assert isinstance(optimizer, EvolutionaryOptimizer)
    optimizer.tell([({"x": 0.1}, (1.0, 2.0)), ({"x": 0.2}, (0.0, 0.0), None, True), ({"x": 0.3}, (2.0, 1.0))])
    optimizer.tell([({"x": 0.1}, (3.0, 4.0)), ({"x": 0.4}, (5.0, None))])
    assert sorted(tuple(parent.fitness.values) for parent in optimizer.parents()) == [(2.0, 1.0), (2.0, 3.0)]
