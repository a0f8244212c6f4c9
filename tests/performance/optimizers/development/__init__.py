"""Random problems to develop on, so that nobody tunes to those of the table: kinds by name, instances by number."""

from __future__ import annotations

import numpy as np

from tests.performance.optimizers.development.kinds import KINDS
from tests.performance.optimizers.problem import Problem

__all__ = ["KINDS", "development_problem"]


def development_problem(kind: str, instance: int) -> Problem:
    """The problem of this kind and number: always the same one.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    name = f"dev:{kind}:{instance}"
    return KINDS[kind](name, np.random.default_rng([instance, *name.encode()]))
