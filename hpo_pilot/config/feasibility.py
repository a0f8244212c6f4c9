"""Whether any point satisfies the constraints of a space: millions are tried before a search file is refused."""

from __future__ import annotations

from hpo_pilot.search import Misfit, SearchSpace
from hpo_pilot.search.feasibility import feasibility_misfits


def infeasible_misfits(space: SearchSpace) -> list[Misfit]:
    """What makes the space infeasible; nothing where a feasible point was found, as the optimizers look for them.

    A share of 0.001% of the space is found, in a second or less; for the culprit fewer points are tried, one by one.
    """
    if not space.constraints:
        return []
    from hpo_pilot.optimizers.feasible_region import feasible_region  # noqa: PLC0415 - numpy takes its time to load

    return [] if feasible_region(space).share > 0.0 else feasibility_misfits(space)
