"""Every kind of dimension: the way to the unit interval and back, values, grids, refusals."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpo_pilot.search import Categorical, Integer, Ordinal, Real
from hpo_pilot.search.mistakes import mistakes_of
from hpo_pilot.search.parameters import Domain

UNIT = st.floats(0, 1)
BOUND = st.floats(-1e12, 1e12, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-12)


def refused(model: type[Domain], **fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        model(**fields)
    return "; ".join(str(mistake) for mistake in mistakes_of(caught.value, fields, model))


@st.composite
def reals(draw: st.DrawFn) -> Real:
    low, high = sorted((draw(BOUND), draw(BOUND)))
    assume(high - low > 1e-9 * max(abs(low), abs(high), 1e-9))
    if low > 0 and draw(st.booleans()):
        return Real(low=low, high=high, scale="log")
    return Real(low=low, high=high)


@st.composite
def stepped(draw: st.DrawFn) -> Real:
    decimals = draw(st.integers(0, 6))
    low = draw(st.integers(-1000, 1000)) / 10**decimals
    step = draw(st.integers(1, 1000)) / 10**decimals
    return Real(low=low, high=low + step * draw(st.integers(1, 500)), step=step)


@st.composite
def integers(draw: st.DrawFn) -> Integer:
    low, high = sorted((draw(st.integers(-(10**9), 10**9)), draw(st.integers(-(10**9), 10**9))))
    assume(low < high)
    if low > 0 and draw(st.booleans()):
        return Integer(low=low, high=high, scale="log")
    return Integer(low=low, high=high, step=draw(st.integers(1, high - low)))


CHOICES = st.lists(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    min_size=1,
    max_size=9,
    unique_by=json.dumps,
)
ANY = reals() | stepped() | integers() | st.builds(Categorical, choices=CHOICES) | st.builds(Ordinal, choices=CHOICES)


@given(ANY, UNIT)
def test_every_unit_number_gives_a_native_value_of_the_domain(dimension: Domain, u: float) -> None:
    value = dimension.from_unit(np.float64(u))
    assert type(value) in (float, int, bool, str, type(None))
    canonical = dimension.canonical(value)
    assert (type(canonical), canonical) == (type(value), value)
    assert json.loads(json.dumps(value)) == value


@given(ANY, UNIT)
def test_encoding_and_decoding_give_the_same_value(dimension: Domain, u: float) -> None:
    value = dimension.from_unit(u)
    place = dimension.to_unit(value)
    assert -1e-9 <= place <= 1 + 1e-9
    again = dimension.from_unit(place)
    if dimension.is_discrete:
        assert json.dumps(again) == json.dumps(value)
    else:
        assert place == pytest.approx(u, abs=1e-6)


@given(ANY, st.integers(1, 30))
def test_grids_are_distinct_values_of_the_domain(dimension: Domain, points: int) -> None:
    values = dimension.grid(points)
    assert values
    assert len({json.dumps(value) for value in values}) == len(values)
    assert [json.dumps(dimension.canonical(value)) for value in values] == [json.dumps(value) for value in values]
    if dimension.size <= points:
        assert len(values) == dimension.size
    elif isinstance(dimension, Real | Integer):
        assert len(values) <= points


@given(st.floats(allow_nan=True, allow_infinity=True), ANY)
def test_numbers_outside_the_unit_interval_are_clipped(u: float, dimension: Domain) -> None:
    dimension.canonical(dimension.from_unit(u))


def test_numbers_of_numpy_are_choices_too() -> None:
    dimension = Ordinal(choices=[False, 16, 0.5])
    for value, choice in ((np.int64(16), 16), (np.float32(0.5), 0.5), (np.bool_(False), False)):
        assert dimension.canonical(value) is dimension.choices[dimension.choices.index(choice)]
    with pytest.raises(ValueError, match="must be"):
        dimension.canonical(np.array([16, 16]))


@pytest.mark.parametrize("value", [None, True, "0.5", float("nan"), float("inf"), -1, 2, 10**400, [0.5], {}])
@pytest.mark.parametrize("dimension", [Real(low=0, high=1), Real(low=0, high=1, step=0.25), Integer(low=0, high=1)])
def test_values_outside_are_refused_with_the_bounds(dimension: Domain, value: Any) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1"):
        dimension.canonical(value)


def test_real_ends_are_exact_on_both_scales() -> None:
    for scale in ("linear", "log"):
        dimension = Real(low=1e-4, high=0.1, scale=scale)
        assert (dimension.from_unit(0), dimension.from_unit(1)) == (1e-4, 0.1)
        assert dimension.grid(4)[0] == 1e-4
        assert dimension.grid(4)[-1] == 0.1
        assert len(dimension.grid(1)) == 1


def test_log_scale_is_even_over_orders_of_magnitude() -> None:
    assert Real(low=1e-4, high=1, scale="log").from_unit(0.5) == pytest.approx(1e-2)
    assert Real(low=1e-4, high=1, scale="log").to_unit(1e-3) == pytest.approx(0.25)


def test_a_stepped_real_takes_the_decimals_that_were_written() -> None:
    dimension = Real(low=-0.3, high=0.3, step=0.1)
    assert dimension.grid(7) == [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]
    assert [math.copysign(1, value) for value in dimension.grid(7)] == [-1, -1, -1, 1, 1, 1, 1]
    assert dimension.canonical(0.1 + 0.2 - 0.2) == 0.1
    assert Real(low=0, high=0.5, step=0.05).from_unit(0.3) == 0.15
    assert Real(low=0, high=1, step=0.3).size == 4
    assert json.dumps(Real(low=-1, high=1).canonical(-0.0)) == "0.0"


def test_a_tiny_step_is_still_a_step() -> None:
    """A tolerance that was absolute let every value of a small range through."""
    dimension = Real(low=1e-10, high=1e-9, step=1e-10)
    assert dimension.size == 10
    assert dimension.canonical(3e-10) == 3e-10
    with pytest.raises(ValueError, match="multiple of 1e-10"):
        dimension.canonical(3.5e-10)


def test_integers() -> None:
    dimension = Integer(low=1, high=10, step=3)
    assert dimension.grid(99) == [1, 4, 7, 10]
    assert dimension.canonical(4.0) == 4
    assert dimension.canonical(np.int64(7)) == 7
    assert type(dimension.canonical(np.int64(7))) is int
    for wrong in (5, 4.5, 11):
        with pytest.raises(ValueError, match="must be"):
            dimension.canonical(wrong)


def test_a_log_integer_grid_has_all_values_if_there_is_room() -> None:
    """Rounding on the log scale used to drop some, so that a finite space lost points."""
    assert Integer(low=1, high=10, scale="log").grid(10) == list(range(1, 11))
    assert Integer(low=1, high=512, scale="log").grid(4) == [1, 8, 64, 512]


def test_a_log_integer_gives_its_ends_their_share() -> None:
    values = [Integer(low=1, high=4, scale="log").from_unit((i + 0.5) / 1000) for i in range(1000)]
    assert {1, 2, 3, 4} == set(values)
    assert values.count(1) > 300


def test_choices_keep_their_types() -> None:
    dimension = Categorical(choices=[1, True, "1", 1.0, None])
    assert [type(dimension.canonical(v)) for v in dimension.choices] == [int, bool, str, float, type(None)]
    assert [dimension.to_unit(v) for v in (1, True, "1", 1.0, None)] == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert not dimension.is_ordered
    assert Ordinal(choices=[1, 2]).is_ordered


def test_a_whole_float_choice_is_met_by_the_integer() -> None:
    assert repr(Ordinal(choices=[32.0, 64.0]).canonical(32)) == "32.0"
    with pytest.raises(ValueError, match="must be 32 or 64, not true"):
        Ordinal(choices=[32, 64]).canonical(True)


@pytest.mark.parametrize("value", [[1], {}, object(), 3, "2"])
def test_what_is_no_choice_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be 1 or 2, not"):
        Categorical(choices=[1, 2]).canonical(value)


@pytest.mark.parametrize(
    ("model", "fields", "text"),
    [
        (Real, {"low": 1, "high": 0}, "low: low (1) must be below high (0) — swap the two?"),
        (Real, {"low": 1, "high": 1}, "low: low and high are both 1"),
        (Real, {"low": 0, "high": 1, "scale": "log"}, "low: a log scale needs low above 0, not 0"),
        (Real, {"low": 0, "high": 1, "step": 0}, "step: must be above 0, not 0"),
        (Real, {"low": 0, "high": 1, "step": 2}, "step: 2 is larger than high - low, which is 1"),
        (Real, {"low": 1, "high": 2, "step": 0.5, "scale": "log"}, "step: cannot be combined with scale: log"),
        (Real, {"low": 1e6, "high": 1e6 + 1, "step": 1e-7}, "step: 1e-07 is too small beside the bounds"),
        (Real, {"low": -1e308, "high": 1e308}, "low: high - low is larger than the largest float"),
        (Real, {"low": float("nan"), "high": 1}, "low: must be a finite number, not nan"),
        (Real, {"low": True, "high": 2}, "low: must be a number, not true"),
        (Integer, {"low": 0, "high": 10**400}, "high: must be within ±2^53"),
        (Integer, {"low": 0.5, "high": 3}, "low: must be a whole number, not 0.5"),
        (Integer, {"low": 0, "high": 3, "step": -1}, "step: must be above 0, not -1"),
        (Categorical, {"choices": []}, "choices: is empty"),
        (Categorical, {"choices": [1, 2, 1]}, "choices[2]: 1 is listed twice"),
        (Categorical, {"choices": [float("inf")]}, "choices[0]: must be finite, not inf"),
        (Categorical, {"choices": [[1]]}, "choices[0]: must be a single value, not a list"),
        (Ordinal, {"choices": [1], "values": 3}, "values: is not a key that is known here"),
    ],
)
def test_wrong_domains_are_refused_with_the_key(model: type[Domain], fields: dict[str, Any], text: str) -> None:
    assert text in refused(model, **fields)
