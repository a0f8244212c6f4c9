"""The rules of `auto`, apart from what they set to work, so that a report can state them."""

from __future__ import annotations

#: The model is asked alone until there are so many results: what it has learnt by then is worth more than anything an
#: evolution does with the same results, in narrow batches and in wide ones. Later its hyper-parameters and its
#: posterior rest on a choice of the results, and an evolution that uses all of them goes on where it stalls.
ALONE = 1_000

#: In more dimensions than this the model sees little; there the evolution has its half from the start.
MANY_DIMENSIONS = 50


def rules(dimensions: int, objectives: int) -> str:
    """What `auto` does in a space of that many dimensions, in words, for a report."""
    evolution = "cma" if objectives == 1 else "evolutionary (NSGA-II)"
    if dimensions > MANY_DIMENSIONS:
        return f"more than {MANY_DIMENSIONS} dimensions: every other point by bayesian, the others by {evolution}"
    return f"bayesian; from {ALONE:,} results on every other point by {evolution}"
