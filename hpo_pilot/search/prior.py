"""The user's belief on where good values of a hyper-parameter are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from hpo_pilot.search.fields import Amount, Scalar, Section
from hpo_pilot.search.mistakes import Mistake, did_you_mean
from hpo_pilot.search.parameters import Categorical, Dimension, Integer, Ordinal, Real
from hpo_pilot.search.values import show


class Prior(Section):
    """A belief on one hyper-parameter: the best value is `around` a value."""

    around: Scalar = Field(description="The value that is probably good.")
    within: Amount | None = Field(
        None,
        description="The best value is probably not farther from it than this: a factor on a log scale, a difference "
        "on a linear one, a number of choices for ordinal parameters. Not for categorical ones.",
    )


def deviation(dimension: Dimension, prior: Prior) -> float:
    """Returns `within` on the unit interval of the dimension, at least half the share of a discrete value."""
    within = prior.within or 0.0
    if isinstance(dimension, Categorical | Ordinal):
        width = within / dimension.size
    else:
        value = float(prior.around)  # type: ignore[arg-type]  # it was checked: a number
        far = value * within if dimension.scale == "log" else value + within
        width = dimension.to_unit(far) - dimension.to_unit(value)
    return max(width, 0.5 / dimension.size, 1e-6)


def prior_mistakes(dimensions: Mapping[str, Dimension], prior: Mapping[str, Prior]) -> Iterator[Mistake]:
    """Yields beliefs that do not suit their parameters; paths start at a parameter's name."""
    for name, belief in prior.items():
        dimension = dimensions.get(name)
        if dimension is None:
            hint = did_you_mean(name, dimensions)
            yield Mistake((name,), "is not a parameter of the space", hint, at_key=True)
            continue
        try:
            dimension.canonical(belief.around)
        except ValueError as error:
            yield Mistake((name, "around"), str(error))
        if isinstance(dimension, Categorical):
            if belief.within is not None:
                yield Mistake((name, "within"), "has no meaning for choices without an order", "leave it out")
        elif belief.within is None:
            yield Mistake((name, "within"), "is missing", _hint(dimension))
        elif isinstance(dimension, Real | Integer) and dimension.scale == "log" and belief.within <= 1:
            message = f"is a factor on a log scale, and must be above 1, not {show(belief.within)}"
            yield Mistake((name, "within"), message, _hint(dimension))


def _hint(dimension: Dimension) -> str:
    """Returns an example of `within`."""
    if isinstance(dimension, Real | Integer):
        is_log = dimension.scale == "log"
        return "as in within: 10, a factor" if is_log else f"as in within: {(dimension.high - dimension.low) / 10:.3g}"
    return "as in within: 1, the neighbours of this choice"
