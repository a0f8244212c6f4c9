"""What `hpo_pilot.optimizers.base.Optimizer` promises, on spaces and results that hypothesis makes up."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import optimizer_class
from hpo_pilot.testing.optimizers import check_points, space_of

from .optimizers_here import SLOW, make, names_here

pytestmark = pytest.mark.parametrize("name", names_here())


def ranged(
    kind: str, lows: st.SearchStrategy[float], spans: st.SearchStrategy[float]
) -> st.SearchStrategy[dict[str, Any]]:
    """Dimensions between two numbers."""
    return st.builds(
        lambda low, span, log: {"type": kind, "low": low, "high": low + span, "scale": "log" if log else "linear"},
        lows,
        spans,
        st.booleans(),
    )


@st.composite
def dimensions(draw: st.DrawFn) -> dict[str, Any]:
    kinds = {
        "real": ranged("real", st.floats(1e-3, 10), st.floats(1e-2, 100)),
        "integer": ranged("integer", st.integers(1, 5), st.integers(1, 20)),
        "stepped": st.builds(
            lambda low, step, count: {"type": "real", "low": low, "high": low + step * count, "step": step},
            st.integers(-3, 3),
            st.sampled_from([0.1, 0.25, 1.0]),
            st.integers(1, 6),
        ),
        "choice": st.builds(
            lambda kind, choices: {"type": kind, "choices": choices},
            st.sampled_from(["categorical", "ordinal"]),
            st.lists(
                st.sampled_from([0, 1, 2.5, True, False, "a", "1", None, 1.0]), min_size=1, max_size=4, unique_by=repr
            ),
        ),
    }
    space = {f"p{i}": dict(draw(kinds[draw(st.sampled_from(list(kinds)))])) for i in range(draw(st.integers(1, 4)))}
    parents = [n for n, d in space.items() if "choices" in d]
    for child, dimension in space.items():
        if parents and child > parents[0] and draw(st.booleans()):
            dimension["when"] = {parents[0]: draw(st.sampled_from(space[parents[0]]["choices"]))}
    return space


@st.composite
def constraint(draw: st.DrawFn, dimensions: dict[str, Any]) -> str:
    """One that some of the space satisfies, or nothing."""
    space = space_of(dimensions)
    point = space.decode([draw(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9])) for _ in dimensions])
    name = draw(st.sampled_from(list(point)))
    value = point[name]
    if isinstance(value, int | float) and "choices" not in dimensions[name]:
        other = draw(st.sampled_from([n for n in point if "choices" not in dimensions[n]]))
        return draw(st.sampled_from([f"{name} <= {value!r}", f"{name} + {other} >= {value!r} + {point[other]!r}"]))
    return draw(st.sampled_from([f"{name} != {value!r}", f"{name} in [{value!r}]", f"{name} == {value!r} or 1 < 2"]))


#: The deeper look: HPO_PILOT_EXAMPLES=500 .venv/bin/pytest tests/contracts/test_random_spaces.py
EXAMPLES = int(os.environ.get("HPO_PILOT_EXAMPLES", "12"))

ANY_VALUE = st.one_of(st.none(), st.floats(), st.floats(-2, 2), st.integers(-2, 2), st.sampled_from([1e300, 5e-324]))


@settings(max_examples=EXAMPLES)
@given(dimensions=dimensions(), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_random_spaces(name: str, dimensions: dict[str, Any], seed: int, data: st.DataObject) -> None:
    """Points are valid, never repeated, native and the same each time, whatever is told, pending and constrained."""
    constraints = data.draw(st.lists(constraint(dimensions), max_size=2))
    objectives = data.draw(st.integers(1, 2)) if optimizer_class(name).several_objectives else 1
    space = space_of(dimensions, *constraints)
    optimizer, twin = (make(name, space, seed, objectives=objectives) for _ in range(2))
    seen: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    for _ in range(3 if name in SLOW else 5):
        count = data.draw(st.integers(1, 5))
        try:
            asked = optimizer.ask(count, pending)
        except ExhaustedError:
            finite = math.isfinite(space.size)
            assert name == "grid" or not finite or len(seen) == len(list(space.all_points()))
            with pytest.raises(ExhaustedError):
                twin.ask(1, pending)
            return
        assert asked == twin.ask(count, [*reversed(pending)]) == optimizer.ask(count, pending)
        check_points(space, asked, seen)
        seen += asked
        pending += asked
        over = data.draw(st.permutations(range(len(pending))))[: data.draw(st.integers(0, len(pending)))]
        told = [(pending[index], *data.draw(outcome(objectives)), data.draw(st.booleans())) for index in over]
        pending = [point for index, point in enumerate(pending) if index not in over]
        optimizer.tell(told)
        for trial in told:
            twin.tell([trial])


def outcome(objectives: int) -> st.SearchStrategy[tuple[Any, Any]]:
    """A value and its standard error."""
    error = st.one_of(st.none(), st.floats(0, 1))
    if objectives == 1:
        return st.tuples(ANY_VALUE, error)
    several = st.tuples(*[ANY_VALUE] * objectives)
    return st.tuples(st.one_of(st.none(), several), st.one_of(st.none(), st.tuples(*[error] * objectives)))
