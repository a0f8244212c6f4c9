"""How large a population is, apart from the evolution itself, so that pages can state it without loading DEAP."""

from __future__ import annotations

#: One objective: few parents, whatever the budget and the batch. Of 6 to 43, 6 and 8 were best with 256 and 512 trials
#: in batches of 8, and of 6 to 20 with 512 in batches of 64 (15 problems, 5 seeds each); about a twelfth of the budget
#: had 1.5 times the regret with 256 and 2.9 times with 512 trials. With 96, told one by one, 5 was as good as 6.
_POPULATION = 8

#: Several objectives: the population is the front, and a budget is spent in about this many generations.
#: (With 96 trials, four problems and 20 seeds, sixteen of a population found more than eight, twelve or twenty-four.)
_GENERATIONS = 6
_LEAST_FRONT, _MOST_FRONT = 8, 100
_FRONT_WITHOUT_BUDGET = 20


def default_population(trials: int | None, objectives: int = 1) -> int:
    """The population for a budget of `trials`."""
    if objectives == 1:
        return _POPULATION
    if trials is None:
        return _FRONT_WITHOUT_BUDGET
    return min(_MOST_FRONT, max(_LEAST_FRONT, round(trials / _GENERATIONS)))
